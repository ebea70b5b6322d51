"""One provisioned host: runs again, hand edits, crashes, a reboot. State is read by other means than our own facts."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.node.deploying import command_line, deploy, environment, provisioned
from tests.node.node import REPOSITORY, Node
from tests.node.waiting import until

UNITS = [f"sglang-pd-{name}.service" for name in ("prefill", "decode", "router")]
CONFIG = "/etc/sglang-pd"
START_LIMIT = 300.0  # seconds


@pytest.fixture(scope="module")
def node(bare_node: Callable[..., Node]) -> Iterator[Node]:
    """Provisioned once for the module; whatever a test breaks, it or the next run of the playbook mends."""
    made = bare_node()
    first = provisioned(made)
    assert len(first.changed) > 30, "a bare host is made from almost every operation"
    yield made
    assert made.unrecorded() == []


def out(node: Node, command: str) -> str:
    ran = node.run(command)
    assert ran.returncode == 0, f"{command}: {ran.stderr}"
    return ran.stdout.strip()


def states(node: Node) -> list[str]:
    return out(node, f"systemctl show -p ActiveState --value {' '.join(UNITS)}").split()


def pids(node: Node) -> dict[str, int]:
    return {unit: int(out(node, f"systemctl show -p MainPID --value {unit}")) for unit in UNITS}


def answer(node: Node, prompt: str, port: int = 8000, tokens: int = 24, stream: bool = False) -> str:
    """Asked on the node, with Debian's own Python and nothing of ours."""
    body = json.dumps(
        {"model": "rehearsal", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
         "temperature": 0, "stream": stream}
    )  # fmt: skip
    script = f"""
import json, sys, urllib.request
request = urllib.request.Request("http://127.0.0.1:{port}/v1/chat/completions", sys.stdin.buffer.read(),
                                 {{"Content-Type": "application/json"}})
answer = urllib.request.urlopen(request, timeout=60)
if {stream}:
    events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    print("".join(choice["delta"].get("content") or "" for choice in choices), end="")
else:
    print(json.load(answer)["choices"][0]["message"]["content"], end="")
"""
    ran = node.run(f"python3 -c '{script.replace(chr(39), chr(34))}'", text=body)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def answers(node: Node) -> bool:
    ran = node.run(f"/opt/sglang-pd/bin/pd-verify --config {CONFIG}/verify.json --json")
    return ran.returncode == 0


def test_it_answers_and_systemd_says_so(node: Node) -> None:
    assert states(node) == ["active"] * 3
    assert "391" in answer(node, "What is 17*23? Answer with the number only.")


def test_servers_listen_on_loopback_only(node: Node) -> None:
    listening = [line.split()[3] for line in out(node, "ss -Hltn").splitlines()]
    ours = [
        address for address in listening if address.rsplit(":", 1)[1] in {"30000", "30001", "8000", "29001", "8998"}
    ]
    assert len(ours) >= 5
    assert all(address.startswith("127.0.0.1:") for address in ours), ours


def test_second_run_changes_nothing(node: Node) -> None:
    before = pids(node)
    again = deploy(node, "-y")
    assert again.status == 0, again.output
    assert again.changed == []
    assert pids(node) == before


