"""The release's environments: uv, build, repair, overlays, and the pointer that makes it current."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, StringCommand, operation

from tasks.operations.following import pass_checks, run_and_log, say
from tasks.plan.release import damage

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def uv(environment: str, python: str, lock: str, sources: Sequence[str], installed: bool) -> Commands:
    """The package installer, pinned and hashed, in an environment of its own; sources: pip's options."""
    if installed:
        host.noop("uv is installed")
        return
    path = shlex.quote(environment)
    yield StringCommand(f"python{python} -m venv --clear {path}")
    pip = f"{path}/bin/python -m pip install -q --disable-pip-version-check --require-hashes --only-binary=:all:"
    alone = "PIP_CONFIG_FILE=/dev/null " if "--no-index" in sources else ""  # no other folder of the host's pip.conf
    yield StringCommand(f"{alone}{pip} {shlex.join(sources)} -r {shlex.quote(lock)}")


@operation()
def built(directory: str, spec: str, tool: str, found: Mapping[str, Any] | None) -> Commands:
    """A release, whole: built when it is not there, repaired where it differs from its lock or record."""
    if found is not None and all(part and part.get("whole") for part in found.values()):
        host.noop(f"{directory} is whole")
        return
    verb = "build" if found is None else "repair"
    for name, part in (found or {}).items():
        for line in damage(part):
            say(host, f"{name}: {line}")
    yield FunctionCommand(run_and_log, [f"{shlex.quote(tool)} {verb} --spec {shlex.quote(spec)}"], {})


@operation()
def current(directory: str, link: str, found: str, checks: Sequence[str]) -> Commands:
    """`current` points at the release, moved in one step after every check has passed."""
    if found == directory:
        host.noop(f"{link} points at {directory}")
        return
    for check in checks:
        yield FunctionCommand(pass_checks, [check], {})
    new = shlex.quote(f"{link}.new")
    yield StringCommand(f"ln -sfnT {shlex.quote(directory)} {new} && mv -fT {new} {shlex.quote(link)}")
