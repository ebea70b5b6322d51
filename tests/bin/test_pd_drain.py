"""pd-drain, run as it is installed, against a server that answers over HTTP."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.plan.builders import REPOSITORY

IDLE = 'sglang:num_running_reqs{engine_type="decode",tp_rank="0"} 0.0\nsglang:num_queue_reqs{tp_rank="0"} 0.0\n'
BUSY = IDLE.replace("0.0", "2.0", 1)


class Answers:
    """What a server says, one answer after the other; the last one again and again."""

    def __init__(self) -> None:
        self.texts = [""]
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = answers.texts.pop(0) if len(answers.texts) > 1 else answers.texts[0]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    Thread(target=made.server.serve_forever, daemon=True).start()
    yield made
    made.server.shutdown()


def ran(*words: str) -> tuple[int, str]:
    done = subprocess.run([REPOSITORY / "files/bin/pd-drain", *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_server_is_drained_once_it_was_idle_twice(answers: Answers) -> None:
    answers.texts = [BUSY, IDLE, BUSY, IDLE, IDLE, "never asked again"]
    assert ran("server", "--url", answers.url, "--limit", "60") == (0, "waits: num_running_reqs 2\ndrained\n")
    assert answers.texts == ["never asked again"]


def test_requests_that_do_not_end_are_named(answers: Answers) -> None:
    answers.texts = [BUSY]
    status, said = ran("server", "--url", answers.url, "--limit", "1")
    assert status == 1
    assert "still has requests after 1 s: num_running_reqs 2" in said


@pytest.mark.parametrize(
    "text",
    ["", "up 1\n", "sglang:num_running_reqs 1.2.3\n", "sglang:num_running_reqs e+\n", "sglang:num_queue_reqs .\n"],
)
def test_what_shows_no_gauges_is_no_server(answers: Answers, text: str) -> None:
    answers.texts = [text]
    status, said = ran("server", "--url", answers.url, "--limit", "5")
    assert status == 1
    assert "shows no requests" in said


def test_a_router_is_followed_until_it_has_so_many_servers(answers: Answers) -> None:
    three, two = (json.dumps({"status": "ready", "total_workers": count}) for count in (3, 2))
    answers.texts = [three]
    assert ran("router", "--url", answers.url, "--limit", "5") == (0, "3\n")
    answers.texts = [three, "{}", two]
    assert ran("router", "--url", answers.url, "--servers", "2", "--limit", "60") == (0, "2\n")
    status, said = ran("router", "--url", answers.url, "--servers", "3", "--limit", "1")
    assert (status, "has 2, not 3, after 1 s" in said) == (1, True)


@pytest.mark.parametrize("text", ["[" * 100_000, "null", '{"total_workers": "many"}', '{"total_workers": 1e999}'])
def test_a_router_that_answers_nonsense_tells_of_none(answers: Answers, text: str) -> None:
    answers.texts = [text]
    status, said = ran("router", "--url", answers.url, "--limit", "0.1")
    assert status == 1
    assert "tells of none" in said and "Traceback" not in said
