"""Wanted, on disk, running: what must restart, and why."""

import base64
import dataclasses
import json
from collections.abc import Mapping

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.service.instances import Instance
from tasks.plan.service.paths import DEVICES, WATCHDOG
from tasks.plan.service.restarts import (
    ABSENT,
    REPAIRED,
    Fingerprint,
    Look,
    Phase,
    Running,
    Serving,
    read_gates,
    read_units,
    reason_to_restart,
    restarts,
    waiting,
)
from tasks.plan.service.units import is_ours, mark
from tests.plan.builders import TWO_SOCKETS, hardware, servers, settings

TARGET = "sglang-pd.target"
WANTED = Fingerprint("s", "e", "u", None, "release-1", "r")
UP = Running("active", "running", enabled=True, stale=False, fingerprint=WANTED)
INSTANCES = servers(settings(), hardware(TWO_SOCKETS))
NAMES = [instance.name for instance in INSTANCES]


# ---- one server


def test_nothing_restarts_what_runs_as_wanted() -> None:
    assert reason_to_restart(WANTED, UP) is None


def test_a_gate_that_is_still_open_is_no_reason() -> None:
    assert reason_to_restart(WANTED, dataclasses.replace(UP, active="activating", sub="start-post")) is None


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("script", "other", "launch script"),
        ("environment", "other", "environment file"),
        ("unit", "other", "unit file"),
        ("secret", "0a:0b", "API key or certificate"),
        ("release", "release-2", "release"),
        ("packages", "r2", "state of its packages"),
        ("packages", None, "state of its packages"),
    ],
)
def test_the_part_that_differs_is_named(part: str, value: str, named: str) -> None:
    left = dataclasses.replace(WANTED, **{part: value})
    reason = reason_to_restart(WANTED, dataclasses.replace(UP, fingerprint=left))
    assert reason is not None
    assert reason.endswith(f"started with another {named}")


def test_all_parts_that_differ_are_named() -> None:
    left = dataclasses.replace(WANTED, script="other", release="release-2", packages="r2")
    reason = reason_to_restart(WANTED, dataclasses.replace(UP, fingerprint=left))
    assert reason is not None
    assert reason.endswith("started with another launch script and release")


def test_an_environment_of_others_restarts_nothing_even_where_it_holds_a_record() -> None:
    """A release of another installation, say: this run does not look at its packages."""
    assert reason_to_restart(dataclasses.replace(WANTED, packages=None), UP) is None


def test_packages_that_this_run_repairs_restart_what_was_started_from_them() -> None:
    """Whatever was imported since, nobody knows; the release's own check says that its files are not whole."""
    wanted = dataclasses.replace(WANTED, packages=REPAIRED)
    assert reason_to_restart(wanted, UP) == "restarts, this run repairs its packages"
    other = dataclasses.replace(UP, fingerprint=dataclasses.replace(WANTED, script="other"))
    assert reason_to_restart(wanted, other) == (
        "restarts, it was started with another launch script and state of its packages"
    )


@pytest.mark.parametrize("active", ["inactive", "failed", "deactivating"])
def test_a_server_that_is_down(active: str) -> None:
    assert f"it is {active}" in str(reason_to_restart(WANTED, dataclasses.replace(UP, active=active, sub="dead")))


@pytest.mark.parametrize("sub", ["auto-restart", "auto-restart-queued"])
def test_a_server_that_systemd_keeps_restarting(sub: str) -> None:
    looping = dataclasses.replace(UP, active="activating", sub=sub)
    assert "it keeps failing" in str(reason_to_restart(WANTED, looping))


def test_a_server_without_a_fingerprint() -> None:
    assert "no fingerprint" in str(reason_to_restart(WANTED, dataclasses.replace(UP, fingerprint=None)))


# ---- all servers


def found(**changes: Running) -> dict[str, Running]:
    return {**dict.fromkeys(NAMES, UP), **changes}


def restarted(scope: str = "pair", **changes: Running) -> dict[str, str]:
    wanted = dict.fromkeys(NAMES, WANTED)
    return restarts(INSTANCES, wanted, found(**changes), settings(restart_scope=scope))


