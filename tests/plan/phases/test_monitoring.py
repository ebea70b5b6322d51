"""Grafana and DCGM's exporter, from repositories that settings name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.files import ABSENT, FoundPath, FoundPaths
from tasks.plan.phases import monitoring
from tasks.plan.plan import Plan
from tasks.plan.service.repository import DCGM, GRAFANA
from tasks.plan.service.watching import Watched, Watching
from tasks.support import catalogue, render
from tests.plan.builders import TWO_SOCKETS, hardware, plan, settings

KEY = b"\x98\x33\x04"
BOTH = {
    "grafana_repository": "https://apt.example/grafana stable main", "grafana_keyring": "grafana.gpg",
    "dcgm_repository": "https://apt.example/dcgm /", "dcgm_keyring": "dcgm.gpg",
}  # fmt: skip


@pytest.fixture
def made() -> Plan:
    planned = plan(settings(monitoring=True, **BOTH), hardware(TWO_SOCKETS))
    return replace(planned, keyrings={one.name: one.keyring(KEY, "k") for one in (GRAFANA, DCGM)})


def texts(made: Plan) -> dict[str, str]:
    return {file.path: file.content.decode(errors="replace") for file in render.monitoring(made)}


def test_without_a_repository_nothing_of_either_is_there() -> None:
    planned = plan(settings(monitoring=True), hardware(TWO_SOCKETS))
    assert monitoring.packages(planned) == list(monitoring.PACKAGES)
    assert not any("grafana" in path or "dcgm" in path or "/apt/" in path for path in texts(planned))
    assert {monitoring.GRAFANA_UNIT, monitoring.DCGM_UNIT} <= {*monitoring.not_here(planned)}


def test_both_come_from_signed_repositories_and_listen_on_loopback_alone(made: Plan) -> None:
    files = texts(made)
    assert {"grafana", "datacenter-gpu-manager-exporter"} <= {*monitoring.packages(made)}
    assert files["/etc/apt/sources.list.d/sglang-pd-grafana.sources"] == (
        "# written by sglang-pd-playbook: Grafana\nTypes: deb\nURIs: https://apt.example/grafana\nSuites: stable\n"
        "Components: main\nSigned-By: /etc/apt/keyrings/sglang-pd-grafana.gpg\n"
    )
    assert "/etc/apt/keyrings/sglang-pd-dcgm.gpg" in files
    grafana, dcgm = (files[monitoring.drop_in(unit)] for unit in (monitoring.GRAFANA_UNIT, monitoring.DCGM_UNIT))
    assert "Environment=GF_SERVER_HTTP_ADDR=127.0.0.1\nEnvironment=GF_SERVER_HTTP_PORT=3000\n" in grafana
    assert "ExecStart" not in grafana and "-a 127.0.0.1:9400\n" in dcgm
    assert all("IPAddressDeny=any\nIPAddressAllow=localhost\n" in text for text in (grafana, dcgm))
    asked = [one["targets"] for one in json.loads(monitoring.targets(made).content) if one["labels"]["job"] == "host"]
    assert asked == [["127.0.0.1:9100"], ["127.0.0.1:9400"]]


def test_the_drivers_repository_is_named_once(made: Plan) -> None:
    of_driver = {
        "driver_repository": BOTH["dcgm_repository"],
        "driver_keyring": "dcgm.gpg",
        "driver_version": "580.95.05",
    }
    managed = replace(made, settings=settings(monitoring=True, manage_driver=True, **BOTH, **of_driver))
    assert not any("dcgm" in path for path in texts(managed) if path.startswith("/etc/apt"))
    assert "datacenter-gpu-manager-exporter" in monitoring.packages(managed)


def test_grafana_finds_its_data_source_and_every_dashboard(made: Plan) -> None:
    files = texts(made)
    (source,) = json.loads(files["/etc/sglang-pd-monitoring/grafana/datasources/sglang-pd.yaml"])["datasources"]
    assert source["url"] == "http://127.0.0.1:9090"
    (provider,) = json.loads(files["/etc/sglang-pd-monitoring/grafana/dashboards/sglang-pd.yaml"])["providers"]
    boards = [json.loads(text) for path, text in files.items() if path.startswith(provider["options"]["path"])]
    assert len(boards) == len(catalogue.dashboard_files()) == 3
    for board in boards:
        assert "__inputs" not in board and "${DS_" not in json.dumps(board)
        assert {panel["datasource"] for panel in board["panels"]} == {source["uid"]}


def test_a_host_that_another_watches_has_the_exporter_and_no_grafana(made: Plan) -> None:
    watched = replace(made, watching=Watching(address="10.1.0.2", asked_from="10.1.0.1"))
    assert monitoring.packages(watched) == ["prometheus-node-exporter", "datacenter-gpu-manager-exporter"]
    assert not any("grafana" in path for path in texts(watched))
    assert json.loads(monitoring.forwards(watched).content)["sources"]["/dcgm"] == "http://127.0.0.1:9400/metrics"


def test_a_host_without_gpus_of_its_own_has_no_exporter_of_them(made: Plan) -> None:
    router = made.settings.model_copy(update={"place": replace(made.settings.place, roles=("router",))})
    gone = replace(made, settings=router, watching=Watching((Watched("gw-1", router),)))
    assert monitoring.DCGM_UNIT in monitoring.not_here(gone)


@pytest.mark.parametrize("name", ["grafana", "dcgm"])
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"_keyring": None}, "setting NAME_repository needs NAME_keyring: nothing comes from an unsigned source"),
        ({"_repository": None}, "setting NAME_keyring is for NAME_repository, which is not set: leave it out"),
        ({"_repository": "https://me:secret@apt.example /"}, "setting NAME_repository holds credentials"),
        ({"_repository": "apt.example stable"}, 'setting NAME_repository = .apt.example stable.: write "URI SUITE'),
    ],
)
def test_a_repository_that_cannot_be(name: str, changes: dict[str, object], line: str) -> None:
    wrong = {f"{name}{end}": value for end, value in changes.items()}
    with pytest.raises(PlanError, match=line.replace("NAME", name)) as fault:
        settings(monitoring=True, **{**BOTH, **wrong})
    assert "secret" not in str(fault.value)


def test_what_somebody_else_set_up_is_not_taken_away() -> None:
    found = FoundPaths(dict.fromkeys(monitoring.belongings(), ABSENT))
    assert monitoring.there(found) == ()
    found[monitoring.drop_in(monitoring.PROMETHEUS)] = found[monitoring.FORWARDS] = FoundPath("file")
    assert monitoring.there(found) == (monitoring.PROMETHEUS, monitoring.FORWARDER)
