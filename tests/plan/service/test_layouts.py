"""Layouts: prefill and decode, one whole server, several; and any number of GPUs and servers for each role."""

import json
from pathlib import Path

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.findings import Level
from tasks.plan.phases.verify import verify_config
from tasks.plan.proof import judgement as proof
from tasks.plan.proof import probe
from tasks.plan.report.data import build
from tasks.plan.service.instances import Instance
from tasks.plan.service.placement import place
from tests.plan.builders import (
    BOOT,
    TWO_SOCKETS,
    hardware,
    manifest,
    measured,
    options,
    plan,
    profile,
    recorded,
    release,
    servers,
    settings,
)
from tests.plan.report.test_data import NOW

ONE = [0]
TWO_SERVERS = {"layout": "data_parallel", "server_tensor_parallel": 4}


def made(nodes: list[int] = TWO_SOCKETS, **changes: object) -> dict[str, Instance]:
    return {instance.name: instance for instance in servers(settings(**changes), hardware(nodes))}


def refused(nodes: list[int] = TWO_SOCKETS, **changes: object) -> str:
    """The one line that says why."""
    with pytest.raises(PlanError) as error:
        servers(settings(**changes), hardware(nodes))
    (line,) = error.value.lines
    assert "\n" not in line
    return line


# ---- names, ports, the router's list


def test_one_server_and_the_router_on_its_usual_port() -> None:
    found = made(layout="single")
    assert list(found) == ["server", "router"]
    assert found["server"].title == "SGLang server (GPU 0-3, NUMA node 0)"
    assert found["server"].unit == "sglang-pd-server.service"
    assert found["router"].port == 8000
    assert found["router"].arguments[0] == ("--worker-urls", "http://127.0.0.1:30000")


def test_a_single_server_takes_one_gpu_of_a_host_with_one() -> None:
    assert list(made(ONE, layout="single", server_tensor_parallel=1)) == ["server", "router"]


def test_several_servers_count_their_ports_up_and_all_stand_in_the_routers_list() -> None:
    found = made(**TWO_SERVERS)
    assert list(found) == ["server-0", "server-1", "router"]
    assert [dict(found[f"server-{n}"].ports) for n in (0, 1)] == [
        {30000: "server_port", 30335: "server_dist_init_port"},
        {30010: "server_port", 30345: "server_dist_init_port"},
    ]
    assert found["router"].arguments[0] == ("--worker-urls", "http://127.0.0.1:30000", "http://127.0.0.1:30010")


@pytest.mark.parametrize("layout", ["single", "data_parallel"])
def test_no_router_of_whole_servers_is_told_of_roles(layout: str) -> None:
    assert not {"--pd-disaggregation", "--prefill", "--decode"} & set(options(made(layout=layout)["router"]))


def test_each_server_has_a_numa_node_of_its_own() -> None:
    found = made(**TWO_SERVERS)
    assert [found[f"server-{n}"].binding[1] for n in (0, 1)] == ["--cpunodebind=0", "--cpunodebind=1"]
    assert all("prefill" not in i.placement.rule and "roles" not in i.placement.rule for i in found.values() if i.placement)  # fmt: skip


# ---- arguments and environment


def test_a_whole_server_has_what_both_roles_have_and_nothing_of_a_pair() -> None:
    found = options(made(layout="single", server_mem_fraction=0.8)["server"])
    assert found["--chunked-prefill-size"] == "8192"
    assert found["--cuda-graph-max-bs-decode"] == "64"
    assert "--cuda-graph-backend-prefill=disabled" in found
    assert found["--mem-fraction-static"] == "0.80"
    assert not [option for option in found if option.startswith("--disaggregation")]


def test_prompts_as_graphs_where_that_is_asked_for() -> None:
    server = made(layout="single", server_prefill_cuda_graph=True)["server"]
    assert "--cuda-graph-backend-prefill=disabled" not in options(server)


def test_settings_of_another_layouts_roles_are_left_alone() -> None:
    pair_only = {
        "prefill_gpus": [0, 1, 2, 3],
        "decode_gpus": [4, 5, 6, 7],
        "decode_arguments": ["--log-level", "debug"],
    }
    assert made(layout="single", **pair_only) == made(layout="single")
    assert made(server_gpus=[0, 1, 2, 3]) == made()


def test_arguments_and_environment_of_the_role() -> None:
    server = made(layout="single", server_arguments=["--log-level", "debug"], server_environment={"A": "b"})["server"]
    assert server.arguments[-1] == ("--log-level", "debug")
    assert ("A", "b", "server_environment") in [(v.name, v.value, v.reason) for v in server.environment]


