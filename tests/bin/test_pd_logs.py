"""pd-logs beside a journalctl that plays along: failures with cause and remedy, in the order of the journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bin.tools import load, run

load("pd-gate")  # its folder is where the module is found from now on
from pd_shared import read_signatures  # noqa: E402

UNIT = "sglang-pd-decode.service"
AT = "2026-12-01T11:00:0{}+0000 gpu-1 python[1]: "


def told(folder: Path, *messages: str, arguments: tuple[str, ...] = (), status: int = 0) -> tuple[int, str]:
    (folder / "journal").write_text("".join(f"{AT.format(n)}{message}\n" for n, message in enumerate(messages)))
    for name, script in {
        "journalctl": f'cat "{folder}/journal"; exit {status}',
        "systemctl": f"printf 'Id={UNIT}\\nActiveState=failed\\nSubState=failed\\nStateChangeTimestamp=Tue 2026-12-01\\n'",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    done = run("pd-logs", UNIT, *arguments, PATH=f"{folder}:/usr/bin:/bin")
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("known", read_signatures(), ids=lambda known: known.name)
def test_each_known_failure_is_told_with_what_to_do(known: object, tmp_path: Path) -> None:
    line = known.lines[0]  # type: ignore[attr-defined]
    status, said = told(tmp_path, "Uvicorn running", line, arguments=("--json",))
    [hit] = json.loads(said)[0]["hits"]
    assert status == 0 and hit["cause"] and hit["remedy"] and "UNIT" not in hit["remedy"]
    assert hit["at"] == "2026-12-01T11:00:01+0000" and line.startswith(hit["line"][:40])


def test_the_last_of_equal_failures_counts_and_known_ones_come_before_others(tmp_path: Path) -> None:
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB."
    _, said = told(tmp_path, memory.format(1), "ValueError: something else", memory.format(2))
    assert "2 GiB" in said and "1 GiB" not in said and "ValueError" not in said
    assert said.splitlines()[0] == f"{UNIT}: failed (failed) since Tue 2026-12-01"
    assert "    to do: " in said


def test_what_no_signature_knows_is_shown_without_a_cause(tmp_path: Path) -> None:
    _, said = told(tmp_path, "ValueError: never seen before")
    assert "ValueError: never seen before" in said and "cause" not in said


def test_a_healthy_journal(tmp_path: Path) -> None:
    waiting = "ERROR http_request{method=GET uri=/readiness} status_code=503: request failed with server error"
    assert told(tmp_path, "Uvicorn running on http://127.0.0.1:30001", waiting)[1] == (
        f"{UNIT}: failed (failed) since Tue 2026-12-01; no failure in its last 2 lines\n"
    )


def test_a_journal_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    status, said = told(tmp_path, "x", status=1)
    assert status == 1 and said.startswith("pd-logs: journalctl: ")


def test_what_the_gate_said_is_told_once(tmp_path: Path) -> None:
    fatal = "[2026-12-01 11:00:00] Scheduler hit an exception: Traceback (most recent call last):"
    _, said = told(
        tmp_path, fatal, "pd-gate: decode: failed: a process of the server died (13 s)", f"pd-gate: decode: log line: {fatal}"
    )  # fmt: skip
    assert said.count("hit an exception") == 1 and "pd-gate: decode: failed: a process" in said
