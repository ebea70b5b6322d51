"""pd-gate: against real HTTP servers and processes; only journalctl and systemctl are shims."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bin.tools import Site, answer, closed_port, eventually, finish, load, run, serving, serving_socket, start

gate = load("pd-gate")
RECORDED = Path(__file__).parent / "recorded"
UNIT = "sglang-pd-prefill.service"

# Follows a file as journalctl --follow follows the journal; what it was asked is left beside the file.
JOURNALCTL = """#!/bin/bash
printf '%s\\n' "$@" > "$JOURNAL.asked"
echo $$ > "$JOURNAL.pid"
exec tail --lines=+1 --follow "$JOURNAL"
"""
SYSTEMCTL = """#!/bin/bash
[[ $1 == show && $2 == --property && $4 == --value ]] || exit 1
[[ -e $UNIT_STATE/$3 ]] || exit 1
cat "$UNIT_STATE/$3"
"""


@dataclass
class Host:
    """A journal, a unit's properties and the status file."""

    root: Path

    def __post_init__(self) -> None:
        self.journal = self.root / "journal"
        self.journal.touch()
        self.unit_state = self.root / "unit"
        self.unit_state.mkdir()
        self.programs = self.root / "programs"
        self.programs.mkdir()
        for name, text in (("journalctl", JOURNALCTL), ("systemctl", SYSTEMCTL)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)
        self.status_file = self.root / "gate.json"

    def log(self, *lines: str) -> None:
        with self.journal.open("a") as journal:
            journal.writelines(f"{line}\n" for line in lines)

    def set_property(self, name: str, value: str) -> None:
        (self.unit_state / name).write_text(f"{value}\n")

    @property
    def variables(self) -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "JOURNAL": str(self.journal),
            "UNIT_STATE": str(self.unit_state),
            "INVOCATION_ID": "0123456789abcdef",
        }

    grace = 60.0  # seconds

    def arguments(self, command: str, *more: object, limit: float = 60) -> list[object]:
        if command == "await":
            return ["await", "--limit", limit, "--status", self.status_file, *more]
        return [
            command, "--instance", "prefill", "--unit", UNIT, "--limit", limit, "--grace", self.grace, "--status",
            self.status_file, *more,
        ]  # fmt: skip

    def start(self, command: str, *more: object, limit: float = 60) -> subprocess.Popen[str]:
        return start("pd-gate", *self.arguments(command, *more, limit=limit), **self.variables)

    def run(self, command: str, *more: object, limit: float = 60) -> subprocess.CompletedProcess[str]:
        return finish(self.start(command, *more, limit=limit))

    def decode(self, url: str, pid: int, limit: float = 60) -> subprocess.Popen[str]:
        return self.start("worker", "--role", "decode", "--url", url, "--pid", pid, limit=limit)

    @property
    def status(self) -> dict[str, Any]:
        if not self.status_file.exists():
            return {}
        content: dict[str, Any] = json.loads(self.status_file.read_text())
        return content

    def comes_to(self, waiting_for: str) -> None:
        eventually(lambda: self.status.get("waiting_for") == waiting_for, f"waiting for {waiting_for}")

    def journalctl_is_gone(self) -> bool:
        pid = int(Path(f"{self.journal}.pid").read_text())
        return not Path(f"/proc/{pid}").exists()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as server:
        yield server


@pytest.fixture
def server_process() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the unit's main process."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        yield child
        child.kill()


# --- ready ------------------------------------------------------------------------------------------------------------


