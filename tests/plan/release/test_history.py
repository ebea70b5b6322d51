"""Releases that a host keeps: where a rollback goes, what a pin holds, what may be removed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.findings import Level
from tasks.plan.host.answers import Answer
from tasks.plan.release import history
from tasks.plan.release.history import Description, History, Pin
from tasks.support import catalogue
from tests.plan.builders import TWO_SOCKETS, hardware, plan, release, settings
from tests.plan.judging import finding

PIN = Pin(release="a", instead_of="b", by="ann@desk", at="2026-11-30T08:00:00Z", why="")
PIN_PATH = "/etc/sglang-pd/pin.json"


def sections(**changes: str) -> dict[str, Answer]:
    texts = {
        "current": "/opt/sglang-pd/releases/b",
        "previous": "/opt/sglang-pd/releases/a",
        "built": "a\nb",
        "served": "a\nb",
        "hidden": ".pd-build.lock\n.c.building\n.d.removing",
        "pin": "",
    }
    return {name: Answer(0, text) for name, text in {**texts, **changes}.items()}


def test_what_a_host_keeps_is_read() -> None:
    found = history.read(sections(pin=PIN.model_dump_json()), PIN_PATH, unpin=False)
    assert (found.current, found.previous, found.built) == ("b", "a", ("a", "b"))
    assert found.served == {"a", "b"}
    assert found.leftovers == (".c.building", ".d.removing"), "the lock of builds is no leftover"
    assert found.pin == PIN


def test_a_bare_host_keeps_nothing() -> None:
    empty = dict.fromkeys(("current", "previous", "built", "served", "hidden", "pin"), Answer(0, ""))
    assert history.read(empty, PIN_PATH, unpin=False) == History()


def test_an_answer_that_is_cut_short_is_one_line() -> None:
    cut = sections()
    del cut["pin"]
    with pytest.raises(PlanError, match="cut short: it holds no 'pin'; run again"):
        history.read(cut, PIN_PATH, unpin=False)


@pytest.mark.parametrize("text", ["{", "[]", '{"release": "a"}'])
def test_a_pin_that_cannot_be_read_stops_the_run_until_it_is_taken_away(text: str) -> None:
    with pytest.raises(
        PlanError,
        match=r"pin\.json says on which release the host stays, and cannot be read: to remove it .*--data unpin=True",
    ):
        history.read(sections(pin=text), PIN_PATH, unpin=False)
    assert history.read(sections(pin=text), PIN_PATH, unpin=True).pin is None


@pytest.mark.parametrize(
    ("found", "rollback", "goes_to"),
    [
        (History("b", "a"), False, ""),
        (History("b", "a"), True, "a"),
        (History("a", "b", pin=PIN), False, "a"),
        (History("a", "b", pin=PIN), True, "a"),  # not further back, and not forward again
        (History("b", "b", pin=PIN), False, "a"),  # broken off between pin and link
    ],
)
def test_where_a_run_goes(found: History, rollback: bool, goes_to: str) -> None:
    assert history.goal(found, rollback) == goes_to


@pytest.mark.parametrize("found", [History(), History("b", "", ("b",)), History("b", "b", ("b",))])
def test_nothing_to_go_back_to_is_one_line(found: History) -> None:
    with pytest.raises(PlanError, match="no other release has served here before"):
        history.goal(found, rollback=True)


def test_only_a_release_that_served_becomes_the_previous_one() -> None:
    assert History("b", "a", served=frozenset("ab")).previous_once("c") == "b"
    assert History("b", "a", served=frozenset("a")).previous_once("c") == "a", "b never gave a right answer"
    assert History("b", "a", served=frozenset("ab")).previous_once("b") == "a", "nothing moves"


def test_two_releases_stay_and_older_ones_go() -> None:
    host = History("b", "a", built=("a", "b", "c", "x"), served=frozenset("ab"))
    assert host.superseded("c", None) == ("a", "x")
    assert host.superseded("b", None) == ("c", "x")
    assert History("b", "a", ("a", "b", "c"), frozenset("a")).superseded("c", None) == ("b",)


def test_what_a_pin_is_there_instead_of_stays_too() -> None:
    never_served = History("b", "a", built=("a", "b", "x"), served=frozenset("a"))
    assert never_served.superseded("a", PIN) == ("x",)


def test_a_switch_names_the_packages_that_move() -> None:
    serving, wanted = release(), release(lock="sglang==9.10 --hash=sha256:00\n")
    kept = Description(serving, ()).to_json().decode()
    assert history.package_changes(wanted, kept) == ["servers: 1 package moves: sglang 9.9 -> 9.10"]
    assert history.package_changes(serving, kept) == []


@pytest.mark.parametrize("kept", ["", "no JSON", "{}"])
def test_a_switch_from_a_release_that_cannot_be_read_names_none(kept: str) -> None:
    assert history.package_changes(release(), kept) == []


def test_a_description_brings_back_the_same_release() -> None:
    manifest = catalogue.manifest("sglang-0.5.20-cpu")
    described = catalogue.described(manifest, "3.11", "cpu", "smg")
    assert described.release.patches, "patches with their bytes are part of it"
    text = described.to_json().decode()
    read = history.read_description(text, described.release.id, "FILE")
    assert read == described
    assert read.release.id == described.release.id
    assert read.to_json().decode() == text


@pytest.mark.parametrize("damage", [lambda text: "", lambda text: text[: len(text) // 2], lambda text: "{}"])
def test_a_description_that_is_missing_or_cut_is_one_line(damage: object) -> None:
    described = Description(release(), ("--tp",))
    with pytest.raises(
        PlanError,
        match=r"the host cannot go back to release .*: its description FILE .*; name the release that you want",
    ):
        history.read_description(damage(described.to_json().decode()), described.release.id, "FILE")  # type: ignore[operator]


def test_a_description_that_was_changed_is_not_taken() -> None:
    described = Description(release(), ("--tp",))
    changed = json.loads(described.to_json())
    changed["release"]["lock"] += "other==1\n"
    with pytest.raises(PlanError, match="somebody has changed it; name the release"):
        history.read_description(json.dumps(changed), described.release.id, "FILE")


def test_a_pin_says_who_when_and_why() -> None:
    assert PIN.told == "pinned to a by ann@desk at 2026-11-30T08:00:00Z"
    assert PIN.model_copy(update={"why": "TPOT doubled"}).told.endswith("08:00:00Z (TPOT doubled)")


def test_a_further_rollback_adds_its_reason_and_loses_none() -> None:
    first = PIN.model_copy(update={"why": "TPOT doubled"})
    assert PIN.also("slow").why == "slow"
    assert first.also("").why == first.also("TPOT doubled").why == "TPOT doubled"
    both = first.also("wrong answers")
    assert both.why == both.also("wrong answers").why == "TPOT doubled; wrong answers"
    assert (both.release, both.by, both.at) == (PIN.release, PIN.by, PIN.at)


def test_a_pin_is_a_warning_that_says_how_to_go_on() -> None:
    made = plan(settings(), hardware(TWO_SOCKETS))
    assert finding("release/pin/holds", made=made).level is Level.HEALTHY
    said = finding("release/pin/holds", made=replace(made, pin=PIN, asked=made.release))
    assert said.level is Level.WARNING
    assert (
        PIN.told in said.line
        and f"the settings ask for {made.release.id}" in said.line
        and "--data unpin=True" in said.advice
    )
