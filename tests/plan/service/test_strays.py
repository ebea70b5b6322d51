"""Which processes a run may end: servers of SGLang's that no unit has."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tasks.facts.owners import OWNER
from tasks.operations.services import ENDED
from tasks.plan import checks
from tasks.plan.findings import Finding, Level
from tasks.plan.service.strays import Stray, is_stray, joined
from tests.plan.builders import settings
from tests.plan.judging import CHECKS, found, uuid

ROUTER = "sglang::router"
HOLDS_8000 = {"listeners": "tcp 0100007F:1F40 9", "sockets": "9 77", "owners": f"77\t\t{ROUTER}"}
HOLDS_GPU = {"apps": f"88, {uuid(0)}, 4000", "holders": "88\t\tsglang::scheduler"}


@pytest.mark.parametrize(
    "command",
    [
        "sglang::router", "sglang::scheduler_TP0", "python3 -m sglang.launch_server --model-path /x",
        "/opt/sglang-pd/releases/x-py3.11-0123456789/env/bin/python -m sglang.launch_server --port 30000",
        "/usr/bin/python3.12 -I -m sglang_router.launch_router --pd-disaggregation", "smg launch --port 8000",
        "/venv/bin/sglang serve x",
    ],
)  # fmt: skip
def test_servers_of_sglang(command: str) -> None:
    assert is_stray("", command) and is_stray(None, command) and is_stray("ssh.service", command)
    assert not is_stray("inference.service", command), "somebody's unit would start it again"


@pytest.mark.parametrize(
    "command",
    [
        "postgres: sglang::router",
        "nginx: master process",
        "python3 train.py",
        "vim sglang.launch_server",
        "sglangx",
        "",
    ],
)
def test_everything_else_is_left_alone(command: str) -> None:
    assert not is_stray("", command)


def judged(check: str, answers: dict[str, str], end: bool) -> Finding:
    return CHECKS[check].finding(found(dict(answers), wanted=settings(end_strays=end)))


@pytest.mark.parametrize(
    ("check", "answers", "named"),
    [
        ("host/ports/free", HOLDS_8000, "port 8000 of router (router_port) is taken by pid 77 (sglang::router)"),
        ("gpu/use/others", HOLDS_GPU, "GPU 0 by pid 88 (sglang::scheduler)"),
    ],
)
def test_a_stray_is_named_and_ended_only_where_the_setting_says_so(
    check: str, answers: dict[str, str], named: str
) -> None:
    refused = judged(check, answers, end=False)
    assert refused.stops and named in refused.line and "end_strays = True" in refused.advice
    assert judged(check, answers, end=True).level is Level.HEALTHY
    other = {name: text.replace("sglang::", "another-") for name, text in answers.items()}
    for end in (False, True):
        stays = judged(check, other, end)
        assert stays.stops and "end_strays" not in stays.advice


def test_what_a_run_ends_is_each_process_once_with_all_that_it_holds() -> None:
    both = {**HOLDS_8000, **HOLDS_GPU, "holders": "77\t\tsglang::router", "apps": f"77, {uuid(0)}, 4000"}
    assert checks.strays(found(dict(both))) == (Stray(77, ROUTER, "port 8000, GPU 0"),)
    assert checks.strays(found()) == ()
    assert joined([]) == ()


@pytest.mark.parametrize(("seen", "status"), [("", -15), ("another ", None)])
def test_the_process_that_was_seen_is_ended_and_no_other_with_its_number(seen: str, status: int | None) -> None:
    stray = subprocess.Popen(["bash", "-c", "exec -a sglang::router sleep 1000"])
    try:
        told = ""
        while "sglang::" not in told:  # bash has become it
            told = subprocess.check_output(["sh", "-c", f"{OWNER}owner {stray.pid}"], text=True).split("\t")[2].strip()
        subprocess.run(["sh", "-c", f"{ENDED}ended {stray.pid} {shlex.quote(seen + told)}"], check=True)
        assert stray.poll() == status
    finally:
        stray.kill()
        stray.wait()
