"""pd-bench: against a real HTTP server, with a client that is a small module and not SGLang's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.bin.tools import Site, answer, closed_port, run, serving

# Stands where SGLang's client does: takes its options, does what BEHAVIOUR says, writes what it would write.
CLIENT = """
import argparse, json, os, sys, time
import requests
import datasets  # as SGLang's client does
from datasets import load_dataset

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("backend", "base-url", "model", "tokenizer", "dataset-name", "random-input-len", "random-output-len",
                 "random-range-ratio", "num-prompts", "warmup-requests", "seed", "output-file"):
        parser.add_argument("--" + name, required=True)
    pace = parser.add_mutually_exclusive_group(required=True)
    pace.add_argument("--max-concurrency")
    pace.add_argument("--request-rate", default="inf")
    for name in ("tokenize-prompt", "flush-cache", "disable-tqdm", "output-details"):
        parser.add_argument("--" + name, action="store_true", required=True)
    given = vars(parser.parse_args())
    behaviour = os.environ.get("BEHAVIOUR", "")
    if behaviour == "raise":
        raise ValueError("Warmup failed - connection refused")
    if behaviour == "exit":
        sys.exit("no such tokenizer")
    if behaviour == "hang":
        time.sleep(600)
    requests.post(given["base_url"] + "/flush_cache", headers={"Authorization": "Bearer of-clients"}).raise_for_status()
    line = json.dumps({**given, "pid": os.getpid(), "key": os.environ.get("OPENAI_API_KEY", ""), "completed": 7,
                       "output_throughput": 12.5, "request_rate": float(given["request_rate"]), "server_info": {"a": 1},
                       "ttfts": [0.25, 0.0, 0.5], "itls": [[0.001] * 98 + [0.02, 0.7], [], []],
                       "errors": ["", "HTTP 500:\\n  no room", ""]})
    with open(given["output_file"], "a") as file:
        file.write(line[:40] if behaviour == "cut" else line + "\\n")
"""
PASSES = [
    {"input": 64, "output": 8, "concurrency": 1, "rate": None, "requests": 8},
    {"input": 128, "output": 16, "concurrency": 4, "rate": None, "requests": 16},
]
AT_A_RATE = {"input": 64, "output": 8, "concurrency": None, "rate": 2.5, "requests": 150}


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as found:
        for path in ("/generate", "/one/flush_cache", "/two/flush_cache"):
            found.answers[path] = answer(200, "{}")
        yield found


Measure = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def measure(site: Site, tmp_path: Path) -> Measure:
    """Runs the tool; changes are keys of its configuration, `behaviour` is the client's."""
    (tmp_path / "a_client.py").write_text(CLIENT)

    def measured(behaviour: str = "", **changes: Any) -> subprocess.CompletedProcess[str]:
        config = {
            "python": sys.executable, "module": "a_client", "api_key_file": None, "model": "some", "limit_s": 60,
            "environment": {"PYTHONPATH": str(tmp_path), "BEHAVIOUR": behaviour}, "url": site.url, "workers": [f"{site.url}/one", f"{site.url}/two"],
            "tokenizer": "/models/some", "passes": PASSES, **changes,
        }  # fmt: skip
        (tmp_path / "bench.json").write_text(json.dumps(config))
        return run("pd-bench", "--config", tmp_path / "bench.json", "--keep", tmp_path / "kept.json")

    return measured


def passes(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ran.stdout)["passes"]
    return found


