"""Are the running servers bound as planned?"""

import pytest

from tasks.plan.host.answers import Answer
from tasks.plan.service.bindings import Verdict, judge
from tests.plan.builders import TWO_SOCKETS, cpus_of_node, hardware, servers, settings

HARDWARE = hardware(TWO_SOCKETS)
WORKERS = servers(settings(), HARDWARE)[:2]
ALL_CPUS = frozenset(range(256))
PREFILL, DECODE = (worker.unit for worker in WORKERS)


def holds(pid: int, *gpus: int) -> list[str]:
    return [f"{pid}, {HARDWARE.gpus[gpu].uuid}, 90000" for gpu in gpus]


def sections(**changes: str) -> dict[str, Answer]:
    """Prefill is pid 10 and 11, decode pid 20, all as planned."""
    texts = {
        PREFILL: f"10 {cpus_of_node(0)} bind:0\n11 0-3 bind:0",
        DECODE: f"20 {cpus_of_node(1)} bind:1",
        "gpus": "\n".join([*holds(10, 0, 1), *holds(11, 2, 3), *holds(20, 4, 5, 6, 7)]),
    }
    return {name: Answer(0, text) for name, text in {**texts, **changes}.items()}


def verdict(online: frozenset[int] = ALL_CPUS, on_gpu: bool = True, **changes: str) -> Verdict:
    return judge(sections(**changes), WORKERS, HARDWARE, online, on_gpu)


def fault(**changes: str) -> str:
    found = verdict(**changes)
    assert found.unknown == ()
    (line,) = found.faults
    return line


def test_bound_as_planned() -> None:
    assert verdict() == Verdict((), ())


def test_cpus_beyond_the_plan() -> None:
    line = fault(**{DECODE: "20 0-255 bind:1"})
    assert "decode: pid 20 may run on CPUs 0-255" in line
    assert cpus_of_node(1) in line


def test_memory_of_another_node() -> None:
    assert "decode: pid 20 has memory policy bind:0, planned is node 1" in fault(**{DECODE: "20 64-70 bind:0"})


def test_memory_of_both_nodes() -> None:
    assert "memory policy bind:0-1" in fault(**{DECODE: "20 64-70 bind:0-1"})


def test_a_gpu_of_the_other_role() -> None:
    line = fault(gpus="\n".join([*holds(10, 0, 1, 2, 3), *holds(20, 3, 4, 5, 6)]))
    assert "decode: holds GPU [3, 4, 5, 6], planned are [4, 5, 6, 7]" in line


def test_a_server_without_its_gpus() -> None:
    assert "decode: holds GPU [], planned are [4, 5, 6, 7]" in fault(gpus="\n".join(holds(10, 0, 1, 2, 3)))


def test_gpus_held_by_others_are_not_ours() -> None:
    ours = sections()["gpus"].text
    assert verdict(gpus="\n".join([ours, *holds(999, 0)])) == Verdict((), ())


@pytest.mark.parametrize("text", ["", "\n"])
def test_a_unit_without_a_process(text: str) -> None:
    assert f"decode: no process of {DECODE} could be read" in "\n".join(verdict(**{DECODE: text}).faults)


def test_a_process_that_ended_while_it_was_read_is_no_fault() -> None:
    assert verdict(**{DECODE: f"19 - -\n20 {cpus_of_node(1)} bind:1"}) == Verdict((), ())


def test_a_unit_whose_processes_all_ended() -> None:
    assert f"decode: no process of {DECODE} could be read" in "\n".join(verdict(**{DECODE: "19 - -"}).faults)


def test_nothing_was_read() -> None:
    found = judge({}, WORKERS, HARDWARE, ALL_CPUS, on_gpu=True)
    assert [line.split(":")[0] for line in found.faults] == ["prefill", "decode"]


def test_a_server_on_several_nodes() -> None:
    found = hardware([0, 1], links={(0, 1): "NODE"})
    workers = servers(settings(prefill_tensor_parallel=1, decode_tensor_parallel=1, prefill_gpus=[0]), found)[:2]
    wide = servers(
        settings(prefill_tensor_parallel=2, decode_tensor_parallel=2), hardware([0, 1, 2, 2], links={(0, 1): "NODE"})
    )[:2]
    assert [worker.placement.numa_nodes for worker in workers if worker.placement] == [(0,), (1,)]
    texts = {PREFILL: Answer(0, f"10 {cpus_of_node(0)} bind:0-1"), DECODE: Answer(0, "20 128-130 bind:2")}
    assert judge(texts, wide, hardware([0, 1, 2, 2]), frozenset(range(512)), on_gpu=False).faults == ()
    texts[PREFILL] = Answer(0, f"10 {cpus_of_node(0)} bind:0")
    (line,) = judge(texts, wide, hardware([0, 1, 2, 2]), frozenset(range(512)), on_gpu=False).faults
    assert "memory policy bind:0, planned is node 0-1" in line


# ---- what cannot be checked is said, not passed over


def test_a_process_whose_memory_policy_the_kernel_does_not_show() -> None:
    found = verdict(**{DECODE: "20 64-70 -"})
    assert found == Verdict((), ("decode: memory of pid 20 (the kernel shows no policy)",))


def test_cpus_that_this_kernel_lacks() -> None:
    found = verdict(online=frozenset({0, 1}))
    assert found.faults == ()
    assert [line.split(" (")[0] for line in found.unknown] == ["prefill: CPUs and memory", "decode: CPUs and memory"]
    assert "this kernel has 0-1" in found.unknown[0]


def test_a_release_for_the_cpu_holds_no_gpu() -> None:
    found = verdict(on_gpu=False, gpus="")
    assert found.faults == ()
    assert [line.split(" (")[0] for line in found.unknown] == ["prefill: GPUs", "decode: GPUs"]


def test_a_driver_that_shows_no_process() -> None:
    assert [line.split(" (")[0] for line in verdict(gpus="").unknown] == ["prefill: GPUs", "decode: GPUs"]


def test_a_driver_that_fails() -> None:
    texts = {**sections(), "gpus": Answer(9, "no such query")}
    found = judge(texts, WORKERS, HARDWARE, ALL_CPUS, on_gpu=True)
    assert [line.split(" (")[0] for line in found.unknown] == ["prefill: GPUs", "decode: GPUs"]


@pytest.mark.parametrize("text", ["No running processes found", "[Insufficient Permissions], [N/A], [N/A]"])
def test_a_driver_whose_words_cannot_be_read(text: str) -> None:
    assert [line.split(" (")[0] for line in verdict(gpus=text).unknown] == ["prefill: GPUs", "decode: GPUs"]


def test_a_host_that_names_no_node() -> None:
    found = hardware([-1] * 8)
    workers = servers(settings(), found)[:2]
    texts = sections(**{PREFILL: "10 0-255 -", DECODE: "20 0-255 -"})
    judged = judge({**texts, "gpus": Answer(0, "")}, workers, found, ALL_CPUS, on_gpu=False)
    assert judged.faults == ()
    assert "prefill: CPUs and memory (the host names no NUMA node)" in judged.unknown
