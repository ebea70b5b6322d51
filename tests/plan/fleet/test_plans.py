"""Plans of hosts that serve together: addresses, ports, the workers file, the filter, what each host is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tasks.plan.checks import Found
from tasks.plan.errors import PlanError
from tasks.plan.fleet import agreement, members, service
from tasks.plan.host.answers import Answer, read_system
from tasks.plan.phases.activate import jit, release_checks
from tasks.plan.phases.passed import passed_config
from tasks.plan.phases.routing import listed, lone, workers_file
from tasks.plan.phases.system import packages
from tasks.plan.phases.verify import verify_config
from tasks.plan.proof.probe import configuration
from tasks.plan.release.lock import NO_SERVERS
from tasks.plan.service.instances import Instance
from tasks.plan.service.restarts import Fingerprint
from tasks.support import render
from tests.plan import judging
from tests.plan.builders import (
    API_KEY,
    REACHED,
    TWO_HOSTS,
    TWO_SOCKETS,
    catalogue_plan,
    fleet_plans,
    hardware,
    inventoried,
    options,
)

THREE = {**TWO_HOSTS, "gpu-3": ("decode",)}
PREFILL, DECODE = "http://10.1.0.1:30000", "http://10.1.0.2:30001"


def instance(host: str, name: str) -> Instance:
    return next(one for one in fleet_plans()[host].instances if one.name == name)


def unit(host: str, name: str, **changes: dict[str, object]) -> str:
    plan = fleet_plans(**changes)[host]
    return render.instance_files(plan, next(i for i in plan.instances if i.name == name)).unit.content.decode()


def test_each_host_runs_what_it_plays() -> None:
    names = {host: [one.name for one in plan.instances] for host, plan in fleet_plans().items()}
    assert names == {"gpu-1": ["prefill", "router"], "gpu-2": ["decode"]}


@pytest.mark.parametrize(
    ("host", "name", "address"), [("gpu-1", "prefill", "10.1.0.1"), ("gpu-2", "decode", "10.1.0.2")]
)
def test_servers_listen_and_are_reached_at_the_address_of_their_host(host: str, name: str, address: str) -> None:
    server = instance(host, name)
    given = options(server)
    assert server.url == f"http://{address}:{server.port}"
    assert given["--host"] == address
    assert given["--dist-init-addr"].startswith(f"{address}:")
    variables = {variable.name: variable.value for variable in server.environment}
    assert variables["SGLANG_HOST_IP"] == address
    assert variables["UCX_NET_DEVICES"] == variables["GLOO_SOCKET_IFNAME"] == "eth1"


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    hosts = inventoried(gpu_1={"service_address": "fd00::1"}, gpu_2={"service_address": "fd00::2"})
    found = members.together(members.known(members.members(hosts)), "main")
    reached = {"gpu-1": ("fd00::1", "eth1"), "gpu-2": ("fd00::2", "eth1")}
    made = service.joined(found, {host.name: host.data for host in hosts}, reached)
    assert [other.url for other in made["gpu-1"].others] == ["http://[fd00::2]:30001"]


def test_the_router_finds_every_server_in_a_file_and_stays_on_loopback() -> None:
    plan = fleet_plans()["gpu-1"]
    assert plan.router is not None
    assert plan.router.module == "smg.launch_router"
    given = options(plan.router)
    assert given["--discovery-file"] == "/etc/sglang-pd/workers.json"
    assert given["--host"] == "127.0.0.1"
    assert not {"--prefill", "--decode", "--worker-urls"} & given.keys()
    file = workers_file(plan)
    assert file is not None
    assert json.loads(file.content) == {
        "version": 1,
        "workers": [
            {"url": PREFILL, "worker_type": "prefill", "bootstrap_port": 8998},
            {"url": DECODE, "worker_type": "decode"},
        ],
    }
    assert workers_file(fleet_plans()["gpu-2"]) is None
    assert workers_file(catalogue_plan({}, hardware(TWO_SOCKETS))) is None


def test_a_host_that_joins_the_service_restarts_nobody() -> None:
    def fingerprints(groups: Mapping[str, tuple[str, ...]]) -> list[Fingerprint]:
        plan = fleet_plans(groups)["gpu-1"]
        return [render.instance_files(plan, instance).fingerprint for instance in plan.instances]

    assert fingerprints(TWO_HOSTS) == fingerprints(THREE)


def test_the_router_waits_for_the_minimum_of_each_role() -> None:
    assert f"await --some 1 prefill={PREFILL} --some 1 decode@gpu-2={DECODE} --limit" in unit("gpu-1", "router")
    plan = fleet_plans(THREE, gpu_1={"minimum_decode": 2})["gpu-1"]
    assert plan.enough["decode"][0] == 2
    assert len(fleet_plans(THREE)["gpu-1"].enough["decode"][1]) == 2


@pytest.mark.parametrize(
    ("host", "name", "other"),
    [("gpu-1", "prefill", "10.1.0.2"), ("gpu-1", "router", "10.1.0.2"), ("gpu-2", "decode", "10.1.0.1")],
)
def test_units_let_in_the_hosts_of_their_service_alone(host: str, name: str, other: str) -> None:
    lines = unit(host, name).splitlines()
    allowed = [line.partition("=")[2] for line in lines if line.startswith("IPAddressAllow=")]
    assert "IPAddressDeny=any" in lines
    assert set(allowed) == {"localhost", "10.1.0.1", "10.1.0.2"}
    assert other in allowed


def test_questions_are_asked_where_the_router_is_and_of_every_server() -> None:
    plans = fleet_plans()
    config = verify_config(plans["gpu-1"])
    assert config is not None
    asked = json.loads(config.content)
    assert asked["metrics"] == {"prefill": [f"{PREFILL}/metrics"], "decode": [f"{DECODE}/metrics"]}
    assert asked["least"] == {"prefill": 1, "decode": 1}, "one that is down is no reason to take a change back"
    file = workers_file(plans["gpu-1"])
    assert file and asked["listed"] == file.path, "nor one that is left out"
    assert verify_config(plans["gpu-2"]) is None


# ---- whole servers

WHOLE = {"gpu-1": ("server", "router"), "gpu-2": ("server",)}
SINGLE = {"gpu_1": {"layout": "single"}, "gpu_2": {"layout": "single"}}


def test_whole_servers_of_several_hosts_stand_behind_one_router() -> None:
    plans = fleet_plans(WHOLE, **SINGLE)
    assert [one.name for one in plans["gpu-1"].instances] == ["server", "router"]
    assert [one.name for one in plans["gpu-2"].instances] == ["server"]
    router, file, asked = plans["gpu-1"].router, workers_file(plans["gpu-1"]), verify_config(plans["gpu-1"])
    assert router and file and asked
    assert "--pd-disaggregation" not in options(router)
    urls = ["http://10.1.0.1:30000", "http://10.1.0.2:30000"]
    assert json.loads(file.content)["workers"] == [{"url": url, "worker_type": "regular"} for url in urls]
    assert listed(file.content.decode()) == dict.fromkeys(urls, "server")
    assert lone(listed(file.content.decode()), urls) == ("no other host has a whole server",)
    config = json.loads(asked.content)
    assert config["metrics"] == {"server": [f"{url}/metrics" for url in urls]}
    assert config["transfer_metrics"].keys() == config["least"].keys() == {"server"}
    assert plans["gpu-1"].enough.keys() == {"server"}


@pytest.mark.parametrize(
    ("groups", "changes", "said"),
    [
        (WHOLE, {}, 'gpu-2: setting layout = "pd", but this host plays server: set layout = "single"'),
        (TWO_HOSTS, SINGLE, "gpu-1: setting layout = 'single', but this host plays prefill: put it into the group"),
        ({**WHOLE, "gpu-3": ("router",)}, SINGLE, "gpu-1 has 'single', gpu-3 has 'pd'"),
        (
            WHOLE,
            {name: {**of, "minimum_server": 3} for name, of in SINGLE.items()},
            "gpu-1: setting minimum_server = 3",
        ),
    ],
    ids=["layout pd", "layout single", "a router of another layout", "too high a minimum"],
)
def test_roles_that_the_layout_does_not_have(
    groups: Mapping[str, tuple[str, ...]], changes: Mapping[str, dict[str, object]], said: str
) -> None:
    with pytest.raises(PlanError) as refused:
        fleet_plans(groups, **changes)
    assert any(said in line for line in refused.value.lines), refused.value.lines


# ---- what --limit leaves out

TOLD = {"version": "0.5.23", "served_model_name": "deepseek-v4-flash", "page_size": 256, "kv_cache_dtype": "auto",
        "context_length": 131072, "disaggregation_transfer_backend": "nixl"}  # fmt: skip


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"version": "0.5.20"}, "SGLang 0.5.20, wanted is "),
        ({"served_model_name": "qwen"}, "model qwen, wanted is "),
        ({"page_size": 64}, "page size 64, wanted is "),
        ({"context_length": 4096}, "context 4096, wanted is 131072"),
        ({"disaggregation_transfer_backend": "mooncake"}, "transfer backend mooncake, wanted is nixl"),
    ],
)
def test_what_a_server_tells_is_compared_with_the_plan(other: dict[str, object], said: str) -> None:
    plan = fleet_plans()["gpu-1"]
    same = {**TOLD, "version": plan.release.manifest.sglang, "served_model_name": plan.profile.served_name,
            "page_size": plan.profile.page_size}  # fmt: skip
    assert agreement.serves_otherwise(plan, same) == []
    assert agreement.serves_otherwise(plan, {}) == [], "what nobody tells is not compared"
    (line,) = agreement.serves_otherwise(plan, {**same, **other})
    assert said in line


def test_a_host_without_a_router_keeps_no_key_and_asks_nothing_when_it_goes_back() -> None:
    decode = replace(fleet_plans()["gpu-2"], api_key=API_KEY, tls=b"key")
    assert render.api_key(decode) is None
    assert render.tls(decode) is None
    kept = json.loads(passed_config(decode, []).content)
    assert (kept["router"], kept["verify"], kept["workers"]) == ("", [], ["sglang-pd-decode.service"])
    assert not any("probe-router" in check.words for check in release_checks(decode))


def test_the_list_of_servers_comes_back_with_what_passed_and_no_server_stops_for_it() -> None:
    for host, there in (("gpu-1", True), ("gpu-2", False)):
        kept = json.loads(passed_config(fleet_plans()[host], []).content)
        assert ("/etc/sglang-pd/workers.json" in kept["files"]) is there
        assert ("/etc/sglang-pd/workers.json" in kept["quiet"]) is there


def test_the_kv_path_is_measured_within_a_host_alone() -> None:
    assert configuration(fleet_plans()["gpu-1"])["pairs"] == []
    assert configuration(fleet_plans({"gpu-1": ("prefill", "decode", "router"), "gpu-2": ("decode",)})["gpu-1"])[
        "pairs"
    ]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("release", "sglang-0.5.17-cu130"),
        ("model", "deepseek-v4-flash-mxfp4"),
        ("model_revision", "1" * 40),
        ("context_length", 4096),
        ("transfer_backend", "mooncake"),
    ],
)
def test_hosts_of_a_service_that_differ_are_refused(setting: str, value: object) -> None:
    with pytest.raises(PlanError, match=f"setting {setting} differs within service 'main': gpu-1 has .*, gpu-2 has"):
        fleet_plans(gpu_2={setting: value})


@pytest.mark.parametrize("setting", ["rollback", "unpin"])
def test_servers_that_limit_leaves_out_stay_on_no_other_release(setting: str) -> None:
    groups = {**TWO_HOSTS, "gw-1": ("router",)}
    hosts = inventoried(groups, **{key: {setting: True} for key in ("gpu_1", "gpu_2", "gw_1")})

    def joined(*out: str) -> None:
        limited = [replace(host, taken=host.name not in out, limited=host.name in out) for host in hosts]
        found = members.together(members.known(members.members(limited)), "main")
        service.joined(found, {host.name: host.data for host in hosts}, REACHED)

    joined()
    joined("gw-1")
    with pytest.raises(PlanError, match=f"setting {setting} = True changes the release, and --limit leaves out gpu-2"):
        joined("gpu-2")


def test_hosts_that_turn_out_to_serve_with_other_pages_are_refused() -> None:
    plans = fleet_plans()
    one, other = plans["gpu-1"], plans["gpu-2"]
    agreement.settled("gpu-1", one, "gpu-2", other)
    changed = replace(other, profile=other.profile.model_copy(update={"page_size": 64, "kv_cache_dtype": "bf16"}))
    with pytest.raises(PlanError) as refused:
        agreement.settled("gpu-1", one, "gpu-2", changed)
    assert [line.partition(" differs")[0].rpartition(", but ")[2] for line in refused.value.lines] == [
        "the page size", "the KV type",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"router": "sglang-router"}, "it takes no servers that come and go"),
    ],
)
def test_what_several_hosts_cannot_do_is_one_line(changes: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError) as refused:
        fleet_plans(gpu_1=changes, gpu_2=changes)
    assert said in refused.value.lines[0]


def test_interfaces_with_the_same_address_on_two_hosts_are_refused() -> None:
    hosts = inventoried(gpu_1={"service_address": "eth1"}, gpu_2={"service_address": "eth1"})
    found = members.together(members.known(members.members(hosts)), "main")
    with pytest.raises(PlanError, match=r"gpu-1 and gpu-2 both have service_address = '10\.1\.0\.1'"):
        service.joined(found, {host.name: host.data for host in hosts}, dict.fromkeys(TWO_HOSTS, ("10.1.0.1", "eth1")))


def test_a_minimum_that_the_service_never_reaches_is_refused() -> None:
    with pytest.raises(PlanError, match="gpu-1: setting minimum_decode = 3, but the service has 2 decode"):
        fleet_plans(THREE, gpu_1={"minimum_decode": 3})


def test_one_host_alone_waits_for_all_of_its_servers() -> None:
    with pytest.raises(PlanError, match="setting minimum_decode = 1: this host serves alone"):
        catalogue_plan({"minimum_decode": 1}, hardware(TWO_SOCKETS))


def test_one_host_with_every_role_serves_as_one_that_no_group_names() -> None:
    alone = fleet_plans({"gpu-1": ("prefill", "decode", "router")})["gpu-1"]
    plain = catalogue_plan({}, hardware(TWO_SOCKETS))
    assert alone.instances == plain.instances


GATEWAY = {"gpu-1": ("prefill",), "gpu-2": ("decode",), "gw-1": ("router",)}


def test_a_host_with_the_router_alone_gets_no_gpu_no_model_and_no_sglang() -> None:
    plan = fleet_plans(GATEWAY)["gw-1"]
    assert [one.name for one in plan.instances] == ["router"]
    assert plan.release.lock == NO_SERVERS
    assert (plan.fetches, plan.devices, plan.brought, jit(plan)) == ([], None, [], None)
    assert [check.words[1] for check in release_checks(plan)] == ["probe-router"]
    assert packages(plan) == ("python3", "python3.11", "python3.11-venv")
    unit = render.instance_files(plan, plan.instances[0]).unit.content.decode()
    assert "Wants=network-online.target" in unit
    config = verify_config(plan)
    assert config is not None
    assert json.loads(config.content)["metrics"]["decode"] == [f"{DECODE}/metrics"]


def test_a_host_with_the_router_alone_passes_without_a_driver() -> None:
    plan = fleet_plans(GATEWAY)["gw-1"]
    no_driver = dict.fromkeys(("gpus", "topo", "p2p", "driver", "controllers", "licence", "health"), Answer(127, ""))
    answers = {**judging.healthy_answers([]), **judging.places(plan), **no_driver}
    system = read_system(answers)
    found = Found(plan.settings, plan.release.manifest, system, answers, judging.NOW, plan.hardware, plan)
    assert [one.sentence for one in judging.verdicts(found).values() if one.stops] == []
