"""One provisioned host: runs again, hand edits, crashes, a reboot. State is read by other means than our own facts."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.bin.tools import load
from tests.node import found
from tests.node.asking import CONFIG, UNITS, answer, answers, logged, out, pids, states
from tests.node.deploying import broken_off, command_line, deploy, environment, plain_user, without_plain_user
from tests.node.node import REPOSITORY, Node
from tests.node.waiting import until

load("pd-gate")  # its folder is where the module is found from now on
from pd_shared import find_signature, read_signatures  # noqa: E402

START_LIMIT = 300.0  # seconds


def test_it_answers_and_systemd_says_so(served: Node) -> None:
    assert states(served) == ["active"] * 3
    assert "391" in answer(served, "What is 17*23? Answer with the number only.")


def test_no_journal_of_a_healthy_start_looks_like_a_failure(served: Node) -> None:
    known = read_signatures()
    for unit in UNITS:
        lines = logged(served, unit)
        assert lines, unit
        assert [(line, hit.name) for line in lines if (hit := find_signature(line, known))] == [], unit


def test_health_checks_leave_no_line_of_their_own_in_the_journal_and_other_requests_do(served: Node) -> None:
    """A router asks each server every two seconds: in ten of its rounds the three servers once wrote 30 lines and more."""
    units = " ".join(f"-u {unit}" for unit in UNITS)
    cursor = out(served, f"journalctl {units} -n 0 --show-cursor | sed -n 's/^-- cursor: //p'")
    since = f"journalctl {units} -o cat --after-cursor='{cursor}'"
    until(
        lambda: out(served, since).count("Prefill batch, #new-seq: 1, #new-token: 1,") >= 10, "ten health checks", 120
    )
    lines = out(served, since).splitlines()
    assert not [line for line in lines if "GET /health" in line]
    assert len(lines) < 20, lines
    ask = "import http.client as c, sys; h = c.HTTPConnection('127.0.0.1', 30000); h.request('GET', '/no-such-page'); "
    assert out(served, f'python3 -c "{ask}print(h.getresponse().status)"') == "404"
    until(lambda: '"GET /no-such-page HTTP/1.1" 404' in out(served, since), "what fails is told", 30)


def test_a_requests_id_is_in_the_journal_of_the_router_and_of_no_server(served: Node) -> None:
    """Servers of SGLang take no id from a header: prefill and decode each make one of their own."""
    name = "asked-by-a-client-0815"
    ask = (
        "import http.client as c, json; h = c.HTTPConnection('127.0.0.1', 8000); "
        "h.request('POST', '/v1/chat/completions', json.dumps(dict(model='rehearsal', max_tokens=2, "
        "messages=[dict(role='user', content='Hello')])), {'Content-Type': 'application/json', "
        f"'x-request-id': '{name}'}}); print(h.getresponse().headers['x-request-id'])"
    )
    assert out(served, f'python3 -c "{ask}"') == name
    router, *servers = sorted(UNITS, key=lambda unit: "router" not in unit)
    until(lambda: any(name in line for line in logged(served, router)), "the router tells of it", 30)
    assert not [line for unit in servers for line in logged(served, unit) if name in line]


def test_second_run_changes_nothing(served: Node) -> None:
    before = pids(served)
    again = deploy(served, "-y")
    assert again.status == 0, again.output
    assert again.changed == []
    assert pids(served) == before
    told = again.output.splitlines()
    assert "Nothing to change: rehearsal is as wanted and answers right." in told[-2], "before the JSON of a test"
    assert any("serves" in line and "prefill and decode apart" in line for line in told), again.output


def test_dry_run_after_a_changed_setting_shows_the_line_and_the_pair(served: Node) -> None:
    before = pids(served)
    result = subprocess.run(
        command_line("--dry", "--diff", decode_mem_fraction=0.62), cwd=REPOSITORY, env=environment(served),
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = result.stderr
    assert result.returncode == 0, said
    assert "-   --mem-fraction-static 0.60" in said and "+   --mem-fraction-static 0.62" in said
    assert "decode: restarts, it was started with another launch script" in said
    assert "prefill: restarts with decode" in said
    assert "router: " not in said
    planned = deploy(served, "--dry", decode_mem_fraction=0.62).planned
    assert planned == [f"Launch | File {CONFIG}/decode.sh", "Services | Running: prefill, decode"]
    alone = deploy(served, "--dry", prefill_mem_fraction=0.62, restart_scope="changed").output
    assert "prefill: restarts" in alone and "decode: restarts" not in alone
    along = deploy(served, "--dry", decode_mem_fraction=0.62, restart_scope="changed").output
    assert "prefill: restarts with decode: it holds that one's KV cache mapped" in along
    assert pids(served) == before, "a dry run touches nothing"


def test_dry_run_shows_the_full_plan_of_the_recorded_host(served: Node) -> None:
    """4+4 GPUs and the GPU release: planned here, served elsewhere."""
    result = subprocess.run(
        command_line("--dry", "--diff", release="sglang-0.5.23-cu130", model="deepseek-v4-flash-nvfp4",
                     context_length=131072,
                     prefill_tensor_parallel=4, decode_tensor_parallel=4, minimum_free_disk_gb=0,
                     minimum_memory_gb_per_gpu=0.1),
        cwd=REPOSITORY, env=environment(served), capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "+   --base-gpu-id 4 \\" in result.stderr
    assert "+   --tp 4 \\" in result.stderr


SITE = "/opt/sglang-pd/current/env/lib/python3.11/site-packages"


def environment_of_decode(node: Node) -> tuple[str, str]:
    """Hashes of decode's environment: of the file's variables as it lies there, and of what the process was started with."""
    on_disk = out(node, f"grep -v ^# {CONFIG}/decode.env | sha256sum").split()[0]
    return on_disk, json.loads(out(node, "cat /run/sglang-pd/decode/fingerprint.json"))["environment"]


def killed_at_a_stop(node: Node) -> int:
    """How often prefill's server was killed."""
    return int(out(node, f"journalctl -u {UNITS[0]} | grep -c 'Main process exited.*status=9/KILL' || true"))


