"""pd-passed beside a systemctl that plays along: what is kept comes back as it was, what a change brought goes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bin.tools import BIN, GIVE_UP_S

# Notes what it is asked; `is-active UNIT` is true for UP's units, `start` fails for those of BROKEN.
SYSTEMCTL = """#!/bin/sh
echo "$@" >>"$NOTED"
case $1 in
is-active) case " $UP " in *" $3 "*) exit 0 ;; esac; exit 3 ;;
show) shift 4; echo "Id=$1"; echo ActiveState=active; echo InvocationID=1 ;;
start) for unit; do case " $BROKEN " in *" $unit "*) exit 1 ;; esac; done ;;
esac
"""


@dataclass
class Host:
    folder: Path
    up: str = ""
    broken: str = ""

    def path(self, name: str) -> Path:
        return self.folder / name

    def config(
        self, *files: str, workers: list[str] | None = None, verify: str = "true", router: str = "router.service"
    ) -> None:
        self.path("passed.json").write_text(json.dumps({
            "kept": str(self.path("kept.json")), "files": [str(self.path(name)) for name in files],
            "links": [str(self.path("current"))],
            "quiet": [str(self.path(name)) for name in ("pin", "passed.json")], "workers": ["a.service"] if workers is None else workers, "router": router,
            "target": "all.target", "verify": [verify] if router else [],
        }))  # fmt: skip

    def command(self, *words: object) -> tuple[list[str], dict[str, str]]:
        tools = self.path("bin")
        tools.mkdir(exist_ok=True)
        (tools / "systemctl").write_text(SYSTEMCTL)
        (tools / "systemctl").chmod(0o755)
        command, *more = map(str, words)
        line = [sys.executable, str(BIN / "pd-passed"), command, "--config", str(self.path("passed.json")), *more]
        told = {"PATH": f"{tools}:{os.environ['PATH']}", "UP": self.up, "BROKEN": self.broken}
        return line, {**os.environ, **told, "NOTED": str(self.path("noted"))}

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        line, environment = self.command(*words)
        return subprocess.run(line, env=environment, capture_output=True, text=True)

    def check(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("check", "--unit", "resume.service").stdout)
        return found

    @property
    def asked(self) -> list[str]:
        return self.path("noted").read_text().splitlines()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host that has answered with the files `script` and `key`, and no file `pin`."""
    made = Host(tmp_path)
    made.path("script").write_text("good\n")
    made.path("script").chmod(0o755)
    made.path("key").write_text("secret\n")
    made.path("key").chmod(0o640)
    made.path("current").symlink_to("releases/old")
    made.config("script", "key", "pin", "passed.json")
    assert made.run("keep").returncode == 0
    return made


