"""The default GPU release, every wheel of it, on a bare host; hardware is recorded, so what needs a GPU is skipped."""

from __future__ import annotations

import json
import os

import pytest

from tests.node.asking import out
from tests.node.deploying import Result, deploy
from tests.node.node import Node

INSTALL = "tests/node/install.py"
CURRENT = "/opt/sglang-pd/current"
# As group_data/all.py has it, where the rehearsal's settings differ. Memory and disk are this machine's, not a GPU
# host's: without the model there is enough.
GPU_HOST: dict[str, object] = {
    "model": "deepseek-v4-flash-nvfp4", "context_length": 131072, "prefill_chunked_prefill": 8192,
    "prefill_tensor_parallel": 4, "decode_tensor_parallel": 4,
    "minimum_free_disk_gb": 15, "minimum_memory_gb_per_gpu": 0.1,
}  # fmt: skip
CHECKS = [
    "import torch", "import sglang.launch_server", "import sglang.srt.managers.scheduler", "import nixl",
    "torch version", "torch CUDA version", "NIXL plugins", "arguments of prefill", "arguments of decode",
    "loaded libraries", "sglang_router --version", "arguments of router",
]  # fmt: skip
SKIPPED = "import sgl_kernel: no /dev/nvidiactl: it loads only where a GPU is"


def install(node: Node, release: str, **data: object) -> Result:
    return deploy(node, "-y", operations=INSTALL, release=release, **GPU_HOST, **data)


def lines(result: Result, word: str) -> list[str]:
    """What activation said after this word."""
    return [line.partition(f" {word}: ")[2] for line in result.output.splitlines() if f" {word}: " in line]


def holds(node: Node, release: str) -> list[str]:
    """What does not belong into a finished release's folder, and what is not whole, by the host's own tools."""
    stray = out(node, "ls -A /opt/sglang-pd/releases | grep -v -e ^sglang- -e '^.pd-build.lock$' || true").splitlines()
    folder = f"/opt/sglang-pd/releases/{release}"
    lock = f"/opt/sglang-pd/locks/{release}"
    for part, file in (("env", f"{lock}.txt"), ("router", f"{lock}-router.txt")):
        ran = node.run(f"/opt/sglang-pd/bin/pd-env check {folder}/{part} --lock {file}")
        stray += [] if ran.returncode == 0 else [ran.stdout]
    return stray


@pytest.fixture(scope="module")
def refused(node: Node) -> Result:
    """The first run, with an argument that only the server's parser can refuse: SGLang knows its name."""
    return install(node, "sglang-0.5.23-cu130", decode_arguments='["--attention-backend","no-such"]')


@pytest.fixture(scope="module")
def first(node: Node, refused: Result) -> Result:
    return install(node, "sglang-0.5.23-cu130")


def test_an_argument_that_the_servers_parser_refuses_stops_before_the_switch(node: Node, refused: Result) -> None:
    assert refused.status != 0
    assert len(out(node, "ls -d /opt/sglang-pd/releases/sglang-*").split()) == 1, "it was built"
    assert node.run(f"readlink {CURRENT}").returncode != 0, "and is not current"
    said = [line for line in lines(refused, "failed") if "arguments of decode" in line]
    assert len(said) == 1 and "argument --attention-backend: invalid choice: 'no-such'" in said[0], refused.output


def test_the_default_gpu_release_passes_every_check_that_needs_no_gpu(node: Node, first: Result) -> None:
    assert first.status == 0, first.output
    passed = ", ".join(lines(first, "passed"))
    assert [name for name in CHECKS if name not in passed] == [], first.output
    assert lines(first, "failed") == []
    assert lines(first, "skipped") == [SKIPPED]

    release = out(node, f"basename $(readlink {CURRENT})")
    assert release.startswith("sglang-0.5.23-cu130-py3.11-")
    assert holds(node, release) == []
    torch = out(node, f"{CURRENT}/env/bin/python -c 'import torch; print(torch.__version__, torch.version.cuda)'")
    assert torch == "2.14.1+cu130 13.0"


def test_a_second_run_changes_nothing(node: Node, first: Result) -> None:
    again = install(node, "sglang-0.5.23-cu130")
    assert (again.status, again.changed) == (0, []), again.output


@pytest.mark.skipif("EVERY_RELEASE" not in os.environ, reason="10 GB more: make test-release installs it too")
def test_the_release_with_torch_2_11_goes_in_beside_it(node: Node, first: Result) -> None:
    before = out(node, f"readlink {CURRENT}")
    second = install(node, "sglang-0.5.17-cu130")
    assert second.status == 0, second.output
    assert lines(second, "failed") == []
    after = out(node, f"readlink {CURRENT}")
    cache = f"System | Folder /var/lib/sglang-pd/cache/{after.rpartition('/')[2]}"
    assert [name for name in second.changed if name.startswith("System")] == [cache], "else only runtime and activate"
    assert after.rpartition("/")[2].startswith("sglang-0.5.17-cu130-py3.11-")
    assert holds(node, before.rpartition("/")[2]) == [] and holds(node, after.rpartition("/")[2]) == []
    record = json.loads(out(node, f"cat {CURRENT}/release.json"))
    assert record["name"] == "sglang-0.5.17-cu130"
