"""What a host answers, changed at random: a fact never raises, and a parser gives a value or lines for the user."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as play
from hypothesis import strategies as st
from pyinfra.api import FactBase

from tasks.facts import (
    answers,
    bundle,
    cached,
    driver,
    existing,
    hardware,
    history,
    listeners,
    logs,
    model,
    network,
    panels,
    passed,
    paths,
    planned,
    processes,
    recording,
    runs,
    secret,
    serving,
    system,
    units,
)
from tasks.facts import monitoring as watching
from tasks.facts import release as releases
from tasks.facts.recording import section_of
from tasks.plan import checks, files
from tasks.plan.driver import steps
from tasks.plan.errors import PlanError, one_line
from tasks.plan.fleet import members
from tasks.plan.fleet.members import Member
from tasks.plan.host import answers as reading
from tasks.plan.host import recording as recorded
from tasks.plan.host.answers import Answer
from tasks.plan.model import folder
from tasks.plan.phases import monitoring
from tasks.plan.plan import Plan
from tasks.plan.proof import judgement
from tasks.plan.release import existing as adopted
from tasks.plan.release import history as kept
from tasks.plan.report import status
from tasks.plan.report.summary import Service
from tasks.plan.run import record
from tasks.plan.service import bindings, placement, restarts
from tasks.support import catalogue
from tests.plan.builders import BOOT, TWO_SOCKETS, measured, plan, settings
from tests.plan.builders import hardware as cards
from tests.plan.judging import NOW, healthy_answers, places, recorded_answers
from tests.plan.release.test_history import sections as history_sections
from tests.plan.service.test_bindings import sections as bindings_sections
from tests.plan.service.test_restarts import INSTANCES, TARGET
from tests.plan.service.test_restarts import sections as units_sections

TRIES = int(os.environ.get("TRIES", "30"))  # thousands were played: docs/reliability.md
HARDWARE = cards(TWO_SOCKETS)
PLAN = plan(settings(), HARDWARE)
HOST = healthy_answers(TWO_SOCKETS)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

# What stands in the place of a word: what tools print where they know nothing, and what only looks like a number.
WORDS = [
    "",
    "N/A",
    "[N/A]",
    "[Unknown Error]",
    "-",
    "-1",
    "0",
    "1",
    "9" * 30,
    "1e400",
    "nan",
    "inf",
    "0x1f",
    "²",
    "٣",
    "3²",
    "½",
]
WORDS += [
    "0-",
    "-5",
    "5-3",
    "0-99999999999",
    ",",
    "a,b",
    "=",
    "\t",
    "\0",
    "é",
    "\ufffd",
    "null",
    "{}",
    "[]",
    "/",
    "..",
    "%s",
    "{x}",
]


@st.composite
def changed_text(draw: st.DrawFn, text: str) -> str:
    """One change of a text: cut, without a line, a line twice, a word replaced, or another text."""
    how = draw(st.sampled_from(["cut", "drop", "twice", "word", "word", "word", "other", "number"]))
    lines = text.split("\n")
    at = draw(st.integers(0, len(lines) - 1))
    if how == "cut":
        return text[: draw(st.integers(0, len(text)))]
    if how == "drop":
        return "\n".join(lines[:at] + lines[at + 1 :])
    if how == "twice":
        return "\n".join(lines[: at + 1] + lines[at:])
    if how == "other":
        return draw(st.one_of(st.sampled_from(WORDS), st.text(max_size=40)))
    separators = " \t" if how == "word" else ""
    spans = [i for i, letter in enumerate(lines[at]) if letter in separators + ",:;=\"'|()" or letter.isdigit()]
    begin, end = sorted(draw(st.tuples(*[st.sampled_from([0, *spans, len(lines[at])])] * 2)))
    lines[at] = lines[at][:begin] + draw(st.sampled_from(WORDS)) + lines[at][end:]
    return "\n".join(lines)


@st.composite
def changed(draw: st.DrawFn, told: Mapping[str, Answer]) -> dict[str, Answer]:
    """Answers of a host of which one to three are missing, fail, or say something else."""
    found = dict(told)
    for name in draw(st.lists(st.sampled_from(sorted(told)), min_size=1, max_size=3)):
        answer = found.get(name, Answer(0, ""))
        how = draw(st.sampled_from(["missing", "status", "text", "text", "text", "text"]))
        if how == "missing":
            found.pop(name, None)
        elif how == "status":
            found[name] = Answer(draw(st.sampled_from([1, 2, 9, 14, 124, 127, 137, 255])), answer.text)
        else:
            found[name] = Answer(answer.status, draw(changed_text(answer.text)))
    return found


def value_or_lines(act: Callable[[], object]) -> None:
    try:
        act()
    except PlanError as fault:
        assert fault.lines and all(line.strip() and "\n" not in line for line in fault.lines)


def of_host(told: Mapping[str, Answer], made: Plan = PLAN) -> None:
    """As the phases Preflight and System go: what is read is judged, and placed where it can be."""
    seen = reading.read_system(told)
    found = checks.Found(made.settings, made.release.manifest, seen, told, NOW, None)
    every = [*checks.judged(found, "system")]
    assert seen.python is None or isinstance(seen.python, str)
    read = reading.read_hardware(told)
    reading.read_listeners(told)
    found = checks.Found(made.settings, made.release.manifest, seen, {**places(made), **told}, NOW, read, made)
    every += [*checks.judged(found, "hardware"), *checks.judged(found, "plan")]
    for finding in every:
        assert "\n" not in finding.sentence
    plan(made.settings, read)


@play(max_examples=TRIES * 3, deadline=None, suppress_health_check=SLOW)
@given(changed(HOST))
def test_a_host(told: dict[str, Answer]) -> None:
    value_or_lines(lambda: of_host(told))


@pytest.mark.parametrize("name", ["rtx-pro-6000-x8", "two-gpus", "nps4"])
def test_a_recorded_host(name: str, tmp_path: Path) -> None:
    recorded = recorded_answers(name, tmp_path)

    @play(max_examples=TRIES, deadline=None, suppress_health_check=SLOW)
    @given(changed(recorded))
    def try_it(told: dict[str, Answer]) -> None:
        value_or_lines(lambda: of_host(told))

    try_it()


DRIVER = {
    **HOST,
    **{
        name: Answer(0, text)
        for name, text in {
            "drivers": "ii \tnvidia-open\t580.95.05-1\nhi \tnvidia-driver-cuda\t580.95.05-1",
            "booted": "1764500000", "runfile": "", "secureboot": "1", "enrolled": "/var/lib/dkms/mok.pub is already enrolled",
            "kernels": "6.8.0-64-generic headers\n6.8.0-65-generic", "serving": "sglang-pd-prefill.service", "installed": "1764400000",
        }.items()
    },
}  # fmt: skip
OFFER = {
    "update": Answer(0, "Hit:1 https://mirror.invalid stable InRelease"),
    "offers nvidia-open": Answer(0, "nvidia-open | 580.95.05-1 | https://mirror.invalid stable/main amd64 Packages"),
    "headers": Answer(0, "6.8.0-64-generic"),
    "install": Answer(0, "Inst nvidia-open [570.1-1] (580.95.05-1 CUDA:stable [amd64])\nRemv nvidia-old [570.1-1]"),
}
INTERPRETER = {
    name: Answer(0, json.dumps({"version": "3.12", "cuda": "13.0", "packages": {"sglang": "0.5.16", "sglang-router": "0.3.2"}, "site_packages": "/x"}))
    for name in ("servers", "router")
}  # fmt: skip
ASKED = adopted.Asked.of(settings(environment="existing", existing_python="/opt/x/bin/python3"))
RUN = json.dumps(
    {"by": "x@y", "since": "2026-11-30T05:00:00Z", "phase": "System", "ended": "", "settings": "a:b", "checkout": {}}
)
RUNS = {"lock": Answer(0, RUN), "run": Answer(0, RUN), "stamp": Answer(0, RUN), "resuming": Answer(0, "")}
CONFIG = base64.b64encode(b'{"model_type": "qwen2", "num_hidden_layers": 2}').decode()
FOLDER = {
    "folder": Answer(0, folder.THERE),
    "content": Answer(0, f"config {CONFIG}\nfile 10 model.safetensors\nindex model.safetensors\nend"),
}
RECORDED = {section_of(("nvidia-smi", "-L")): HOST["gpus"], "file /proc/cmdline": Answer(0, "ro iommu=pt")}
RECORDED |= {"names": Answer(0, "gpu-1"), "fabricmanager": Answer(0, "LoadState=loaded"), "end": Answer(0, "")}
WATCHING = {
    unit: Answer(0, "ActiveState=active\nUnitFileState=enabled\nNeedDaemonReload=no\nActiveEnterTimestamp=@1764500000\nnewest=1764400000")
    for unit in (*monitoring.DAEMONS, monitoring.TIMER)
}  # fmt: skip
PARSED: dict[str, tuple[Mapping[str, Answer], Callable[[Mapping[str, Answer]], object]]] = {
    "units": (units_sections(), lambda told: restarts.read_units(told, INSTANCES, TARGET)),
    "gates": (
        {**units_sections(), **{f"{one.unit} gate": Answer(0, '{"waiting_for": "x"}') for one in INSTANCES}},
        lambda told: restarts.read_gates(told, [one.unit for one in INSTANCES]),
    ),
    "history": (history_sections(), lambda told: kept.read(told, "/opt/x/pin.json", False)),
    "bindings": (
        bindings_sections(),
        lambda told: bindings.judge(told, PLAN.workers, HARDWARE, frozenset(range(256)), True),
    ),
    "secret": ({"secret": Answer(0, "file\t640\troot\tx\t" + "a" * 64), "left": Answer(0, "/x")}, files.read_secret),
    "driver": (DRIVER, steps.read),
    "offer": (OFFER, lambda told: steps.read_offer(told, settings(manage_driver=True, driver_version="580.95.05"))),
    "existing": (INTERPRETER, lambda told: adopted.read(told, ASKED)),
    "runs": (RUNS, record.read),
    "model folder": (FOLDER, lambda told: folder.read(told, "/srv/model")),
    "monitoring": (WATCHING, lambda told: monitoring.read(told, WATCHING)),
    "recording": (RECORDED, lambda told: recorded.read(told, [section_of(("nvidia-smi", "-L"))], ["gpu-1"])),
}


@pytest.mark.parametrize("name", PARSED)
def test_sections(name: str) -> None:
    told, parse = PARSED[name]

    @play(max_examples=TRIES, deadline=None, suppress_health_check=SLOW)
    @given(changed(told))
    def try_it(changed: dict[str, Answer]) -> None:
        value_or_lines(lambda: parse(changed))

    try_it()


@play(max_examples=TRIES * 2, deadline=None, suppress_health_check=SLOW)
@given(changed_text(json.dumps(measured(PLAN), indent=1)))
def test_a_kept_proof(text: str) -> None:
    value_or_lines(lambda: judgement.read(PLAN, text, BOOT, False))


# ---- facts themselves: lines of a shell


@play(max_examples=TRIES, deadline=None, suppress_health_check=SLOW)
@given(st.deferred(lambda: changed_text(ADDRESSES)))
def test_addresses(text: str) -> None:
    found = members.addresses(text)
    by_address, by_name = (Member("gpu-1", "main", ("prefill",), reached, True) for reached in ("10.1.0.1", "eth1"))
    value_or_lines(lambda: members.resolved(by_address, found))
    value_or_lines(lambda: members.resolved(by_name, found))


@play(max_examples=TRIES, deadline=None, suppress_health_check=SLOW)
@given(st.deferred(lambda: changed_text(SERVING)))
def test_what_serves(text: str) -> None:
    service = Service.read(serving.Serving().process(text.splitlines()))
    assert service is None or "\n" not in one_line(service.told)


@play(max_examples=TRIES, deadline=None, suppress_health_check=SLOW)
@given(st.deferred(lambda: changed_text(PANELS)))
def test_what_prometheus_kept(text: str) -> None:
    boards = catalogue.dashboards()
    value_or_lines(lambda: status.view("x", boards, status.read(panels.Panels().process(text.splitlines())), 900, 15))


def printed(told: Mapping[str, Answer]) -> str:
    """Sections as a host prints them."""
    return "\n".join(
        f"@@section {name} {base64.b64encode(answer.text.encode()).decode()} {answer.status}"
        for name, answer in told.items()
    )


def answered(url: str, body: str) -> str:
    """An answer to GET, as a host tells it."""
    whole = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{body}"
    return f"{url} {base64.b64encode(whole.encode()).decode()}\n{url}/nothing "


ADDRESSES = (
    "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n"
    "2: eth1@if7    inet 10.1.0.1/24 brd 10.1.0.255 scope global eth1\\       valid_lft forever\n"
    "2: eth1@if7    inet6 fe80::1/64 scope link \\       valid_lft forever"
)
KEPT = {
    "metric": {"host": "gpu-1", "gpu": "3"},
    "values": [[1764500000, "0.5"], [1764500015, "NaN"], [1764500030, "1e3"]],
}
FIRES = {
    "labels": {"alertname": "KvSlow", "severity": "page"}, "annotations": {"summary": "slow"}, "state": "firing",
    "activeAt": "2026-12-01T15:30:12.5Z",
}  # fmt: skip
PANELS = "\n".join(
    [
        *(
            json.dumps({"query": query, "now": 1764500040, "result": [KEPT]})
            for query in status.queries(catalogue.dashboards())[:4]
        ),
        json.dumps({"alerts": [FIRES]}),
    ]
)
SERVING = (
    '{"servers": ["prefill", "decode-2"], "routes": true, "model": "x", "url": "http://x", "releases": ["a", null]}'
)
FOUND_FILE = (
    f"/etc/x\tfile\t644\troot\troot\t{base64.b64encode(b'text').decode()}\n/opt/x\tdirectory\t755\troot\troot\t"
)
FACTS: dict[str, tuple[FactBase[Any], str]] = {
    "system": (system.System(), printed(HOST)),
    "hardware": (hardware.Hardware(), printed(HOST)),
    "listeners": (listeners.Listeners(), printed(HOST)),
    "planned": (planned.Planned(), printed(HOST)),
    "driver": (driver.Driver(), printed(DRIVER)),
    "offer": (driver.Offer(), printed(OFFER)),
    "existing": (existing.ExistingEnvironment(), printed(INTERPRETER)),
    "history": (history.ReleaseHistory(), printed(history_sections())),
    "units": (units.Units(), printed(units_sections())),
    "gates": (units.Gates(), printed(units_sections())),
    "bindings": (processes.Bindings(), printed(bindings_sections())),
    "secret": (secret.Secret(), printed(PARSED["secret"][0])),
    "paths": (paths.Paths(), FOUND_FILE),
    "release": (releases.ReleaseState(), '{"part":"env","answer":{"ok": true}}\n{"part":"router","answer":null}'),
    "model": (model.ModelState(), '{"ok": true,\n"reason": ""}'),
    "answers": (answers.Answers(), '{"ok": true, "answers": []}'),
    "runs": (runs.Runs(), printed(RUNS)),
    "model folder": (model.ModelFolder(), printed(FOLDER)),
    "recording": (recording.Recording(), printed(RECORDED)),
    "monitoring": (watching.Monitoring(), printed(WATCHING)),
    "unseen": (watching.Unseen(), "@@unseen pd-metrics: target server decode: down, refused"),
    "passed": (passed.Passed(), '{"ok": true, "reason": ""}'),
    "lying": (history.Lying(), "/opt/x"),
    "text": (history.Text(), "some text"),
    "in use": (history.InUse(), "/opt/x"),
    "addresses": (network.Addresses(), ADDRESSES),
    "healthy": (network.Healthy(), answered("http://10.1.0.2:30001/health", "")),
    "told": (network.Told(), answered("http://[fd00::2]:30001/server_info", json.dumps({"version": "0.5.23"}))),
    "serving": (serving.Serving(), SERVING),
    "logs": (logs.Logs(), "sglang-pd-decode.service: CUDA out of memory: smaller mem_fraction"),
    "bundle": (bundle.Bundle(), printed(HOST)),
    "panels": (panels.Panels(), PANELS),
    "cached": (cached.Cached(), "counted\n88 triton\n2 a b"),
}


def test_every_fact_is_here() -> None:
    def below(kind: type[Any]) -> set[type[Any]]:
        return {kind, *(one for each in kind.__subclasses__() for one in below(each))}

    every = {
        kind
        for kind in below(FactBase)
        if kind.__module__.startswith("tasks.facts.") and kind.__name__ not in ("Sections", "_Asked")
    }
    assert {kind.__name__ for kind in every} == {type(fact).__name__ for fact, _ in FACTS.values()}


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_never_raises(name: str) -> None:
    fact, said = FACTS[name]

    @play(max_examples=TRIES, deadline=None, suppress_health_check=SLOW)
    @given(changed_text(said))
    def try_it(text: str) -> None:
        fact.process(text.splitlines())

    try_it()


def test_number_lists_of_any_length_cost_nothing() -> None:
    """A kernel's list of CPUs ends in thousands: what claims more is no list."""
    with pytest.raises(ValueError):
        reading.number_list("0-99999999999")


def test_placement_takes_what_was_read() -> None:
    assert placement.place(settings().roles, HARDWARE)


def test_an_answer_that_is_nested_without_end_is_none() -> None:
    assert panels.Panels().process(['{"query": ' + "[" * 100_000]) == []