def test_dry_run_after_a_changed_setting_shows_the_line_and_the_pair(node: Node) -> None:
    before = pids(node)
    result = subprocess.run(
        command_line("--dry", "--diff", decode_mem_fraction=0.62), cwd=REPOSITORY, env=environment(node),
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = result.stderr
    assert result.returncode == 0, said
    assert "-   --mem-fraction-static 0.60" in said and "+   --mem-fraction-static 0.62" in said
    assert "decode: restarts, it was started with another launch script" in said
    assert "prefill: restarts with decode" in said
    assert "router: " not in said
    planned = deploy(node, "--dry", decode_mem_fraction=0.62).planned
    assert planned == [f"Launch | File {CONFIG}/decode.sh", "Services | Running: prefill, decode"]
    alone = deploy(node, "--dry", decode_mem_fraction=0.62, restart_scope="changed").output
    assert "decode: restarts" in alone and "prefill: restarts" not in alone
    assert pids(node) == before, "a dry run touches nothing"


def test_dry_run_shows_the_full_plan_of_the_recorded_host(node: Node) -> None:
    """4+4 GPUs and the GPU release: planned here, served elsewhere."""
    result = subprocess.run(
        command_line("--dry", "--diff", release="sglang-0.5.23-cu130", model="deepseek-v4-flash-nvfp4",
                     model_dir="/var/lib/sglang-pd/models/rehearsal-qwen2", context_length=131072,
                     prefill_tensor_parallel=4, decode_tensor_parallel=4, minimum_free_disk_gb=0),
        cwd=REPOSITORY, env=environment(node), capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "+   --base-gpu-id 4 \\" in result.stderr
    assert "numactl --cpunodebind=1 --membind=1" in result.stderr


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
def test_a_hand_edit_makes_its_own_operation_change_and_no_other(node: Node, edit: str) -> None:
    command, operation = EDITS[edit]
    before = pids(node)
    node.run(command)
    result = deploy(node, "-y")
    assert result.status == 0, result.output
    assert len(result.changed) == 1 and result.changed[0].startswith(operation), result.changed
    untouched = UNITS if edit != "stopped unit" else UNITS[:2]
    assert {unit: pids(node)[unit] for unit in untouched} == {unit: before[unit] for unit in untouched}
    assert deploy(node, "-y").changed == []


def test_a_run_that_broke_between_writing_and_restarting_is_repaired_by_the_next(node: Node) -> None:
    started_with = out(node, "cat /run/sglang-pd/decode/fingerprint.json")
    broken = subprocess.Popen(
        command_line("-y", decode_cuda_graph_max_batch=32, answer_limit=61, decode_environment='{"PD_REHEARSAL": "1"}'),
        cwd=REPOSITORY, env=environment(node), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert broken.stderr is not None
    for line in broken.stderr:
        if "Starting operation: Services" in line:
            broken.send_signal(signal.SIGKILL)
            break
    broken.wait()
    assert "PD_REHEARSAL" in out(node, f"cat {CONFIG}/decode.env"), "the file was written"
    assert out(node, "cat /run/sglang-pd/decode/fingerprint.json") == started_with, "the server was not restarted"

    data = {"answer_limit": 61, "decode_environment": '{"PD_REHEARSAL": "1"}'}
    repaired = deploy(node, "-y", **data)
    assert repaired.changed == ["Services | Running: prefill, decode"], repaired.output
    written = hashlib.sha256(out(node, f"cat {CONFIG}/decode.env").encode() + b"\n").hexdigest()
    assert json.loads(out(node, "cat /run/sglang-pd/decode/fingerprint.json"))["environment"] == written
    assert answers(node)
    assert deploy(node, "-y", **data).changed == []
    assert deploy(node, "-y").status == 0


@pytest.mark.parametrize("unit", UNITS)
def test_a_crashed_server_comes_back_by_itself_and_the_service_answers(node: Node, unit: str) -> None:
    killed = pids(node)[unit]
    out(node, f"systemctl kill -s KILL {unit}")
    until(
        lambda: pids(node)[unit] not in (0, killed) and states(node) == ["active"] * 3, f"{unit} is back", START_LIMIT
    )
    until(lambda: answers(node), "the service answers", 90)
    assert deploy(node, "-y").changed == []


def test_after_a_reboot_everything_comes_up_in_order_without_pyinfra(node: Node) -> None:
    node.reboot()
    until(lambda: states(node) == ["active"] * 3, "the three units are active", START_LIMIT)
    active_since = [int(out(node, f"systemctl show -p ActiveEnterTimestampMonotonic --value {unit}")) for unit in UNITS]
    router_started = int(out(node, f"systemctl show -p ExecMainStartTimestampMonotonic --value {UNITS[2]}"))
    assert router_started > max(active_since[:2]), "the router starts after both workers are ready"
    assert "391" in answer(node, "What is 17*23? Answer with the number only.")
    assert deploy(node, "-y").changed == []


def test_verify_fails_with_question_answer_and_expectation(node: Node) -> None:
    config = json.loads(out(node, f"cat {CONFIG}/verify.json"))
    config["golden"][0]["expect"] = "no such answer"
    node.run("cat >/tmp/wrong.json", text=json.dumps(config))
    ran = node.run("/opt/sglang-pd/bin/pd-verify --config /tmp/wrong.json")
    assert ran.returncode == 1
    assert config["golden"][0]["prompt"] in ran.stdout + ran.stderr
    assert "no such answer" in ran.stdout + ran.stderr


def test_with_decode_stopped_verify_fails_and_the_next_run_mends_it(node: Node) -> None:
    out(node, f"systemctl stop {UNITS[1]}")
    assert not answers(node)
    mended = deploy(node, "-y")
    assert mended.changed == ["Services | Running: prefill, decode"], mended.output
    assert answers(node)


def test_with_nixl_taken_away_the_service_is_refused(node: Node) -> None:
    """Servers that cannot move KV never become ready, the router is not started over them, and the run says why."""
    out(node, f"mv {SITE}/nixl {SITE}/nixl.away && systemctl stop sglang-pd.target")
    ran = node.run(f"systemctl start {UNITS[1]}")
    assert ran.returncode != 0
    assert not answers(node)
    out(node, f"mv {SITE}/nixl.away {SITE}/nixl")
    assert provisioned(node).changed
    assert answers(node)
