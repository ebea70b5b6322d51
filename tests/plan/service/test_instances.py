"""The servers of a host: names, ports, arguments, environment."""

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.service.instances import Instance
from tasks.plan.service.rules import cautions
from tests.plan.builders import TWO_SOCKETS, hardware, manifest, options, profile, release, servers, settings

TWO_EACH = {"prefill_tensor_parallel": 2, "decode_tensor_parallel": 2}


def made(nodes: list[int] = TWO_SOCKETS, **changes: object) -> dict[str, Instance]:
    return {instance.name: instance for instance in servers(settings(**changes), hardware(nodes))}


def environment(instance: Instance) -> dict[str, str]:
    return {variable.name: variable.value for variable in instance.environment}


def lines_of(error: pytest.ExceptionInfo[PlanError]) -> tuple[str, ...]:
    assert all("\n" not in line for line in error.value.lines)
    return error.value.lines


# ---- names and ports


def test_one_of_each() -> None:
    assert list(made()) == ["prefill", "decode", "router"]


def test_several_of_a_role_are_numbered() -> None:
    assert list(made(prefill_instances=3, **TWO_EACH)) == ["prefill-0", "prefill-1", "prefill-2", "decode", "router"]


def test_units_follow_the_names() -> None:
    assert made(prefill_instances=2, **TWO_EACH)["prefill-1"].unit == "sglang-pd-prefill-1.service"


def test_no_two_servers_share_a_port() -> None:
    every = made(prefill_instances=2, decode_instances=2, **TWO_EACH).values()
    ports = [port for instance in every for port, _ in instance.ports]
    assert len(set(ports)) == len(ports) == 2 * 3 + 2 * 2 + 2


def test_the_ports_of_the_first_are_the_settings() -> None:
    first = made(prefill_instances=2, prefill_port=31000, **TWO_EACH)["prefill-0"]
    assert dict(first.ports) == {31000: "prefill_port", 30335: "prefill_dist_init_port", 8998: "prefill_bootstrap_port"}


def test_decode_runs_no_bootstrap_server() -> None:
    found = made()
    assert (found["prefill"].bootstrap_port, found["decode"].bootstrap_port) == (8998, None)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("prefill_port", "decode_port"),
        ("prefill_port", "prefill_bootstrap_port"),
        ("prefill_dist_init_port", "decode_dist_init_port"),
        ("prefill_bootstrap_port", "router_port"),
        ("decode_port", "router_metrics_port"),
        ("router_port", "router_metrics_port"),
    ],
)
def test_a_port_asked_for_twice_names_both_settings(first: str, second: str) -> None:
    with pytest.raises(PlanError) as error:
        made(**{first: 5000, second: 5000})
    (line,) = lines_of(error)
    assert "port 5000 is asked for twice" in line
    assert f"({first})" in line
    assert f"({second})" in line


def test_a_port_that_a_second_server_counts_up_to() -> None:
    found = made(prefill_instances=2, **TWO_EACH)
    port = found["prefill-1"].port
    with pytest.raises(PlanError) as error:
        made(prefill_instances=2, router_port=port, **TWO_EACH)
    assert lines_of(error) == (
        f"port {port} is asked for twice: by prefill-1 (prefill_port) and by router (router_port); give one of them another",
    )


def test_a_port_beyond_the_last() -> None:
    with pytest.raises(PlanError) as error:
        made(prefill_instances=2, prefill_port=65535, **TWO_EACH)
    (line,) = lines_of(error)
    assert "prefill-1 would take port" in line
    assert "(prefill_port): ports end at 65535" in line


# ---- what release and model cannot serve


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_tensor_parallel_that_does_not_divide_the_heads(role: str) -> None:
    with pytest.raises(PlanError) as error:
        made(**{f"{role}_tensor_parallel": 3})
    (line,) = lines_of(error)
    assert f"{role}_tensor_parallel = 3 does not divide the 64 attention heads of some-model" in line
    assert "use 1, 2, 4, 8, 16" in line


@pytest.mark.parametrize("parallel", [7, 14])
def test_a_tensor_parallel_that_cannot_share_out_the_kv_heads(parallel: int) -> None:
    """28 heads, 4 KV heads, as Qwen2.5-7B has."""
    model = profile(heads=28, kv_heads=4)
    with pytest.raises(PlanError) as error:
        servers(settings(prefill_tensor_parallel=parallel), hardware(TWO_SOCKETS), model=model)
    assert lines_of(error) == (
        f"setting prefill_tensor_parallel = {parallel} neither divides the 4 KV heads of some-model nor is a multiple "
        "of them: use 1, 2, 4",
    )


