"""pd-watchdog: what a round finds of servers that answer, hang or lie, and what follows from rounds."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.bin import indexes
from tests.bin.tools import BIN, GIVE_UP_S, Site, answer, load, run, serving, serving_socket

watchdog = load("pd-watchdog")
PREFILL, DECODE, ROUTER = (f"sglang-pd-{name}.service" for name in ("prefill", "decode", "router"))
UNITS = frozenset((PREFILL, DECODE))
UP = UNITS | {ROUTER}
COMPLETION = json.dumps({"text": "11", "meta_info": {"finish_reason": {"type": "length"}}})
METRICS = """\
# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{mode="decode",model_name="rehearsal"} 699.0
sglang:generation_tokens_total{model_name="rehearsal"} 6.0
sglang:generation_tokens_histogram_sum{model_name="rehearsal"} 1e9
sglang:prompt_tokens_total 1e3
"""


# ---- a round


@pytest.fixture
def service() -> Iterator[dict[str, Site]]:
    """A router, prefill and decode that all answer."""
    with serving() as router, serving() as prefill, serving() as decode:
        router.answers = {"/generate": answer(200, COMPLETION), "/liveness": answer(200)}
        for server in (prefill, decode):
            server.answers = {
                "/generate": answer(200, COMPLETION), "/health": answer(200), "/metrics": answer(200, METRICS),
            }  # fmt: skip
        yield {"router": router, PREFILL: prefill, DECODE: decode}


def question(urls: dict[str, str], limit_s: float = 2) -> dict[str, Any]:
    servers = [
        {"unit": PREFILL, "role": "prefill", "url": urls[PREFILL], "bootstrap": "127.0.0.1:8998"},
        {"unit": DECODE, "role": "decode", "url": urls[DECODE], "bootstrap": None},
    ]
    return {
        "url": urls["router"], "certificate": None, "key": "a key", "limit_s": limit_s,
        "servers": servers, "whole": True,
    }  # fmt: skip


def asking(given: dict[str, Any]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-I", BIN / "pd-watchdog", "ask"], input=json.dumps(given).encode(), capture_output=True,
        timeout=GIVE_UP_S,
    )  # fmt: skip


def asked(urls: dict[str, str], limit_s: float = 2) -> Any:
    ran = asking(question(urls, limit_s))
    assert ran.returncode == 0, ran.stderr
    return watchdog.read_round(ran.stdout, UNITS)


def urls(service: dict[str, Site]) -> dict[str, str]:
    return {name: site.url for name, site in service.items()}


def test_a_service_that_answers(service: dict[str, Site]) -> None:
    found = asked(urls(service), limit_s=GIVE_UP_S)
    assert found == watchdog.Round("answered", 200, False, True, UNITS, {PREFILL: 1705, DECODE: 1705}, {})
    assert service[DECODE].asked("/generate") == 0, "past the router nobody is asked while it answers"


@pytest.mark.parametrize(
    ("status", "body", "is_found"),
    [
        (429, "", "busy"),
        (401, "", "refused"),
        (404, "", "refused"),
        (503, "", "failed"),
        (500, COMPLETION, "failed"),
        (200, "", "failed"),
        (200, "[]", "failed"),
        (200, '{"text": "11"}', "failed"),
        (200, '{"text": null, "meta_info": {"finish_reason": {"type": "length"}}}', "failed"),
        (200, '{"text": "", "meta_info": {"finish_reason": {"type": "abort"}}}', "failed"),
        (200, '{"text": "", "meta_info": {"finish_reason": null}}', "failed"),
    ],
)
def test_what_the_router_says_of_the_question(service: dict[str, Site], status: int, body: str, is_found: str) -> None:
    service["router"].answers["/generate"] = answer(status, body)
    found = asked(urls(service), limit_s=GIVE_UP_S)
    assert (found.answer, found.status, found.router) == (is_found, status, True)
    assert found.direct is (is_found in ("failed", "refused")), "asked past the router, the servers answer"


def test_a_server_that_hangs_is_neither_healthy_nor_counts(service: dict[str, Site]) -> None:
    with serving_socket() as port:
        found = asked({**urls(service), DECODE: f"http://127.0.0.1:{port}"})
    assert (found.healthy, found.work, found.router) == (frozenset((PREFILL,)), {PREFILL: 1705}, True)


def test_a_router_that_hangs(service: dict[str, Site]) -> None:
    with serving_socket() as port:
        found = asked({**urls(service), "router": f"http://127.0.0.1:{port}"})
    assert (found.answer, found.status, found.router, found.healthy) == ("failed", 0, False, UNITS)
    assert found.direct


class Tls(BaseHTTPRequestHandler):
    """What a router answers, over TLS."""

    def do_POST(self) -> None:
        answer(200, COMPLETION)(self)


@pytest.mark.parametrize(("known", "is_found"), [("its own", ("answered", 200)), ("another", ("refused", 0))])
def test_a_certificate_that_is_not_valid_is_no_fault_that_a_restart_mends(
    service: dict[str, Site], tmp_path: Path, known: str, is_found: tuple[str, int]
) -> None:
    public = {name: indexes.certificate(tmp_path / f"{name}.pem", "127.0.0.1") for name in ("its own", "another")}
    with indexes.serving(Tls, "127.0.0.1", tmp_path / "its own.pem") as port:
        given = question({**urls(service), "router": f"https://127.0.0.1:{port}"}, GIVE_UP_S)
        ran = asking({**given, "certificate": str(public[known])})
    found = watchdog.read_round(ran.stdout, UNITS)
    assert ((found.answer, found.status), found.router) == (is_found, True)


def test_a_certificate_that_cannot_be_read_is_no_round(service: dict[str, Site], tmp_path: Path) -> None:
    given = question({**urls(service), "router": "https://127.0.0.1:1"})
    ran = asking({**given, "certificate": str(tmp_path / "nowhere.pem")})
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"nowhere.pem" in ran.stderr


@pytest.mark.parametrize("value", ["nan", "inf", "x", "-5"])
def test_counters_that_are_no_numbers_are_not_there_or_worth_nothing(service: dict[str, Site], value: str) -> None:
    service[DECODE].answers["/metrics"] = answer(200, f"sglang:prompt_tokens_total {value}\n")
    told = asking(question(urls(service))).stdout
    if value == "-5":
        with pytest.raises(ValueError, match="no number"):
            watchdog.read_round(told, UNITS)
    else:
        assert DECODE not in watchdog.read_round(told, UNITS).work


GOOD = {"answer": "answered", "status": 200, "direct": False, "router": True, "healthy": [DECODE], "work": {DECODE: 5},
        "compiled": {}}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"answer": "fine"},
        {"answer": ["answered"]},
        {"status": "200"},
        {"status": -1},
        {"status": True},
        {"status": 1 << 80},
        {"direct": 1},
        {"router": None},
        {"healthy": [[DECODE]]},
        {"healthy": ["sshd.service"]},
        {"healthy": DECODE},
        {"work": {"sshd.service": 1}},
        {"work": {DECODE: 1.5}},
        {"work": {DECODE: None}},
        {"work": [DECODE]},
        {"compiled": [DECODE]},
        {"compiled": {"sshd.service": 1}},
        {"compiled": {DECODE: "1"}},
        {"more": 1},
    ],
)
def test_root_takes_no_other_answer_of_the_child(changes: dict[str, object]) -> None:
    assert watchdog.read_round(json.dumps(GOOD).encode(), UNITS).work == {DECODE: 5}
    with pytest.raises(ValueError):
        watchdog.read_round(json.dumps({**GOOD, **changes}).encode(), UNITS)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"\xff", b"{", b"[" * 8000])
def test_what_is_no_json_object_is_no_round(text: bytes) -> None:
    with pytest.raises(ValueError):
        watchdog.read_round(text, UNITS)


# ---- what follows from rounds

WELL = watchdog.Round("answered", 200, False, True, UNITS, {PREFILL: 0, DECODE: 0}, {})
HANGS = WELL._replace(answer="failed", status=0)
LIMIT, FIRST_LIMIT, EACH = 60.0, 300.0, 20.0


class Played:
    """A judge to whom rounds are played, one every 20 s."""

    def __init__(self) -> None:
        self.judge = watchdog.Judge(LIMIT, FIRST_LIMIT, ROUTER, True, frozenset((DECODE,)))
        self.now = 1000.0

    def rounds(
        self, found: Any, count: int = 1, growing: dict[str, int] | None = None, compiling: dict[str, int] | None = None
    ) -> Any:
        """The first verdict of several rounds; growing: tokens that a server counts more in each; compiling: likewise
        CPU time of its compilers."""
        for _ in range(count):
            work = {unit: n + (growing or {}).get(unit, 0) for unit, n in self.counts.items()}
            compiled = {unit: self.judge.compiled.get(unit, 0) + n for unit, n in (compiling or {}).items()}
            self.judge.see(found._replace(work=work, compiled=compiled), UP, self.now, self.now + EACH)
            self.now += EACH
            if verdict := self.judge.verdict(UP):
                return verdict
        return None

    @property
    def counts(self) -> dict[str, int]:
        return self.judge.worked or {PREFILL: 0, DECODE: 0}


@pytest.fixture
def played() -> Played:
    begun = Played()
    assert begun.rounds(WELL, 3) is None
    return begun


def test_nothing_happens_while_the_service_answers(played: Played) -> None:
    assert played.rounds(WELL, 1000) is None


@pytest.mark.parametrize("unit", sorted(UNITS))
def test_a_server_that_is_silent_restarts_alone_after_the_limit(played: Played, unit: str) -> None:
    assert played.judge.status() == "all is well"
    silent = HANGS._replace(healthy=UNITS - {unit})
    assert played.rounds(silent, 2) is None
    assert f"{unit} is silent for 40 s" in played.judge.status()
    verdict = played.rounds(silent)
    assert verdict.units == (unit,)
    assert "for 60 s" in verdict.why


def test_a_router_that_is_silent_restarts_alone_also_while_servers_end_what_they_had(played: Played) -> None:
    verdict = played.rounds(HANGS._replace(router=False), 3, {DECODE: 1000})
    assert verdict.units == (ROUTER,)


def test_a_service_that_hangs_although_each_part_lives_restarts_its_servers(played: Played) -> None:
    assert played.rounds(HANGS, 3).units == (DECODE, PREFILL)


def test_where_the_servers_answer_past_the_router_the_router_restarts(played: Played) -> None:
    assert played.rounds(HANGS._replace(direct=True), 3).units == (ROUTER,)


@pytest.mark.parametrize("found", [HANGS, HANGS._replace(answer="busy", status=429)], ids=["queue", "429"])
@pytest.mark.parametrize("unit", sorted(UNITS))
def test_a_queue_before_servers_that_work_is_no_fault(played: Played, found: Any, unit: str) -> None:
    """Ten minutes and more of it; prefill alone may be at work on one long prompt."""
    assert played.rounds(found, 100, {unit: 1000}) is None


def test_a_full_router_before_servers_that_stand_still_is_a_fault(played: Played) -> None:
    assert played.rounds(HANGS._replace(answer="busy", status=429), 3).units == (DECODE, PREFILL)


def test_what_prefill_computes_for_requests_that_fail_is_no_life(played: Played) -> None:
    assert played.rounds(HANGS._replace(status=500), 3, {PREFILL: 5000}).units == (DECODE, PREFILL)


def test_a_server_whose_compilers_work_lives_and_one_whose_compilers_hang_does_not(played: Played) -> None:
    silent = HANGS._replace(healthy=UNITS - {DECODE})
    assert played.rounds(silent, 100, compiling={DECODE: 7}) is None
    assert played.rounds(silent, 4, compiling={DECODE: 0}).units == (DECODE,)


def test_a_server_that_comes_and_goes_hides_no_other_that_is_silent(played: Played) -> None:
    """decode is started again and again: prefill ran on, and its silence counts on."""
    played.judge.whole = False
    silent, verdict = HANGS._replace(healthy=frozenset()), None
    for _ in range(15):
        assert verdict is None
        played.judge.rest(frozenset((PREFILL, ROUTER)))
        played.judge.see(silent, frozenset((PREFILL, ROUTER)), played.now, played.now + EACH)
        played.now += EACH
        verdict = played.judge.verdict(frozenset((PREFILL, ROUTER)))
    assert verdict and verdict.units == (PREFILL,)


def test_its_own_questions_and_health_checks_are_no_work(played: Played) -> None:
    assert played.rounds(HANGS, 3, {PREFILL: 40, DECODE: 16}).units == (DECODE, PREFILL)


def test_a_question_that_is_refused_says_nothing_of_the_service(played: Played) -> None:
    assert played.rounds(HANGS._replace(answer="refused", status=401), 100) is None
    silent = HANGS._replace(answer="refused", status=401, healthy=frozenset((PREFILL,)))
    assert played.rounds(silent, 3).units == (DECODE,)


def test_one_answer_between_silences_begins_them_anew(played: Played) -> None:
    for _ in range(20):
        assert played.rounds(HANGS, 2) is None
        assert played.rounds(WELL) is None


def test_one_long_round_is_not_enough(played: Played) -> None:
    played.judge.see(HANGS, UP, played.now, played.now + 10 * LIMIT)
    assert played.judge.verdict(UP) is None


def test_what_did_not_help_is_followed_by_all_of_it(played: Played) -> None:
    played.judge.helpless = 1
    verdict = played.rounds(HANGS._replace(healthy=frozenset()), 3)
    assert verdict.units == (DECODE, PREFILL, ROUTER)
    assert "did not help" in verdict.why


def test_a_restart_that_helped_is_no_reason_for_a_wider_one_later(played: Played) -> None:
    """Also where nothing ever tells of the whole service: on one of several hosts, and where the question is refused."""
    for whole, well in ((True, WELL), (True, WELL._replace(answer="refused", status=401)), (False, HANGS)):
        played.judge.whole, played.judge.helpless = whole, 1
        assert played.rounds(well) is None
        assert played.rounds(well._replace(healthy=frozenset((PREFILL,))), 3).units == (DECODE,)
        assert played.rounds(WELL) is None


def test_that_all_parts_live_is_no_help_where_the_service_hangs(played: Played) -> None:
    played.judge.helpless = 1
    assert played.rounds(HANGS, 3).units == (DECODE, PREFILL, ROUTER)


def test_until_the_first_answer_after_a_start_the_longer_limit_counts(played: Played) -> None:
    played.judge.rest()
    assert played.rounds(HANGS, 14) is None
    assert played.rounds(HANGS).units == (DECODE, PREFILL)


def test_of_several_hosts_none_judges_the_whole_service(played: Played) -> None:
    played.judge.whole = False
    assert played.rounds(HANGS, 100) is None
    assert played.rounds(HANGS._replace(healthy=frozenset((PREFILL,))), 3).units == (DECODE,)


def test_a_host_without_a_router_watches_its_servers() -> None:
    judge = watchdog.Judge(LIMIT, LIMIT, None, False, frozenset((DECODE,)))
    for at in (0.0, EACH, 2 * EACH):
        judge.see(HANGS._replace(router=False, healthy=frozenset()), frozenset((DECODE,)), at, at + EACH)
    assert judge.verdict(frozenset((DECODE,))).units == (DECODE,)


def test_what_the_router_refuses_is_said_once_until_it_takes_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    complaints: set[str] = set()
    refuses, expired = WELL._replace(answer="refused", status=401), WELL._replace(answer="refused", status=0)
    for found in (refuses, refuses, expired, WELL, refuses):
        watchdog.refused(found, complaints)
    told = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "the router refuses the question: HTTP 401",
        "the router refuses the question: its certificate is not valid",
        "the router refuses the question: HTTP 401",
    ]


def test_systemd_hears_of_it_before_each_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart asks the journal of each unit; together that may take longer than systemd waits."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(GIVE_UP_S)
        assert watchdog.printed(["echo", "told"]) == "told\n"
        assert heard.recv(100) == b"WATCHDOG=1"


# ---- its config


def test_a_config_that_is_wrong_is_one_line(tmp_path: Any) -> None:
    config = tmp_path / "watchdog.json"
    config.write_text('{"url": "http://127.0.0.1:8000"}')
    ran = run("pd-watchdog", "watch", "--config", config)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "watchdog.json" in ran.stderr