OTHER_SCRIPT = dataclasses.replace(UP, fingerprint=dataclasses.replace(WANTED, script="other"))


def test_no_reason_no_restart() -> None:
    assert restarted() == {}


@pytest.mark.parametrize(("changed", "other"), [("decode", "prefill"), ("prefill", "decode")])
def test_the_pair_restarts_together_and_the_router_does_not(changed: str, other: str) -> None:
    reasons = restarted(**{changed: OTHER_SCRIPT})
    assert set(reasons) == {changed, other}
    assert "launch script" in reasons[changed]
    assert changed in reasons[other]


def test_with_scope_changed_only_that_one() -> None:
    assert list(restarted("changed", prefill=OTHER_SCRIPT)) == ["prefill"]


def test_a_lone_decode_server_always_takes_prefill_along() -> None:
    reasons = restarted("changed", decode=OTHER_SCRIPT)
    assert set(reasons) == {"prefill", "decode"}
    assert reasons["prefill"] == "restarts with decode: it holds that one's KV cache mapped"


def test_one_decode_server_of_several_does_not() -> None:
    many = servers(
        settings(decode_instances=2, prefill_tensor_parallel=2, decode_tensor_parallel=2), hardware(TWO_SOCKETS)
    )
    names = [instance.name for instance in many]
    state = {**dict.fromkeys(names, UP), "decode-1": OTHER_SCRIPT}
    reasons = restarts(many, dict.fromkeys(names, WANTED), state, settings(restart_scope="changed"))
    assert set(reasons) == {"decode-1"}


@pytest.mark.parametrize("scope", ["pair", "changed"])
def test_the_router_restarts_alone(scope: str) -> None:
    assert list(restarted(scope, router=OTHER_SCRIPT)) == ["router"]


def test_each_keeps_its_own_reason() -> None:
    reasons = restarted(prefill=ABSENT, decode=OTHER_SCRIPT)
    assert "inactive" in reasons["prefill"]
    assert "launch script" in reasons["decode"]


def test_every_worker_of_the_host_belongs_to_the_pair() -> None:
    many = servers(
        settings(prefill_instances=2, prefill_tensor_parallel=2, decode_tensor_parallel=2), hardware(TWO_SOCKETS)
    )
    names = [instance.name for instance in many]
    state = {**dict.fromkeys(names, UP), "prefill-1": OTHER_SCRIPT}
    reasons = restarts(many, dict.fromkeys(names, WANTED), state, settings())
    assert set(reasons) == {"prefill-0", "prefill-1", "decode"}


def test_a_bare_host_starts_everything() -> None:
    reasons = restarted(**dict.fromkeys(NAMES, ABSENT))
    assert list(reasons) == NAMES
    assert all("inactive" in reason for reason in reasons.values())


def test_those_whose_gate_is_open_are_waited_for() -> None:
    opening = dataclasses.replace(UP, active="activating", sub="start-post")
    assert waiting(INSTANCES, found(decode=opening)) == ["decode"]
    assert waiting(INSTANCES, found()) == []


# ---- the host's answer


def shown(**changes: str) -> Answer:
    properties = {
        "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "UnitFileState": "enabled",
        "MainPID": "42", "NeedDaemonReload": "no",
    }  # fmt: skip
    return Answer(0, "\n".join(f"{key}={value}" for key, value in {**properties, **changes}.items()))


FINGERPRINT = {
    "script": "s", "environment": "e", "unit": "u", "secret": None, "release": "release-1", "packages": "r",
}  # fmt: skip
LEFT = Answer(0, json.dumps({**FINGERPRINT, "instance": "prefill", "pid": 42, "started": 1.0}))


def lying(states: Mapping[str, str], text: str | None = None) -> Answer:
    """Unit files by their name, in these states; text: of them, where it is not what we write."""
    texts = {unit: text or f"{mark(unit)}\n[Unit]\n" for unit in states}
    lines = [f"{unit} {state} {base64.b64encode(texts[unit].encode()).decode()}" for unit, state in states.items()]
    return Answer(0, "\n".join(lines))


