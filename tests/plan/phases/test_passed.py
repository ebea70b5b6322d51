"""What is kept of a service that answered right."""

import json

import pytest

from tasks.plan.phases.passed import arming, passed_config
from tasks.plan.phases.verify import verify_config
from tasks.plan.service.paths import RESUME
from tasks.support import render
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware


@pytest.mark.parametrize("layout", ["pd", "single", "data_parallel"])
def test_all_that_the_service_is_started_from_is_kept(layout: str) -> None:
    plan = catalogue_plan({"layout": layout}, hardware(TWO_SOCKETS))
    kept = json.loads(passed_config(plan, ["/opt/sglang-pd/bin/pd-gate"]).content)
    written = [file.path for instance in plan.instances for file in render.instance_files(plan, instance).all]
    written += [render.target(plan).path, verify_config(plan).path, plan.paths.passed]
    assert {*kept["files"]} - {*written} == {
        plan.paths.pin, plan.paths.secret, plan.paths.tls, "/opt/sglang-pd/bin/pd-gate",
    }  # fmt: skip
    assert {*written} <= {*kept["files"]}
    assert not {*kept["quiet"]} & {file for file in kept["files"] if file.endswith((".sh", ".env", ".service"))}
    assert [*kept["workers"], kept["router"]] == [instance.unit for instance in plan.instances]


def test_nothing_waits_where_this_run_holds_no_lock() -> None:
    """What waits for a free lock would begin at once."""
    command = arming(catalogue_plan({}, hardware(TWO_SOCKETS)), ["sglang-pd-router.service"])
    held, _, then = command.partition("; then ")
    assert held.startswith(f"systemctl is-active -q {RESUME} || if [ -e ") and "! flock -s -n " in held
    assert "systemd-run" in then and then.endswith("sglang-pd-router.service; fi")