def comes_back(node: Node, unit: str) -> None:
    """Kill a server; systemd brings it back, and the service answers by itself."""
    killed = pids(node)[unit]
    out(node, f"systemctl kill -s KILL {unit}")
    until(
        lambda: pids(node)[unit] not in (0, killed) and states(node) == ["active"] * 3, f"{unit} is back", START_LIMIT
    )
    until(lambda: answers(node), "the service answers", START_LIMIT)


@pytest.mark.parametrize("unit", [UNITS[0], UNITS[2]])
def test_a_crashed_server_comes_back_by_itself_and_the_service_answers(served: Node, unit: str) -> None:
    comes_back(served, unit)
    assert deploy(served, "-y").changed == []


def test_a_run_that_broke_between_writing_and_restarting_is_repaired_by_the_next(served: Node) -> None:
    """decode crashes into a file that was edited by hand; a run that mends the file is killed before it restarts."""
    out(served, f"echo 'PD_BY_HAND=1' >>{CONFIG}/decode.env")
    prefill, kills = pids(served)[UNITS[0]], killed_at_a_stop(served)
    comes_back(served, UNITS[1])
    assert pids(served)[UNITS[0]] != prefill, "what prefill maps of decode's memory went with it"
    assert killed_at_a_stop(served) == kills + 1, "nothing of it could be drained"
    edited, running = environment_of_decode(served)
    assert edited == running

    broken_off(served, "Starting operation: Services", signal.SIGKILL)
    mended, running = environment_of_decode(served)
    assert mended != edited and running == edited, "the file was written, the server not restarted"

    repaired = deploy(served, "-y")
    assert repaired.changed == ["Services | Running: prefill, decode"], repaired.output
    assert environment_of_decode(served) == (mended, mended)
    assert killed_at_a_stop(served) == kills + 1, "a restart of both drains"
    assert answers(served)


def test_after_a_reboot_everything_comes_up_in_order_without_pyinfra(served: Node) -> None:
    served.reboot()
    until(lambda: states(served) == ["active"] * 3, "the three units are active", START_LIMIT)
    active_since = [
        int(out(served, f"systemctl show -p ActiveEnterTimestampMonotonic --value {unit}")) for unit in UNITS
    ]
    router_started = int(out(served, f"systemctl show -p ExecMainStartTimestampMonotonic --value {UNITS[2]}"))
    assert router_started > max(active_since[:2]), "the router starts after both workers are ready"
    assert "391" in answer(served, "What is 17*23? Answer with the number only.")
    again = deploy(served, "-y")
    told = {"Topology | Stale proof told", "Verify | Kept as what passed last"}
    assert set(again.changed) <= told, "the proof is of the boot before, nothing else is new"
    assert deploy(served, "-y").changed == []


def test_a_setting_that_systemd_alone_reads_restarts_nothing(served: Node) -> None:
    before = pids(served)
    written = [f"Launch | File /etc/systemd/system/{unit}" for unit in UNITS]
    kept = "Verify | Kept as what passed last"
    journald = "/etc/systemd/journald.conf.d"
    journal = [f"System | Folder {journald}", f"System | Journal {journald}/60-sglang-pd.conf"]
    largest = "journalctl -q -u systemd-journald -o cat | grep -o 'max [0-9.]*[KMG]' | tail -1"
    was = out(served, largest)
    limits = f"systemctl show -p TimeoutStopUSec --value {' '.join(UNITS)}"
    try:
        longer = deploy(served, "-y", stop_limit=46, journal_gb=1)
        assert longer.changed == [*journal, *written, kept], longer.output
        assert out(served, limits).split() == ["46s"] * 3, "systemd has read them"
        until(lambda: out(served, largest) == "max 1.0G", "journald has read it", 30)
    finally:
        assert deploy(served, "-y").changed == [f"System | No {journald}/60-sglang-pd.conf", *written, kept]
        assert out(served, largest) == was
    assert out(served, limits).split() == ["45s"] * 3
    assert pids(served) == before