def sections(instances: tuple[Instance, ...] = INSTANCES, **changes: Answer) -> dict[str, Answer]:
    texts = {"files": lying({instance.unit: "active" for instance in instances}), TARGET: shown()}
    texts["drop-ins"] = Answer(0, "")
    texts[WATCHDOG] = shown()
    for instance in instances:
        texts[instance.unit] = shown()
        texts[f"{instance.unit} fingerprint"] = LEFT
    return {**texts, **changes}


PREFILL = "sglang-pd-prefill.service"


def test_units_that_run_as_wanted() -> None:
    units = read_units(sections(), INSTANCES, TARGET)
    assert units.instances["prefill"] == dataclasses.replace(UP)
    assert units.target_enabled
    assert not units.stale
    assert units.without_instance(INSTANCES) == []


def test_a_host_without_units() -> None:
    texts = sections((), **{TARGET: shown(LoadState="not-found", UnitFileState="")})
    for instance in INSTANCES:
        texts[instance.unit] = shown(LoadState="not-found", ActiveState="inactive", UnitFileState="", MainPID="0")
    units = read_units(texts, INSTANCES, TARGET)
    assert list(units.instances.values()) == [ABSENT] * 3
    assert not units.target_enabled


WITHOUT_RELEASE = json.dumps({part: value for part, value in FINGERPRINT.items() if part != "release"})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "not json", '{"script": "s"}', WITHOUT_RELEASE])
def test_a_broken_fingerprint_counts_as_none(text: str) -> None:
    units = read_units(sections(**{f"{PREFILL} fingerprint": Answer(0, text)}), INSTANCES, TARGET)
    assert units.instances["prefill"].fingerprint is None
    assert "no fingerprint" in str(reason_to_restart(WANTED, units.instances["prefill"]))


@pytest.mark.parametrize("text", ["", "{", "[1]", '"waiting"'])
def test_a_broken_gate_status_is_an_empty_one(text: str) -> None:
    found = read_gates({PREFILL: shown(), f"{PREFILL} gate": Answer(0, text)}, [PREFILL])
    assert found == {PREFILL: Look("active", "running", False, "")}


def test_what_a_gate_waits_for() -> None:
    said = Answer(0, '{"state": "waiting", "waiting_for": "loading weights"}')
    answers = {PREFILL: shown(ActiveState="activating", SubState="start-post"), f"{PREFILL} gate": said}
    assert read_gates(answers, [PREFILL]) == {PREFILL: Look("activating", "start-post", False, "loading weights")}
    assert read_gates({PREFILL: shown()}, [PREFILL]) == {}, "an answer that is cut short says nothing"


@pytest.mark.parametrize(
    ("active", "sub", "job", "phase"),
    [
        ("active", "running", "", Phase.READY),
        ("active", "running", "7", Phase.QUEUED),
        ("deactivating", "stop-sigterm", "7", Phase.STOPPING),
        ("inactive", "dead", "7", Phase.QUEUED),
        ("failed", "failed", "7", Phase.QUEUED),
        ("inactive", "dead", "", Phase.FAILED),
        ("inactive", "dead", "0", Phase.FAILED),
        ("failed", "failed", "", Phase.FAILED),
        ("activating", "start-post", "7", Phase.STARTING),
        ("activating", "auto-restart", "", Phase.FAILED),
    ],
)
def test_how_far_a_unit_is_that_was_asked_to_start(active: str, sub: str, job: str, phase: Phase) -> None:
    """A unit that waits for the network is inactive as one that has failed is; its job tells them apart."""
    answers = {PREFILL: shown(ActiveState=active, SubState=sub, Job=job), f"{PREFILL} gate": Answer(0, "")}
    assert read_gates(answers, [PREFILL])[PREFILL].phase is phase


def test_what_is_laid_over_a_unit_is_named() -> None:
    path = f"/etc/systemd/system/{PREFILL}.d/override.conf"
    assert read_units(sections(**{"drop-ins": Answer(0, path)}), INSTANCES, TARGET).drop_ins == (path,)


