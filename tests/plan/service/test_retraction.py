"""Where decode puts the KV cache of requests that it takes back, and what the checks of memory make of it."""

from __future__ import annotations

import dataclasses

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.findings import Level
from tasks.plan.service import retraction, rules
from tasks.plan.service.retraction import OPTION
from tasks.support import catalogue
from tests.plan.builders import TWO_SOCKETS, hardware, manifest, plan, profile, settings
from tests.plan.judging import finding

PLAIN = profile(
    size_gb=40.0,
    kv_buffers=[
        {"name": "keys", "count": 43, "page_bytes": 65536},
        {"name": "values", "count": 43, "page_bytes": 65536},
    ],
)
# node 1, decode's: 70 GB for four GPUs
NODE_MEMORY = "Node 0 MemFree: 782450688 kB\nNode 1 MemFree: 68359375 kB"


def memory(
    check: str = "numa/memory/enough", model: object = PLAIN, known: tuple[str, ...] = (OPTION,), **data: object
):  # type: ignore[no-untyped-def]
    wanted = settings(**data)
    made = dataclasses.replace(plan(wanted, hardware(TWO_SOCKETS)), profile=model, arguments=known)
    few = {"nodememory": NODE_MEMORY, "memory": "MemAvailable: 90000000 kB"}
    return finding(check, few, wanted=wanted, made=made)


def test_what_decode_pins_is_counted_on_its_node() -> None:
    """Each of four GPUs of 97,887 MiB: 0.6 of it less a quarter of the weights is KV cache, a fifth of that is pinned."""
    said = memory()
    assert said.level is Level.ERROR
    assert "node 1: 70 GB for 4 GPUs and 41 GB that decode pins" in said.line
    assert 'decode_retraction_backup = "cpu_tensor"' in said.advice
    assert "node 0: 801 GB for 4 GPUs;" in said.line, "prefill pins nothing"


def test_the_pool_that_a_server_pinned() -> None:
    """17.84 GB on an H200 (SGLang 0.5.23, docs/measurements.md): 1,554,816 tokens of 57,344 bytes, a fifth of it."""
    said = {**catalogue.stated("random-qwen2-7b").fields, "size_gb": 15.231}  # as the generator writes it
    role = settings(decode_tensor_parallel=1, decode_mem_fraction=0.7).decode
    expected = retraction.pinned_gb(role, profile(**said), memory_mib=143771, known=(OPTION,))
    assert abs(expected / 17.84 - 1) < 0.01


def test_of_the_whole_host_too() -> None:
    said = memory("host/memory/free")
    assert said.level is Level.ERROR
    assert "92 GB of memory are available, 105 GB are needed for 8 GPUs, 41 of them for what decode pins" in said.line


@pytest.mark.parametrize(
    ("data", "known"),
    [
        ({"decode_retraction_backup": "cpu_tensor"}, (OPTION,)),
        ({"decode_retraction_gb": 8}, (OPTION,)),
        ({}, ()),
    ],
    ids=["nothing pinned", "a smaller pool", "a release without it"],
)
def test_a_setting_makes_it_fit(data: dict[str, object], known: tuple[str, ...]) -> None:
    assert memory(known=known, **data).level is Level.HEALTHY


def test_a_cache_of_another_kind_pins_nothing_unless_it_is_told_to() -> None:
    """As SGLang chooses: for DeepSeek's cache ordinary memory."""
    assert memory(model=profile()).level is Level.HEALTHY
    assert memory(model=profile(), decode_retraction_backup="host_pool", decode_retraction_gb=20).level is Level.ERROR


def test_decode_alone_is_told() -> None:
    made = plan(settings(decode_retraction_backup="host_pool", decode_retraction_gb=8), hardware(TWO_SOCKETS))
    words = {worker.role: worker.words for worker in made.workers}
    at = words["decode"].index(OPTION)
    assert words["decode"][at : at + 4] == [OPTION, "host_pool", "--hicache-size", "8"]
    assert OPTION not in words["prefill"]


def test_settings_that_cannot_be() -> None:
    both = settings(decode_retraction_backup="cpu_tensor", decode_retraction_gb=8)
    with pytest.raises(PlanError, match="decode_retraction_gb = 8 is the size of host_pool"):
        rules.check(both, manifest(), frozenset({OPTION}), PLAIN)
    with pytest.raises(PlanError, match=f"SGLang 9.9 knows no {OPTION}; leave it out"):
        rules.check(settings(decode_retraction_backup="host_pool"), manifest(), frozenset({"--port"}), PLAIN)