def test_what_is_kept_is_readable_by_root_alone_and_keeping_again_changes_nothing(host: Host) -> None:
    kept = host.path("kept.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    before = kept.read_bytes()
    assert host.run("keep").returncode == 0 and kept.read_bytes() == before
    host.up = "resume.service"
    assert host.check() == {"same": True, "resuming": True}


@pytest.mark.parametrize("change", ["content", "mode", "gone", "new", "link"])
def test_every_difference_is_seen_and_taken_back(host: Host, change: str) -> None:
    def act() -> None:
        match change:
            case "content":
                host.path("script").write_text("bad\n")
            case "mode":
                host.path("script").chmod(0o700)
            case "gone":
                host.path("key").unlink()
            case "new":
                host.path("pin").write_text("{}")
            case "link":
                host.path("current").unlink()
                host.path("current").symlink_to("releases/new")

    assert host.check()["same"] is True
    act()
    assert host.check() == {"same": False, "resuming": False}
    restored = host.run("restore")
    assert restored.returncode == 0, restored.stderr
    assert "the service runs again as it last passed, and answers right" in restored.stderr
    assert host.path("script").read_text() == "good\n" and host.path("script").stat().st_mode & 0o777 == 0o755
    assert host.path("key").read_text() == "secret\n" and host.path("key").stat().st_mode & 0o777 == 0o640
    assert not host.path("pin").exists() and str(host.path("current").readlink()) == "releases/old"
    assert host.check()["same"] is True


def test_nothing_is_stopped_for_what_no_server_was_started_from(host: Host) -> None:
    host.path("pin").write_text("{}")
    assert host.run("restore").returncode == 0 and not host.path("pin").exists()
    assert not [line for line in host.asked if line.startswith("stop")]
    assert "start a.service" in host.asked, "one that is down comes back, one that runs goes on"


@pytest.mark.parametrize(("workers", "router"), [(["a.service"], ""), ([], "router.service")])
def test_a_host_with_a_part_of_a_service_goes_back_with_that_part(host: Host, workers: list[str], router: str) -> None:
    host.config("script", "key", "pin", "passed.json", workers=workers, router=router)
    assert host.run("keep").returncode == 0
    host.path("script").write_text("bad\n")
    before = len(host.asked)
    restored = host.run("restore")
    assert restored.returncode == 0, restored.stderr
    assert host.path("script").read_text() == "good\n"
    started = [line for line in host.asked[before:] if line.startswith("start")]
    assert started == [f"start {unit}" for unit in (*workers, *([router] if router else []))]
    assert not [line for line in host.asked[before:] if line.endswith(("stop", "enable -q", " "))]


def test_servers_of_the_failed_change_end_and_go_before_the_others_start(host: Host) -> None:
    host.config("script", "key", "pin", "passed.json", "b.unit", workers=["b.service"])
    host.path("b.unit").write_text("[Unit]\n")
    assert host.run("restore").returncode == 0
    assert not host.path("b.unit").exists()
    asked = host.asked
    stops = [place for place, line in enumerate(asked) if line.startswith(("stop", "disable -q b.service"))]
    assert (
        max(stops) < asked.index("daemon-reload") < asked.index("start a.service") < asked.index("start router.service")
    )
    assert asked[stops[0]] == "stop router.service", "no request reaches servers that end"
    assert "b.service" in asked[stops[1]] and "a.service" in asked[stops[1]]


def test_it_goes_all_the_way_back_where_nobody_listens_any_more(host: Host) -> None:
    host.path("script").write_text("bad\n")
    line, environment = host.command("restore")
    listens, speaks = os.pipe()
    os.close(listens)
    try:
        assert subprocess.run(line, env=environment, stdout=speaks, stderr=speaks).returncode == 0
    finally:
        os.close(speaks)
    assert host.path("script").read_text() == "good\n" and "start router.service" in host.asked


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "the terminal is gone"])
def test_it_goes_all_the_way_back_whatever_reaches_all_of_its_processes(host: Host, number: signal.Signals) -> None:
    """As Ctrl-C does where pyinfra runs on the host itself."""
    gate, asks = host.path("gate"), host.path("asks")
    os.mkfifo(gate)
    asks.write_text(f"#!/bin/sh\nread -r line <{gate}\n")
    asks.chmod(0o755)
    host.config("script", "key", "pin", "passed.json", verify=str(asks))
    assert host.run("keep").returncode == 0
    host.path("script").write_text("bad\n")
    line, environment = host.command("restore")
    process = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        with gate.open("w") as answer:  # opens once the service is asked
            os.killpg(process.pid, number)
            answer.write("good\n")
        assert process.wait(GIVE_UP_S) == 0
    finally:
        process.kill()
        process.wait()
    assert host.check()["same"] is True


def test_half_of_what_was_kept_is_nothing_to_go_back_to(host: Host) -> None:
    host.path("script").write_text("bad\n")
    host.path("kept.json").write_text("{")
    failed = host.run("restore")
    assert failed.returncode == 2 and "kept.json is not JSON" in failed.stderr and "Traceback" not in failed.stderr
    assert not [line for line in host.asked if line.startswith("stop")]


@pytest.mark.parametrize("name", ["kept.json", "passed.json"])
def test_what_served_before_starts_also_where_a_record_cannot_be_read(host: Host, name: str) -> None:
    host.path(name).write_text('{"of": "another version"}')
    lock = host.path("lock")
    lock.touch()
    resumed = host.run("resume", "--kept", host.path("kept.json"), "--lock", lock, "a.service")
    assert resumed.returncode == 0 and "unknown of" in resumed.stderr, resumed.stderr
    assert "start --no-block a.service" in host.asked or "start a.service" in host.asked


def test_what_does_not_come_back_is_said(host: Host) -> None:
    nothing = host.run("restore")
    assert nothing.returncode == 1 and "there is nothing to take back" in nothing.stderr
    host.path("script").write_text("bad\n")
    host.broken = "a.service"
    failed = host.run("restore")
    assert failed.returncode == 1 and "a.service does not come up again" in failed.stderr
    host.broken = ""
    host.config("script", "key", "pin", "passed.json", verify="false")
    host.path("kept.json").unlink()
    assert host.run("keep").returncode == 0
    host.path("script").write_text("worse\n")
    wrong = host.run("restore")
    assert wrong.returncode == 1 and "the service does not answer right" in wrong.stderr
    host.path("kept.json").unlink()
    first = host.run("restore")
    assert first.returncode == 1 and "nothing has passed before on this host" in first.stderr


