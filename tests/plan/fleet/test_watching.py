"""One Prometheus for several hosts: who has it, whom it asks, and what the others let it in for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.fleet import watching
from tasks.plan.phases import monitoring
from tasks.plan.plan import Plan
from tasks.plan.service.watching import Watched, Watching
from tasks.support import render
from tests.plan.builders import TWO_SOCKETS, fleet_plans, hardware, inventoried, plan, settings

HERE, THERE = "10.1.0.1", "10.1.0.2"


@pytest.fixture(scope="module")
def both() -> dict[str, Plan]:
    """gpu-1 with prefill, router and the Prometheus of both; gpu-2 with decode."""
    made = fleet_plans(gpu_1={"monitoring": True}, gpu_2={"monitoring": True})
    watched = (Watched("gpu-1", made["gpu-1"].settings), Watched("gpu-2", made["gpu-2"].settings, THERE))
    return {
        "gpu-1": replace(made["gpu-1"], watching=Watching(watched)),
        "gpu-2": replace(made["gpu-2"], watching=Watching(address=THERE, asked_from=HERE)),
    }


def texts(made: Plan) -> dict[str, str]:
    return {file.path: file.content.decode() for file in render.monitoring(made)}


def test_the_host_of_the_group_has_the_prometheus_of_all() -> None:
    hosts = inventoried({"gpu-1": ("prefill", "monitoring"), "gpu-2": ("decode",)}, gpu_2={"monitoring": True})
    assert watching.keeper(hosts) == "gpu-1"
    assert [host.name for host in hosts if watching.with_monitoring(host)] == ["gpu-1", "gpu-2"]
    assert watching.keeper(inventoried()) is None


def test_two_hosts_in_the_group_are_refused() -> None:
    with pytest.raises(
        PlanError, match="the group monitoring holds gpu-1, gpu-2: one Prometheus watches all, name one"
    ):
        watching.keeper(inventoried({"gpu-1": ("monitoring",), "gpu-2": ("monitoring",)}))


def test_prometheus_asks_its_own_host_on_loopback_and_the_others_at_one_port(both: dict[str, Plan]) -> None:
    made = json.loads(monitoring.targets(both["gpu-1"]).content)
    found = {(one["labels"]["host"], one["labels"]["instance"]): one for one in made}
    asked = {
        key: (*one["targets"], one["labels"].get("__metrics_path__"), one["labels"]["service"])
        for key, one in found.items()
    }
    assert asked == {
        ("gpu-1", "prefill"): ("10.1.0.1:30000", None, "main"),
        ("gpu-1", "router"): ("127.0.0.1:29001", None, "main"),
        ("gpu-1", "host"): ("127.0.0.1:9100", None, "main"),
        ("gpu-2", "decode"): ("10.1.0.2:9469", "/decode", "main"),
        ("gpu-2", "host"): ("10.1.0.2:9469", "/host", "main"),
    }


def test_each_server_of_the_plan_is_asked_where_it_listens() -> None:
    made = plan(settings(monitoring=True, prefill_instances=2, prefill_tensor_parallel=2), hardware(TWO_SOCKETS))
    assert made.watching
    (watched,) = made.watching.watched
    servers = {one.name: f"http://{one.address}" for one in watched.sources if one.job == "server"}
    assert servers == {worker.name: worker.url for worker in made.workers} and len(servers) == 3
    assert watched.service == "gpu-1"


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "127.0.0.1:29001"), ("::", "[::1]:29001"), (HERE, f"{HERE}:29001")]
)
def test_a_router_that_shows_its_metrics_elsewhere(host: str, address: str) -> None:
    wanted = settings(router_metrics_host=host, router_api_key_env="KEY")
    (router,) = (one for one in Watched("a", wanted).sources if one.job == "router")
    assert router.address == address


def test_a_host_that_joins_restarts_nobody(both: dict[str, Plan]) -> None:
    alone = replace(both["gpu-1"], watching=Watching(both["gpu-1"].watching.watched[:1]))  # type: ignore[union-attr]
    before, after = texts(alone), texts(both["gpu-1"])
    changed = {path for path in after if before.get(path) != after[path]}
    assert changed == {monitoring.TARGETS, monitoring.filter_of(monitoring.PROMETHEUS)}
    (daemon,) = (one for one in monitoring.daemons(both["gpu-1"]) if one.unit == monitoring.PROMETHEUS)
    assert not changed & {monitoring.drop_in(daemon.unit), *daemon.files}
    assert f"IPAddressAllow={THERE}\n" in after[monitoring.filter_of(monitoring.PROMETHEUS)]


def test_a_watched_host_has_no_prometheus_and_lets_one_host_in(both: dict[str, Plan]) -> None:
    made = both["gpu-2"]
    assert monitoring.packages(made) == ["prometheus-node-exporter"]
    assert {monitoring.PROMETHEUS, monitoring.ALERTMANAGER} <= {*monitoring.not_here(made)}
    files = texts(made)
    assert not {monitoring.CONFIG, monitoring.RULES, monitoring.TARGETS} & files.keys()
    shown = json.loads(files[monitoring.FORWARDS])
    assert shown == {
        "address": THERE, "port": 9469,
        "sources": {"/decode": "http://10.1.0.2:30001/metrics", "/host": "http://127.0.0.1:9100/metrics"},
    }  # fmt: skip
    unit = next(text for path, text in files.items() if path.endswith(monitoring.FORWARDER))
    assert "IPAddressDeny=any\n" in unit and "DynamicUser=yes\n" in unit
    assert allowed(unit) == {"localhost", HERE, THERE}


def allowed(unit: str) -> set[str]:
    """With whom a unit may exchange packets."""
    return {word for line in unit.splitlines() if line.startswith("IPAddressAllow=") for word in line[15:].split()}


def test_figures_are_for_one_host_and_come_from_wherever_the_router_shows_its_own() -> None:
    wanted = settings(
        monitoring=True, peer_networks=["10.9.0.0/24"], router_metrics_host="10.2.0.2", router_api_key_env="KEY"
    )
    made = replace(plan(wanted, hardware(TWO_SOCKETS)), watching=Watching(address=THERE, asked_from=HERE))
    unit = next(text for path, text in texts(made).items() if path.endswith(monitoring.FORWARDER))
    assert allowed(unit) == {"localhost", HERE, THERE, "10.2.0.2"}


def test_the_host_with_the_prometheus_shows_its_figures_to_nobody(both: dict[str, Plan]) -> None:
    assert monitoring.FORWARDER in monitoring.not_here(both["gpu-1"])
    listens = [word for one in monitoring.daemons(both["gpu-1"]) for word in one.command if "listen-address=" in word]
    assert all("=127.0.0.1:" in word or word.endswith("=") for word in listens) and len(listens) == 4


def test_the_host_to_ask_is_the_one_with_the_prometheus() -> None:
    apart = inventoried(gpu_1={"monitoring": True})
    assert [watching.watcher(apart, host) for host in ("gpu-1", "gpu-2")] == ["gpu-1", None]
    hosts = inventoried(gpu_2={"monitoring": True})
    one_for_all = [replace(hosts[0], groups=(*hosts[0].groups, watching.GROUP)), hosts[1]]
    assert [watching.watcher(one_for_all, host) for host in ("gpu-1", "gpu-2")] == ["gpu-1", "gpu-1"]


def test_a_host_that_no_longer_has_the_prometheus_keeps_no_address_and_password_of_it(both: dict[str, Plan]) -> None:
    had = {file.path for file in render.monitoring(both["gpu-1"])} | {monitoring.ALERTS}
    has = {file.path for file in render.monitoring(both["gpu-2"])}
    assert had - has <= {*monitoring.belongings(monitoring.not_here(both["gpu-2"]))}
    assert not has & {*monitoring.belongings(monitoring.not_here(both["gpu-2"]))}
