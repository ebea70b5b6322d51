"""pd-metrics: figures from recorded answers and real files, in Prometheus' own format; what cannot be read is said."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import hashlib
import http.client
import json
import re
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tasks.plan.phases import monitoring
from tests import certificates
from tests.bin.tools import answer, eventually, load, run, serving, start
from tests.node import hardware as recorded_hardware
from tests.node import watching
from tests.plan import proofs
from tests.plan.builders import REPOSITORY, TWO_SOCKETS, hardware, plan, settings

metrics = load("pd-metrics")
NVIDIA = REPOSITORY / "tests/node/hardware/rtx-pro-6000-x8/commands/nvidia-smi"
STAMP = {"since": "2026-11-30T05:00:00Z", "by": "x@y", "commit": "c" * 40, "ended": "ended well"}
SCRAPE = 'sglang:max_total_num_tokens{tp_rank="0"} 4096.0\nsglang:num_queue_reqs{tp_rank="0"} 1.0\n'


PARTS = {
    "release",
    "run",
    "work",
    "proof",
    "bench",
    "servers",
    "passed",
    "answers",
    "watchdog",
    "gpus",
    "report",
    "xids",
}
STARTED_FROM = ("script", "environment", "unit")
BENCH = {
    "started": STAMP["since"],
    "passes": [
        {"status": "done", "result": {"p99_ttft_ms": 250.0, "p99_itl_ms": 30.0}},
        {"status": "done", "result": {"p99_ttft_ms": 900.0, "p99_itl_ms": 20.0}},
        {"status": "failed", "result": None},
    ],
}


class Host:
    """A host whose hardware answers what was recorded, and whose files say what `say` gave them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.out = folder, folder / "bin", folder / "figures"
        self.out.mkdir()
        recorded_hardware.write("rtx-pro-6000-x8", folder / "tree")
        self.bin.mkdir()
        self.recorded = folder / "tree" / recorded_hardware.RECORDED / "commands"
        replay = (REPOSITORY / "tests/node/shims/replay").read_text()
        replay = replay.replace("/usr/local/share/recorded-hardware", str(self.recorded.parent))
        self.command("nvidia-smi", replay)
        self.command("dmesg", "#!/bin/sh\ncat " + str(folder / "kernel"))
        self.command("journalctl", "#!/bin/sh\nexit 1")
        self.command("systemctl", "#!/bin/sh\nshift 4; for unit; do printf 'Id=%s\\nNRestarts=3\\n\\n' $unit; done")
        (folder / "kernel").write_text("[ 0.0] Linux\n")
        self.say("release/release.json", {"patches": {"hook": "x", "mine": "y"}})
        self.say("stamp.json", STAMP)
        self.say("proof.json", proofs.proof())
        self.say("passed.json", {"same": True})
        planned = plan(settings(monitoring=True), hardware(TWO_SOCKETS))
        self.config: dict[str, Any] = json.loads(monitoring.figures(planned).content)
        self.config |= {
            "folder": str(self.out), "stamp": str(folder / "stamp.json"), "current": str(folder / "release"),
            "proof": str(folder / "proof.json"), "user": getpass.getuser(), "kept": str(folder / "kv-cache.json"),
            "servers": {}, "passed": ["cat", str(folder / "passed.json")], "bench": str(folder / "bench.json"),
            "stopped": str(folder / "stopped.json"), "locks": [str(folder / "lock")],
            "answers": str(folder / "answers.json"), "watchdog": str(folder / "restarts"), "certificate": None,
        }  # fmt: skip

    def command(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def say(self, name: str, value: object) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value))

    def serves(self, url: str) -> None:
        """decode: its files, and what its start left."""
        paths = {name: str(self.folder / name) for name in ("run", *STARTED_FROM)}
        paths["file"] = paths.pop("unit")
        self.config["servers"] = {"decode": {"url": url, "unit": "x", **paths}}
        for name in STARTED_FROM:
            (self.folder / name).write_text(f"{name}\n# comment\n")

    def written(self) -> str:
        """What node-exporter would show, both files."""
        self.say("config.json", self.config)
        variables = {"PATH": f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin"}
        ran = run("pd-metrics", "write", "--config", self.folder / "config.json", **variables)
        assert ran.returncode == 0, ran.stderr
        self.told = ran.stderr
        return "".join(path.read_text() for path in sorted(self.out.glob("*.prom")))


@pytest.fixture
def of_host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_every_part_of_a_healthy_host(of_host: Host) -> None:
    text = of_host.written()
    assert 'sglang_pd_release_info{release="release",patches="hook,mine"} 1' in text
    assert 'sglang_pd_last_run_time_seconds{by="x@y",commit="cccccccccc",ended="ended well"} 1796014800.0' in text
    assert len(re.findall(r'sglang_pd_proof_kv_gigabytes_per_second\{prefill="prefill",decode="decode"', text)) == 4
    assert "sglang_pd_as_passed 1.0" in text
    assert len(re.findall(r"^sglang_pd_gpu_temperature_celsius\{", text, re.MULTILINE)) == 8
    assert re.search(r'sglang_pd_gpu_memory_bytes\{gpu="0",uuid="GPU-[^"]*"\} 102641958912\b', text)
    assert 'sglang_pd_gpu_xids{bus="",xid="none"} 0' in text
    assert set(re.findall(r'sglang_pd_read\{part="(\w+)"\} (\S+)', text)) == {(part, "1.0") for part in PARTS}
    assert of_host.told == ""


def test_prometheus_own_checker_reads_it(of_host: Host, promtool: str) -> None:
    for path in [of_host.written() and one for one in of_host.out.glob("*.prom")]:
        ran = subprocess.run([promtool, "check", "metrics"], stdin=path.open(), capture_output=True, text=True)
        faults = [line for line in (ran.stdout + ran.stderr).splitlines() if "error" in line.lower()]
        assert not faults, ran.stderr


@pytest.mark.parametrize(
    ("part", "spoil"),
    [
        ("release", lambda host: (host.folder / "release/release.json").unlink()),
        ("run", lambda host: host.say("stamp.json", {"by": "x"})),
        ("proof", lambda host: host.say("proof.json", {"started": "nan"})),
        ("proof", lambda host: host.say("proof.json", proofs.proof([proofs.pair(0, 4, decode='x"} 1\ny')]))),
        ("proof", lambda host: (host.folder / "proof.json").write_text("[" * 200_000)),
        ("proof", lambda host: host.say("proof.json", {"started": STAMP["since"], "parts": "none"})),
        ("proof", lambda host: host.say("proof.json", {"started": 1, "parts": {}})),
        ("proof", lambda host: host.say("proof.json", proofs.proof([proofs.pair(0, 4)] * 2))),
        ("proof", lambda host: host.say("proof.json", proofs.proof([proofs.pair(0, gpu) for gpu in range(1025)]))),
        ("passed", lambda host: host.say("passed.json", [])),
        ("bench", lambda host: host.say("bench.json", {"passes": [{"status": "done", "result": 1}]})),
        ("bench", lambda host: (host.folder / "bench.json").mkdir()),
        ("answers", lambda host: host.say("answers.json", {"right": True})),
        ("watchdog", lambda host: host.say("restarts", "often")),
        ("gpus report", lambda host: (host.bin / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices' >&2; exit 6")),
        ("gpus report", lambda host: (host.bin / "nvidia-smi").write_text("#!/bin/sh\necho 0, what")),
        ("xids", lambda host: (host.bin / "dmesg").write_text("#!/bin/sh\nexit 1")),
    ],
)
def test_a_part_that_cannot_be_read_leaves_the_others(
    part: str, spoil: Callable[[Host], object], of_host: Host
) -> None:
    spoil(of_host)
    found = dict(re.findall(r'sglang_pd_read\{part="(\w+)"\} (\S+)', of_host.written()))
    assert [name for name, good in found.items() if good != "1.0"] == part.split()
    assert found.keys() == PARTS
    assert of_host.told.startswith(f"pd-metrics: {part.split()[0]}: ")


def test_a_card_that_tells_less_and_one_that_is_hot(of_host: Host) -> None:
    stdout = of_host.recorded / "nvidia-smi/query-metrics/stdout"
    lines = stdout.read_text().splitlines()
    lines[0] = lines[0].replace("31, 33.12", "[N/A], [Not Supported]").replace("Not Active, Not Active", "Active, N/A")
    stdout.write_text("\n".join(lines))
    text = of_host.written()
    assert not re.search(r'sglang_pd_gpu_(temperature_celsius|power_watts|slowed_by_heat)\{gpu="0"', text)
    assert re.search(r'sglang_pd_gpu_slowed_by_hardware\{gpu="0",uuid="[^"]*"\} 1\.0', text)
    assert re.search(r'sglang_pd_gpu_slowed_by_hardware\{gpu="1",uuid="[^"]*"\} 0\.0', text)


def test_xids_are_counted_by_card_and_number(of_host: Host) -> None:
    (of_host.folder / "kernel").write_text(
        "[1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n"
        "[2.0] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: x\n"
        "[3.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n"
    )
    text = of_host.written()
    assert 'sglang_pd_gpu_xids{bus="0000:01:00",xid="79"} 2' in text
    assert 'sglang_pd_gpu_xids{bus="0000:01:00",xid="94"} 1' in text


def test_the_first_size_of_a_kv_cache_stays_until_a_server_starts_from_other_files(of_host: Host) -> None:
    mark = {"script": "a", "environment": "b", "unit": "c", "release": "r", "started": 1}
    of_host.say("run/fingerprint.json", mark)
    with serving() as site:
        of_host.serves(site.url)

        def first(tokens: int) -> str:
            site.answers["/metrics"] = answer(200, SCRAPE.replace("4096", str(tokens)))
            found = re.search(r'sglang_pd_kv_cache_first_tokens\{server="decode"\} (\S+)', of_host.written())
            return found[1] if found else "none"

        assert first(4096) == "4096.0"
        assert first(2048) == "4096.0"
        of_host.say("run/fingerprint.json", mark | {"started": 2})
        assert first(2048) == "4096.0"
        of_host.say("run/fingerprint.json", mark | {"script": "other"})
        assert first(2048) == "2048.0"
    assert 'sglang_pd_restarts{server="decode"} 3.0' in of_host.written()


@pytest.fixture
def started(of_host: Host) -> Host:
    """A server that runs what lies on the disk."""
    digest = {name: hashlib.sha256(f"{name}\n".encode()).hexdigest() for name in STARTED_FROM}
    of_host.say("run/fingerprint.json", digest | {"release": "r"})
    of_host.serves("")
    return of_host


@pytest.mark.parametrize("changed", STARTED_FROM)
def test_a_server_that_runs_something_else_than_what_lies_on_the_disk(changed: str, started: Host) -> None:
    assert 'sglang_pd_runs_as_written{server="decode"} 1.0' in started.written()
    (started.folder / changed).write_text("other\n")
    assert 'sglang_pd_runs_as_written{server="decode"} 0.0' in started.written()
    (started.folder / changed).write_text(f"{changed}\n# another comment\n")
    assert 'sglang_pd_runs_as_written{server="decode"} 1.0' in started.written()


def test_somebody_is_at_work(of_host: Host) -> None:
    lock = of_host.folder / "lock"
    assert "sglang_pd_stopped 0.0" in of_host.written()
    lock.touch()
    of_host.say("stopped.json", {"by": "x"})
    text = of_host.written()
    assert "sglang_pd_stopped 1.0" in text and "sglang_pd_run_active 0.0" in text
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "sglang_pd_run_active 1.0" in of_host.written()


def test_what_the_last_questions_the_watchdog_and_a_benchmark_left(of_host: Host) -> None:
    text = of_host.written()
    assert "sglang_pd_watchdog_restarts 0.0" in text
    assert not re.search("sglang_pd_(answers|bench)_", text)
    of_host.say("answers.json", {"at": 1796014800, "right": False})
    of_host.say("restarts", 2)
    of_host.say("bench.json", BENCH)
    text = of_host.written()
    for line in ("answers_right 0.0", "answers_time_seconds 1796014800.0", "watchdog_restarts 2.0",
                 "bench_ttft_p99_seconds 0.9", "bench_itl_p99_seconds 0.03", "bench_time_seconds 1796014800.0"):  # fmt: skip
        assert f"sglang_pd_{line}\n" in text


def test_a_certificate_of_the_router(of_host: Host, tmp_path: Path) -> None:
    of_host.config["certificate"] = str(tmp_path / "not-there.pem")
    assert "certificate_end" not in of_host.written()
    certificate, _ = certificates.made(tmp_path, "router")
    of_host.config["certificate"] = str(certificate)
    (end,) = re.findall(r"^sglang_pd_certificate_end_seconds (\S+)", of_host.written(), re.MULTILINE)
    assert 1.9 * 86400 < float(end) - time.time() < 2.1 * 86400


def test_the_driver_and_what_cards_sent_again(of_host: Host) -> None:
    report = of_host.recorded / "nvidia-smi/q/stdout"
    report.write_text(
        report.read_text().replace(
            "Replays Since Reset                            : 0",
            "Replays Since Reset                            : 7",
            1,
        )
    )
    text = of_host.written()
    assert re.search(r'sglang_pd_gpu_driver_info\{driver="[0-9.]+"\} 1', text)
    assert sorted(re.findall(r"sglang_pd_gpu_pcie_replays\{.*\} (\S+)", text)) == [*["0.0"] * 7, "7.0"]


def test_every_figure_of_ours_that_a_rule_names_is_written(started: Host, tmp_path: Path) -> None:
    certificate, _ = certificates.made(tmp_path, "router")
    started.config["certificate"] = str(certificate)
    started.say("answers.json", {"at": 1, "right": True})
    started.say("bench.json", BENCH)
    with serving() as site:
        site.answers["/metrics"] = answer(200, SCRAPE)
        started.serves(site.url)
        written = set(re.findall(r"^(sglang_pd_\w+)", started.written(), re.MULTILINE))
    assert {name for name in watching.metrics() if name.startswith("sglang_pd_")} <= written


DRIPS = b"HTTP/1.1 200 OK\r\n\r\n"  # and then a byte now and then


@pytest.mark.parametrize(
    "said", [b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nsglang:max_total_num_tokens 1.2.3\n", DRIPS]
)
def test_a_server_that_answers_what_it_likes_hides_no_figure(said: bytes, of_host: Host) -> None:
    of_host.say("run/fingerprint.json", {"script": "a"})
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answers() -> None:
            with server.accept()[0] as line, contextlib.suppress(OSError):
                line.recv(4096)
                line.sendall(said)
                while said == DRIPS and not select.select([line], [], [], 0.2)[0]:
                    line.sendall(b"x")

        thread = threading.Thread(target=answers)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        of_host.serves(url)
        text = of_host.written()
        thread.join()
    assert 'sglang_pd_restarts{server="decode"} 3.0' in text and "kv_cache" not in text
    assert 'sglang_pd_read{part="servers"} 1.0' in text


def test_a_command_that_hangs_is_told_of_within_its_limit() -> None:
    with pytest.raises(metrics.Fault, match="sleep: no answer within 0 s"):
        metrics.run(["sleep", "600"], 0.2)


def test_without_gpus_there_are_no_figures_of_them(of_host: Host) -> None:
    planned = plan(settings(monitoring=True), hardware(TWO_SOCKETS))
    none = dataclasses.replace(planned, hardware=dataclasses.replace(planned.hardware, gpus=()))
    assert json.loads(monitoring.figures(none).content)["gpus"] is None
    of_host.config |= {"gpus": None, "rows": None}
    assert "gpu" not in of_host.written()


# ---- check


def prometheus(targets: list[dict[str, Any]], rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "/api/v1/targets": answer(200, json.dumps({"data": {"activeTargets": targets}})),
        "/api/v1/rules": answer(200, json.dumps({"data": {"groups": [{"rules": rules}]}})),
    }


GOOD = {"labels": {"job": "server", "instance": "decode"}, "health": "up", "lastError": ""}
RULE = {"name": "ServerDown", "health": "ok"}


@pytest.mark.parametrize(
    ("targets", "rules", "line"),
    [
        ([GOOD], [RULE], ""),
        ([GOOD, GOOD | {"health": "down", "lastError": "refused"}], [RULE], "target server decode: down, refused"),
        ([GOOD], [RULE | {"health": "err", "lastError": "many"}], "rule ServerDown: err, many"),
        ([], [RULE], "Prometheus has 0 targets and 1 rules"),
    ],
)
def test_check(targets: list[dict[str, Any]], rules: list[dict[str, Any]], line: str) -> None:
    with serving() as site:
        site.answers = prometheus(targets, rules)
        ran = run("pd-metrics", "check", "--prometheus", site.url, "--limit", "0")
    assert (ran.returncode, line in ran.stderr) == (int(bool(line)), True)
    assert bool(line) or ran.stdout == "1 targets up, 1 rules evaluated\n"


def test_check_of_one_host_tells_of_the_others_alone() -> None:
    here, there = (GOOD | {"labels": GOOD["labels"] | {"host": name}} for name in ("gpu-1", "gpu-2"))
    with serving() as site:
        site.answers = prometheus([here, there | {"health": "down"}], [RULE])
        ran = [
            run("pd-metrics", "check", "--prometheus", site.url, "--limit", "0", "--host", f"gpu-{n}") for n in (1, 2)
        ]
    assert ran[0].returncode == 0 and ran[0].stdout == "1 targets up, some of gpu-2 do not answer, 1 rules evaluated\n"
    assert ran[1].returncode == 1


def test_check_of_no_prometheus() -> None:
    ran = run("pd-metrics", "check", "--prometheus", "http://127.0.0.1:1", "--limit", "0")
    assert ran.returncode == 1 and "does not answer" in ran.stderr


# ---- serve


@contextlib.contextmanager
def shown(folder: Path, sources: Mapping[str, str]) -> Iterator[str]:
    """The address at which these sources are shown."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "figures.json").write_text(json.dumps({"address": "127.0.0.1", "port": port, "sources": sources}))
    child = start("pd-metrics", "serve", "--config", folder / "figures.json")
    try:
        eventually(lambda: fetched(f"http://127.0.0.1:{port}/")[0] == 404, "it listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        child.communicate()


def fetched(url: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, kind and body; status 0 where nobody listens."""
    host, _, path = url.removeprefix("http://").partition("/")
    line = http.client.HTTPConnection(host, timeout=30)
    try:
        line.request(method, f"/{path}", headers={"Accept": "text/plain"})
        found = line.getresponse()
        return found.status, found.getheader("Content-Type", ""), found.read().decode()
    except OSError:
        return 0, "", ""
    finally:
        line.close()


def test_another_host_sees_figures_and_nothing_else_of_a_server(tmp_path: Path) -> None:
    with serving() as site:
        site.answers = {"/metrics": answer(200, SCRAPE), "/generate": answer(200, "tokens"), "/other": answer(500, "x")}
        sources = {"/decode": f"{site.url}/metrics", "/gone": "http://127.0.0.1:1/metrics", "/bad": f"{site.url}/other"}
        with shown(tmp_path, sources) as url:
            assert fetched(f"{url}/decode")[::2] == (200, SCRAPE)
            assert [fetched(f"{url}{path}")[0] for path in ("/gone", "/bad")] == [502, 502]
            assert [fetched(f"{url}{path}")[0] for path in ("/generate", "/metrics", "/decode/../generate")] == [
                404
            ] * 3
            assert fetched(f"{url}/decode", "POST")[0] == 501
            assert not site.asked("/generate")


@pytest.mark.parametrize("length", [b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_an_answer_that_breaks_off_is_not_shown_as_a_whole_one(length: bytes, tmp_path: Path) -> None:
    def answers(server: socket.socket) -> None:
        with server.accept()[0] as line:
            line.recv(4096)
            line.sendall(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n9\r\nx 12")

    with socket.create_server(("127.0.0.1", 0)) as server:
        source = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        with shown(tmp_path, {"/decode": source}) as url:
            breaks_off = threading.Thread(target=answers, args=[server], daemon=True)
            breaks_off.start()
            assert fetched(f"{url}/decode")[0] == 502
            breaks_off.join(30)


def test_what_nvidia_smi_is_asked_was_recorded() -> None:
    asked = json.loads(monitoring.figures(plan(settings(monitoring=True), hardware(TWO_SOCKETS))).content)
    known = [path.read_text().split() for path in NVIDIA.glob("*/args")]
    assert asked["gpus"][1:] in known and asked["rows"][1:] in known
    columns = asked["gpus"][1].partition("=")[2].split(",")
    assert set(metrics.COLUMNS) == set(columns) - {"index", "uuid"}