@pytest.mark.parametrize("state", ["masked", "not-found"])
def test_a_server_that_runs_although_its_unit_file_went_is_not_restarted_for_it(state: str) -> None:
    units = read_units(sections(**{PREFILL: shown(LoadState=state, UnitFileState="")}), INSTANCES, TARGET)
    assert units.instances["prefill"] == dataclasses.replace(UP, enabled=False)


def test_a_unit_file_that_systemd_has_not_read() -> None:
    assert read_units(sections(**{PREFILL: shown(NeedDaemonReload="yes")}), INSTANCES, TARGET).stale


@pytest.mark.parametrize("state", ["disabled", "static", "masked", ""])
def test_a_unit_that_is_not_enabled(state: str) -> None:
    units = read_units(sections(**{PREFILL: shown(UnitFileState=state)}), INSTANCES, TARGET)
    assert not units.instances["prefill"].enabled


@pytest.mark.parametrize(
    "name",
    [
        "sglang-pd-x;id>.service",
        "sglang-pd-x@.service",
        "sglang-pd-$(id).service",
        "sglang-pd-x y.service",
        "x.service",
    ],
)
def test_a_file_with_another_name_is_no_unit_of_ours(name: str) -> None:
    units = read_units(sections(files=lying({name: "active"})), INSTANCES, TARGET)
    assert units.without_instance(INSTANCES) == []


def test_units_of_an_earlier_plan() -> None:
    states = {PREFILL: "active", "sglang-pd-prefill-1.service": "failed", "sglang-pd-decode.service": "active"}
    units = read_units(sections(files=lying(states)), INSTANCES, TARGET)
    assert units.without_instance(INSTANCES) == ["sglang-pd-prefill-1.service"]
    assert units.left_over(INSTANCES, [DEVICES]) == ["sglang-pd-prefill-1.service"]


def test_the_unit_of_devices_goes_where_no_server_opens_any() -> None:
    units = read_units(sections(files=lying({PREFILL: "active", DEVICES: "active"})), INSTANCES, TARGET)
    assert units.left_over(INSTANCES, [DEVICES]) == []
    assert units.left_over(INSTANCES, []) == [DEVICES]


def test_a_watchdog_that_is_turned_off_goes() -> None:
    units = read_units(sections(files=lying({PREFILL: "active", WATCHDOG: "active"})), INSTANCES, TARGET)
    assert units.watching and units.left_over(INSTANCES, [WATCHDOG]) == []
    assert units.left_over(INSTANCES, []) == [WATCHDOG]
    assert WATCHDOG not in units.serving(INSTANCES).units
    assert DEVICES not in units.serving(INSTANCES).units


EXPORTER = "[Service]\nExecStart=/usr/local/bin/exporter --port 9400\n"
EARLIER = """[Unit]
Description=SGLang prefill
[Service]
ExecStart=/opt/sglang-pd/bin/pd-launch --instance {0} --script /etc/sglang-pd/{0}.sh --environment /etc/sglang-pd/{0}.env \
--unit /etc/systemd/system/sglang-pd-{0}.service --current /opt/sglang-pd/current --fingerprint /run/x/fingerprint.json
"""


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("sglang-pd-exporter.service", EXPORTER),
        ("sglang-pd-prefill-1.service", EXPORTER),
        ("sglang-pd-exporter.service", f"{mark('sglang-pd-decode.service')}\n{EXPORTER}"),
        ("sglang-pd-exporter.service", EARLIER.format("exporter")),
        ("sglang-pd-server.service", EARLIER.format("decode")),
        ("sglang-pd-server.service", f"# before\n{mark('sglang-pd-server.service')}\n"),
        ("sglang-pd-server.service", "\xff"),
    ],
)
def test_a_unit_of_somebody_else_is_left_alone(unit: str, text: str) -> None:
    """Found by a name like ours: an operator's own, a copy of ours under another name, whatever it holds."""
    units = read_units(sections(files=Answer(0, lying({unit: "active"}, text).text)), INSTANCES, TARGET)
    assert units.without_instance(INSTANCES) == []
    assert unit not in units.serving(INSTANCES).units


