"""The table of what differs between wanted, on disk and running."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tasks.plan.files import FoundPath, FoundPaths
from tasks.plan.plan import Plan
from tasks.plan.report.drift import Row, in_planned, others, rows, table, verdict
from tasks.plan.service.restarts import ABSENT, FoundUnits, Running
from tasks.support import render
from tests.plan.builders import TWO_SOCKETS, hardware, plan, settings

WHOLE = {"whole": True, "record": "r"}
PLAN = replace(plan(settings(), hardware(TWO_SOCKETS)), built={"env": WHOLE, "router": WHOLE})
ID, WORKERS, ROUTER = PLAN.release.id, "Services | Running: prefill, decode", "Services | Running: router"


def compared(
    made: Plan = PLAN,
    disk: dict[str, FoundPath] | None = None,
    running: dict[str, dict[str, Any]] | None = None,
    marks: dict[str, dict[str, Any]] | None = None,
    drop_ins: tuple[str, ...] = (),
) -> tuple[Row, ...]:
    """Rows of a host that is as wanted, with changes: of paths, of units, of what servers were started with."""
    files = {instance.name: render.instance_files(made, instance) for instance in made.instances}
    found = FoundPaths({made.paths.current: FoundPath("link", target=made.release_directory)})
    for of_one in files.values():
        for file in of_one.all:
            found[file.path] = FoundPath("file", file.mode, file.owner, file.group, file.content)
    found |= disk or {}
    as_wanted = {name: of_one.fingerprint for name, of_one in files.items()}
    units = {
        name: replace(
            Running("active", "running", True, False, replace(mark, **(marks or {}).get(name, {}))),
            **(running or {}).get(name, {}),
        )
        for name, mark in as_wanted.items()
    }
    every = {name: of_one.all for name, of_one in files.items()}
    return rows(made, every, as_wanted, found, FoundUnits(units, {}, True, drop_ins))


SCRIPT = render.instance_files(PLAN, PLAN.workers[1]).script
EDITED = replace(FoundPath("file", SCRIPT.mode, SCRIPT.owner, SCRIPT.group), content=b"edited")
WRITES = f"Launch | File {SCRIPT.path}"


def test_a_host_that_is_as_wanted_has_no_rows() -> None:
    assert compared() == ()


def test_a_bare_host_has_a_row_for_everything() -> None:
    nothing = {name: vars(ABSENT) for name in ("prefill", "decode", "router")}
    absent = {
        file.path: FoundPath("absent")
        for instance in PLAN.instances
        for file in render.instance_files(PLAN, instance).all
    }
    found = compared(replace(PLAN, built=None), {**absent, PLAN.paths.current: FoundPath("absent")}, nothing)
    assert [row.what for row in found][:3] == ["release", "packages of env", "packages of router"]
    assert len(found) == 3 + 3 * 4


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"disk": {SCRIPT.path: EDITED}},
         ("decode: launch script", "1fb9f409 755 root:sglang", "as wanted", WRITES)),
        ({"disk": {SCRIPT.path: EDITED}, "marks": {"decode": {"script": "x"}}},
         ("decode: launch script", "1fb9f409 755 root:sglang", "another", f"{WRITES}; {WORKERS}")),
        ({"marks": {"decode": {"script": "x"}}}, ("decode: launch script", "as wanted", "another", WORKERS)),
        ({"disk": {SCRIPT.path: FoundPath("absent")}}, ("decode: launch script", "not there", "as wanted", WRITES)),
        ({"disk": {SCRIPT.path: FoundPath("link", target="/dev/null")}},
         ("decode: launch script", "a link to /dev/null", "as wanted", WRITES)),
        ({"marks": {"router": {"secret": "0a:0b"}}}, ("router: API key or certificate", "", "another", ROUTER)),
        ({"running": {"router": {"active": "inactive", "sub": "dead"}}},
         ("router: unit", "enabled", "inactive (dead)", ROUTER)),
        ({"running": {"decode": {"enabled": False}}},
         ("decode: unit", "not enabled", "active (running)", "Services | Enabled sglang-pd-decode.service")),
        ({"drop_ins": ("/run/systemd/system/sglang-pd-decode.service.d/x.conf",)},
         ("decode: unit", "enabled, /run/systemd/system/sglang-pd-decode.service.d/x.conf", "active (running)",
          "Services | No drop-ins over single units")),
        ({"disk": {PLAN.paths.current: FoundPath("link", target="/opt/sglang-pd/releases/other")}},
         ("release", "/opt/sglang-pd/releases/other", "as wanted", f"Activate | Current release is {ID}")),
        ({"marks": {"prefill": {"release": "other"}, "decode": {"release": "other"}}},
         ("release", ID, "prefill other, decode other", WORKERS)),
        ({"made": replace(PLAN, built={"env": {"whole": False, "files": {"changed": ["a.py", "b.py"]}}, "router": WHOLE})},
         ("packages of env", "file a.py is changed, and 1 more", "prefill, decode: started before the repair",
          f"Runtime | Release {ID}; {WORKERS}")),
        ({"marks": {"router": {"packages": None}}},
         ("packages of router", "as wanted", "router: nobody knows", ROUTER)),
        ({"marks": {"router": {"packages": "before"}}},
         ("packages of router", "as wanted", "router: started before the repair", ROUTER)),
    ],
)  # fmt: skip
def test_each_difference_is_one_row(changes: dict[str, Any], row: tuple[str, str, str, str]) -> None:
    if "made" in changes:  # its servers were started from whole packages
        changes = {**changes, "marks": {name: {"packages": "r"} for name in ("prefill", "decode")}}
    [found] = compared(**changes)
    assert (found.what, found.on_disk, found.running, found.operation) == row


@pytest.mark.parametrize("changes", [
    {"marks": {"router": {"packages": "before"}}, "running": {"router": {"active": "failed"}}},
    {"marks": {"router": {"packages": "before", "release": "other"}}},
])  # fmt: skip
def test_only_what_runs_on_packages_of_before_was_started_before_the_repair(changes: dict[str, Any]) -> None:
    assert [row for row in compared(**changes) if row.what.startswith("packages")] == []


def test_what_else_a_run_would_change_is_named_by_its_operation() -> None:
    known = compared(disk={SCRIPT.path: EDITED})
    report = {"plan": [{"name": name, "hosts_with_change": hosts} for name, hosts in (
        (WRITES, ["a"]), ("System | Folder /x", ["a", "b"]), ("Model | y", ["b"]), ("Verify", []))]}  # fmt: skip
    assert [row.what for row in others(in_planned(report, "a"), known)] == ["System | Folder /x"]
    assert [row.what for row in others(in_planned(report, "b"), ())] == ["System | Folder /x", "Model | y"]


def test_the_table_has_a_line_a_row() -> None:
    lines = table([Row("router: unit", "enabled, active", "enabled", "inactive (dead)", "")])
    assert lines == [
        "what          wanted           on disk  running",
        "router: unit  enabled, active  enabled  inactive (dead)",
    ]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"gpu-1": [], "gpu-2": []}, "service main: nothing differs on its 2 hosts"),
        ({"gpu-1": [], "gpu-2": [Row("a", "b", "c", "", "d")]}, "service main: 1 of 2 hosts differ: gpu-2"),
    ],
)
def test_a_service_has_a_verdict(found: dict[str, list[Row]], line: str) -> None:
    assert verdict("main", found) == line
