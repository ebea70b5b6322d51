"""What a run reads of the runs before it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.run.record import LOST, Checkout, Found, Record, ending, older, read
from tests.plan.builders import settings

HERE = Checkout("1.2.0", "a" * 40, 1_700_000_000)
RECORD = Record.begun(HERE, settings(), "alice@desk")
NOTHING = Found("", None, None, resuming=False)


def with_stamp(checkout: Checkout) -> Found:
    return replace(NOTHING, stamp=Record.begun(checkout, settings(), "bob@laptop"))


@pytest.mark.parametrize(
    ("there", "refused"),
    [
        (HERE, False),
        (Checkout("1.10.0", "b" * 40, 1), True),  # as numbers, not as text
        (Checkout("1.1.9", "b" * 40, 1_800_000_000), False),
        (Checkout("1.2.0", "b" * 40, 1_700_000_001), True),
        (Checkout("1.2.0", "b" * 40, 1_699_999_999), False),
        (Checkout("1.2.0"), False),  # from a folder without git: nobody can tell
        (Checkout("1.3.0"), True),
    ],
)
def test_an_older_playbook_is_refused_unless_that_is_allowed(there: Checkout, refused: bool) -> None:
    found = with_stamp(there)
    if refused:
        with pytest.raises(PlanError, match=r"is older than .* by bob@laptop at .* --data allow_older=True") as fault:
            older(HERE, found, allowed=False)
        assert len(fault.value.lines) == 1
    else:
        older(HERE, found, allowed=False)
    older(HERE, found, allowed=True)


def test_this_checkout_without_git_is_judged_by_its_version_alone() -> None:
    older(Checkout("1.2.0"), with_stamp(HERE), allowed=False)
    with pytest.raises(PlanError, match=r"1\.1\.0 \(commit unknown\), is older than"):
        older(Checkout("1.1.0"), with_stamp(HERE), allowed=False)


def test_settings_are_compared_by_a_salted_hash_and_those_of_one_run_do_not_count() -> None:
    assert RECORD.has(settings()) and RECORD.has(settings(wait=True, reprove=True))
    assert not RECORD.has(settings(decode_mem_fraction=0.61))
    again = Record.begun(HERE, settings(), "alice@desk")
    assert again.settings != RECORD.settings, "another salt: nobody compares two hosts"
    found = replace(NOTHING, stamp=RECORD.model_copy(update={"ended": "failed"}))
    assert "the same settings; it failed" in found.last(settings())
    assert "other settings; it failed" in found.last(settings(stop_limit=30))


def test_the_end_is_the_last_that_a_record_says() -> None:
    """The lock's holder writes it there."""
    assert RECORD.line.endswith(',"ended":null}')
    hostile = RECORD.model_copy(update={"by": '","ended":null}\n'})
    assert hostile.line.count(',"ended":null}') == 1 and "\n" not in hostile.line
    lost = Record.model_validate_json(RECORD.line.removesuffix("null}") + '"lost"}')
    assert lost.ended == LOST


def test_what_broke_off_without_a_word_is_told() -> None:
    lost, well = (RECORD.model_copy(update={"ended": ended}) for ended in (LOST, "ended well"))
    assert NOTHING.told(dry=False) == [] == replace(NOTHING, run=well, stamp=well).told(dry=False)
    for found in (replace(NOTHING, run=lost), replace(NOTHING, stamp=lost), replace(NOTHING, stamp=RECORD)):
        (line,) = found.told(dry=False)
        assert line.startswith("takes over: a run broke off here without a word: alice@desk, since ")
        assert found.last(settings()) == ""
    (line,) = replace(NOTHING, holder="7", run=RECORD, stamp=lost).told(dry=True)
    assert "a run of the playbook is on here: alice@desk, since " in line and "(pid 7 on the host)" in line


def test_a_cut_answer_is_one_line_and_a_broken_record_is_none() -> None:
    with pytest.raises(PlanError, match="cut short"):
        read({"lock": Answer(0, "")})
    whole = dict.fromkeys(("lock", "run", "stamp", "resuming"), Answer(0, ""))
    assert read(whole) == NOTHING
    newer = json.dumps({**json.loads(RECORD.line), "more": 1})
    assert read({**whole, "stamp": Answer(0, newer)}).stamp == RECORD


@given(st.text(max_size=80))
def test_no_record_on_a_host_ends_in_a_traceback(text: str) -> None:
    answers = dict.fromkeys(("lock", "run", "stamp", "resuming"), Answer(0, text))
    found = read(answers)
    found.told(dry=False), found.last(settings())
    older(HERE, found, allowed=False)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"rebooting": True}, "rebooted the host"),
        ({}, "was broken off"),  # Ctrl-C, also where it leaves an operation half done
        ({"failed": True}, "failed"),
        ({"began": False}, "changed nothing"),
        ({"over": True}, "ended well"),
    ],
)
def test_how_a_run_ended(said: dict[str, bool], words: str) -> None:
    assert ending(**{"began": True, "rebooting": False, "failed": False, "over": False, **said}) == words