def full(words: tuple[list[str], dict[str, str]]) -> subprocess.CompletedProcess[str]:
    """Run where no file can grow beyond 1 KiB."""
    line, environment = words
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *line]
    return subprocess.run(limited, env=environment, capture_output=True, text=True)


def long_script(host: Host) -> None:
    """What passed last does not fit on the disk any more."""
    host.path("script").write_text("x" * 4096)
    assert host.run("keep").returncode == 0
    host.path("script").write_text("bad\n")
    host.path("noted").write_text("")


def test_on_a_full_disk_nothing_is_stopped_and_nothing_is_left(host: Host) -> None:
    long_script(host)
    before = sorted(path.name for path in host.folder.iterdir())
    failed = full(host.command("restore"))
    assert failed.returncode == 1 and "Traceback" not in failed.stderr, failed.stderr
    assert not [line for line in host.asked if line.startswith(("stop", "disable"))]
    assert host.path("script").read_text() == "bad\n"
    assert sorted(path.name for path in host.folder.iterdir()) == before


def test_on_a_full_disk_what_was_stopped_starts_all_the_same(host: Host) -> None:
    long_script(host)
    host.path("lock").touch()
    more = ("--kept", host.path("kept.json"), "--lock", host.path("lock"), "a.service", "router.service=1")
    resumed = full(host.command("resume", *more))
    assert resumed.returncode == 1 and "not back to what passed last: " in resumed.stderr, resumed.stderr
    assert host.asked[-1] == "start --no-block a.service router.service"


def test_no_run_begins_before_the_way_back_is_at_its_end(host: Host) -> None:
    """Whatever became of the run that asked."""
    lock, gate = host.path("run") / "restoring", host.path("gate")
    os.mkfifo(gate)
    asks = host.path("asks")
    asks.write_text(f"#!/bin/sh\nread -r line <{gate}\n")
    asks.chmod(0o755)
    host.config("script", "key", "pin", "passed.json", verify=str(asks))
    assert host.run("keep").returncode == 0
    host.path("script").write_text("bad\n")
    line, environment = host.command("restore", "--lock", lock)
    process = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with gate.open("w") as answer:  # opens once the service is asked
            assert subprocess.run(["flock", "-s", "-n", lock, "true"]).returncode == 1
            assert lock.read_text() == f"{process.pid}\n"
            answer.write("good\n")
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
    assert subprocess.run(["flock", "-s", "-n", lock, "true"]).returncode == 0


@pytest.mark.parametrize("start", ["1", "2", ""], ids=["none began again", "one did", "not told"])
def test_servers_that_run_since_before_the_change_are_not_stopped(host: Host, start: str) -> None:
    host.path("script").write_text("bad\n")
    host.path("lock").touch()
    more = ("--kept", host.path("kept.json"), "--lock", host.path("lock"), "a.service=1", f"router.service={start}")
    resumed = host.run("resume", *more)
    assert resumed.returncode == 0, resumed.stderr
    assert host.path("script").read_text() == "good\n"
    stopped = {line for line in host.asked if line.startswith("stop")}
    assert stopped == ({"stop router.service"} if start != "1" else set())


@pytest.mark.parametrize("changed", [True, False], ids=["changed", "only stopped"])
def test_resume_waits_for_the_end_of_the_run(host: Host, changed: bool) -> None:
    lock = host.path("lock")
    if changed:
        host.path("script").write_text("bad\n")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        line, environment = host.command(
            "resume", "--kept", host.path("kept.json"), "--lock", lock, "--stop", "probe.service", "a.service"
        )
        before = host.asked
        process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            while not re.search(rf"-> FLOCK .* {process.pid} ", Path("/proc/locks").read_text()):
                assert process.poll() is None
            assert host.asked == before, "nothing is done while the run is on"
        except BaseException:
            process.kill()
            raise
    assert process.wait() == 0
    assert host.path("script").read_text() == "good\n"
    then = host.asked[len(before) :]
    assert then[0] == "stop probe.service", "what the run left at work holds the GPUs"
    assert ("start a.service" if changed else "start --no-block a.service") in then
    assert process.stderr is not None and "the run has broken off" in process.stderr.read()
