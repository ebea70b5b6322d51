"""What lies on a host, whatever is planned for it."""

from __future__ import annotations

import base64

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.service.installed import read, stopped_by, stopped_file, with_who_stopped
from tasks.plan.service.units import mark


def on_disk(foreign: tuple[str, ...] = (), **states: str) -> dict[str, Answer]:
    lines = []
    for name, state in states.items():
        unit = f"sglang-pd-{name.replace('_', '-')}.service"
        text = "[Service]\n" if unit in foreign else f"{mark(unit)}\n[Service]\n"
        lines.append(f"{unit} {state} {base64.b64encode(text.encode()).decode()}")
    return {"files": Answer(0, "\n".join(lines))}


def test_servers_first_and_the_router_last() -> None:
    found = read(on_disk(router="active", decode="active", devices="inactive", prefill_1="failed"), True).whole()
    assert list(found.names) == ["prefill-1", "decode", "router"]
    assert list(found.running) == ["sglang-pd-decode.service", "sglang-pd-router.service"]


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (on_disk(), "nothing is installed on this host: run deploy.py first"),
        (on_disk(devices="inactive"), "nothing is installed on this host: run deploy.py first"),
        (on_disk(("sglang-pd-router.service",), router="active"), "nothing is installed on this host"),
        (on_disk(prefill="active"), "in part, and never answered: run deploy.py to its end"),
        ({}, "cut short"),
    ],
)
def test_what_cannot_run_is_one_line(sections: dict[str, Answer], line: str) -> None:
    with pytest.raises(PlanError) as fault:
        read(sections, has_passed=False).whole()
    assert line in str(fault.value) and len(fault.value.lines) == 1


def test_where_nothing_runs_it_says_who_stopped_it() -> None:
    down = read(on_disk(prefill="inactive", router="failed"), has_passed=True)
    with pytest.raises(PlanError, match="nothing runs here: ann stopped it: start it with `make start`"):
        down.serving("ann stopped it")
    assert read(on_disk(prefill="activating"), has_passed=True).serving("").is_routed is False


def test_who_stopped_it_is_told_by_the_next_run() -> None:
    text = stopped_file("ann@desk", "2026-12-01T10:00:00Z").content.decode()
    told = with_who_stopped({"decode": "starts, it is inactive", "router": "restarts, it keeps failing"}, text)
    assert told == {
        "decode": "starts, it is inactive: ann@desk stopped it at 2026-12-01T10:00:00Z",
        "router": "restarts, it keeps failing",
    }
    assert with_who_stopped({"decode": "starts, it is inactive"}, None) == {"decode": "starts, it is inactive"}


@pytest.mark.parametrize("text", ["", "not JSON", "[]", '{"by": "a\\nb"}'])
def test_a_broken_note_is_still_one_line(text: str) -> None:
    assert "\n" not in stopped_by(text) and bool(stopped_by(text)) == bool(text)
