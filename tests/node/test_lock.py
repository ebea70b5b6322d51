"""One run at a time: what a second one is told, that it waits, and what becomes of a lock whose run is gone."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.node.asking import out
from tests.node.deploying import command_line, deploy, environment, plain_user, without_plain_user
from tests.node.node import REPOSITORY, Node
from tests.node.waiting import until

HELD, FOLDER, STAMP = "tests/node/held.py", "/run/sglang-pd-run", "/var/lib/sglang-pd-playbook/stamp.json"
GO = "/run/pd-test-go"


def record(node: Node, path: str = f"{FOLDER}/run.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.run(f"cat {path} || echo '{{}}'").stdout)
    return found


def is_held(node: Node) -> bool:
    """Asked as any tool on the host can ask."""
    return node.run(f"[ -e {FOLDER}/lock ] && ! flock -s -n {FOLDER}/lock true").returncode == 0


def is_in(found: dict[str, Any], operation: str) -> bool:
    return operation in found.get("phase", "") and found["ended"] is None


@contextmanager
def running(node: Node, *arguments: str, **data: object) -> Iterator[subprocess.Popen[str]]:
    """A run that has come to its operation and stays there."""
    out(node, f"rm -f {GO} /run/pd-test-after")
    run = subprocess.Popen(
        command_line(*(arguments or ("-y",)), operations=HELD, **data), cwd=REPOSITORY, env=environment(node),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until(lambda: run.poll() is not None or is_in(record(node), "Held"), "it holds on", 120)
        assert run.poll() is None, run.communicate()[0]
        yield run
    finally:
        out(node, f"touch {GO}")
        run.kill()
        run.communicate()


def test_a_second_run_says_who_runs_and_changes_nothing(node: Node) -> None:
    with running(node) as first:
        before = record(node)
        refused = deploy(node, "-y")
        assert refused.status != 0
        (line,) = [line for line in refused.output.splitlines() if "refused:" in line]
        assert f"locked by another run of the playbook: {before['by']}, since {before['since']}, at 'Held'" in line
        assert "--data wait=True" in line and "Traceback" not in refused.output
        assert node.run("test -e /opt/sglang-pd").returncode != 0
        assert record(node) == before and is_held(node)

        dry = deploy(node, "--dry", operations=HELD)
        assert dry.status == 0 and f"a run of the playbook is on here: {before['by']}" in dry.output
        assert is_held(node)

        out(node, f"touch {GO}")
        assert first.wait() == 0
    assert not is_held(node)
    stamp = record(node, STAMP)
    assert (stamp["ended"], stamp["by"]) == ("ended well", before["by"])
    assert out(node, f"stat -c '%a %U' {STAMP} {STAMP.rpartition('/')[0]}").split("\n") == ["600 root", "700 root"]
    assert deploy(node, "--dry", operations=HELD).output.count("ended well") == 1


def test_the_lock_is_held_while_a_run_waits_for_enter(node: Node) -> None:
    ours, theirs = pty.openpty()
    first = subprocess.Popen(
        command_line(operations=HELD), cwd=REPOSITORY, env=environment(node), stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        said = ""
        while "Press enter" not in said:
            said += os.read(ours, 65536).decode(errors="replace")
        refused = deploy(node, "-y", operations=HELD)
        assert refused.status != 0 and "looks at its hosts, or waits for its user" in refused.output, refused.output
        os.write(ours, b"no\n")
        first.wait()
    finally:
        first.kill()
        first.wait()
        os.close(ours)
    assert not is_held(node) and record(node)["ended"] == "changed nothing"


def test_a_run_that_waits_goes_on_by_itself(node: Node) -> None:
    with running(node):
        second = subprocess.Popen(
            command_line("-y", operations=HELD, wait=True), cwd=REPOSITORY, env=environment(node),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert second.stderr is not None
        try:
            said = next(line for line in second.stderr if "waits: " in line)
            assert "rehearsal is locked by another run of the playbook" in said
            out(node, f"touch {GO}")
            assert second.wait() == 0
        finally:
            second.kill()
            second.communicate()


def test_a_lock_whose_run_is_gone_is_taken_over_and_told(node: Node) -> None:
    """Also where sudo asks for a password, and runs commands in a terminal of its own."""
    arguments = ("-y", *plain_user(node, password="not so secret"))
    out(node, "echo 'Defaults use_pty' >>/etc/sudoers.d/plain")
    try:
        with running(node, *arguments) as first:
            since = record(node)["since"]
            first.send_signal(signal.SIGKILL)
            first.wait()
            until(lambda: not is_held(node), "the lock is free", 60)
        assert record(node)["ended"] == record(node, STAMP)["ended"] == "lost"
        next_run = deploy(node, *arguments, operations=HELD)
        assert next_run.status == 0, next_run.output
        assert (
            f"takes over: a run broke off here without a word: {record(node)['by']}, since {since}" in next_run.output
        )
    finally:
        without_plain_user(node)


def test_no_run_begins_while_a_change_is_still_taken_back(node: Node) -> None:
    """The run that began it may be gone, and its lock with it."""
    restoring, unit = f"{FOLDER}/restoring", "pd-test-restoring"
    held = f"exec 9>>{restoring}; flock 9; echo $$$$ >{restoring}; exec sleep infinity"  # systemd makes $$ of it
    out(node, f"mkdir -p -m 700 {FOLDER}; systemd-run -q -u {unit} sh -c '{held}'")
    try:
        until(lambda: out(node, f"cat {restoring}") != "", "it is held", 60)
        refused = deploy(node, "-y", operations=HELD)
        pid = out(node, f"systemctl show -p MainPID --value {unit}")
        assert refused.status != 0 and f"(pid {pid} on the host)" in refused.output, refused.output
        assert "locked by another run of the playbook" in refused.output
    finally:
        out(node, f"systemctl stop {unit}; touch {GO}")
    assert deploy(node, "-y", operations=HELD).status == 0


def test_after_a_reboot_the_stamp_tells(node: Node) -> None:
    with running(node):
        stamp = node.run(f"cat {STAMP}").stdout
        assert json.loads(stamp)["ended"] is None
    out(node, f"rm -r {FOLDER}; cat >{STAMP} <<'END'\n{stamp}END")  # as the power left it
    assert "takes over: a run broke off here without a word" in deploy(node, "-y", operations=HELD).output


def test_a_run_that_lost_its_lock_ends(node: Node) -> None:
    with running(node) as run:
        out(node, f"kill -9 $(cat {FOLDER}/lock)")
        until(lambda: not is_held(node), "the lock is free", 60)
        out(node, f"touch {GO}")
        assert run.stdout is not None
        said = run.stdout.read()
        assert run.wait() != 0
    assert "The run ends here. rehearsal: this run has lost its lock there" in said
    assert node.run("test -e /run/pd-test-after").returncode != 0


def test_an_older_playbook_is_refused(node: Node) -> None:
    assert deploy(node, "-y", operations=HELD).status == 0
    newer = record(node, STAMP) | {"version": "99.0.0", "by": "bob@desk"}
    out(node, f"echo '{json.dumps(newer)}' >{STAMP}")
    for way in ("-y", "--dry"):
        refused = deploy(node, way, operations=HELD)
        assert refused.status != 0 and "is older than the one that ran here last, 99.0.0" in refused.output
        assert "by bob@desk" in refused.output
    assert record(node, STAMP)["version"] == "99.0.0"
    allowed = deploy(node, "-y", operations=HELD, allow_older=True)
    assert allowed.status == 0, allowed.output
    assert record(node, STAMP)["version"] != "99.0.0"


def test_of_two_hosts_a_run_locks_both_or_none(node: Node, bare_node: Callable[..., Node]) -> None:
    other = bare_node()
    before = record(node)
    with running(other):
        ran = subprocess.run(
            command_line("-y", operations=HELD, inventory="tests/node/fleet.py"), cwd=REPOSITORY,
            env={**os.environ, "NODES": f"{node.name},{other.name}"}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True,
        )  # fmt: skip
    assert ran.returncode != 0
    assert f"{other.name} is locked by another run" in ran.stderr and "all of its hosts or none" in ran.stderr
    assert not is_held(node) and record(node) == before