def test_verify_fails_with_question_answer_and_expectation(served: Node) -> None:
    config = json.loads(out(served, f"cat {CONFIG}/verify.json"))
    config["golden"][0]["expect"] = "no such answer"
    served.run("cat >/tmp/wrong.json", text=json.dumps(config))
    ran = served.run("/opt/sglang-pd/bin/pd-verify --config /tmp/wrong.json")
    assert ran.returncode == 1
    assert config["golden"][0]["prompt"] in ran.stdout + ran.stderr
    assert "no such answer" in ran.stdout + ran.stderr


def test_with_decode_stopped_verify_fails_and_an_interrupted_run_is_gone_on_with(served: Node) -> None:
    """The servers keep starting while nobody looks; the next run waits behind the same gates and restarts nothing."""
    out(served, f"systemctl stop {UNITS[1]}")
    assert not answers(served)
    broken_off(served, "decode: starting Python", signal.SIGINT)
    going = ("activating", "active")  # decode starts at once, prefill once it has drained: which is ready first varies
    until(lambda: all(state in going for state in states(served)[:2]), "both have stopped and start again", START_LIMIT)
    starting = {unit: pid for unit, pid in pids(served).items() if unit != UNITS[2]}
    mended = deploy(served, "-y")
    assert mended.status == 0, mended.output
    assert {unit: pids(served)[unit] for unit in starting} == starting
    assert answers(served)


def test_with_nixl_taken_away_no_answer_is_given_and_none_is_accepted(served: Node) -> None:
    """A worker that cannot move KV is not made ready; brought back, the next run mends the rest."""
    away = " && ".join(f"mv {SITE}/{name} {SITE}/{name}.away" for name in ("nixl", "nixl_cu13"))
    out(served, f"{away} && systemctl stop {UNITS[1]}")
    try:
        assert served.run(f"systemctl start {UNITS[1]}").returncode != 0
        assert "NIXL" in out(served, f"journalctl -u {UNITS[1]} -o cat | grep '^pd-gate: decode: failed' | tail -n 1")
        assert not answers(served)
    finally:
        out(served, f"mv {SITE}/nixl.away {SITE}/nixl && mv {SITE}/nixl_cu13.away {SITE}/nixl_cu13")
    mended = deploy(served, "-y")
    assert mended.changed == ["Services | Running: prefill, decode"], mended.output
    assert answers(served)


def test_a_user_with_sudo_can_do_it_all(served: Node) -> None:
    as_plain = ("-y", *plain_user(served))
    try:
        assert deploy(served, *as_plain).changed == []
        out(served, f"echo '# by hand' >>{CONFIG}/decode.sh; systemctl stop {UNITS[2]}")
        mended = deploy(served, *as_plain)
        assert mended.changed == [f"Launch | File {CONFIG}/decode.sh", "Services | Running: router"], mended.output
        assert out(served, f"stat -c '%U:%G %a' {CONFIG}/decode.sh") == "root:sglang 755"
    finally:
        without_plain_user(served)


def test_a_proxy_of_the_whole_system_reaches_no_server(served: Node) -> None:
    """The host had one when it was provisioned, see `served`; a test may have rebuilt it since."""
    out(served, found.PROXY)
    assert "HTTP_PROXY=" in out(served, "systemctl show-environment; cat /etc/systemd/system.conf.d/proxy.conf")
    out(served, "systemctl restart sglang-pd-router.service")
    for unit, pid in pids(served).items():
        assert served.run(f"tr '\\0' '\\n' </proc/{pid}/environ | grep -qi _proxy=").returncode == 1, unit


def test_an_upgrade_of_libc_restarts_no_server(served: Node) -> None:
    """By the real needrestart, as an unattended upgrade runs it: it restarts what still uses the libc of before."""
    out(served, "apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends needrestart >/dev/null 2>&1; "
        "systemd-run -q --unit=stranger sleep 1000; f=$(realpath /lib/*/libc.so.6) && cp -p $f $f.new && mv $f.new $f")  # fmt: skip
    stranger = "systemctl show -p MainPID --value stranger"
    before, ours = out(served, stranger), pids(served)
    try:
        said = out(served, "DEBIAN_FRONTEND=noninteractive needrestart -r a -m a </dev/null 2>&1")
        assert out(served, stranger) != before, said
        assert pids(served) == ours, said
    finally:
        served.run("systemctl stop stranger")


def test_another_apt_that_holds_the_lists_is_waited_for(served: Node) -> None:
    """As apt-daily or cloud-init does in the first minutes of a host."""
    hold = (
        "import fcntl, time; f = open('/var/lib/apt/lists/lock', 'w'); fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(1000)"
    )
    out(served, f'dpkg --purge pciutils; systemd-run -q --unit=another-apt python3 -c "{hold}"')
    try:
        said = "waits for another apt, at most 600 s: Could not get lock /var/lib/apt/lists/lock. It is held by process"
        assert broken_off(served, said, lambda _: served.run("systemctl stop another-apt")) == 0
    finally:
        served.run("systemctl stop another-apt")
    assert out(served, "dpkg-query -W -f '${db:Status-Status}' pciutils") == "installed"
