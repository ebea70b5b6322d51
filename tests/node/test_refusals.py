"""Bad input against a bare host: one clear line, nothing changed, exit status not 0, no traceback."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.node.deploying import command_line, environment, plain_user, without_plain_user
from tests.node.node import REPOSITORY, Node

# Memory and disk are those of the machine that runs the tests, not of a host with eight GPUs.
GPU_RELEASE: dict[str, object] = {
    "release": "sglang-0.5.23-cu130", "minimum_memory_gb_per_gpu": 0.1, "minimum_free_disk_gb": 0.1,
    "decode_retraction_backup": "cpu_tensor",
}  # fmt: skip
FOUR: dict[str, object] = {"prefill_tensor_parallel": 4, "decode_tensor_parallel": 4}
# What is wrong -> settings, the recorded hardware, and what the one line must say.
SETTINGS: dict[str, tuple[dict[str, object], str]] = {
    "unknown setting": ({"decod_port": 30001}, "unknown setting decod_port = 30001: it is not in group_data/all.py. Did you mean decode_port?"),
    "wrong type": ({"decode_mem_fraction": "high"}, "setting decode_mem_fraction = 'high': input should be a valid number"),
    "port twice": ({"decode_port": 30000}, "port 30000 is asked for twice: by prefill (prefill_port) and by decode (decode_port)"),
    "unknown release": ({"release": "sglang-0.5.23-cu131"}, "unknown release 'sglang-0.5.23-cu131': files/locks holds"),
    "unknown model": ({"model": "deepseek-v4"}, "unknown model 'deepseek-v4': files/models holds"),
    "heads": ({"prefill_tensor_parallel": 3}, "setting prefill_tensor_parallel = 3 does not divide the 4 attention heads"),
    "missing model": ({"model_dir": "/srv/no-model"}, "model/files/there: model /srv/no-model: no such folder on this host, so it holds no config.json"),
    "absent GPU": ({"prefill_gpus": "[8]"}, "setting prefill_gpus names GPU 8, this host has GPU 0-7"),
    "GPU for two roles": ({"prefill_gpus": "[0]", "decode_gpus": "[0]"}, "both name GPU 0"),
    "not on the node": ({"prefill_gpus": "[4]", "prefill_numa_node": 0}, "setting prefill_numa_node = 0, but GPU 4 of prefill_gpus is on node 1; topo -m says 'GPU4"),
    "renamed argument": ({"decode_arguments": '["--cuda-graph-max-bs","64"]'}, "setting decode_arguments holds --cuda-graph-max-bs: use decode_cuda_graph_max_batch"),
    "another model's profile": ({"model": "deepseek-v4-flash-nvfp4", "model_dir": "/srv/whole"}, "model/profile/agrees: profile deepseek-v4-flash-nvfp4 contradicts config.json of /srv/whole: it says 64 attention heads (heads), not 4; 1 KV heads"),
    "a model behind a closed door": ({"model": "auto", "model_dir": "/srv/closed/model"}, "model/files/there: model /srv/closed/model: service_user = 'sglang' cannot enter this folder"),
    "no room": ({"minimum_free_disk_gb": 100000}, "GB free, 100000 GB are needed"),
    "no wheel folder": ({"package_wheelhouse": "/srv/none"}, "package_wheelhouse /srv/none is not a folder on this host: fill it with `make wheelhouse RELEASE=sglang-0.5.20-cpu PYTHON="),
    "a wheel folder that lacks wheels": ({"package_wheelhouse": "/srv"}, "package_wheelhouse /srv lacks aiohappyeyeballs=="),
    "two package sources": ({"package_wheelhouse": "/srv", "package_index": "http://mirror.example/simple"}, "means that folder alone: leave out package_index"),
    "beyond loopback without a key": ({"router_host": "0.0.0.0"}, "listens beyond loopback: set router_api_key_env too"),
    "unknown check": ({"silenced_checks": '{"pcie/widht/full": "x"}'}, "setting silenced_checks names no check 'pcie/widht/full'. Did you mean pcie/width/full?"),
    "key that is not there": ({"router_api_key_env": "PD_NO_SUCH_KEY"}, "names PD_NO_SUCH_KEY, which your environment does not hold"),
}  # fmt: skip
HARDWARE: dict[str, tuple[str, dict[str, object], str]] = {
    "driver too old": ("driver-570", GPU_RELEASE, "gpu/driver/minimum: driver 570.172.08 serves CUDA 12.8, release sglang-0.5.23-cu130 needs CUDA 13.0: install driver 580"),
    "driver mismatch": ("driver-mismatch", {}, "refused: gpu/driver/match: nvidia-smi fails: Failed to initialize NVML: Driver/library version mismatch"),
    "no nvidia-smi": ("no-nvidia", {}, "no nvidia-smi on this host: install the NVIDIA driver first"),
    "two GPUs for eight": ("two-gpus", {"prefill_tensor_parallel": 4, "decode_tensor_parallel": 4}, "the plan needs 8 GPUs (1 x 4 prefill + 1 x 4 decode), this host has 2"),
    "no peer copies": ("p2p-all-cns", {**GPU_RELEASE, **FOUR}, "gpu/p2p/transfer: no peer copies for 16 of 16 pairs from prefill to decode (topo -p2p: CNS, chipset not supported)"),
    "a hidden GPU": ("one-gpu-hidden", {**GPU_RELEASE, **FOUR}, "gpu/count/visible: the driver serves 7 of 8 cards on the PCI bus, not 0000:f5:00.0"),
    "uneven nodes": ("spans", {"prefill_tensor_parallel": 4, "decode_tensor_parallel": 4}, "on one NUMA node, only"),
}  # fmt: skip


# Folders of models. All that can be wrong with one, tests/facts/test_model.py has.
MODELS = f"""mkdir -p /srv/whole /srv/closed && cd /srv/whole && cat >config.json <<'END' && echo weights >model.safetensors
{(REPOSITORY / "files/models/rehearsal-qwen2/config.json").read_text()}
END
cp -r /srv/whole /srv/closed/model && chmod 700 /srv/closed"""


@pytest.fixture(scope="module")
def untouched(node: Node) -> str:
    made = node.run(MODELS)
    assert made.returncode == 0, made.stderr
    return fingerprint(node)


def fingerprint(node: Node) -> str:
    """Everything that a deploy could have left: files of ours, users, packages, units, sysctls."""
    ran = node.run(
        "ls -d /opt/sglang-pd /etc/sglang-pd /var/lib/sglang-pd /etc/sysctl.d/60-* /etc/systemd/system/sglang* 2>&1; "
        "getent passwd; dpkg-query -W; sysctl -n net.ipv4.ip_local_reserved_ports"
    )
    return ran.stdout


def refused(node: Node, *arguments: str, inventory: str | None = None, **data: object) -> str:
    """What a user sees of a run that must be refused."""
    line = command_line(*arguments, **data)
    if inventory:
        line[line.index("tests/node/inventory.py")] = inventory
    ran = subprocess.run(
        line, cwd=REPOSITORY, env=environment(node), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert ran.returncode != 0, ran.stdout
    assert "Traceback" not in ran.stdout
    return ran.stdout


@pytest.mark.parametrize("fault", SETTINGS)
def test_a_wrong_setting_is_refused_in_one_line(node: Node, untouched: str, fault: str) -> None:
    data, line = SETTINGS[fault]
    said = refused(node, "-y", **data)
    assert [text for text in said.splitlines() if line in text], said
    assert len([text for text in said.splitlines() if "refused:" in text]) == 1
    assert fingerprint(node) == untouched


@pytest.mark.parametrize("fault", HARDWARE)
def test_a_host_that_does_not_fit_is_refused_in_one_line(node: Node, untouched: str, fault: str) -> None:
    hardware, data, line = HARDWARE[fault]
    node.hardware(hardware)
    try:
        said = refused(node, "--dry", **data)
        assert [text for text in said.splitlines() if line in text], said
    finally:
        node.hardware("rtx-pro-6000-x8")
    assert fingerprint(node) == untouched


ADMITTED: dict[str, dict[str, object]] = {
    "nps4": {"prefill_tensor_parallel": 2, "decode_tensor_parallel": 2},
    "idle-gen1": FOUR,
}


@pytest.mark.parametrize("hardware", ADMITTED)
def test_an_unusual_host_that_is_healthy_is_admitted_without_a_word(node: Node, untouched: str, hardware: str) -> None:
    node.hardware(hardware)
    try:
        ran = subprocess.run(
            command_line("--dry", **GPU_RELEASE, **ADMITTED[hardware]), cwd=REPOSITORY, env=environment(node),
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        node.hardware("rtx-pro-6000-x8")
    judged = re.findall(r"(?:gpu|pcie|numa)/\S+/\S+: .*", ran.stderr)
    assert (ran.returncode, judged) == (0, []), ran.stderr
    assert fingerprint(node) == untouched


def test_a_port_that_another_process_holds_is_named_with_pid_and_command(node: Node, untouched: str) -> None:
    """systemd itself stands for the stranger: a bare host has nothing else that listens."""
    node.run("systemd-run --unit stranger --socket-property=ListenStream=127.0.0.1:30000 sleep 1000")
    try:
        pid = node.run("ss -Hltnp 'sport = :30000' | grep -o 'pid=[0-9]*' | head -n 1 | cut -d= -f2").stdout.strip()
        said = refused(node, "-y")
    finally:
        node.run("systemctl stop stranger.socket stranger.service")
    assert f"port 30000 of prefill (prefill_port) is taken by pid {pid} (" in said, said
    assert fingerprint(node) == untouched


def test_without_root_the_line_says_how(node: Node) -> None:
    plain_user(node)
    try:
        said = refused(node, "-y", "--ssh-user", "plain")
    finally:
        without_plain_user(node)
    assert "needs root on the host: log in as root, or add '_sudo': True to the host in inventory.py" in said


@pytest.mark.parametrize(
    ("given", "prepared", "line"),
    [
        ((), "true", 'there is no terminal to ask you for it: add "_sudo_password": '),
        (("--data", "_sudo_password=guessed"), "true", "sudo does not take plain's _sudo_password: Sorry, try again."),
        (
            ("--data", "_sudo_password=right"),
            "mount -t tmpfs -o noexec,mode=1777 tmpfs /var/tmp",
            "no program runs in /var/tmp (mounted noexec?)",
        ),
        (("--data", "_sudo_password=right"), "rm /etc/sudoers.d/plain", "plain is not in the sudoers file"),
    ],
    ids=["no password", "wrong password", "no program runs", "no rights"],
)
def test_sudo_that_does_not_work_is_told_in_one_line(
    node: Node, given: tuple[str, ...], prepared: str, line: str
) -> None:
    plain_user(node, password="right")
    node.run(prepared)
    try:
        said = refused(node, "-y", "--ssh-user", "plain", "--sudo", *given)
    finally:
        node.run("umount /var/tmp 2>/dev/null")
        without_plain_user(node)
    assert len([text for text in said.splitlines() if "refused:" in text]) == 1, said
    assert line in said


def test_a_connection_without_traffic_is_kept_alive(node: Node) -> None:
    node.run("echo 'LogLevel DEBUG1' >/etc/ssh/sshd_config.d/debug.conf; systemctl reload ssh")
    try:
        ran = subprocess.run(
            command_line("-y", operations="tests/node/idle.py"), cwd=REPOSITORY, env=environment(node),
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        node.run("rm /etc/ssh/sshd_config.d/debug.conf; systemctl reload ssh")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("arguments", [["--dry"], ["-y"]])
def test_an_unreachable_host_ends_in_one_line(node: Node, arguments: list[str]) -> None:
    said = refused(node, *arguments, "--ssh-port", "9")
    assert len([line for line in said.splitlines() if "Could not connect" in line]) == 1, said


def test_a_host_that_shows_another_key_is_left_alone(node: Node, untouched: str, tmp_path: Path) -> None:
    """Such as one that was rebuilt."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    known = node.known_hosts.read_text()
    node.known_hosts.write_text(f"{node.address} {key.with_suffix('.pub').read_text()}")
    try:
        assert "key" in refused(node, "-y").lower()
    finally:
        node.known_hosts.write_text(known)
    assert fingerprint(node) == untouched


def test_dry_run_on_a_bare_host_shows_the_files_it_would_make(node: Node, untouched: str) -> None:
    ran = subprocess.run(
        command_line("--dry", "--diff"), cwd=REPOSITORY, env=environment(node), stdin=subprocess.DEVNULL,
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Will create /etc/sglang-pd/prefill.sh" in ran.stderr
    assert '+   "$release/env/bin/python" -m sglang.launch_server \\' in ran.stderr
    assert "Will create /etc/systemd/system/sglang-pd-router.service" in ran.stderr
    assert fingerprint(node) == untouched


def test_a_model_that_only_its_folder_describes_is_planned(node: Node, untouched: str) -> None:
    ran = subprocess.run(
        command_line("--dry", "--diff", model="auto", model_dir="/srv/whole", context_length=131072), cwd=REPOSITORY,
        env=environment(node), stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    read = "model whole, read from /srv/whole: Qwen2ForCausalLM, 3 layers, 4 heads, 2 KV heads of 16, float32"
    assert read in ran.stderr, ran.stderr
    for line in ("--model-path /srv/whole", "--served-model-name whole", "--page-size 1", "--context-length 2048"):
        assert f"+   {line} \\" in ran.stderr, line
    assert fingerprint(node) == untouched