def test_what_decode_alone_needs_of_a_model_is_not_given_to_a_whole_server() -> None:
    model = profile(arguments=["--x", "1"], decode_arguments=["--y", "2"])
    server = servers(settings(layout="single"), hardware(TWO_SOCKETS), model=model)[0]
    assert options(server)["--x"] == "1"
    assert "--y" not in options(server)


# ---- what is refused


def test_one_server_is_not_data_parallel() -> None:
    assert 'one server is layout "single"' in refused(layout="data_parallel", server_instances=1)


def test_an_unknown_layout() -> None:
    assert "'pd', 'single' or 'data_parallel'" in refused(layout="dp")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_share_of_another_layout_is_not_judged(role: str) -> None:
    assert made(layout="single", **{f"{role}_tensor_parallel": 3}) == made(layout="single")


def test_gpus_by_name_must_be_as_many_as_the_layout_has() -> None:
    line = refused(layout="single", server_gpus=[0, 1])
    assert (
        line
        == "setting server_gpus names 2 GPUs, but layout single has 1 x server_tensor_parallel 4 needs 4: name as many"
    )
    assert "server_instances 2 x server_tensor_parallel 4 needs 8" in refused(layout="data_parallel", server_gpus=[0])


def test_more_servers_than_gpus() -> None:
    assert "the plan needs 12 GPUs (3 x 4 server), this host has 8" in refused(**TWO_SERVERS, server_instances=3)


def test_a_server_that_another_leaves_no_room() -> None:
    line = refused([0] * 5 + [1] * 3, **TWO_SERVERS)
    assert "server needs 4 GPUs on one NUMA node" in line
    assert "lower server_tensor_parallel" in line


def test_a_tensor_parallel_that_does_not_divide_the_heads() -> None:
    assert "server_tensor_parallel = 3 does not divide the 64 attention heads" in refused(
        layout="single", server_tensor_parallel=3
    )


def test_ports_that_the_routers_clash_with() -> None:
    line = refused(**TWO_SERVERS, router_port=30010)
    assert (
        line
        == "port 30010 is asked for twice: by server-1 (server_port) and by router (router_port); give one of them another"
    )


def test_chunks_above_what_the_release_survives() -> None:
    limited = release(manifest(chunked_prefill_maximum=11673))
    with pytest.raises(PlanError, match="server_chunked_prefill = 11674"):
        servers(settings(layout="single", server_chunked_prefill=11674), hardware(TWO_SOCKETS), limited)


def test_an_unknown_argument_names_its_setting() -> None:
    assert "setting server_arguments" in refused(layout="single", server_arguments=["--long-gone"])


# ---- verify, proof, report


@pytest.mark.parametrize("layout", ["single", "data_parallel"])
def test_whole_servers_are_not_asked_for_transfers(layout: str) -> None:
    found = verify_config(plan(settings(layout=layout), hardware(TWO_SOCKETS))).content.decode()
    assert '"transfer_metrics": {}' in found
    assert "kv_transfer" not in found


def test_links_inside_a_server_are_proved_and_no_kv_path() -> None:
    planned = plan(settings(layout="single"), hardware(TWO_SOCKETS))
    asked = probe.configuration(planned)
    assert (asked["pairs"], asked["shapes"], asked["peer"]["gpus"]) == ([], [], [0, 1, 2, 3])
    kept = measured(planned)
    kept["parts"]["kv_path"] = {"status": "skipped", "exit": 0, "reason": "no pair", "seconds": 0.0}
    found = proof.read(planned, json.dumps(kept), BOOT, serving=False)
    assert found.holds
    assert {one.id: one.level for one in found.findings}["proof/kv/run"] is Level.HEALTHY
    assert {one.level for one in found.findings} == {Level.HEALTHY}


def test_one_gpu_has_nothing_to_copy_to() -> None:
    planned = plan(settings(layout="single", server_tensor_parallel=1), hardware(ONE))
    skipped = {"status": "skipped", "exit": 0, "reason": "one GPU, no peer to copy to", "seconds": 0.0}
    data = {"device": "cuda", "parts": {"peer": skipped, "all_reduce": skipped, "kv_path": skipped}}
    assert {one.level for one in proof.judge(data, planned)} == {Level.HEALTHY}


def test_each_layout_keeps_a_proof_of_its_own() -> None:
    kept = {layout: plan(settings(layout=layout), hardware(TWO_SOCKETS)).paths.measured for layout in ("pd", "single", "data_parallel")}  # fmt: skip
    assert kept["pd"] == "/var/lib/sglang-pd/probe.json"
    assert len(set(kept.values())) == 3


