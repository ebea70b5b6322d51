"""What facts make of the answer of a tool that travels with the question, whatever that is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.facts.model import ModelState
from tasks.facts.release import ReleaseState
from tasks.plan.release.manifest import damage

WHOLE = {"whole": True}


def line(part: str, answer: str) -> str:
    return f'{{"part":"{part}","answer":{answer}}}'


def test_both_parts_are_read() -> None:
    found = ReleaseState().process([line("env", json.dumps(WHOLE)), line("router", "null")])
    assert found == {"env": WHOLE, "router": None}


def test_a_release_that_is_not_built_has_no_parts() -> None:
    assert ReleaseState().process([]) is None
    assert ReleaseState().process(["Welcome to this host"]) is None


@pytest.mark.parametrize("answer", ["Traceback", '{"whole": tr', "[]", '"whole"', ""])
def test_a_part_whose_answer_cannot_be_read_is_damaged(answer: str) -> None:
    found = ReleaseState().process([line("env", answer)])
    assert found == {"env": None}
    assert damage(found["env"]) == ["its check gave no answer"]


@given(st.lists(st.text()))
def test_no_answer_ends_the_run(output: list[str]) -> None:
    ReleaseState().process(output)


@pytest.mark.parametrize("answer", ["5", "[1]", "null", '"whole"', "Traceback", ""])
def test_a_models_check_that_says_no_object_is_no_answer(answer: str) -> None:
    assert ModelState().process([answer]) is None
