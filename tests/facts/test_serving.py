"""What a host serves, asked of files and systemd."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tasks.facts.serving import Serving
from tasks.plan.service.paths import PASSED

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="asks as another user: needs root")


def asked(kept: Path, *words: str) -> dict[str, object]:
    command = Serving().command().replace(PASSED, str(kept / "passed.json"))
    ran = subprocess.run([*words, "sh", "-c", command], capture_output=True, text=True, check=True, cwd="/")
    return Serving().process(ran.stdout.splitlines())


def test_who_may_not_look_does_not_say_that_nothing_serves(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    kept = tmp_path / "kept"
    assert asked(kept)["servers"] == [], "where nothing is installed"
    kept.mkdir(mode=0o700)
    (kept / "passed.json").write_text("{}")
    assert asked(kept)["servers"] == []
    assert asked(kept, "runuser", "-u", "nobody", "--") == {}