def test_the_report_names_the_layout() -> None:
    planned = plan(settings(layout="single"), hardware(TWO_SOCKETS))
    data = build("gpu-1", planned, (), None, "none", NOW)
    assert (data["layout"], data["writes"]) == ("single", [])
    assert "the links between its GPUs have not been measured" in data["verdict"]["sentence"]


def test_files_of_a_unit_that_is_not_planned_any_more() -> None:
    assert plan(settings(), hardware(TWO_SOCKETS)).paths.files_of("sglang-pd-server-1.service") == (
        "/etc/systemd/system/sglang-pd-server-1.service",
        "/etc/sglang-pd/server-1.sh",
        "/etc/sglang-pd/server-1.env",
    )


# ---- any number of GPUs and servers


# Recorded host, servers and GPUs of each role -> GPUs of each server, ports and bootstrap ports of prefill.
SHAPES: list[tuple[str, tuple[int, int], tuple[int, int], dict[str, tuple[int, ...]]]] = [
    ("two-gpus", (1, 1), (1, 1), {"prefill": (0,), "decode": (1,)}),
    ("rtx-pro-6000-x8", (1, 2), (1, 2), {"prefill": (0, 1), "decode": (4, 5)}),
    ("rtx-pro-6000-x8", (1, 4), (1, 4), {"prefill": (0, 1, 2, 3), "decode": (4, 5, 6, 7)}),
    ("rtx-pro-6000-x8", (3, 2), (1, 2), {"prefill-0": (0, 1), "prefill-1": (2, 3), "prefill-2": (4, 5), "decode": (6, 7)}),
    ("uneven-6-2", (3, 2), (1, 2), {"prefill-0": (0, 1), "prefill-1": (2, 3), "prefill-2": (4, 5), "decode": (6, 7)}),
    ("rtx-pro-6000-x8", (2, 1), (2, 1), {"prefill-0": (0,), "prefill-1": (1,), "decode-0": (4,), "decode-1": (5,)}),
]  # fmt: skip


@pytest.mark.parametrize(("host", "prefill", "decode", "gpus"), SHAPES, ids=lambda value: str(value)[:24])
def test_shapes_of_a_pair(
    host: str, prefill: tuple[int, int], decode: tuple[int, int], gpus: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    wanted = settings(
        prefill_instances=prefill[0], prefill_tensor_parallel=prefill[1],
        decode_instances=decode[0], decode_tensor_parallel=decode[1],
    )  # fmt: skip
    every = servers(wanted, recorded(host, tmp_path))
    workers, router = every[:-1], every[-1]
    assert {worker.name: worker.placement.gpus for worker in workers if worker.placement} == gpus
    assert {options(worker)["--tp"] for worker in workers if worker.role == "prefill"} == {str(prefill[1])}
    of_prefill = [worker for worker in workers if worker.role == "prefill"]
    assert [(worker.port, worker.bootstrap_port) for worker in of_prefill] == [
        (30000 + 10 * n, 8998 + 10 * n) for n in range(prefill[0])
    ]
    assert [line[1:] for line in router.arguments if line[0] == "--prefill"] == [
        (worker.url, str(worker.bootstrap_port)) for worker in of_prefill
    ]
    assert [line[1] for line in router.arguments if line[0] == "--decode"] == [
        f"http://127.0.0.1:{30001 + 10 * n}" for n in range(decode[0])
    ]


def test_every_prefill_server_of_three_writes_to_the_one_decode(tmp_path: Path) -> None:
    wanted = settings(prefill_instances=3, prefill_tensor_parallel=2, decode_tensor_parallel=2)
    planned = plan(wanted, recorded("rtx-pro-6000-x8", tmp_path))
    assert [(p["prefill"], p["from"], p["to"]) for p in probe.pairs(planned.workers)] == [
        ("prefill-0", 0, 6), ("prefill-0", 1, 7), ("prefill-1", 2, 6), ("prefill-1", 3, 7), ("prefill-2", 4, 6), ("prefill-2", 5, 7),
    ]  # fmt: skip


def test_servers_on_a_recorded_host_of_four_nodes(tmp_path: Path) -> None:
    wanted = settings(layout="data_parallel", server_instances=4, server_tensor_parallel=2)
    placed = place(wanted.roles, recorded("nps4", tmp_path))
    assert len({each.numa_nodes for each in placed}) == 4
