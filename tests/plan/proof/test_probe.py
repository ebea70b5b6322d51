"""What pd-probe is told to measure."""

import pytest

from tasks.plan.plan import Plan
from tasks.plan.proof import probe
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware, plan, profile, settings


def planned(**changes: object) -> Plan:
    return plan(settings(**changes), hardware(TWO_SOCKETS))


def pairs(found: Plan) -> list[tuple[str, int, str, int]]:
    return [(pair["prefill"], pair["from"], pair["decode"], pair["to"]) for pair in probe.pairs(found.workers)]


def test_equal_groups_pair_rank_by_rank() -> None:
    assert [(source, target) for _, source, _, target in pairs(planned())] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_wider_decode_gets_each_prefill_rank_several_times() -> None:
    found = pairs(planned(prefill_tensor_parallel=2))
    assert [(source, target) for _, source, _, target in found] == [(0, 4), (0, 5), (1, 6), (1, 7)]


def test_a_wider_prefill_sends_from_every_rank() -> None:
    found = pairs(planned(decode_tensor_parallel=2))
    assert [(source, target) for _, source, _, target in found] == [(0, 4), (1, 4), (2, 5), (3, 5)]


def test_every_prefill_server_sends_to_every_decode_server() -> None:
    found = pairs(planned(prefill_instances=2, prefill_tensor_parallel=2, decode_instances=2, decode_tensor_parallel=2))
    assert {(source, target) for source, _, target, _ in found} == {
        ("prefill-0", "decode-0"), ("prefill-0", "decode-1"), ("prefill-1", "decode-0"), ("prefill-1", "decode-1")
    }  # fmt: skip
    assert len(found) == 8


def test_processes_are_set_up_as_the_servers_are() -> None:
    found = planned(decode_environment={"UCX_TLS": "tcp"})
    asked = probe.configuration(found)
    for worker, told in zip(found.workers, asked["instances"], strict=True):
        assert told["binding"] == list(worker.binding)
        assert told["environment"] == {variable.name: variable.value for variable in worker.environment}
    assert asked["instances"][1]["environment"]["UCX_TLS"] == "tcp"
    assert asked["python"] == f"{found.release_directory}/env/bin/python"
    assert asked["peer"]["gpus"] == list(range(8))


def test_gpus_that_do_not_lie_side_by_side_are_counted_from_zero() -> None:
    found = planned(prefill_gpus=[0, 2], prefill_tensor_parallel=2, decode_tensor_parallel=4)
    [prefill, decode] = probe.configuration(found)["instances"]
    assert (prefill["gpus"], prefill["devices"]) == ([0, 2], [0, 1])
    assert prefill["environment"]["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert decode["devices"] == [4, 5, 6, 7]


def test_sizes_are_those_of_the_model() -> None:
    found = catalogue_plan({}, hardware(TWO_SOCKETS))
    sizes = {shape["name"]: shape["bytes"] for shape in probe.configuration(found)["shapes"]}
    assert sizes == {
        "page of KV of every 4th token": 37440,
        "4 pages of KV of every 4th token": 149760,  # 1,000 tokens are 4 pages of 256
        "page of indexer": 8448,
        "4 pages of indexer": 33792,
        "page of KV of every 128th token": 1728,
        "4 pages of KV of every 128th token": 6912,
        "1 MiB": 1 << 20,
        "256 MiB": 1 << 28,
    }


@pytest.mark.parametrize(("parallel", "expected"), [(1, 4096), (2, 2048), (4, 1024), (8, 1024)])
def test_kv_heads_are_split_over_the_ranks_as_far_as_they_go(parallel: int, expected: int) -> None:
    model = profile(kv_heads=4, kv_buffers=[{"name": "keys", "count": 28, "page_bytes": 4096}])
    assert probe.page_bytes(model.kv_buffers[0], model, parallel) == expected


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_size_fits_into_the_memory_of_a_measuring_process(device: str) -> None:
    model = profile(
        kv_buffers=[{"name": "a", "count": 1, "page_bytes": 4}, {"name": "b", "count": 1, "page_bytes": 1 << 27}]
    )
    for shape in probe.shapes(model, 1, device):
        step = shape["bytes"] * (2 if shape["bytes"] <= probe.MIB else 1)
        assert shape["count"] >= 1
        assert shape["count"] == 1 or step * shape["count"] <= probe.KV_BYTES[device]
