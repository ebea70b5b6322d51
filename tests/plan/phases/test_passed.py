"""What is kept of a service that answered right."""

import json

import pytest

from tasks.plan.phases.passed import arming, found_config, passed_config
from tasks.plan.phases.verify import verify_config
from tasks.plan.service.paths import DEVICES, PASSED, RESUME
from tasks.plan.service.restarts import ABSENT, FoundUnits, Running
from tasks.support import render
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware


@pytest.mark.parametrize("layout", ["pd", "single", "data_parallel"])
def test_all_that_the_service_is_started_from_is_kept(layout: str) -> None:
    plan = catalogue_plan({"layout": layout}, hardware(TWO_SOCKETS))
    kept = json.loads(passed_config(plan, ["/opt/sglang-pd/bin/pd-gate"]).content)
    written = [file.path for instance in plan.instances for file in render.instance_files(plan, instance).all]
    written += [render.target(plan).path, verify_config(plan).path, plan.paths.passed]
    assert {*kept["files"]} - {*written} == {
        plan.paths.probe, plan.paths.told, plan.paths.pin, plan.paths.secret, plan.paths.tls, "/opt/sglang-pd/bin/pd-gate",
    }  # fmt: skip
    assert {*written} <= {*kept["files"]}
    assert not {*kept["quiet"]} & {file for file in kept["files"] if file.endswith((".sh", ".env", ".service"))}
    assert [*kept["workers"], kept["router"]] == [instance.unit for instance in plan.instances]


def test_nothing_waits_where_this_run_holds_no_lock() -> None:
    """What waits for a free lock would begin at once."""
    command = arming(catalogue_plan({}, hardware(TWO_SOCKETS)).paths, ["sglang-pd-router.service"])
    held, _, then = command.partition("; then ")
    assert held.startswith(f"systemctl is-active -q {RESUME} || if [ -e ") and "! flock -s -n " in held
    assert "systemd-run" in then and "for unit in sglang-pd-router.service; do" in then and then.endswith("; fi")


UNIT = "sglang-pd-prefill.service"
SERVING = {"sglang-pd-decode.service": True, UNIT: True, DEVICES: False, "sglang-pd-old.service": False}
UP = Running("active", "running", True, False, None)


def test_what_an_older_playbook_left_is_kept_as_it_is_found() -> None:
    plan = catalogue_plan({"layout": "single"}, hardware(TWO_SOCKETS))
    units = {instance.name: UP if instance is plan.router else ABSENT for instance in plan.instances}
    config = found_config(plan, FoundUnits(units, SERVING, True), ["/opt/sglang-pd/bin/pd-gate"])
    assert config is not None
    kept = json.loads(config.content)
    assert kept["workers"] == ["sglang-pd-decode.service", UNIT] and kept["router"] == plan.router.unit
    assert {f"/etc/systemd/system/{UNIT}", "/etc/sglang-pd/prefill.sh", "/etc/sglang-pd/router.sh"} <= {*kept["files"]}
    assert {"/etc/sglang-pd/api-key.env", "/opt/sglang-pd/bin/pd-gate", plan.paths.passed} <= {*kept["files"]}
    assert kept["kept"] == PASSED and kept["links"] == [plan.paths.current, plan.paths.previous]


@pytest.mark.parametrize("router", [UP, ABSENT], ids=["no server", "no router"])
def test_half_a_service_is_nothing_to_keep(router: Running) -> None:
    plan = catalogue_plan({}, hardware(TWO_SOCKETS))
    units = {instance.name: ABSENT if instance.is_worker else router for instance in plan.instances}
    assert found_config(plan, FoundUnits(units, {}, True), []) is None