@pytest.mark.parametrize(("heads", "kv_heads", "parallel"), [(28, 4, 4), (32, 8, 2), (64, 1, 4), (32, 2, 4)])
def test_a_tensor_parallel_that_shares_out_the_kv_heads(heads: int, kv_heads: int, parallel: int) -> None:
    wanted = settings(prefill_tensor_parallel=parallel, decode_tensor_parallel=parallel)
    found = servers(wanted, hardware(TWO_SOCKETS), model=profile(heads=heads, kv_heads=kv_heads))
    assert options(found[0])["--tp"] == str(parallel)


LIMITED = release(manifest(chunked_prefill_maximum=11673))


def test_chunked_prefill_above_what_the_release_survives() -> None:
    with pytest.raises(PlanError) as error:
        servers(settings(prefill_chunked_prefill=11674), hardware(TWO_SOCKETS), LIMITED)
    (line,) = lines_of(error)
    assert "prefill_chunked_prefill = 11674" in line
    assert "at most 11673" in line


@pytest.mark.parametrize(("size", "built"), [(11673, LIMITED), (16384, release())])
def test_chunked_prefill_that_the_release_survives(size: int, built: object) -> None:
    found = servers(settings(prefill_chunked_prefill=size), hardware(TWO_SOCKETS), built)  # type: ignore[arg-type]
    assert options(found[0])["--chunked-prefill-size"] == str(size)


@pytest.mark.parametrize(("ends", "served"), [(2048, "2048"), (4097, "4096"), (None, "4096")])
def test_the_context_is_the_smaller_of_setting_and_model(ends: int | None, served: str) -> None:
    found = servers(settings(context_length=4096), hardware(TWO_SOCKETS), model=profile(maximum_context=ends))
    assert {options(one).get("--context-length") for one in found if one.is_worker} == {served}


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(PlanError) as error:
        servers(settings(), hardware(TWO_SOCKETS), model=profile(heads=7))
    assert len(lines_of(error)) == 2


def test_a_renamed_argument_in_a_setting() -> None:
    with pytest.raises(PlanError) as error:
        made(prefill_arguments=["--cuda-graph-max-bs", "8"])
    (line,) = lines_of(error)
    assert "setting prefill_arguments" in line
    assert "use --cuda-graph-max-bs-decode" in line


@pytest.mark.parametrize(
    ("context", "walks", "warned"), [(8193, True, True), (8192, True, False), (131072, False, False)]
)
def test_a_long_context_with_an_indexer_that_walks_all_of_it(context: int, walks: bool, warned: bool) -> None:
    found = cautions(manifest(indexer_walks_whole_context=walks), context)
    assert len(found) == warned
    assert all(f"context_length = {context}" in line for line in found)


# ---- arguments


@pytest.mark.parametrize(
    "option",
    ["--context-length", "--page-size", "--kv-cache-dtype", "--model-path", "--served-model-name",
     "--attention-backend", "--disaggregation-transfer-backend"],
)  # fmt: skip
def test_both_roles_agree_on(option: str) -> None:
    found = made()
    assert options(found["prefill"])[option] == options(found["decode"])[option]


def test_gpus_side_by_side_are_a_base_and_a_count() -> None:
    found = made()["decode"]
    assert (options(found)["--base-gpu-id"], options(found)["--tp"]) == ("4", "4")
    assert "CUDA_VISIBLE_DEVICES" not in environment(found)


def test_other_gpus_are_made_visible_by_index() -> None:
    found = made([0, 1] * 4)["decode"]
    assert environment(found)["CUDA_VISIBLE_DEVICES"] == "1,3,5,7"
    assert environment(found)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert options(found)["--base-gpu-id"] == "0"


def test_a_bound_server_is_started_by_numactl() -> None:
    assert made()["decode"].binding == ("numactl", "--cpunodebind=1", "--membind=1")


def test_the_binding_of_a_server_on_several_nodes() -> None:
    found = hardware([0, 1, 2, 2], links={(0, 1): "NODE"})
    prefill = servers(settings(**TWO_EACH), found)[0]
    assert prefill.binding == ("numactl", "--cpunodebind=0-1", "--membind=0-1")
    assert prefill.title == "SGLang prefill (GPU 0-1, NUMA nodes 0-1)"


def test_a_server_on_an_unknown_node_and_the_router_are_not_bound() -> None:
    found = made([-1] * 8)
    assert [instance.binding for instance in found.values()] == [(), (), ()]