@pytest.mark.parametrize("name", ["prefill-1", "decode-12", "server", "server-0", "router"])
def test_a_unit_without_a_mark_is_ours_where_an_earlier_version_wrote_it(name: str) -> None:
    instances = tuple(instance for instance in INSTANCES if instance.name != name)
    found = {f"sglang-pd-{name}.service": "active"}
    units = read_units(sections(instances, files=lying(found, EARLIER.format(name))), instances, TARGET)
    assert units.without_instance(instances) == list(found)


def test_a_unit_of_somebody_else_whose_name_is_needed_is_refused() -> None:
    with pytest.raises(PlanError) as error:
        read_units(sections(files=lying({PREFILL: "active"}, EXPORTER)), INSTANCES, TARGET)
    assert error.value.lines == (
        f"/etc/systemd/system/{PREFILL} was not written by this playbook, and it needs that name: move it away",
    )


def test_a_unit_file_that_a_crash_left_empty_is_written_again() -> None:
    units = read_units(
        sections(files=lying({PREFILL: "active", "sglang-pd-server.service": "failed"}, "\n")), INSTANCES, TARGET
    )
    assert units.without_instance(INSTANCES) == []


@pytest.mark.parametrize(
    ("unit", "ours"),
    [
        (PREFILL, True), ("sglang-pd-decode-3.service", True), ("sglang-pd-probe.service", True),
        ("sglang-pd-exporter.service", False), ("sglang-pd-x@1.service", False), ("", False),
        ("sglang-pd-router.service.service", False), ("sglang-pd-router-1.service\n", False),
    ],
)  # fmt: skip
def test_a_process_is_ours_by_the_whole_name_of_its_unit(unit: str, ours: bool) -> None:
    assert is_ours(unit) == ours


# ---- what runs before a run changes anything

SINGLE = servers(settings(layout="single"), hardware(TWO_SOCKETS))
DOWN = shown(ActiveState="inactive", MainPID="0")
PAIR_UP = lying({PREFILL: "active", "sglang-pd-decode.service": "activating", "sglang-pd-router.service": "active"})


def test_the_units_of_the_plan_that_run() -> None:
    units = read_units(sections(**{PREFILL: DOWN}), INSTANCES, TARGET)
    assert units.serving(INSTANCES) == Serving(("sglang-pd-decode.service", "sglang-pd-router.service"), False)


def test_workers_of_another_layout_are_replaced_as_a_whole() -> None:
    texts = sections(SINGLE, files=PAIR_UP, **{SINGLE[0].unit: DOWN})
    serving = read_units(texts, SINGLE, TARGET).serving(SINGLE)
    assert serving.replaced
    assert serving.units == ("sglang-pd-decode.service", "sglang-pd-prefill.service", "sglang-pd-router.service")


def test_a_worker_that_stays_is_not_ended_for_a_proof() -> None:
    texts = sections(SINGLE, files=PAIR_UP)
    assert not read_units(texts, SINGLE, TARGET).serving(SINGLE).replaced


def test_what_ended_already_replaces_nothing() -> None:
    texts = sections(SINGLE, files=lying({PREFILL: "failed"}), **{i.unit: DOWN for i in SINGLE})
    assert read_units(texts, SINGLE, TARGET).serving(SINGLE) == Serving((), False)


@pytest.mark.parametrize("layout", ["single", "data_parallel"])
def test_whole_servers_restart_one_by_one(layout: str) -> None:
    wanted = settings(layout=layout, server_tensor_parallel=2)
    many = servers(wanted, hardware(TWO_SOCKETS))
    names = [instance.name for instance in many]
    state = {**dict.fromkeys(names, UP), names[0]: OTHER_SCRIPT}
    assert list(restarts(many, dict.fromkeys(names, WANTED), state, wanted)) == [names[0]]


@pytest.mark.parametrize("missing", sorted(sections()))
def test_an_answer_cut_short_is_one_clear_line(missing: str) -> None:
    texts = sections()
    del texts[missing]
    with pytest.raises(PlanError) as error:
        read_units(texts, INSTANCES, TARGET)
    (line,) = error.value.lines
    assert f"holds no {missing!r}" in line
