"""What systemd takes away from units, and what a user's settings change of it."""

from dataclasses import replace

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.phases import confinement
from tasks.plan.plan import Plan
from tasks.plan.service.watching import Watching
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware


def planned(**changes: object) -> Plan:
    return catalogue_plan(changes, hardware(TWO_SOCKETS))


def options(made: Plan, name: str) -> dict[str, tuple[str, ...]]:
    instance = next(instance for instance in made.instances if instance.name == name)
    return {option.name: option.values for option in confinement.of_instance(made, instance)}


def test_no_option_stands_twice() -> None:
    made = planned()
    for confined in (*(confinement.of_instance(made, i) for i in made.instances), confinement.of_tool(made)):
        names = [option.name for option in confined]
        assert sorted(names) == sorted(set(names))
        assert all(option.reason and option.values for option in confined)


def test_a_server_writes_below_its_caches_alone_and_the_router_nowhere() -> None:
    made = planned()
    assert options(made, "prefill")["ReadWritePaths"] == ("/var/lib/sglang-pd/cache",)
    assert "ReadWritePaths" not in options(made, "router")
    (kept,) = [option.values for option in confinement.of_tool(made) if option.name == "ReadWritePaths"]
    assert kept == ("/var/lib/sglang-pd",)


def test_only_servers_on_gpus_may_open_gpus() -> None:
    assert "char-nvidia* rw" in options(planned(), "decode")["DeviceAllow"]
    assert "DeviceAllow" not in options(planned(), "router")
    rehearsed = planned(release="sglang-0.5.20-cpu", model="rehearsal-qwen2", context_length=1024)
    assert "DeviceAllow" not in options(rehearsed, "decode")


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({}, "yes"),
        ({"model_dir": "/data/model"}, "yes"),
        ({"model_dir": "/homes/model"}, "yes"),
        ({"model_dir": "/home/alice/model"}, "read-only"),
        ({"model_dir": "/root/model"}, "read-only"),
        ({"state_dir": "/home/sglang"}, "read-only"),
    ],
)
def test_homes_are_closed_unless_what_is_served_lies_there(changes: dict[str, object], value: str) -> None:
    made = planned(**changes)
    assert options(made, "prefill")["ProtectHome"] == options(made, "router")["ProtectHome"] == (value,)


def test_a_user_says_one_option_in_another_way() -> None:
    given = {"ProtectHome": {"value": "read-only", "reason": "links lead there"}}
    made = planned(unit_options={**given, "MemoryDenyWriteExecute": {"value": None, "reason": "a plugin compiles"}})
    plain = planned()
    for name in ("prefill", "decode", "router"):
        own, ours = options(made, name), options(plain, name)
        assert own["ProtectHome"] == ("read-only",)
        ours.pop("MemoryDenyWriteExecute", None)
        assert own == {**ours, "ProtectHome": ("read-only",)}


def test_the_unit_that_shows_figures_to_another_host_has_it_in_that_way_too() -> None:
    watching = Watching(address="10.1.0.2", asked_from="10.1.0.1")
    plain, own = (
        {option.name for option in confinement.of_forwarder(replace(made, watching=watching))}
        for made in (planned(), planned(unit_options={"PrivateUsers": {"value": None, "reason": "a container"}}))
    )
    assert plain - own == {"PrivateUsers"}


def test_an_option_that_no_unit_has_is_refused() -> None:
    with pytest.raises(PlanError) as refused:
        planned(unit_options={"ProtectHomes": {"value": "no", "reason": "x"}})
    (line,) = refused.value.lines
    assert line == (
        "setting unit_options names ProtectHomes, which no unit of ours has. Did you mean ProtectHome? "
        "docs/security.md lists them"
    )
