"""A change that fails is taken back, and what a run stopped comes back where that run breaks off.

One of these is played in every run of the tests, the others with make test-faults.
"""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from tests.node.asking import CONFIG, UNITS, answers, out, pids, states
from tests.node.deploying import broken_off, deploy
from tests.node.node import Node
from tests.node.waiting import until

LIMIT = 300.0  # seconds until servers are back, on a machine that does other things meanwhile
PASSED, RESUME = "/var/lib/sglang-pd-playbook/passed.json", "sglang-pd-resume.service"
TAKEN_BACK = "the change failed and is taken back: the service runs as it last passed"
FAILS = '["--tokenizer-path", "/nowhere"]'  # the server's parser takes it, and so does the release's check
long = pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make test-faults")


def files(node: Node) -> str:
    """What the service is started from."""
    listed = "find etc/sglang-pd etc/systemd/system -path '*sglang-pd*' -type f | sort | xargs sha256sum"
    return out(node, f"cd / && {listed} && readlink /opt/sglang-pd/current")


def serves_as_before(node: Node, before: str) -> None:
    assert files(node) == before
    assert answers(node)
    assert out(node, f"systemctl show -p LoadState --value {RESUME}") == "not-found", "nothing waits any more"
    again = deploy(node, "-y")
    assert (again.status, again.changed) == (0, []), again.output


@long
def test_a_change_whose_gate_fails_is_taken_back(served: Node) -> None:
    before = files(served)
    assert out(served, f"stat -c '%a %U' {PASSED}") == "600 root"
    failed = deploy(served, "-y", decode_arguments=FAILS)
    assert failed.status != 0
    why, _, after = failed.output.partition(TAKEN_BACK)
    assert re.search(r"decode: .*(its unit is|exit)", why), failed.output
    assert "not done: rehearsal (failed)" in after, failed.output
    serves_as_before(served, before)


def test_a_change_whose_answers_are_wrong_is_taken_back(served: Node) -> None:
    """A question of one's own with another answer: no server restarts for it, on the way there and back."""
    before, running = files(served), pids(served)
    question = {"name": "own", "prompt": "What is 17*23? Answer with the number only.", "expect": "392"}
    failed = deploy(served, "-y", questions=json.dumps([question]))
    assert failed.status != 0, failed.output
    assert "expected contains '392'" in failed.output and TAKEN_BACK in failed.output, failed.output
    *told, how, command = failed.output.splitlines()
    assert "not done: rehearsal (failed). To go on, once that is mended:" in how and "pyinfra -y" in command
    assert any("serves" in line and "prefill and decode apart" in line and "answers right" in line for line in told)
    assert any("changed" in line and "; taken back, since it failed" in line for line in told)
    assert pids(served) == running
    serves_as_before(served, before)


@long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_what_a_measurement_stopped_comes_back_when_its_run_breaks_off(served: Node, number: signal.Signals) -> None:
    before, running = files(served), pids(served)
    broken_off(served, "drained for the proof", number, after=1, reprove=True)
    until(lambda: states(served) == ["active"] * 3 and answers(served), "it serves again", LIMIT)
    assert not set(pids(served).values()) & set(running.values()), "they were stopped"
    serves_as_before(served, before)


@long
def test_a_run_that_breaks_off_before_the_first_restart_leaves_what_served(served: Node) -> None:
    """Its files are back, so that nothing starts from half a change after a crash; nothing has to stop for it."""
    before, running = files(served), pids(served)
    broken_off(served, "Services | Units that no instance needs", signal.SIGKILL, decode_mem_fraction=0.61)
    until(lambda: out(served, f"systemctl show -p LoadState --value {RESUME}") == "not-found", "it is back", LIMIT)
    assert files(served) == before
    assert pids(served) == running
    serves_as_before(served, before)


@long
def test_a_run_that_breaks_off_between_writing_and_ready_leaves_what_served(served: Node) -> None:
    before = files(served)
    broken_off(served, "decode: starting", signal.SIGKILL, decode_mem_fraction=0.61)
    until(lambda: files(served) == before and states(served) == ["active"] * 3, "what served is back", LIMIT)
    serves_as_before(served, before)


@long
def test_the_next_run_goes_on_although_what_served_is_coming_back(served: Node) -> None:
    broken_off(served, "decode: starting", signal.SIGKILL, decode_mem_fraction=0.62)
    until(lambda: out(served, f"systemctl show -p LoadState --value {RESUME}") == "loaded", "it comes back", LIMIT)
    changed = deploy(served, "-y", decode_mem_fraction=0.63)
    assert changed.status == 0 and "what served before a run that broke off was coming back" in changed.output
    assert "--mem-fraction-static 0.63" in out(served, f"tr '\\n' ' ' <{CONFIG}/decode.sh")
    assert answers(served)
    assert out(served, f"systemctl show -p LoadState --value {RESUME}") == "not-found"
    assert deploy(served, "-y").status == 0


@long
def test_a_layout_that_fails_brings_the_servers_of_the_one_before_back(served: Node) -> None:
    before = files(served)
    failed = deploy(served, "-y", layout="single", server_arguments=FAILS)
    assert failed.status != 0 and TAKEN_BACK in failed.output, failed.output
    assert served.run("ls /etc/systemd/system/sglang-pd-server.service").returncode != 0, "nothing of it is left"
    assert states(served) == ["active"] * len(UNITS)
    serves_as_before(served, before)