def test_decode_has_no_chunked_prefill_and_prefill_no_graph() -> None:
    found = made()
    assert "--chunked-prefill-size" not in options(found["decode"])
    assert "--cuda-graph-max-bs-decode" not in options(found["prefill"])
    assert "--cuda-graph-backend-prefill=disabled" in options(found["prefill"])


def test_prefill_with_graphs_where_that_is_asked_for() -> None:
    assert "--cuda-graph-backend-prefill=disabled" not in options(made(prefill_cuda_graph=True)["prefill"])


def test_the_cpu_release_names_no_gpu() -> None:
    found = servers(settings(), hardware(TWO_SOCKETS), release(manifest(device="cpu")))
    assert all("--base-gpu-id" not in options(instance) for instance in found)


def test_arguments_of_a_setting_come_last() -> None:
    found = made(prefill_arguments=["--log-level", "debug", "--show-time-cost"])["prefill"]
    assert found.arguments[-2:] == (("--log-level", "debug"), ("--show-time-cost",))


def test_arguments_of_the_model_go_to_their_role() -> None:
    model = profile(arguments=["--max-running-requests", "8"], decode_arguments=["--one-more", "x"])
    prefill, decode, _ = servers(settings(), hardware(TWO_SOCKETS), model=model)
    assert options(prefill)["--max-running-requests"] == options(decode)["--max-running-requests"] == "8"
    assert "--one-more" not in options(prefill)
    assert options(decode)["--one-more"] == "x"


@pytest.mark.parametrize(("chosen", "passed"), [({"9.9": "marlin"}, "marlin"), ({"9.9": "auto"}, None), ({}, None)])
def test_the_moe_backend_depends_on_the_release(chosen: dict[str, str], passed: str | None) -> None:
    found = servers(settings(), hardware(TWO_SOCKETS), model=profile(moe_runner_backend=chosen))
    assert options(found[0]).get("--moe-runner-backend") == passed


@pytest.mark.parametrize(("given", "printed"), [(0.7, "0.70"), (0.62, "0.62"), (0.625, "0.625"), (0.9, "0.90")])
def test_a_fraction_is_printed_in_full(given: float, printed: str) -> None:
    assert options(made(prefill_mem_fraction=given)["prefill"])["--mem-fraction-static"] == printed


# ---- environment


def test_an_environment_variable_carries_reason_and_source() -> None:
    given = {"NCCL_X": {"value": "1", "reason": "because", "source": "a manual"}}
    found = {v.name: v for v in made(worker_environment=given)["prefill"].environment}
    assert (found["NCCL_X"].value, found["NCCL_X"].reason) == ("1", "because (a manual)")


def test_the_gpu_order_is_set_also_where_no_setting_says_so() -> None:
    found = made(worker_environment={})
    assert [environment(found[role])["CUDA_DEVICE_ORDER"] for role in ("prefill", "decode")] == ["PCI_BUS_ID"] * 2


def test_the_role_wins_over_the_model_and_the_model_over_both_roles() -> None:
    shared = {name: {"value": "settings", "reason": "r", "source": "s"} for name in ("A", "B", "C")}
    model = profile(environment={"B": "model", "C": "model"})
    wanted = settings(worker_environment=shared, prefill_environment={"C": "role"})
    prefill, decode, _ = servers(wanted, hardware(TWO_SOCKETS), model=model)
    assert [environment(prefill)[name] for name in "ABC"] == ["settings", "model", "role"]
    assert [environment(decode)[name] for name in "ABC"] == ["settings", "model", "model"]


def test_every_variable_stands_once_in_order() -> None:
    names = [variable.name for variable in made(prefill_environment={"CC": "/x"})["prefill"].environment]
    assert names == sorted(set(names))


# ---- address


def test_the_address_of_a_role_is_where_its_servers_listen_and_are_reached() -> None:
    wanted = settings()
    elsewhere = wanted.prefill.model_copy(update={"address": "fd00::7"})
    found = {
        each.name: each for each in servers(wanted.model_copy(update={"prefill": elsewhere}), hardware(TWO_SOCKETS))
    }
    prefill = found["prefill"]
    assert (prefill.url, prefill.bootstrap_url) == ("http://[fd00::7]:30000", "http://[fd00::7]:8998")
    assert options(prefill)["--host"] == environment(prefill)["SGLANG_HOST_IP"] == "fd00::7"
    assert options(prefill)["--dist-init-addr"] == "[fd00::7]:30335"
    assert "127.0.0.1" not in [*prefill.words, *environment(prefill).values()]
    assert ("--prefill", "http://[fd00::7]:30000", "8998") in found["router"].arguments
    assert ("--decode", "http://127.0.0.1:30001") in found["router"].arguments