def test_a_worker_is_ready_when_its_health_check_answers(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(503)
    child = host.decode(site.url, os.getpid())
    eventually(lambda: site.asked("/health") > 1, "a second try")
    assert child.poll() is None
    site.answers["/health"] = answer(200)
    done = finish(child)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("pd-gate: prefill: ready (")
    assert host.status["state"] == "ready"
    assert set(host.status) == {"state", "waiting_for", "line", "elapsed_s", "reason"}
    assert stat.S_IMODE(host.status_file.stat().st_mode) == 0o644
    assert not list(host.root.glob(".gate.json*"))


def test_prefill_waits_until_all_ranks_are_registered(host: Host, site: Site) -> None:
    site.answers |= {"/health": answer(200), "/route": answer(503, "Prefill server not fully registered yet")}
    child = host.start("worker", "--role", "prefill", "--url", site.url, "--bootstrap", site.url, "--pid", os.getpid())
    host.comes_to("registering with the bootstrap server")
    site.answers["/route"] = answer(200, '{"attn_tp_size": 4}')
    assert finish(child).returncode == 0
    routes = {path for _, path in site.requests if path.startswith("/route")}
    assert routes == {"/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"}


def test_all_checks_have_to_hold_at_the_same_time(host: Host, site: Site) -> None:
    site.answers |= {"/health": answer(200), "/route": answer(503)}
    child = host.start("worker", "--role", "prefill", "--url", site.url, "--bootstrap", site.url, "--pid", os.getpid())
    host.comes_to("registering with the bootstrap server")
    site.answers["/health"] = answer(503)
    host.comes_to("answering the health check")
    site.answers["/route"] = answer(200, "{}")
    seen = site.asked("/route")
    eventually(lambda: site.asked("/route") > seen + 1, "two more tries")
    assert child.poll() is None
    site.answers["/health"] = answer(200)
    assert finish(child).returncode == 0


@pytest.mark.parametrize("body", ["OK", "[1]", ""])
def test_a_bootstrap_answer_that_is_no_json_object_is_not_ready(host: Host, site: Site, body: str) -> None:
    site.answers |= {"/health": answer(200), "/route": answer(200, body)}
    arguments = ("worker", "--role", "prefill", "--url", site.url, "--bootstrap", site.url, "--pid", os.getpid())
    child = host.start(*arguments)
    host.comes_to("registering with the bootstrap server")
    seen = site.asked("/route")
    eventually(lambda: site.asked("/route") > seen + 1, "two more tries")
    assert child.poll() is None
    child.terminate()
    assert finish(child).returncode == 1


def test_the_router_is_ready_when_it_says_so(host: Host, site: Site) -> None:
    site.answers |= {"/health": answer(200), "/readiness": answer(503)}
    child = host.start("router", "--url", site.url, "--pid", os.getpid())
    host.comes_to("waiting for the workers to become healthy")
    site.answers["/readiness"] = answer(200)
    assert finish(child).returncode == 0
    assert site.asked("/health") == 0


def test_a_server_below_the_main_process_counts_as_its_own(host: Host) -> None:
    command = ["bash", "-c", f"{shlex.join(file_server(host))}; true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as main:
        try:
            assert finish(host.decode(where(main), main.pid)).returncode == 0
        finally:
            os.killpg(main.pid, signal.SIGKILL)


def file_server(host: Host) -> list[str]:
    """Serves an empty /health on a port that it says."""
    (host.root / "www").mkdir()
    (host.root / "www/health").touch()
    words = ["-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", host.root / "www", 0]
    return [sys.executable, *map(str, words)]


def where(server: subprocess.Popen[str]) -> str:
    assert server.stdout
    said = re.search(r"port (\d+)", server.stdout.readline())
    assert said
    return f"http://127.0.0.1:{said[1]}"


def test_another_process_with_any_bytes_in_its_name_is_no_trouble(host: Host) -> None:
    name = (
        "import ctypes,time; ctypes.CDLL(None).prctl(15, b'n\\xffme) 1', 0, 0, 0); print(flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", name], stdout=subprocess.PIPE) as odd, serving() as site:
        assert odd.stdout is not None
        odd.stdout.readline()
        site.answers["/health"] = answer(200)
        try:
            assert finish(host.decode(site.url, os.getpid())).returncode == 0
        finally:
            odd.kill()


def test_a_server_left_over_from_an_earlier_start_is_told_apart(
    host: Host, site: Site, server_process: subprocess.Popen[bytes]
) -> None:
    site.answers["/health"] = answer(200)  # served by this test, not by the unit's main process
    done = finish(host.decode(site.url, server_process.pid))
    assert done.returncode == 4
    assert f"another process answers at {site.url}: pid {os.getpid()} (" in host.status["reason"]


# --- patches ----------------------------------------------------------------------------------------------------------

ACTIVE = "active: SGLANG_MINE: sglang.kernel.run is ours"
PLACED = "active: whole: sglang/x.py is ours"
DEMANDS = [
    {"patch": "mine", "variables": ["SGLANG_MINE"], "line": ACTIVE, "path": None},
    {"patch": "whole", "variables": [], "line": PLACED, "path": "sglang/x.py"},
]


def patched(host: Host, *lines: str, demands: object = DEMANDS, **variables: str) -> tuple[int, str]:
    """Exit code and last reason of a gate over a server that was started with these variables and logged these lines."""
    host.log(*lines)
    notes = host.root / "placed.json"
    notes.write_text(json.dumps({"demands": demands}))
    with subprocess.Popen(
        file_server(host), env={"PATH": os.environ["PATH"], **variables}, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    ) as main:  # fmt: skip
        try:
            done = host.run("worker", "--role", "decode", "--url", where(main), "--pid", main.pid, "--patches", notes)
        finally:
            main.kill()
    return done.returncode, str(host.status["reason"])


@pytest.mark.parametrize("prefix", ["", "[2026-11-30 08:16:07 TP1] "])
def test_ready_once_every_patch_that_is_asked_for_reported_itself(host: Host, prefix: str) -> None:
    assert patched(host, "starting", prefix + ACTIVE, PLACED, SGLANG_MINE="1") == (0, "None")


def test_a_patch_that_is_asked_for_but_does_not_report_itself(host: Host) -> None:
    why = "not active: sglang.kernel cannot be imported: why"
    code, reason = patched(host, PLACED, why, "ready to roll", SGLANG_MINE="1")
    assert code == 4
    assert reason.startswith(
        f"patch mine is asked for (SGLANG_MINE=1), but not in place: the log lacks the line {ACTIVE!r}"
    )
    assert host.status["line"] == why


@pytest.mark.parametrize("value", [None, "0", "", "false", "off"])
def test_a_patch_that_nobody_asks_for_need_not_report_itself(host: Host, value: str | None) -> None:
    assert patched(host, PLACED, **({} if value is None else {"SGLANG_MINE": value}))[0] == 0


def test_a_patch_without_a_variable_is_always_asked_for(host: Host) -> None:
    code, reason = patched(host, ACTIVE)
    assert code == 4
    assert reason.startswith("patch whole is asked for, but not in place")


def test_a_value_that_the_patch_does_not_take_for_on_is_not_silent(host: Host) -> None:
    code, reason = patched(host, PLACED, SGLANG_MINE="yes")
    assert (code, "(SGLANG_MINE=yes)" in reason) == (4, True)


def test_a_longer_line_is_not_the_line(host: Host) -> None:
    assert patched(host, PLACED, f"server_args=... {ACTIVE}", f"{ACTIVE} not", SGLANG_MINE="1")[0] == 4


@pytest.mark.parametrize("demands", [[{}], "x", None, 1])
def test_notes_of_another_shape_are_a_failure(host: Host, demands: object) -> None:
    code, reason = patched(host, demands=demands)
    assert (code, "placed.json: " in reason) == (4, True)


def test_without_a_journal_nobody_knows_and_a_patch_that_is_asked_for_is_not_there(host: Host) -> None:
    (host.programs / "journalctl").write_text("#!/bin/sh\nexit 1\n")
    assert patched(host, ACTIVE, PLACED, SGLANG_MINE="1")[0] == 4


def test_missing_notes_are_a_failure(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(200)
    done = host.run(
        "worker", "--role", "decode", "--url", site.url, "--pid", os.getpid(), "--patches", "/nonexistent/placed.json"
    )
    assert done.returncode == 4
    assert "/nonexistent/placed.json: " in host.status["reason"]


# --- progress ---------------------------------------------------------------------------------------------------------


def test_the_log_of_a_healthy_start_tells_the_stages_and_trips_nothing(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(503)
    lines = (RECORDED / "prefill-ready.log").read_text().splitlines()
    host.log(*lines)
    child = host.decode(site.url, os.getpid())
    last = "The server is fired up and ready to roll!"
    eventually(lambda: str(host.status.get("line")).endswith(last), "the last line")
    assert host.status["waiting_for"] == "answering the health check"
    site.answers["/health"] = answer(200)
    done = finish(child)
    assert done.returncode == 0
    said = [line.removeprefix("pd-gate: prefill: ").rpartition(" (")[0] for line in done.stdout.splitlines()]
    assert said[said.index("starting the scheduler processes") :] == [
        "starting the scheduler processes",
        "joining the ranks",
        "loading weights",
        "allocating the KV cache",
        "preparing kernels",
        "starting the HTTP server",
        "warming up",
        "answering the health check",
        "ready",
    ]


def test_each_stage_is_said_once_however_often_the_log_repeats_it(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(503)
    rank = "[2026-11-29 19:14:00 TP{}] Load weight begin. avail mem=94.83 GB"
    host.log(*(rank.format(number) for number in range(8)))
    child = host.decode(site.url, os.getpid())
    host.comes_to("loading weights")
    seen = site.asked("/health")
    eventually(lambda: site.asked("/health") > seen + 1, "two more tries")
    site.answers["/health"] = answer(200)
    assert finish(child).stdout.count("loading weights") == 1


def test_the_journal_of_this_invocation_is_asked_for_from_its_first_line(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(503)
    child = host.decode(site.url, os.getpid())
    asked = Path(f"{host.journal}.asked")
    eventually(lambda: asked.exists() and asked.read_text(), "journalctl")
    site.answers["/health"] = answer(200)
    assert finish(child).returncode == 0
    words = asked.read_text().split()
    assert {"--follow", "--no-tail", "--output=cat", "_SYSTEMD_INVOCATION_ID=0123456789abcdef"} <= set(words)
    assert words[words.index("-u") + 1] == UNIT


def test_its_own_lines_in_the_journal_are_not_read_back(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(503)
    host.log(
        "pd-gate: prefill: log line: [sgl_kernel] CRITICAL: Could not load any common_ops library!",
        "[2026-11-29 19:14:00] Load weight begin. avail mem=19.83 GB",
    )
    child = host.decode(site.url, os.getpid())
    host.comes_to("loading weights")
    site.answers["/health"] = answer(200)
    assert finish(child).returncode == 0


def test_without_journalctl_it_says_so_and_goes_on(host: Host, site: Site) -> None:
    (host.programs / "journalctl").unlink()
    site.answers["/health"] = answer(200)
    variables = host.variables | {"PATH": str(host.programs)}
    done = finish(
        start("pd-gate", *host.arguments("worker", "--role", "decode", "--url", site.url, "--pid", os.getpid()),
              **variables)
    )  # fmt: skip
    assert done.returncode == 0
    assert "journalctl cannot be run (No such file or directory): going on without the journal" in done.stdout


def test_when_journalctl_ends_it_says_so_and_goes_on(host: Host, site: Site) -> None:
    (host.programs / "journalctl").write_text("#!/bin/bash\nexit 1\n")
    site.answers["/health"] = answer(503)
    child = host.decode(site.url, os.getpid())
    assert child.stdout
    for line in child.stdout:
        if "journalctl ended: going on without the journal" in line:
            break
    site.answers["/health"] = answer(200)
    assert finish(child).returncode == 0


def test_a_status_file_that_cannot_be_written_does_not_stop_the_gate(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(200)
    host.status_file = host.root / "missing/gate.json"
    done = finish(host.decode(site.url, os.getpid()))
    assert done.returncode == 0
    assert f"cannot write {host.status_file}: No such file or directory" in done.stdout


# --- giving up --------------------------------------------------------------------------------------------------------


def test_the_limit(host: Host) -> None:
    done = finish(host.decode(f"http://127.0.0.1:{closed_port()}", os.getpid(), limit=0.5))
    assert done.returncode == 1
    assert host.status["state"] == "failed"
    assert "not ready within 0.5 s, still starting Python" in host.status["reason"]
    assert "/health: Connection refused" in host.status["reason"]


def test_the_end_of_the_main_process_with_what_systemd_says(
    host: Host, server_process: subprocess.Popen[bytes]
) -> None:
    host.set_property("ExecMainCode", "1")
    host.set_property("ExecMainStatus", "7")
    child = host.decode(f"http://127.0.0.1:{closed_port()}", server_process.pid)
    eventually(host.status_file.exists, "the status file")
    server_process.kill()
    done = finish(child)
    assert done.returncode == 3
    assert host.status["reason"] == "the main process ended (exit status 7)"


def test_the_end_of_the_main_process_with_what_the_journal_says(
    host: Host, server_process: subprocess.Popen[bytes]
) -> None:
    child = host.decode(f"http://127.0.0.1:{closed_port()}", server_process.pid)
    eventually(host.status_file.exists, "the status file")
    host.log(
        "ValueError: head count 7 is not divisible by 4",
        f"{UNIT}: Main process exited, code=exited, status=1/FAILURE",
    )
    server_process.kill()
    done = finish(child)
    assert done.returncode == 3
    assert host.status["reason"] == "the main process ended (exit status 1)"
    assert host.status["line"] == "ValueError: head count 7 is not divisible by 4"


@pytest.mark.parametrize("said_by", ["systemd", "journal"])
def test_a_main_process_that_was_killed(host: Host, server_process: subprocess.Popen[bytes], said_by: str) -> None:
    if said_by == "systemd":
        host.set_property("ExecMainCode", "2")
        host.set_property("ExecMainStatus", "9")
    else:
        host.log(f"{UNIT}: Main process exited, code=killed, status=9/KILL")
    server_process.kill()
    server_process.wait()
    assert finish(host.decode(f"http://127.0.0.1:{closed_port()}", server_process.pid)).returncode == 3
    assert host.status["reason"] == "the main process ended (killed by signal 9)"


def test_a_main_process_that_is_gone_already(host: Host, server_process: subprocess.Popen[bytes]) -> None:
    server_process.kill()
    server_process.wait()
    done = finish(host.decode(f"http://127.0.0.1:{closed_port()}", server_process.pid))
    assert done.returncode == 3


def test_systemd_is_asked_for_the_main_process(host: Host, server_process: subprocess.Popen[bytes]) -> None:
    host.set_property("MainPID", str(server_process.pid))
    child = host.start("worker", "--role", "decode", "--url", f"http://127.0.0.1:{closed_port()}")
    eventually(host.status_file.exists, "the status file")
    server_process.kill()
    assert finish(child).returncode == 3


def test_a_unit_without_a_main_process_has_ended(host: Host) -> None:
    host.set_property("MainPID", "0")
    done = host.run("worker", "--role", "decode", "--url", f"http://127.0.0.1:{closed_port()}")
    assert done.returncode == 3


def test_without_systemd_the_main_process_is_not_watched(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(200)
    done = host.run("worker", "--role", "decode", "--url", site.url)
    assert done.returncode == 0
    assert "cannot ask systemd for the main process" in done.stdout


def test_a_hanging_server_does_not_delay_the_watch(host: Host, server_process: subprocess.Popen[bytes]) -> None:
    with serving_socket() as port:
        child = host.decode(f"http://127.0.0.1:{port}", server_process.pid)
        eventually(lambda: connections(port) == 1, "the request that hangs")
        server_process.kill()
        assert finish(child).returncode == 3
        # The listener never accepts, so what is left over is every connection that was ever made.
        assert connections(port) == 1


def connections(port: int) -> int:
    """Connections ever made to a listener that accepts none: they stay in its queue, whoever closed them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[1].rpartition(":")[2], 16) == port and row[3] != "0A" for row in rows)


@pytest.mark.parametrize("case", ["ready", "ended", "stopped"])
def test_journalctl_is_always_reaped(
    host: Host, site: Site, server_process: subprocess.Popen[bytes], case: str
) -> None:
    site.answers["/health"] = answer(503)
    child = host.decode(site.url, os.getpid() if case == "ready" else server_process.pid)
    eventually(Path(f"{host.journal}.pid").exists, "journalctl")
    host.comes_to("answering the health check")
    if case == "ready":
        site.answers["/health"] = answer(200)
    elif case == "ended":
        server_process.kill()
    else:
        child.terminate()
    assert finish(child).returncode == {"ready": 0, "ended": 3, "stopped": 1}[case]
    assert host.journalctl_is_gone()


def test_stopped_by_systemd(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(503)
    child = host.decode(site.url, os.getpid())
    eventually(host.status_file.exists, "the status file")
    child.terminate()
    assert finish(child).returncode == 1
    assert host.status["reason"] == "stopped before the service was ready"


# --- known failures ---------------------------------------------------------------------------------------------------


def test_a_known_failure_ends_the_wait_with_the_line_and_a_remedy(host: Host, site: Site) -> None:
    host.grace = 1
    site.answers["/health"] = answer(503)
    child = host.decode(site.url, os.getpid())
    host.comes_to("answering the health check")
    line = "[sgl_kernel] CRITICAL: Could not load any common_ops library!"
    host.log(line)
    done = finish(child)
    assert done.returncode == 4
    assert f"log line: {line}" in done.stdout
    assert host.status["state"] == "failed"
    assert host.status["line"] == line
    assert "let the runtime phase repair it" in host.status["reason"]


def test_a_known_failure_explains_the_end_of_the_process(host: Host, server_process: subprocess.Popen[bytes]) -> None:
    host.log("launch_server.py: error: unrecognized arguments: --no-such-flag 3")
    server_process.kill()
    server_process.wait()
    done = finish(host.decode(f"http://127.0.0.1:{closed_port()}", server_process.pid))
    assert done.returncode == 4
    assert "unrecognized arguments: --no-such-flag" in host.status["line"]


def test_a_traceback_without_a_known_cause_is_told_by_its_last_line(host: Host, site: Site) -> None:
    host.grace = 1
    site.answers["/health"] = answer(503)
    host.log(
        "[2026-11-29 19:14:00 TP2] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/opt/sglang-pd/current/env/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py", line 9',
        "    raise ValueError(message)",
        "ValueError: page size 256 is not supported",
        "[2026-11-29 19:14:01] Received sigquit from a child process. It usually means the child failed.",
    )
    done = finish(host.decode(site.url, os.getpid()))
    assert done.returncode == 4
    assert "(ValueError: page size 256 is not supported)" in host.status["reason"]
    assert UNIT in host.status["reason"]


def test_the_better_explanation_wins_whichever_comes_first(host: Host, site: Site) -> None:
    host.grace = 1
    site.answers["/health"] = answer(503)
    host.log(
        "[2026-11-29 19:14:00 TP2] Scheduler hit an exception: Traceback (most recent call last):",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has 94.97 GiB",
        "[2026-11-29 19:14:01] Received sigquit from a child process. It usually means the child failed.",
    )
    done = finish(host.decode(site.url, os.getpid()))
    assert done.returncode == 4
    assert host.status["reason"].startswith("the GPU ran out of memory")
    assert host.status["line"].startswith("torch.OutOfMemoryError: CUDA out of memory")


def test_a_server_that_still_runs_may_become_ready_after_such_a_line(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(503)
    host.log("RuntimeError: CUDA error: no kernel image is available for execution on the device")
    child = host.decode(site.url, os.getpid())
    host.comes_to("answering the health check")
    seen = site.asked("/health")
    eventually(lambda: site.asked("/health") > seen + 1, "two more tries")
    site.answers["/health"] = answer(200)
    assert finish(child).returncode == 0
    assert host.status["state"] == "ready"


def test_each_new_stage_starts_the_grace_time_anew() -> None:
    log = gate.Log()
    log.read("RuntimeError: CUDA error: out of memory")
    told = log.since
    log.read("[2026-11-29 19:14:00 TP0] Load weight begin. avail mem=94.83 GB")
    gone_on = log.since
    log.read("[2026-11-29 19:14:00 TP1] Load weight begin. avail mem=94.83 GB")
    assert told < gone_on == log.since
    assert (log.stage, log.telling) == ("loading weights", "RuntimeError: CUDA error: out of memory")


@pytest.mark.parametrize("recorded", sorted(RECORDED.glob("*-ready.log")), ids=lambda path: path.stem)
def test_recorded_healthy_starts_trip_nothing(recorded: Path) -> None:
    log = gate.Log()
    for line in recorded.read_text().splitlines():
        log.read(line)
        assert log.failure is None, line


@pytest.mark.parametrize(
    ("recorded", "meaning"),
    [
        ("http-port-taken", "port that the service needs"),
        ("bootstrap-port-taken", "port that the service needs"),
        ("dist-init-port-taken", "port that the service needs"),
        ("nixl-plugin-missing", "NIXL or the plugin"),
        ("model-missing", "model is missing"),
    ],
)
def test_recorded_failed_starts_are_known(host: Host, site: Site, recorded: str, meaning: str) -> None:
    host.grace = 1
    site.answers["/health"] = answer(503)
    host.log(*(RECORDED / f"{recorded}-failed.log").read_text().splitlines())
    done = finish(host.decode(site.url, os.getpid()))
    assert done.returncode == 4
    assert meaning in host.status["reason"]


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("[2026-11-29 19:14:00 TP0] Init torch distributed begin.", "joining the ranks"),
        ("Loading safetensors checkpoint shards:  50% Completed | 23/46 [00:10<00:10, 2.1it/s]", "loading weights"),
        ("Multi-thread loading shards: 100% Completed | 1/1 [00:00<00:00, 58.08it/s]", "loading weights"),
        ("[2026-11-29 19:14:00 TP0] Capture decode CUDA graph begin. bs=64", "capturing graphs"),
        (
            "[2026-11-29 19:14:30 TP0] Allocating kv hierarchical KV host pool: 311040 tokens, 17.84 GB host memory.",
            "pinning the host pool for retracted requests",
        ),
        (
            "[2026-11-29 19:14:00 TP0] Capture cuda graph begin. This can take up to several minutes.",
            "capturing graphs",
        ),
        ("[2026-11-29 19:14:09 TP0] Capture cuda graph end. Time elapsed: 9.01 s.", "starting the HTTP server"),
        ("[2026-11-29 19:14:00 TP0] DeepGEMM warmup: 40%", "compiling kernels"),
        ("an ordinary line", None),
    ],
)
def test_stages(line: str, stage: str | None) -> None:
    log = gate.Log()
    log.read(line)
    assert log.stage == stage


# --- before the router ------------------------------------------------------------------------------------------------


def test_await_is_done_when_every_worker_is_healthy(host: Host, site: Site) -> None:
    with serving() as other:
        site.answers["/health"] = answer(200)
        other.answers["/health"] = answer(503)
        child = host.start("await", "--worker", f"prefill={site.url}", "--worker", f"decode={other.url}")
        host.comes_to("waiting for decode")
        other.answers["/health"] = answer(200)
        assert finish(child).returncode == 0
    assert host.status["state"] == "ready"


def test_await_names_the_worker_that_is_not_ready(host: Host, site: Site) -> None:
    site.answers["/health"] = answer(200)
    gone = f"http://127.0.0.1:{closed_port()}"
    done = host.run("await", "--worker", f"prefill={site.url}", "--worker", f"decode={gone}", limit=4)
    assert done.returncode == 1
    assert host.status["reason"] == f"decode not ready within 4 s: {gone}/health: Connection refused"


def test_await_is_done_when_enough_of_each_group_are_healthy(host: Host, site: Site) -> None:
    gone = f"http://127.0.0.1:{closed_port()}"
    with serving() as other:
        site.answers["/health"] = answer(200)
        other.answers["/health"] = answer(503)
        two = f"decode@a={other.url},decode@b={gone}"
        child = host.start("await", "--some", 1, f"prefill={site.url}", "--some", 1, two)
        host.comes_to("waiting for 1 of decode@a, decode@b")
        other.answers["/health"] = answer(200)
        assert finish(child).returncode == 0
        done = host.run("await", "--some", 1, f"prefill={site.url}", "--some", 2, two, limit=4)
    assert done.returncode == 1
    assert host.status["reason"].startswith("decode@b not ready within 4 s: ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["worker", "--role", "prefill", "--url", "http://127.0.0.1:1"],
        ["worker", "--role", "decode", "--url", "http://127.0.0.1:1", "--bootstrap", "http://127.0.0.1:2"],
        ["worker", "--role", "decode", "--url", "127.0.0.1:1"],
        ["worker", "--role", "decode", "--url", "http://127.0.0.1"],
        ["await", "--worker", "http://127.0.0.1:1"],
        ["await"],
        ["await", "--some", "2", "a=http://127.0.0.1:1"],
        ["await", "--some", "one", "a=http://127.0.0.1:1"],
    ],
)
def test_wrong_usage(host: Host, arguments: list[str]) -> None:
    done = run("pd-gate", *(host.arguments(*arguments) if arguments else []), **host.variables)
    assert done.returncode == 2
    assert "usage: pd-gate" in done.stderr


@pytest.mark.parametrize("limit", ["0", "-1", "inf", "soon"])
def test_a_limit_is_a_positive_number(host: Host, limit: str) -> None:
    done = run("pd-gate", "await", "--worker", "a=http://127.0.0.1:1", "--limit", limit, "--status", host.status_file)
    assert done.returncode == 2