def error(ran: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that it says."""
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stderr
    (line,) = ran.stderr.splitlines()
    assert line.startswith("pd-bench: ")
    return line


# ---- passes


def test_prefix_caches_are_emptied_at_the_servers_before_each_pass(measure: Measure, site: Site) -> None:
    """The router does it for nobody: it has a key for that, which nobody knows."""
    assert measure().returncode == 0
    assert [site.asked(path) for path in ("/one/flush_cache", "/two/flush_cache", "/flush_cache")] == [2, 2, 0]


def test_every_pass_runs_with_its_own_load(measure: Measure, site: Site, tmp_path: Path) -> None:
    ran = measure()
    assert ran.returncode == 0, ran.stderr
    first, second = (one["result"] for one in passes(ran))
    assert (first["random_input_len"], first["random_output_len"], first["num_prompts"]) == ("64", "8", "8")
    assert (second["max_concurrency"], second["warmup_requests"]) == ("4", "4")
    assert (first["base_url"], first["tokenizer"], first["dataset_name"]) == (site.url, "/models/some", "random-ids")
    assert json.loads((tmp_path / "kept.json").read_text()) == json.loads(ran.stdout)
    assert "pass 2 of 2: 128/16, concurrency 4: 12.5 tok/s" in ran.stderr


def test_each_pass_is_a_process_of_its_own_with_other_prompts(measure: Measure) -> None:
    first, second = passes(measure())
    assert first["result"]["pid"] != second["result"]["pid"]
    assert first["seed"] + 1 == second["seed"] == int(second["result"]["seed"])


def test_lists_and_what_json_cannot_hold_stay_behind(measure: Measure) -> None:
    ran = measure()
    assert not {"itls", "ttfts", "errors", "server_info", "request_rate"} & passes(ran)[0]["result"].keys()
    assert "Infinity" not in ran.stdout


def test_a_server_that_does_not_empty_its_caches_ends_the_pass(measure: Measure, site: Site) -> None:
    site.answers["/one/flush_cache"] = answer(400, "busy")
    assert "/one/flush_cache" in passes(measure())[0]["reason"]


def test_requests_that_arrive_at_a_rate(measure: Measure) -> None:
    ran = measure(passes=[AT_A_RATE])
    assert ran.returncode == 0, ran.stderr
    [one] = passes(ran)
    assert (one["result"]["request_rate"], one["result"]["num_prompts"]) == (2.5, "150")
    assert "pass 1 of 1: 64/8, 2.5 requests/s: 12.5 tok/s" in ran.stderr


def test_each_answer_has_its_first_token_and_what_99_percent_of_its_gaps_stay_within(measure: Measure) -> None:
    assert passes(measure())[0]["each"] == [[250.0, 20.0], [500.0, 0.0]], "the request that failed has none"


def test_the_first_error_of_a_request_is_told(measure: Measure) -> None:
    assert passes(measure())[0]["reason"] == "HTTP 500: no room"


@pytest.mark.parametrize(
    ("behaviour", "status", "reason"),
    [
        ("raise", "failed", "ValueError: Warmup failed - connection refused"),
        ("exit", "failed", "exit status 1"),
        ("cut", "failed", "the client wrote no JSON"),
    ],
)
def test_a_pass_that_ends_without_a_result_says_why(behaviour: str, status: str, reason: str, measure: Measure) -> None:
    ran = measure(behaviour)
    assert ran.returncode == 1
    assert [(one["status"], one["result"]) for one in passes(ran)] == [(status, None)] * 2
    assert all(reason in one["reason"] for one in passes(ran))


def test_a_pass_beyond_its_limit_is_killed(measure: Measure) -> None:
    ran = measure("hang", limit_s=0.2, passes=PASSES[:1])
    assert (ran.returncode, passes(ran)[0]["status"]) == (1, "timeout")


# ---- errors of one line


def test_no_service(measure: Measure) -> None:
    assert "cannot reach the service at 127.0.0.1:" in error(measure(url=f"http://127.0.0.1:{closed_port()}"), 3)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [(401, 4, "the router refuses the request (HTTP 401)"), (503, 5, "no worker"), (500, 5, "HTTP 500: 'broken'")],
)
def test_a_router_that_will_not(status: int, code: int, words: str, measure: Measure, site: Site) -> None:
    site.answers["/generate"] = answer(status, "broken")
    assert words in error(measure(), code)


def test_a_client_that_is_not_there(measure: Measure) -> None:
    line = error(measure(module="sglang_bench_not_there"), 6)
    assert "benchmark client sglang_bench_not_there cannot be imported: No module named" in line


def test_a_key_reaches_router_and_client(measure: Measure, site: Site, tmp_path: Path) -> None:
    seen = []

    def keyed(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers["Authorization"])
        answer(200, "{}")(request)

    site.answers["/generate"] = keyed
    (tmp_path / "key").write_text("0123456789abcdef\n")
    ran = measure(api_key_file=str(tmp_path / "key"))
    assert seen == ["Bearer 0123456789abcdef"]
    assert passes(ran)[0]["result"]["key"] == "0123456789abcdef"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"passes": None}, "passes is missing or of the wrong type"),
        ({"passes": [{"input": 1}]}, "a pass holds input"),
        ({"passes": [{**AT_A_RATE, "rate": None}]}, "a pass holds concurrency, input, output, rate, requests"),
        ({"passes": [{**AT_A_RATE, "concurrency": 1}]}, "a pass holds concurrency, input, output, rate, requests"),
        ({"python": "/no/such/python"}, "python /no/such/python is not there"),
        ({"api_key_file": "/no/such/key"}, "cannot read api_key_file /no/such/key"),
    ],
)
def test_a_configuration_that_cannot_be_used(change: dict[str, Any], words: str, measure: Measure) -> None:
    assert words in error(measure(**change), 2)
