"""How servers fail, as data: each signature is known by lines as they are printed, and not by those that look alike."""

from __future__ import annotations

import re

import pytest

from tests.bin.tools import load

load("pd-gate")  # its folder is where the module is found from now on
import pd_shared as shared  # noqa: E402

KNOWN = shared.read_signatures()
LINES = [(known.name, line) for known in KNOWN for line in known.lines]
NEAR = [(known.name, line) for known in KNOWN for line in known.near]

# More lines of servers that are well, or of one that may still become ready.
HARMLESS = [
    "[2026-11-29 19:14:18] WARNING:  Invalid HTTP request received.",
    '[2026-11-29 19:14:03] INFO:     127.0.0.1:41020 - "GET /health HTTP/1.1" 503 Service Unavailable',
    "[2026-11-29 19:14:00 TP0] Capturing batches (bs=64 avail_mem=31.20 GB)",
    "2026-11-29 19:14:19 ERROR http_request{method=GET uri=/readiness}: smg::observability: request failed",
    "[2026-11-29 19:14:00] Prefill transfer failed for request rank=0 with exception KVTransferError(address already in use)",
    "[2026-11-29 19:14:00] INFO: nvcc: not found in PATH, CUDA_HOME is used",
    "tokens: OfflineModeIsEnabled No module named 'nixl nvcc: not found address already in use",
]


def test_there_are_many_and_each_has_its_own_name() -> None:
    assert len(KNOWN) >= 40
    assert len({known.name for known in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: str(known.name))
def test_each_says_what_it_means_what_to_do_and_where_it_is_from(known: shared.Signature) -> None:
    assert known.cause and known.remedy and known.source
    assert known.lines and known.near


@pytest.mark.parametrize(("name", "line"), LINES)
def test_a_line_is_known_by_its_own_signature(name: str, line: str) -> None:
    found = shared.find_signature(line, KNOWN)
    assert found is not None and found.name == name


@pytest.mark.parametrize(("name", "line"), NEAR)
def test_a_line_that_looks_alike_is_known_by_none(name: str, line: str) -> None:
    assert shared.find_signature(line, KNOWN) is None


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_lines_trip_nothing(line: str) -> None:
    assert shared.find_signature(line, KNOWN) is None


def test_every_alternative_of_a_pattern_has_a_line_that_shows_it() -> None:
    without = [
        (known.name, alternative)
        for known in KNOWN
        for alternative in known.pattern.pattern.removeprefix("(?:").removesuffix(")").split(")|(?:")
        if not any(re.search(alternative, shared.PREFIX.sub("", line)) for line in known.lines)
    ]
    assert without == []
