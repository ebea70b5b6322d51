"""What is measured between GPUs, and what waits meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tasks.operations.topology import undisturbed
from tests.bin.tools import GIVE_UP_S, eventually

SYSTEMCTL = """#!/bin/sh
echo "$1" >>"$TOLD"
"""
ALL = ["is-active", "freeze", "measure", "thaw"]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of systemctl's, one a line; one of these is the measurement."""
    tool = tmp_path / "systemctl"
    tool.write_text(SYSTEMCTL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    return tmp_path / "told"


@pytest.mark.parametrize("status", [0, 3])
def test_kernels_wait_while_it_measures_and_go_on_whatever_became_of_it(told: Path, status: int) -> None:
    ran = subprocess.run(["sh", "-c", undisturbed(f"systemctl measure; (exit {status})")], timeout=GIVE_UP_S)
    assert (ran.returncode, told.read_text().split()) == (status, ALL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_kernels_go_on_where_the_run_is_ended_meanwhile(told: Path, number: signal.Signals) -> None:
    command = undisturbed("systemctl measure; sleep 600")
    running = subprocess.Popen(["sh", "-c", command], start_new_session=True)
    try:
        eventually(lambda: told.exists() and "measure" in told.read_text(), "it measures")
        os.killpg(running.pid, number)
        running.wait(GIVE_UP_S)
    finally:
        running.kill()
        running.wait()
    assert told.read_text().split() == ALL
