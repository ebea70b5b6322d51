"""pd-verify: against a real HTTP server that answers well or badly."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.bin.tools import Site, answer, closed_port, eventually, finish, load, run, serving, start

verify = load("pd-verify")
CHAT = "/v1/chat/completions"
GOLDEN = [
    {"name": "multiplication", "prompt": "What is 17*23?", "expect": "391", "match": "contains", "max_tokens": 32},
    {"name": "capital", "prompt": "Capital of France?", "expect": "paris", "match": "contains", "max_tokens": 16},
    {"name": "primes", "prompt": "First five primes?", "expect": r"2,\s*3,\s*5", "match": "regex", "max_tokens": 24},
    {"name": "greeting", "prompt": "Greet me.", "expect": None, "match": "words:3", "max_tokens": 16},
]
ANSWERS = {
    "What is 17*23?": "17*23 = 391.",
    "Capital of France?": "Paris",
    "First five primes?": "2, 3, 5, 7, 11",
    "Greet me.": "Hello dear friend",
}


@dataclass
class Service:
    """A router, and the counters of two workers that grow with every answer."""

    site: Site
    answers: dict[str, str] = field(default_factory=lambda: dict(ANSWERS))
    streamed: dict[str, str] = field(default_factory=dict)  # where it differs
    seen: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    transfers: int = 7
    transfers_per_answer: int = 1
    respond: Callable[[BaseHTTPRequestHandler, dict[str, Any]], bool] = lambda request, asked: False

    def __post_init__(self) -> None:
        self.site.answers[CHAT] = self.chat
        self.site.answers["/metrics"] = self.metrics

    def chat(self, request: BaseHTTPRequestHandler) -> None:
        asked = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        self.seen.append(asked)
        self.keys.append(request.headers["Authorization"])
        if self.respond(request, asked):
            return
        self.transfers += self.transfers_per_answer
        prompt = asked["messages"][0]["content"]
        if asked["stream"]:
            stream(request, self.streamed.get(prompt, self.answers[prompt]))
        else:
            answer(200, whole(self.answers[prompt]), "application/json")(request)

    def metrics(self, request: BaseHTTPRequestHandler) -> None:
        text = (
            "# HELP sglang:transfers_total Requests.\n# TYPE sglang:transfers_total counter\n"
            f'sglang:transfers_total{{tp_rank="0",model_name="a {{b}} c"}} {self.transfers}.0\n'
            'sglang:transfers_total{tp_rank="1"} 1.0e2\n'
            "sglang:transfers_total_created 99999\n"
        )
        answer(200, text)(request)


def whole(text: str | None, finish_reason: str | None = "stop") -> str:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": finish_reason}]})


def pieces(text: str) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": character} for character in text]
    chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    chunks.append({"choices": [], "usage": {"completion_tokens": len(text)}})
    return chunks


def stream(
    request: BaseHTTPRequestHandler,
    text: str,
    *,
    chunks: list[dict[str, Any]] | None = None,
    done: str = "data: [DONE]\n\n",
) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "text/event-stream")
    request.end_headers()
    for chunk in pieces(text) if chunks is None else chunks:
        request.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
    request.wfile.write(done.encode())


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as site:
        yield Service(site)


@dataclass
class Config:
    path: Path
    content: dict[str, Any]

    def write(self) -> Path:
        self.path.write_text(json.dumps(self.content))
        return self.path

    def run(self, *more: object) -> tuple[int, dict[str, Any]]:
        done = run("pd-verify", "--config", self.write(), "--json", *more)
        return done.returncode, json.loads(done.stdout)

    def words(self) -> tuple[int, str]:
        done = run("pd-verify", "--config", self.write())
        return done.returncode, done.stdout


@pytest.fixture
def config(tmp_path: Path, service: Service) -> Config:
    metrics = f"{service.site.url}/metrics"
    return Config(
        tmp_path / "verify.json",
        {
            "url": service.site.url,
            "api_key_file": None,
            "model": "tiny",
            "limit_s": 60,
            "warm_up_limit_s": 60,
            "golden": [dict(entry) for entry in GOLDEN],
            "metrics": {"prefill": metrics, "decode": metrics},
            "transfer_metrics": {"prefill": "sglang:transfers_total", "decode": "sglang:transfers_total"},
        },
    )


# --- right answers ----------------------------------------------------------------------------------------------------


def test_right_answers(config: Config, service: Service) -> None:
    code, outcome = config.run()
    assert (code, outcome["ok"], outcome["reason"]) == (0, True, None)
    assert [entry["name"] for entry in outcome["answers"]] == [entry["name"] for entry in GOLDEN]
    for entry in outcome["answers"]:
        text = ANSWERS[entry["prompt"]]
        assert (entry["ok"], entry["answer"], entry["streamed"], entry["reason"]) == (True, text, text, None)
        assert entry["tokens"] == len(text)
        assert entry["ttft_ms"] > 0
        assert entry["tpot_ms"] is not None
    assert outcome["metrics"]["prefill"] == {"name": "sglang:transfers_total", "before": 107, "after": 116, "grew": 9}


def test_what_is_asked(config: Config, service: Service) -> None:
    assert config.run()[0] == 0
    warm_up, *rest = service.seen
    assert warm_up["messages"][0]["content"] == GOLDEN[0]["prompt"]
    assert [(asked["messages"][0]["content"], asked["stream"]) for asked in rest] == [
        (entry["prompt"], streaming) for entry in GOLDEN for streaming in (False, True)
    ]
    assert {(asked["model"], asked["temperature"]) for asked in rest} == {("tiny", 0)}
    assert warm_up["temperature"] > 0 and {"top_p", "top_k"} <= set(warm_up), "what samples is compiled by it"
    assert [asked["max_tokens"] for asked in rest[::2]] == [entry["max_tokens"] for entry in GOLDEN]
    assert all(asked["stream_options"] == {"include_usage": True} for asked in rest if asked["stream"])


def test_while_the_watchdog_asks_nothing_is_asked(config: Config, service: Service, tmp_path: Path) -> None:
    lock = tmp_path / "round"
    config.content["round_lock"] = str(lock)
    assert config.run()[0] == 0, "no watchdog has made it"
    asked = len(service.seen)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = start("pd-verify", "--config", config.write(), "--json")
        inode = f":{lock.stat().st_ino} "
        eventually(
            lambda: any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()),
            "it waits for the lock",
        )
        assert len(service.seen) == asked
    assert finish(waiting).returncode == 0
    assert len(service.seen) > asked


def test_in_words(config: Config) -> None:
    code, words = config.words()
    assert code == 0
    lines = words.splitlines()
    assert lines[1].startswith("ok   multiplication: TTFT ")
    assert lines[-2] == "decode: sglang:transfers_total 107 -> 116"
    assert lines[-1].startswith("ok: 4/4 answers, ")


def test_time_per_token_is_taken_between_the_first_and_the_last() -> None:
    assert verify.time_per_token(10.0, 10.6, 4) == 200.0
    assert verify.time_per_token(10.0, 10.0, 1) is None


def test_tokens_are_those_that_the_service_counts(config: Config, service: Service) -> None:
    config.content["golden"] = GOLDEN[:1]
    one = {"choices": [{"delta": {"content": "391"}, "finish_reason": "stop"}]}

    def respond(request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bool:
        if not asked["stream"]:
            answer(200, whole("391"))(request)
        else:
            stream(request, "", chunks=[one, {"choices": [], "usage": {"completion_tokens": 1}}])
        service.transfers += 1
        return True

    service.respond = respond
    code, outcome = config.run()
    assert code == 0
    assert (outcome["answers"][0]["tokens"], outcome["answers"][0]["tpot_ms"]) == (1, None)


def test_reasoning_counts_as_the_first_token_but_not_as_the_answer(config: Config, service: Service) -> None:
    config.content["golden"] = [GOLDEN[0] | {"match": "regex", "expect": "^$"}]
    deltas: list[dict[str, Any]] = [{"reasoning_content": "hm"}, {"reasoning_content": "hm"}]
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}})

    def respond(request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bool:
        if asked["stream"]:
            stream(request, "", chunks=chunks)
        else:
            answer(200, whole(""))(request)
        service.transfers += 1
        return True

    service.respond = respond
    code, outcome = config.run()
    assert code == 0, outcome
    assert outcome["answers"][0]["streamed"] == ""
    assert outcome["answers"][0]["ttft_ms"] is not None


def thinking(
    service: Service, content: str, reasoning: str, finish_reason: str = "stop", tokens: int = 40, streamed: str = ""
) -> None:
    """The service answers as one with a reasoning parser; `streamed`: where the streamed answer's words differ."""
    streamed = streamed or content

    def respond(request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bool:
        if asked["stream"]:
            deltas: list[dict[str, Any]] = [{"reasoning_content": reasoning}, {"content": streamed}]
            chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
            chunks.append(
                {"choices": [{"delta": {}, "finish_reason": finish_reason}], "usage": {"completion_tokens": tokens}}
            )
            stream(request, "", chunks=chunks)
        else:
            message = {"content": content or None, "reasoning_content": reasoning}
            answer(200, json.dumps({"choices": [{"message": message, "finish_reason": finish_reason}]}))(request)
        service.transfers += 1
        return True

    service.respond = respond


def test_a_model_that_thinks_first_is_judged_by_its_answer(config: Config, service: Service) -> None:
    config.content["golden"] = GOLDEN[:1]
    thinking(service, "It is 391.", "17*20 is 340, 17*3 is 51")
    code, outcome = config.run()
    assert code == 0, outcome
    assert outcome["answers"][0]["reasoning"] == "17*20 is 340, 17*3 is 51"
    thinking(service, "It is 392.", "so 391")
    code, outcome = config.run()
    assert (code, outcome["answers"][0]["reason"]) == (1, "the answer does not match")


def test_what_it_thought_counts_where_it_came_to_no_answer(config: Config, service: Service) -> None:
    config.content["golden"] = GOLDEN[:1]
    thinking(service, "", "that makes 391, but let me check", "length")
    assert config.run()[0] == 0


def test_a_limit_that_was_all_spent_on_thinking_is_told(config: Config, service: Service) -> None:
    config.content["golden"] = GOLDEN[:1]
    thinking(service, "", "Let me think about 17", "length")
    code, outcome = config.run()
    assert code == 1
    assert outcome["answers"][0]["reason"] == (
        "the answer does not match: it spent 32 tokens, all of them thinking; give the question more max_tokens, or "
        "switch thinking off (setting chat_template_kwargs)"
    )
    assert "thought:  'Let me think about 17'" in config.words()[1]


def test_an_answer_that_was_cut_off_is_told(config: Config, service: Service) -> None:
    config.content["golden"] = GOLDEN[:1]
    thinking(service, "The product of 17", "", "length")
    assert "it spent 32 tokens, and was not done; give" in config.run()[1]["answers"][0]["reason"]


@pytest.mark.parametrize(("tokens", "right"), [(128, False), (129, True)])
def test_long_answers_need_not_be_equal(config: Config, service: Service, tokens: int, right: bool) -> None:
    config.content["golden"] = GOLDEN[:1]
    thinking(service, "It is 391.", "", tokens=tokens, streamed="So it is 391.")
    code, outcome = config.run()
    assert (code == 0) is right, outcome


def test_switches_of_the_chat_template_go_with_each_request(config: Config, service: Service) -> None:
    config.run()
    assert not any("chat_template_kwargs" in asked for asked in service.seen)
    config.content["chat_template_kwargs"] = {"enable_thinking": False}
    before = len(service.seen)
    assert config.run()[0] == 0
    sent = [asked["chat_template_kwargs"] for asked in service.seen[before:]]
    assert len(sent) == 9
    assert all(one == {"enable_thinking": False} for one in sent)


@pytest.mark.parametrize(
    ("match", "expect", "text", "right"),
    [
        ("contains", "Paris", "it is PARIS.", True),
        ("contains", "Paris", "it is Lyon.", False),
        ("equals", "391", " 391\n", True),
        ("equals", "391", "391.", False),
        ("regex", r"^\d+$", "391", True),
        ("regex", r"^\d+$", "391.", False),
        ("words:3", None, "Hello there, friend!", True),
        ("words:3", None, "Hello there", False),
    ],
)
def test_matching(match: str, expect: str | None, text: str, right: bool) -> None:
    assert verify.matches(text, verify.Question("q", "?", expect, match, 8)) is right


# --- wrong answers ----------------------------------------------------------------------------------------------------


def test_a_wrong_answer_shows_question_answer_and_expectation(config: Config, service: Service) -> None:
    service.answers["Capital of France?"] = "Lyon"
    code, words = config.words()
    assert code == 1
    shown = [line.strip() for line in words.splitlines()]
    assert "why:      the answer does not match" in shown
    assert "question: 'Capital of France?'" in shown
    assert "answer:   'Lyon'" in shown
    assert "expected: contains 'paris'" in shown
    assert shown[-1].startswith("failed: 3/4 answers, ")


def test_a_wrong_streamed_answer(config: Config, service: Service) -> None:
    service.streamed["Capital of France?"] = "Lyon"
    code, outcome = config.run()
    assert (code, outcome["ok"]) == (1, False)
    assert outcome["answers"][1]["reason"] == "the streamed answer does not match"


def test_two_answers_that_differ(config: Config, service: Service) -> None:
    service.streamed["Capital of France?"] = "Paris!"
    code, outcome = config.run()
    assert code == 1
    assert outcome["answers"][1]["reason"] == "the two answers differ"
    assert [entry["ok"] for entry in outcome["answers"]] == [True, False, True, True]


Respond = Callable[[BaseHTTPRequestHandler], None]


def broken_off(request: BaseHTTPRequestHandler) -> None:
    stream(request, "391", done="")


def without_usage(request: BaseHTTPRequestHandler) -> None:
    stream(request, "", chunks=pieces("391")[:-1])


def without_text(request: BaseHTTPRequestHandler) -> None:
    stream(request, "", chunks=pieces("391")[:1] + pieces("391")[-2:])


def with_error(request: BaseHTTPRequestHandler) -> None:
    stream(request, "", chunks=[*pieces("391")[:2], {"error": {"message": "KVTransferError", "code": 500}}])


def aborted(request: BaseHTTPRequestHandler) -> None:
    stream(request, "", chunks=[{"choices": [{"delta": {"content": "3"}, "finish_reason": "abort"}]}])


def no_json(request: BaseHTTPRequestHandler) -> None:
    stream(request, "", chunks=[], done="data: {oops\n\n")


@pytest.mark.parametrize(
    ("streaming", "respond", "reason"),
    [
        (True, broken_off, "streamed: the stream broke off after 3 pieces, without [DONE]"),
        (True, without_usage, "streamed: the stream held no usage"),
        (True, without_text, "streamed: the stream held no text"),
        (True, with_error, """streamed: the service says: '{"message": "KVTransferError", "code": 500}'"""),
        (True, aborted, "streamed: finish_reason is 'abort'"),
        (True, no_json, "streamed: not JSON: '{oops'"),
        (True, answer(500, "boom"), "streamed: HTTP 500: 'boom'"),
        (False, answer(503, "no available workers"), "not streamed: HTTP 503: 'no available workers'"),
        (False, answer(200, "<html>"), "not streamed: not JSON: '<html>'"),
        (False, answer(200, "[]"), "not streamed: not a JSON object: '[]'"),
        (False, answer(200, '{"choices": []}'), "not streamed: the answer holds no choices"),
        (False, answer(200, "{}"), "not streamed: the answer holds no choices"),
        (False, answer(200, whole("391", "abort")), "not streamed: finish_reason is 'abort'"),
        (False, answer(200, '{"error": "overloaded"}'), "not streamed: the service says: '\"overloaded\"'"),
    ],
)
def test_no_usable_answer(config: Config, service: Service, streaming: bool, respond: Respond, reason: str) -> None:
    config.content["golden"] = GOLDEN[:1]

    def fail(request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bool:
        warm_up = len(service.seen) == 1
        if warm_up or asked["stream"] != streaming:
            return False
        respond(request)
        return True

    service.respond = fail
    code, outcome = config.run()
    assert (code, outcome["ok"]) == (1, False)
    assert outcome["answers"][0]["reason"] == reason
    if respond is broken_off:
        assert outcome["answers"][0]["streamed"] == "391"  # what came is shown


def test_an_answer_without_content(config: Config, service: Service) -> None:
    service.respond = lambda request, asked: len(service.seen) > 1 and (answer(200, whole(None))(request) or True)
    code, outcome = config.run()
    assert code == 1
    assert outcome["answers"][0]["reason"].startswith("not streamed: no content in")


def test_a_body_cut_short(config: Config, service: Service) -> None:
    def cut(request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bool:
        if len(service.seen) == 1:
            return False
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b'{"choices": [')
        request.close_connection = True
        return True

    service.respond = cut
    code, outcome = config.run()
    assert code == 1
    assert "not streamed: " in outcome["answers"][0]["reason"]


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_that_never_ends(config: Config, service: Service, streaming: bool) -> None:
    config.content |= {"limit_s": 0.5, "golden": GOLDEN[:1]}
    released = Event()

    def hang(request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bool:
        if len(service.seen) == 1 or asked["stream"] != streaming:
            return False
        if streaming:
            stream(request, "", chunks=pieces("391")[:2], done="")
        request.wfile.flush()
        released.wait()
        return True

    service.respond = hang
    child = start("pd-verify", "--config", config.write(), "--json")
    try:
        done = finish(child)
    finally:
        released.set()
    assert done.returncode == 1
    assert json.loads(done.stdout)["answers"][0]["reason"].endswith("no complete answer within 0.5 s")


def test_an_answer_that_trickles(config: Config, service: Service) -> None:
    config.content |= {"limit_s": 0.5, "golden": GOLDEN[:1]}
    never = Event()

    def trickle(request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bool:
        if len(service.seen) == 1:
            return False
        request.send_response(200)
        request.end_headers()
        with contextlib.suppress(ConnectionError):
            while not never.wait(0.05):
                request.wfile.write(b" ")
        return True

    service.respond = trickle
    try:
        code, outcome = config.run()
    finally:
        never.set()
    assert code == 1
    assert outcome["answers"][0]["reason"].endswith("no complete answer within 0.5 s")


def test_a_failed_warm_up_ends_it(config: Config, service: Service) -> None:
    service.respond = lambda request, asked: answer(503, "no workers")(request) or True
    config.content["warm_up_limit_s"] = 1
    code, outcome = config.run()
    assert code == 1
    assert outcome["reason"] == "warm-up request: HTTP 503: 'no workers'"
    assert outcome["answers"] == []


def test_another_failure_of_the_warm_up_ends_it_at_once(config: Config, service: Service) -> None:
    service.respond = lambda request, asked: answer(500, "broken")(request) or True
    code, outcome = config.run()
    assert (code, outcome["reason"]) == (1, "warm-up request: HTTP 500: 'broken'")
    assert len(service.seen) == 1


def test_a_router_that_does_not_see_its_workers_yet_is_asked_again(config: Config, service: Service) -> None:
    respond = service.respond
    service.respond = lambda request, asked: (
        answer(503, "no workers")(request) or True if len(service.seen) < 3 else respond(request, asked)
    )
    code, outcome = config.run()
    assert (code, outcome["ok"]) == (0, True)


def test_a_service_that_cannot_be_reached(config: Config) -> None:
    config.content["url"] = f"http://127.0.0.1:{closed_port()}"
    code, outcome = config.run()
    assert (code, outcome["ok"]) == (3, False)
    assert outcome["reason"].endswith("Connection refused")


# --- transfer counters ------------------------------------------------------------------------------------------------


def test_answers_without_a_transfer_are_not_believed(config: Config, service: Service, monkeypatch: Any) -> None:
    service.transfers_per_answer = 0
    config.content["golden"] = GOLDEN[:1]
    code, outcome = config.run()
    assert (code, outcome["ok"]) == (1, False)
    assert outcome["reason"] == (
        "answers came without a KV transfer: 3 answers, the counters grew by: prefill 0, decode 0"
    )
    assert outcome["answers"][0]["ok"]


def test_every_answer_needs_its_transfer(config: Config, service: Service) -> None:
    config.content["golden"] = GOLDEN[:1]

    def uncounted(request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bool:
        service.transfers -= len(service.seen) == 2
        return False

    service.respond = uncounted
    code, outcome = config.run()
    assert code == 1
    assert outcome["reason"].endswith("3 answers, the counters grew by: prefill 2, decode 2")


def test_a_counter_that_lags_behind_is_waited_for(config: Config, service: Service) -> None:
    service.transfers_per_answer = 0
    config.content["golden"] = GOLDEN[:1]
    read = 0

    def lagging(request: BaseHTTPRequestHandler) -> None:
        nonlocal read
        read += 1
        if read == 4:  # both roles before, prefill once after: only then the counter moves
            service.transfers += 3
        Service.metrics(service, request)

    service.site.answers["/metrics"] = lagging
    assert config.run()[0] == 0


def test_counters_without_a_name_are_not_read(config: Config, service: Service) -> None:
    config.content["transfer_metrics"] = {"prefill": None, "decode": None}
    code, outcome = config.run()
    assert (code, outcome["metrics"]) == (0, {})
    assert service.site.asked("/metrics") == 0


def test_the_counters_of_several_workers_are_added(config: Config, service: Service) -> None:
    url = f"{service.site.url}/metrics"
    config.content["metrics"] = {"prefill": [url, f"{url}/another"], "decode": url}
    service.site.answers["/metrics/another"] = service.metrics
    code, outcome = config.run()
    assert code == 0
    assert outcome["metrics"]["prefill"]["before"] == 214


def test_of_several_hosts_a_worker_may_be_down(service: Service, config: Config) -> None:
    config.content["metrics"]["decode"] = [
        f"http://127.0.0.1:{closed_port()}/metrics", f"{service.site.url}/metrics"
    ]  # fmt: skip
    code, outcome = config.run()
    assert code == 3 and outcome["reason"].startswith("metrics of decode: cannot connect")
    config.content["least"] = {"prefill": 1, "decode": 1}
    assert config.run()[0] == 0
    config.content["least"] = {"prefill": 1, "decode": 2}
    assert config.run()[0] == 3


def test_of_several_hosts_every_worker_is_asked_until_it_has_answered(service: Service, config: Config) -> None:
    """The first of two gets every question, until enough of them differ."""
    other = {"count": 3}

    def of_other(request: BaseHTTPRequestHandler) -> None:
        other["count"] = 3 + (len({asked["messages"][0]["content"] for asked in service.seen}) > 6)
        answer(200, f"sglang:transfers_total {other['count']}")(request)

    def unlike(request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bool:
        service.answers.setdefault(asked["messages"][0]["content"], "whatever")
        return False

    service.respond = unlike
    service.site.answers["/other"] = of_other
    config.content["metrics"]["decode"] = [f"{service.site.url}/metrics", f"{service.site.url}/other"]
    code, outcome = config.run()
    assert (code, outcome["requests"], other["count"]) == (0, 9, 3), "nobody looks without `least`"
    config.content["least"] = {"prefill": 1, "decode": 1}
    code, outcome = config.run()
    assert (code, other["count"]) == (0, 4)
    assert outcome["requests"] > 9


def test_a_worker_that_gets_no_request_is_told(
    monkeypatch: pytest.MonkeyPatch, service: Service, config: Config
) -> None:
    service.respond = lambda request, asked: (
        bool(service.answers.setdefault(asked["messages"][0]["content"], "so")) and False
    )
    service.site.answers["/other"] = answer(200, "sglang:transfers_total 3")
    config.content["metrics"]["decode"] = [f"{service.site.url}/metrics", f"{service.site.url}/other"]
    config.content["least"] = {"prefill": 1, "decode": 1}
    monkeypatch.setattr(verify, "SPREAD_S", 0.5)
    with pytest.raises(verify.Fault, match=r"none is by decode at 127\.0\.0\.1:\d+: the router sends nothing there"):
        verify.verify(verify.config_of(config.write()), verify.Outcome())


@pytest.mark.parametrize(("listed", "asked_for"), [(["once"], False), (["once", "other"], True), (None, True)])
def test_a_worker_that_is_left_out_of_the_routers_file_need_not_answer(
    monkeypatch: pytest.MonkeyPatch,
    service: Service,
    config: Config,
    tmp_path: Path,
    listed: list[str] | None,
    asked_for: bool,
) -> None:
    """Such as one that serves the release of before. A file that cannot be read leaves out nobody."""
    service.respond = lambda request, asked: (
        bool(service.answers.setdefault(asked["messages"][0]["content"], "so")) and False
    )
    monkeypatch.setattr(verify, "SPREAD_S", 0.5)
    file = tmp_path / "workers.json"
    with serving() as other:
        other.answers["/metrics"] = answer(200, "sglang:transfers_total 3")
        urls = {"once": service.site.url, "other": other.url}
        if listed:
            file.write_text(json.dumps({"version": 1, "workers": [{"url": urls[name]} for name in listed]}))
        config.content["metrics"]["decode"] = [f"{url}/metrics" for url in urls.values()]
        config.content |= {"least": {"prefill": 1, "decode": 1}, "listed": str(file)}
        outcome = verify.Outcome()
        waits = pytest.raises(verify.Fault, match="the router sends nothing there")
        with waits if asked_for else contextlib.nullcontext():
            verify.verify(verify.config_of(config.write()), outcome)
        assert bool(outcome.metrics) is not asked_for


def test_metrics_that_cannot_be_read(config: Config) -> None:
    config.content["metrics"]["decode"] = f"http://127.0.0.1:{closed_port()}/metrics"
    code, outcome = config.run()
    assert code == 3
    assert outcome["reason"].startswith("metrics of decode: cannot connect to 127.0.0.1:")


# --- answered ------------------------------------------------------------------------------------------------------------


def test_after_right_answers_only_one_question_is_asked(config: Config, service: Service, tmp_path: Path) -> None:
    answered, fingerprint = tmp_path / "answered", tmp_path / "fingerprint.json"
    fingerprint.write_text("{}")
    arguments = ("--answered", answered, "--depends", fingerprint)
    code, outcome = config.run(*arguments)
    assert (code, outcome["answered_before"], len(outcome["answers"])) == (0, False, 4)
    code, outcome = config.run(*arguments)
    assert (code, outcome["answered_before"], len(outcome["answers"]), outcome["requests"]) == (0, True, 1, 2)
    fingerprint.write_text('{"pid": 2}')
    assert len(config.run(*arguments)[1]["answers"]) == 4
    config.content["limit_s"] = 61
    assert len(config.run(*arguments)[1]["answers"]) == 4


def test_a_wrong_answer_ends_that(config: Config, service: Service, tmp_path: Path) -> None:
    answered = tmp_path / "answered"
    assert config.run("--answered", answered)[0] == 0
    service.answers["What is 17*23?"] = "392"
    code, outcome = config.run("--answered", answered)
    assert (code, outcome["answered_before"]) == (1, True)
    assert not answered.exists()


def test_nothing_is_remembered_while_something_is_missing(config: Config, tmp_path: Path) -> None:
    arguments = ("--answered", tmp_path / "answered", "--depends", tmp_path / "missing")
    for _ in range(2):
        code, outcome = config.run(*arguments)
        assert (code, outcome["answered_before"]) == (0, False)
    assert not (tmp_path / "answered").exists()


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ('it\'s "mine" =123\n', 'Bearer it\'s "mine" =123'),
        ("PD_API_KEY=abc123", "Bearer PD_API_KEY=abc123"),
    ],
)
def test_the_api_key_is_sent(config: Config, service: Service, tmp_path: Path, content: str, header: str) -> None:
    (tmp_path / "key").write_text(content)
    config.content["api_key_file"] = str(tmp_path / "key")
    assert config.run()[0] == 0
    assert set(service.keys) == {header}


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.pop(name)


def setting(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.__setitem__(name, value)


def in_golden(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["golden"][0].__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without("url"), "url is missing"),
        (without("golden"), "golden is missing"),
        (setting("url", "127.0.0.1:8000"), "not http://HOST:PORT or https://HOST:PORT: 127.0.0.1:8000"),
        (setting("url", "ftp://127.0.0.1:8000"), "not http://HOST:PORT or https://HOST:PORT: ftp://127.0.0.1:8000"),
        (setting("golden", []), "golden is empty"),
        (setting("limit_s", "soon"), "limit_s is missing or of the wrong type"),
        (setting("colour", "red"), "unknown colour"),
        (setting("metrics", {}), "transfer_metrics names prefill, metrics does not"),
        (setting("api_key_file", "/nonexistent"), "cannot read api_key_file /nonexistent: No such file or directory"),
        (in_golden("match", "similar"), "golden question multiplication: unknown match 'similar'"),
        (in_golden("match", "words:many"), "golden question multiplication: unknown match 'words:many'"),
        (in_golden("expect", None), "golden question multiplication: expect is missing"),
        (in_golden("colour", "red"), "unexpected keyword argument 'colour'"),
    ],
)
def test_a_config_that_cannot_be_used(config: Config, change: Callable[[dict[str, Any]], object], reason: str) -> None:
    change(config.content)
    done = run("pd-verify", "--config", config.write())
    assert done.returncode == 2
    assert done.stderr.startswith("pd-verify: ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_regular_expression_that_is_none(config: Config) -> None:
    config.content["golden"][0] |= {"match": "regex", "expect": "("}
    done = run("pd-verify", "--config", config.write())
    assert done.returncode == 2
    assert "expect is not a regular expression" in done.stderr


@pytest.mark.parametrize("text", [None, "{", "[]", '"text"'])
def test_a_config_file_that_is_none(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "verify.json"
    if text is not None:
        path.write_text(text)
    done = run("pd-verify", "--config", path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
