"""The comparison of two services, against two real HTTP servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.bin.tools import Site, answer, closed_port, serving
from tests.gpu import compare

Tokens = Callable[[list[int], int], list[int]]  # of a prompt and how often it was asked


def honest(prompt: list[int], _: int) -> list[int]:
    return [(sum(prompt) + number) % 1000 for number in range(8)]


def other_from_the_fourth_on(prompt: list[int], asked: int) -> list[int]:
    right = honest(prompt, asked)
    return right if len(prompt) < 100 else right[:3] + [token + 1 for token in right[3:]]


def wrong_once(prompt: list[int], asked: int) -> list[int]:
    return other_from_the_fourth_on(prompt, asked) if asked == 1 else honest(prompt, asked)


def service(site: Site, tokens: Tokens) -> str:
    seen: dict[str, int] = {}

    def generate(request: BaseHTTPRequestHandler) -> None:
        asked = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        assert asked["sampling_params"] == {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
        key = str(asked["input_ids"])
        seen[key] = seen.get(key, 0) + 1
        found = {"text": "", "output_ids": tokens(asked["input_ids"], seen[key])}
        answer(200, json.dumps(found), "application/json")(request)

    site.answers["/generate"] = generate
    return site.url


@pytest.fixture
def two() -> Iterator[tuple[Site, Site]]:
    with serving() as first, serving() as second:
        yield first, second


def compared(
    two: tuple[Site, Site], first: Tokens, second: Tokens, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str]:
    urls = [service(two[0], first), service(two[1], second)]
    code = compare.main([*urls, "--answer", "8", "--prompts", "6", "--longest", "500", *words])
    return code, capsys.readouterr().out


def test_equal_answers(two: tuple[Site, Site], capsys: pytest.CaptureFixture[str]) -> None:
    code, said = compared(two, honest, honest, capsys)
    assert (code, said) == (compare.EQUAL, "6 of 6 answers equal, 6 distinct ones among them\n")


def test_answers_that_hardly_depend_on_the_prompt_show(
    two: tuple[Site, Site], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = compared(two, lambda *_: [7] * 8, lambda *_: [7] * 8, capsys)
    assert (code, said) == (compare.EQUAL, "6 of 6 answers equal, 1 distinct ones among them\n")


def test_each_difference_is_told_with_place_and_tokens(
    two: tuple[Site, Site], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = compared(two, honest, other_from_the_fourth_on, capsys)
    *lines, last = said.splitlines()
    assert code == compare.DIFFERENT
    assert last == "4 of 6 answers equal, 6 distinct ones among them"
    assert [line.split(":")[0] for line in lines] == [
        "prompt 4 (199 tokens) differs from token 3 on", "prompt 5 (500 tokens) differs from token 3 on",
    ]  # fmt: skip
    assert all(line.endswith("the same difference the second time") for line in lines)


def test_a_service_that_differs_from_itself_is_named(
    two: tuple[Site, Site], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = compared(two, honest, wrong_once, capsys, "--json")
    found = json.loads(said)
    assert code == compare.DIFFERENT
    assert [one["again"] for one in found["differences"]] == ["equal the second time"] * 2
    assert (found["prompts"], found["differences"][0]["at"]) == (6, 3)


def test_prompts_are_the_same_for_the_same_seed_and_of_the_lengths_asked_for() -> None:
    made = compare.prompts(50, 5, 4000, range(3, 259), 1)
    assert made == compare.prompts(50, 5, 4000, range(3, 259), 1) != compare.prompts(50, 5, 4000, range(3, 259), 2)
    lengths = [len(prompt) for prompt in made]
    assert (lengths[0], lengths[-1], len(lengths)) == (5, 4000, 50)
    assert lengths == sorted(lengths)
    assert {token for prompt in made for token in prompt} == set(range(3, 259))


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (answer(503, "no worker"), "HTTP 503"),
        (answer(200, '{"text": "x"}'), "without 8 output_ids"),
        (answer(200, "not json"), "gave no answer"),
        (answer(200, '{"output_ids": [1, 2]}'), "without 8 output_ids"),
    ],
)
def test_a_service_that_does_not_answer_is_named(
    handler: Callable[[BaseHTTPRequestHandler], None],
    words: str,
    two: tuple[Site, Site],
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = service(two[0], honest)
    two[1].answers["/generate"] = handler
    assert compare.main([first, two[1].url, "--answer", "8"]) == compare.NO_ANSWER
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"compare: {two[1].url}") and words in line


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    assert compare.main([url, url]) == compare.NO_ANSWER
    assert "gave no answer to 5 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--ids", "9"], ["--ids", "9:3"], ["--shortest", "0"], ["--longest", "2"], ["--prompts", "0"]])  # fmt: skip
def test_options_that_make_no_sense(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        compare.main(["http://127.0.0.1:1", "http://127.0.0.1:1", *words])
    assert end.value.code == compare.USAGE


# ---- one after the other, where both cannot run at once

FEW = ["--answer", "8", "--prompts", "6", "--longest", "500"]


def kept(two: tuple[Site, Site], folder: Path) -> str:
    file = str(folder / "kept.json")
    assert compare.main([service(two[0], honest), "--keep", file, *FEW]) == compare.EQUAL
    return file


def test_answers_that_were_kept_are_compared(
    two: tuple[Site, Site], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = kept(two, tmp_path)
    assert compare.main([service(two[1], honest), file, *FEW]) == compare.EQUAL
    assert compare.main([service(two[1], honest), *FEW, file, "--json"]) == compare.EQUAL
    assert compare.main([service(two[1], other_from_the_fourth_on), file, *FEW]) == compare.DIFFERENT
    assert capsys.readouterr().out.splitlines()[-1] == "4 of 6 answers equal, 6 distinct ones among them"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "holds no kept answers"),
        ("[", "holds no kept answers"),
        ("[1]", "holds no kept answers"),
        ("[]", "other prompts"),
    ],
)
def test_a_file_that_cannot_be_compared(
    text: str | None, words: str, two: tuple[Site, Site], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "x").write_text(text)
    assert compare.main([service(two[0], honest), str(tmp_path / "x"), *FEW]) == compare.NO_ANSWER
    assert words in capsys.readouterr().err


def test_answers_of_another_length_are_not_compared(
    two: tuple[Site, Site], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = kept(two, tmp_path)
    assert compare.main([service(two[1], honest), file, *FEW, "--answer", "9"]) == compare.NO_ANSWER
    assert "of another length" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["http://a"], ["http://a", "http://b", "--keep", "x"], []])
def test_one_service_with_keep_and_two_without(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        compare.main(words)
    assert end.value.code == compare.USAGE