# ---- router


def test_the_router_serves_every_worker() -> None:
    found = made(prefill_instances=2, decode_instances=2, **TWO_EACH)
    lines = found["router"].arguments
    assert [line for line in lines if line[0] == "--prefill"] == [
        ("--prefill", found[name].url, str(found[name].bootstrap_port)) for name in ("prefill-0", "prefill-1")
    ]
    assert [line for line in lines if line[0] == "--decode"] == [
        ("--decode", found[name].url) for name in ("decode-0", "decode-1")
    ]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("10.0.0.7", "http://10.0.0.7:8000"),
        ("::1", "http://[::1]:8000"),
    ],
)
def test_where_the_host_itself_reaches_the_router(host: str, url: str) -> None:
    assert made(router_host=host, router_api_key_env="KEY")["router"].url == url


# ---- settings that some releases serve


@pytest.mark.parametrize(
    ("router", "module"), [("sglang-router", "sglang_router.launch_router"), ("smg", "smg.launch_router")]
)
def test_both_routers_take_the_same_command_line_but_for_their_limits(router: str, module: str) -> None:
    found, usual = made(router=router)["router"], made()["router"]
    assert found.module == module
    assert set(usual.arguments) - set(found.arguments) <= {("--rate-limit-tokens-per-second", "1")}  # test_limits.py
    assert set(found.arguments) <= set(usual.arguments)


def test_a_router_without_locks() -> None:
    with pytest.raises(PlanError) as error:
        servers(settings(router="smg"), hardware(TWO_SOCKETS), release(manifest(routers={"sglang-router": "9.3"})))
    assert lines_of(error) == (
        "setting router = 'smg': release sglang-9.9-cu130 has no lock for it; name sglang-router",
    )


DRAFTING = profile(speculative_algorithm="NEXTN")


def test_speculative_names_the_algorithm_of_the_model_to_both_roles() -> None:
    *workers, router = servers(settings(speculative=True), hardware(TWO_SOCKETS), model=DRAFTING)
    assert [options(worker)["--speculative-algorithm"] for worker in workers] == ["NEXTN", "NEXTN"]
    assert "--speculative-algorithm" not in options(router)


def test_speculative_is_off_by_default() -> None:
    assert all(
        "--speculative-algorithm" not in options(one)
        for one in servers(settings(), hardware(TWO_SOCKETS), model=DRAFTING)
    )


def test_speculative_with_a_model_that_carries_no_draft() -> None:
    with pytest.raises(PlanError) as error:
        made(speculative=True)
    assert lines_of(error) == ("setting speculative = True: model some-model carries no draft; set it to False",)


def test_all_reduce_over_pcie_is_a_variable_of_both_roles() -> None:
    name = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
    *workers, _ = made(pcie_ipc_allreduce=True).values()
    assert all(name in {variable.name: variable.value for variable in worker.environment} for worker in workers)
    assert not any(variable.name == name for worker in made().values() for variable in worker.environment)


def test_a_checksum_of_the_kv_cache_is_asked_of_both_sides() -> None:
    prefill, decode, _ = made(kv_checksum=True).values()
    assert all("--disaggregation-enable-kv-checksum" in one.words for one in (prefill, decode))
    assert not any("--disaggregation-enable-kv-checksum" in one.words for one in made().values())


@pytest.mark.parametrize(
    ("name", "since"), [("speculative", "0.5.16"), ("pcie_ipc_allreduce", "0.5.21"), ("kv_checksum", "0.5.21")]
)
def test_a_release_that_cannot_serve_a_setting_says_since_when(name: str, since: str) -> None:
    with pytest.raises(PlanError) as error:
        servers(settings(**{name: True}), hardware(TWO_SOCKETS), release(manifest(serves=[])), DRAFTING)
    (line,) = lines_of(error)
    assert line.startswith(f"setting {name} = True: SGLang 9.9 cannot serve it, {since} was the first that can")


@pytest.mark.parametrize("name", ["speculative", "pcie_ipc_allreduce", "kv_checksum"])
def test_a_release_for_the_cpu_needs_a_gpu_for_it(name: str) -> None:
    with pytest.raises(PlanError) as error:
        servers(settings(**{name: True}), hardware(TWO_SOCKETS), release(manifest(serves=[], device="cpu")), DRAFTING)
    assert "is for the CPU: set it to False" in lines_of(error)[0]
