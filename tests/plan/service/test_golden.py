"""The plan of the first deployment and of the default release: as held in tests/golden, and word for word."""

import difflib
import re
import shlex

import pytest

from tasks.plan.service.instances import Instance
from tasks.support import render
from tasks.support.catalogue import accepted_arguments
from tests.golden import FOLDER, GOLDEN, text
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware

FIRST = "sglang-0.5.13.post1-cu130.deepseek-v4-flash-nvfp4.txt"
DEFAULT = "default.txt"


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_plan_is_the_golden_one(name: str) -> None:
    held, made = (FOLDER / name).read_text(), text(name)
    difference = "\n".join(difflib.unified_diff(held.splitlines(), made.splitlines(), "golden", "made", lineterm=""))
    assert made == held, f"{difference}\nif that is wanted: python -m tests.golden"


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in FOLDER.glob("*.txt")} == set(GOLDEN)


# ---- the first deployment, written down here a second time, from its own command lines

PREFILL = """
    numactl --cpunodebind=0 --membind=0 python -m sglang.launch_server
    --tp 4 --base-gpu-id 0 --moe-runner-backend triton --host 127.0.0.1 --port 30000 --mem-fraction-static 0.70
    --context-length 131072 --chunked-prefill-size 8192 --disaggregation-mode prefill
    --disaggregation-transfer-backend nixl --disaggregation-bootstrap-port 8998 --dist-init-addr 127.0.0.1:30335
"""
DECODE = """
    numactl --cpunodebind=1 --membind=1 python -m sglang.launch_server
    --tp 4 --base-gpu-id 4 --moe-runner-backend triton --host 127.0.0.1 --port 30001 --mem-fraction-static 0.60
    --context-length 131072 --cuda-graph-max-bs 64 --disaggregation-mode decode
    --disaggregation-transfer-backend nixl --disaggregation-bootstrap-port 8999 --dist-init-addr 127.0.0.1:30435
"""
BOTH = """
    --served-model-name deepseek-v4-flash --page-size 256 --kv-cache-dtype fp8_e4m3 --attention-backend dsv4
    --enable-metrics
"""
ROUTER = """
    python /opt/sglang-pd/bin/pd-router --module sglang_router.launch_router --
    --pd-disaggregation --prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30001
    --host 127.0.0.1 --port 8000 --prometheus-host 127.0.0.1 --prometheus-port 29001 --health-check-interval-secs 2
"""


def instances(name: str) -> dict[str, Instance]:
    return {instance.name: instance for instance in catalogue_plan(GOLDEN[name], hardware(TWO_SOCKETS)).instances}


def command(name: str, instance: str) -> list[str]:
    """The words that the rendered launch script executes, the interpreter without its folder."""
    plan = catalogue_plan(GOLDEN[name], hardware(TWO_SOCKETS))
    made = next(one for one in plan.instances if one.name == instance)
    script = render.instance_files(plan, made).script.content.decode()
    words = shlex.split(script[script.index("\nexec ") :].replace("\\\n", " "))[1:]
    return ["python" if word.endswith("/bin/python") else word for word in words]


def groups(words: list[str]) -> list[tuple[str, ...]]:
    """Options with their values, in order; what stands before the first option is one group."""
    found: list[tuple[str, ...]] = [()]
    for word in words:
        if word.startswith("--"):
            found.append((word,))
        else:
            found[-1] = (*found[-1], word)
    return found


@pytest.mark.parametrize(
    ("instance", "line"),
    [("prefill", PREFILL), ("decode", DECODE), ("prefill", BOTH), ("decode", BOTH), ("router", ROUTER)],
)
def test_the_first_deployment_has_every_argument(instance: str, line: str) -> None:
    made = groups(command(FIRST, instance))
    missing = [group for group in groups(line.split()) if group and group not in made]
    assert missing == []


@pytest.mark.parametrize(("instance", "line"), [("prefill", PREFILL), ("decode", DECODE), ("router", ROUTER)])
def test_the_first_deployments_arguments_stand_in_its_order(instance: str, line: str) -> None:
    wanted = groups(line.split())
    assert [group for group in groups(command(FIRST, instance)) if group in wanted] == wanted


def test_the_first_deployments_decode_has_no_chunked_prefill() -> None:
    assert "--chunked-prefill-size" not in command(FIRST, "decode")


def test_the_first_deployments_prefill_has_no_graph_batch() -> None:
    assert "--cuda-graph-max-bs" not in command(FIRST, "prefill")


# ---- the default release

PREFILL_OF_THE_DEFAULT = ("--cuda-graph-backend-prefill", "disabled")
DECODE_OF_THE_DEFAULT = ("--cuda-graph-max-bs-decode", "64")


def test_the_default_release_spells_graphs_in_its_own_way() -> None:
    prefill, decode = (groups(command(DEFAULT, role)) for role in ("prefill", "decode"))
    assert PREFILL_OF_THE_DEFAULT in prefill
    assert DECODE_OF_THE_DEFAULT in decode
    assert not {group[0] for group in prefill + decode if group} & {"--cuda-graph-max-bs", "--disable-cuda-graph"}


def test_the_default_release_chooses_the_moe_backend_itself() -> None:
    assert "--moe-runner-backend" not in command(DEFAULT, "prefill") + command(DEFAULT, "decode")


# ---- every plan


WORKERS = [
    (name, worker.name)
    for name in sorted(GOLDEN)
    for worker in catalogue_plan(GOLDEN[name], hardware(TWO_SOCKETS)).workers
]


@pytest.mark.parametrize(("name", "worker"), WORKERS)
def test_the_release_knows_every_argument(name: str, worker: str) -> None:
    known = accepted_arguments(catalogue_plan(GOLDEN[name], hardware(TWO_SOCKETS)).release.manifest)
    assert len(known) > 100
    for line in instances(name)[worker].arguments:
        option = line[0].split("=")[0]
        # argparse also takes the beginning of one option, as in --tp, and refuses that of several
        assert option in known or len([other for other in known if other.startswith(option)]) == 1, option


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_no_argument_stands_twice(name: str) -> None:
    for instance in instances(name).values():
        options = [line[0] for line in instance.arguments]
        assert sorted(options) == sorted(set(options))


@pytest.mark.parametrize(("name", "worker"), WORKERS)
def test_every_variable_has_the_value_that_all_workers_need(name: str, worker: str) -> None:
    found = {variable.name: variable.value for variable in instances(name)[worker].environment}
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["SGLANG_HOST_IP"] == "127.0.0.1"
    assert not any(re.search(r"expandable_segments", value) for value in found.values())
