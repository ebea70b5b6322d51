"""One provisioned host: runs again, hand edits, crashes, a reboot. State is read by other means than our own facts."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess

import pytest

from tests.node.asking import CONFIG, UNITS, answer, answers, out, pids, states
from tests.node.deploying import command_line, deploy, environment, provisioned
from tests.node.node import REPOSITORY, Node
from tests.node.waiting import until

START_LIMIT = 300.0  # seconds


def test_it_answers_and_systemd_says_so(served: Node) -> None:
    assert states(served) == ["active"] * 3
    assert "391" in answer(served, "What is 17*23? Answer with the number only.")


def test_servers_listen_on_loopback_only(served: Node) -> None:
    listening = [line.split()[3] for line in out(served, "ss -Hltn").splitlines()]
    ours = [
        address for address in listening if address.rsplit(":", 1)[1] in {"30000", "30001", "8000", "29001", "8998"}
    ]
    assert len(ours) >= 5
    assert all(address.startswith("127.0.0.1:") for address in ours), ours


def test_second_run_changes_nothing(served: Node) -> None:
    before = pids(served)
    again = deploy(served, "-y")
    assert again.status == 0, again.output
    assert again.changed == []
    assert pids(served) == before


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
    alone = deploy(served, "--dry", decode_mem_fraction=0.62, restart_scope="changed").output
    assert "decode: restarts" in alone and "prefill: restarts" not in alone
    assert pids(served) == before, "a dry run touches nothing"


def test_dry_run_shows_the_full_plan_of_the_recorded_host(served: Node) -> None:
    """4+4 GPUs and the GPU release: planned here, served elsewhere."""
    result = subprocess.run(
        command_line("--dry", "--diff", release="sglang-0.5.23-cu130", model="deepseek-v4-flash-nvfp4",
                     model_dir="/var/lib/sglang-pd/models/rehearsal-qwen2", context_length=131072,
                     prefill_tensor_parallel=4, decode_tensor_parallel=4, minimum_free_disk_gb=0),
        cwd=REPOSITORY, env=environment(served), capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "+   --base-gpu-id 4 \\" in result.stderr
    assert "+   --tp 4 \\" in result.stderr


SITE = "/opt/sglang-pd/current/env/lib/python3.11/site-packages"
EDITS = {
    "launch script": (f"echo '# by hand' >>{CONFIG}/decode.sh", f"Launch | File {CONFIG}/decode.sh"),
    "unit": (f"echo '# by hand' >>/etc/systemd/system/{UNITS[0]}", f"Launch | File /etc/systemd/system/{UNITS[0]}"),
    "mode": (f"chmod 777 {CONFIG}/router.sh", f"Launch | File {CONFIG}/router.sh"),
    "owner": ("chown root /var/lib/sglang-pd/models", "System | Folder /var/lib/sglang-pd/models"),
    "package": (f"rm -r {SITE}/markdown_it {SITE}/markdown_it_py-*", "Runtime | Release "),
    "file in a package": (f"echo '# by hand' >>{SITE}/mdurl/_parse.py", "Runtime | Release "),
    "overlay": (f"echo '# by hand' >>{SITE}/pd_overlay_cpu_engine/__init__.py", "Kernels | Overlay cpu-engine"),
    "disabled unit": (f"systemctl disable -q {UNITS[1]}", f"Services | Enabled {UNITS[1]}"),
    "stopped unit": (f"systemctl stop {UNITS[2]}", "Services | Running: router"),
    "removed folder": ("rmdir /var/lib/sglang-pd/cache/probe; rm -r /var/lib/sglang-pd/cache", "System | Folder /var/lib/sglang-pd/cache"),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_hand_edit_makes_its_own_operation_change_and_no_other(served: Node, edit: str) -> None:
    command, operation = EDITS[edit]
    before = pids(served)
    served.run(command)
    result = deploy(served, "-y")
    assert result.status == 0, result.output
    assert len(result.changed) == 1 and result.changed[0].startswith(operation), result.changed
    untouched = UNITS if edit != "stopped unit" else UNITS[:2]
    assert {unit: pids(served)[unit] for unit in untouched} == {unit: before[unit] for unit in untouched}
    assert deploy(served, "-y").changed == []


def test_a_run_that_broke_between_writing_and_restarting_is_repaired_by_the_next(served: Node) -> None:
    started_with = out(served, "cat /run/sglang-pd/decode/fingerprint.json")
    broken = subprocess.Popen(
        command_line("-y", decode_cuda_graph_max_batch=32, answer_limit=61, decode_environment='{"PD_REHEARSAL": "1"}'),
        cwd=REPOSITORY, env=environment(served), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert broken.stderr is not None
    for line in broken.stderr:
        if "Starting operation: Services" in line:
            broken.send_signal(signal.SIGKILL)
            break
    broken.wait()
    assert "PD_REHEARSAL" in out(served, f"cat {CONFIG}/decode.env"), "the file was written"
    assert out(served, "cat /run/sglang-pd/decode/fingerprint.json") == started_with, "the server was not restarted"

    data = {"answer_limit": 61, "decode_environment": '{"PD_REHEARSAL": "1"}'}
    repaired = deploy(served, "-y", **data)
    assert repaired.changed == ["Services | Running: prefill, decode"], repaired.output
    written = hashlib.sha256(out(served, f"cat {CONFIG}/decode.env").encode() + b"\n").hexdigest()
    assert json.loads(out(served, "cat /run/sglang-pd/decode/fingerprint.json"))["environment"] == written
    assert answers(served)
    assert deploy(served, "-y", **data).changed == []
    assert deploy(served, "-y").status == 0


@pytest.mark.parametrize("unit", UNITS)
def test_a_crashed_server_comes_back_by_itself_and_the_service_answers(served: Node, unit: str) -> None:
    killed = pids(served)[unit]
    out(served, f"systemctl kill -s KILL {unit}")
    until(
        lambda: pids(served)[unit] not in (0, killed) and states(served) == ["active"] * 3,
        f"{unit} is back",
        START_LIMIT,
    )
    until(lambda: answers(served), "the service answers", 90)
    assert deploy(served, "-y").changed == []


def test_after_a_reboot_everything_comes_up_in_order_without_pyinfra(served: Node) -> None:
    served.reboot()
    until(lambda: states(served) == ["active"] * 3, "the three units are active", START_LIMIT)
    active_since = [
        int(out(served, f"systemctl show -p ActiveEnterTimestampMonotonic --value {unit}")) for unit in UNITS
    ]
    router_started = int(out(served, f"systemctl show -p ExecMainStartTimestampMonotonic --value {UNITS[2]}"))
    assert router_started > max(active_since[:2]), "the router starts after both workers are ready"
    assert "391" in answer(served, "What is 17*23? Answer with the number only.")
    assert deploy(served, "-y").changed == []


def test_verify_fails_with_question_answer_and_expectation(served: Node) -> None:
    config = json.loads(out(served, f"cat {CONFIG}/verify.json"))
    config["golden"][0]["expect"] = "no such answer"
    served.run("cat >/tmp/wrong.json", text=json.dumps(config))
    ran = served.run("/opt/sglang-pd/bin/pd-verify --config /tmp/wrong.json")
    assert ran.returncode == 1
    assert config["golden"][0]["prompt"] in ran.stdout + ran.stderr
    assert "no such answer" in ran.stdout + ran.stderr


def test_with_decode_stopped_verify_fails_and_the_next_run_mends_it(served: Node) -> None:
    out(served, f"systemctl stop {UNITS[1]}")
    assert not answers(served)
    mended = deploy(served, "-y")
    assert mended.changed == ["Services | Running: prefill, decode"], mended.output
    assert answers(served)


def test_with_nixl_taken_away_the_service_is_refused(served: Node) -> None:
    """Servers that cannot move KV never become ready, the router is not started over them, and the run says why."""
    out(served, f"mv {SITE}/nixl {SITE}/nixl.away && systemctl stop sglang-pd.target")
    ran = served.run(f"systemctl start {UNITS[1]}")
    assert ran.returncode != 0
    assert not answers(served)
    out(served, f"mv {SITE}/nixl.away {SITE}/nixl")
    assert provisioned(served).changed
    assert answers(served)


def test_a_user_with_sudo_can_do_it_all(served: Node) -> None:
    out(
        served,
        "useradd -m plain && install -d -o plain -m 700 /home/plain/.ssh && "
        "install -o plain -m 600 /root/.ssh/authorized_keys /home/plain/.ssh/ && "
        "echo 'plain ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/plain",
    )
    as_plain = ("-y", "--ssh-user", "plain", "--sudo")
    try:
        assert deploy(served, *as_plain).changed == []
        out(served, f"echo '# by hand' >>{CONFIG}/decode.sh; systemctl stop {UNITS[2]}")
        mended = deploy(served, *as_plain)
        assert mended.changed == [f"Launch | File {CONFIG}/decode.sh", "Services | Running: router"], mended.output
        assert out(served, f"stat -c '%U:%G %a' {CONFIG}/decode.sh") == "root:sglang 755"
    finally:
        served.run("userdel -r plain; rm /etc/sudoers.d/plain")


def test_a_run_that_was_interrupted_while_servers_start_is_gone_on_with(served: Node) -> None:
    """The servers keep starting; the next run waits behind the same gates and restarts nothing."""
    out(served, f"systemctl stop {UNITS[0]}")
    interrupted = subprocess.Popen(
        command_line("-y"), cwd=REPOSITORY, env=environment(served), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert interrupted.stderr is not None
    for line in interrupted.stderr:
        if "prefill: starting" in line:
            interrupted.send_signal(signal.SIGINT)
            break
    interrupted.communicate()
    starting = pids(served)
    assert starting[UNITS[0]] != 0
    result = deploy(served, "-y")
    assert result.status == 0, result.output
    assert pids(served) == starting
    assert answers(served)
