"""The last lines of a run: hosts, the verdict, and the command to go on with."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from tasks.plan.report.summary import IN_FULL, MOST_SHOWN, Ending, HostRun, Service, command, lines
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, fleet_plans, hardware

AGAIN = "pyinfra inventory.py deploy.py --limit gpu-2"
SERVED = Service(
    "qwen", "http://127.0.0.1:8000", "sglang-1-py3.11-abc", ("prefill", "decode", "router"), is_proven=True
)
SAME = HostRun("gpu-1", Ending.WELL, SERVED, operations=65, seconds={"Preflight": 4.2, "Launch": 0.1, "Verify": 3.0})
FAILED = HostRun(
    "gpu-2", Ending.FAILED, replace(SERVED, is_proven=False), "Services | Running: prefill, decode",
    ("decode: CUDA out of memory: lower decode_mem_fraction",), ("Launch | File /etc/sglang-pd/decode.sh",), 65,
    {"decode": "restarts, it was started with another launch script"},
)  # fmt: skip


def told(*hosts: HostRun) -> list[str]:
    return [line.text for line in lines(hosts, AGAIN)]


def test_nothing_to_change() -> None:
    assert told(replace(SAME, report="reports/gpu-1.html")) == [
        "gpu-1: ended well",
        "  serves    qwen at http://127.0.0.1:8000, prefill and decode apart, release sglang-1-py3.11-abc, answers right",
        "  changed   nothing",
        "  took      7 s: Preflight 4, Verify 3",
        "  report    reports/gpu-1.html",
        "Nothing to change: gpu-1 is as wanted and answers right.",
    ]


def test_a_failed_host_ends_with_the_command_to_go_on() -> None:
    assert told(SAME, FAILED)[4:] == [
        "gpu-2: failed at 'Services | Running: prefill, decode'",
        "  why       decode: CUDA out of memory: lower decode_mem_fraction",
        "  serves    qwen at http://127.0.0.1:8000, prefill and decode apart, release sglang-1-py3.11-abc, not asked by this run",
        "  changed   Launch | File /etc/sglang-pd/decode.sh",
        "  servers   decode: restarts, it was started with another launch script",
        "1 of 2 hosts are done; not done: gpu-2 (failed). To go on, once that is mended:",
        AGAIN,
    ]


def test_a_first_run_tells_of_many_changes_by_phase() -> None:
    changed = (*(f"Launch | File {number}" for number in range(MOST_SHOWN)), "Model | Fetched")
    assert f"  changed   {MOST_SHOWN + 1} of 65 things: Launch {MOST_SHOWN}, Model 1" in told(
        replace(SAME, changed=changed)
    )
    assert told(replace(SAME, changed=changed))[-1] == (
        f"Done: gpu-1 is as wanted and answers right; {MOST_SHOWN + 1} of 65 things changed."
    )


def test_a_dry_run_says_what_a_run_would_change() -> None:
    dry = replace(SAME, ending=Ending.DRY, changed=("Launch | File a",))
    assert "  changed   would change Launch | File a" in told(dry)
    assert told(dry)[-1] == "Dry run, nothing was changed: a run would change 1 of 65 things."
    assert told(replace(dry, changed=()))[-1] == "Dry run, nothing was changed: gpu-1 is as wanted."


def test_a_dry_run_with_y_does_not_say_that_nothing_differs() -> None:
    blind = replace(SAME, ending=Ending.DRY, is_compared=False)
    assert "as wanted" not in " ".join(told(blind)) and "would change nothing" not in " ".join(told(blind))
    assert told(blind)[-1] == "Dry run, nothing was changed. Leave out -y to see what a run would change."


def test_of_many_hosts_those_with_nothing_to_tell_take_one_line() -> None:
    many = [replace(SAME, name=f"gpu-{number}") for number in range(IN_FULL + 1)]
    assert len(told(*many)) == len(many) + 1
    assert told(*many)[-1] == f"Nothing to change: all {len(many)} hosts are as wanted and answer right."
    assert any("CUDA out of memory" in line for line in told(*many, FAILED))


def test_a_host_that_was_not_reached_says_nothing_of_what_it_serves() -> None:
    assert told(HostRun("gpu-2", Ending.UNREACHED)) == [
        "gpu-2: was not reached",
        "nothing was changed; not done: gpu-2 (was not reached). To go on, once that is mended:",
        AGAIN,
    ]


def test_what_nobody_knows_is_not_nothing() -> None:
    assert "  serves    nothing" in told(replace(FAILED, service=None))
    assert "  serves    not known: the host gave no answer at the end" in told(
        replace(FAILED, service=None, is_asked=False)
    )


@pytest.mark.parametrize("ending", [Ending.FAILED, Ending.UNFINISHED])
def test_of_an_operation_that_broke_off_nobody_says_that_it_changed_nothing(ending: Ending) -> None:
    lines = told(replace(FAILED, ending=ending, changed=()))
    assert "  changed   nothing before that" in lines and "nothing was changed" not in lines[-2]


def test_without_a_report_every_reason_is_told() -> None:
    reasons = tuple(f"reason {number}" for number in range(MOST_SHOWN + 2))
    refused = replace(FAILED, ending=Ending.REFUSED, reasons=reasons)
    assert all(any(reason in line for line in told(refused)) for reason in reasons)
    assert any("and 2 more: the report has them all" in line for line in told(replace(refused, report="r/gpu-2.html")))


def test_a_host_whose_router_is_elsewhere_was_not_asked() -> None:
    decode = replace(SAME, service=Service.of(fleet_plans()["gpu-2"]))
    assert (
        told(decode)[-1] == "Nothing to change: gpu-1 is as wanted and ready; the router on another host was not asked."
    )
    assert (
        told(decode, replace(SAME, name="gpu-2"))[-1]
        == "Nothing to change: all 2 hosts are as wanted and answer right."
    )


def test_a_change_that_is_taken_back_says_so() -> None:
    back = replace(FAILED, is_taken_back=True, service=SERVED)
    assert "  changed   Launch | File /etc/sglang-pd/decode.sh; taken back, since it failed" in told(back)
    assert any(line.startswith("  serves") and line.endswith("answers right") for line in told(back))


def test_after_an_interruption_there_is_nothing_to_mend() -> None:
    stopped = replace(FAILED, ending=Ending.UNFINISHED, at="System | Debian packages", reasons=())
    assert told(stopped)[0] == "gpu-2: was not finished at 'System | Debian packages'"
    assert told(stopped)[-2:] == ["not done: gpu-2 (was not finished). To go on:", AGAIN]


def test_a_line_stays_one_whatever_it_quotes() -> None:
    hostile = replace(FAILED, reasons=("a\nb\x1b[31m",), warnings=("c\rd",))
    assert not [line for line in told(hostile) if set(line) & set("\n\r\x1b")]


def test_a_server_without_its_router_serves_nothing() -> None:
    half = replace(FAILED, service=replace(SERVED, servers=("prefill",)))
    assert "  serves    nothing: its router does not run, only prefill runs" in told(half)


def test_a_host_whose_router_is_elsewhere_serves_it() -> None:
    plan = fleet_plans()["gpu-2"]
    assert Service.of(plan).told == f"decode for the router on another host, release {plan.release.id}"
    assert "prefill and decode apart" in Service.of(fleet_plans()["gpu-1"]).told
    read = Service.read({"servers": ["decode"], "routes": False, "model": None, "url": None, "releases": ["a"]})
    assert read is not None
    assert read.told == "decode for the router on another host, release a"


def test_what_a_plan_leaves_behind() -> None:
    made = catalogue_plan({}, hardware(TWO_SOCKETS))
    found = Service.of(made)
    assert found.address == made.router.url and found.release == made.release.id
    assert "prefill and decode apart" in found.told and "answers right" in found.told


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, None),
        ({"servers": [], "model": "m", "url": "u", "releases": []}, None),
        (
            {"servers": ["router"], "model": "m", "url": "u", "releases": ["b", "a", "a", None]},
            Service("m", "u", "a and b", ("router",)),
        ),
    ],
)
def test_what_a_host_tells(found: dict[str, object], expected: Service | None) -> None:
    assert Service.read(found) == expected


def test_the_command_goes_on_with_what_is_left_alone() -> None:
    typed = shlex.split("pyinfra -y --limit 'gpu-*' --limit=fleet inventory.py deploy.py --data layout=pd")
    assert command(typed, [SAME, FAILED]) == "pyinfra --limit gpu-2 -y inventory.py deploy.py --data layout=pd"
    assert command(typed, [FAILED]) == shlex.join(typed)
    routed = [replace(SAME, name="gw-1"), SAME, replace(FAILED, routers=("gw-1",))]
    assert "--limit gw-1 --limit gpu-2 -y" in command(typed, routed), "a router learns of its server"


@pytest.mark.parametrize(
    "words",
    [
        ["--data", "_sudo_password=hunter2"],
        ["--ssh-password", "hunter2"],
        ["--ssh-key-password=hunter2"],
        ["--data", "package_index=https://me:hunter2@packages.example.com/simple"],
        ["--data", "my_token=hunter2"],
        ["--data=my_token=hunter2"],
        ["--data", 'worker_environment={"HF_TOKEN": "hunter2"}'],
    ],
)
def test_no_secret_is_shown(words: list[str]) -> None:
    shown = command(["pyinfra", "inventory.py", "deploy.py", *words], [FAILED])
    assert "hunter2" not in shown and words[0].partition("=")[0] in shown


def test_the_name_of_a_variable_is_no_secret() -> None:
    typed = ["pyinfra", "inventory.py", "deploy.py", "--data", "router_api_key_env=ROUTER_KEY"]
    assert command(typed, [FAILED]) == shlex.join(typed)
