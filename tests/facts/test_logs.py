"""What a run takes of pd-logs, also where that fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tasks.facts.logs import Logs


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("echo all is well", ["all is well"]),
        ("echo pd-logs: journalctl failed >&2; exit 1", ["pd-logs: journalctl failed"]),
        ("echo half; exec sleep 60", ["half", "pd-logs: no answer within 1 s"]),
    ],
)
def test_a_tool_that_fails_says_why(does: str, told: list[str], tmp_path: Path) -> None:
    tool = tmp_path / "pd-logs"
    tool.write_text(f"#!/bin/sh\n{does}\n")
    assert _asked(tool) == [], "as where it is not there: a tool cannot be run"
    tool.chmod(0o755)
    assert _asked(tool) == told


def _asked(tool: Path) -> list[str]:
    command = Logs().command(str(tool), ["sglang-pd-decode.service"], limit=1)
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    return Logs().process(ran.stdout.splitlines())
