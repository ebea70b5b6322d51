"""Which playbook this is: its version, and the commit where git knows it."""

from __future__ import annotations

import subprocess
import tomllib

from tasks.plan.run.record import Checkout
from tasks.support.catalogue import ROOT

_GIT = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]  # also in somebody else's checkout: it is only read


def here() -> Checkout:
    """Of a folder without git, or one inside another repository, the version alone."""
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    try:
        asked = [*_GIT, "rev-parse", "--show-toplevel"], [*_GIT, "log", "-1", "--format=%H %ct"]
        top, last = (subprocess.run(one, capture_output=True, text=True, check=True).stdout.strip() for one in asked)
    except (OSError, subprocess.CalledProcessError):
        return Checkout(version)
    commit, _, committed = last.partition(" ")
    return Checkout(version, commit, int(committed)) if top == str(ROOT) else Checkout(version)
