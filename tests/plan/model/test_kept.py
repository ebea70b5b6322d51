"""Revisions of a fetched model: what is renamed, what the wanted one shares, what goes once it has answered."""

from __future__ import annotations

import json

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.model.kept import Kept, read

WANTED, BEFORE = "a" * 40, "b" * 40
NOW, OLD = f"m-{'a' * 12}", f"m-{'b' * 12}"


def kept(**folders: str) -> Kept:
    """Folders by their name, - as _; the revision that each records, or "link"."""
    told = {
        name.replace("_", "-"): {
            "kind": "link" if said == "link" else "directory",
            "revision": said.replace("link", ""),
        }
        for name, said in folders.items()
    }
    return read({"kept": Answer(0, json.dumps(told))}, "m", WANTED, "/models")


@pytest.mark.parametrize(
    ("folders", "move", "others", "superseded"),
    [
        ({}, None, [], []),
        ({"m": WANTED}, ("m", NOW), [], ["m"]),  # of an earlier version: renamed, not fetched again
        ({"m": BEFORE}, ("m", OLD), [OLD], [OLD, "m"]),  # stays until the wanted one has answered
        ({"m": ""}, ("m", NOW), [], ["m"]),  # a fetch that broke off, or a user's own: pd-model looks at each file
        ({"m": "link", f"m_{'a' * 12}": WANTED}, None, [], ["m"]),  # a run that broke off after it was renamed
        ({f"m_{'a' * 12}": WANTED}, None, [], []),
        ({f"m_{'a' * 12}": WANTED, f"m_{'b' * 12}": BEFORE}, None, [OLD], [OLD]),
        ({"m": BEFORE, f"m_{'b' * 12}": BEFORE}, None, [OLD], [OLD, "m"]),  # an older playbook was here
        ({"m": "", f"m_{'a' * 12}": WANTED}, None, [], []),  # nobody knows whose it is
        ({"m_other": BEFORE, "m": "../x"}, ("m", NOW), [], ["m"]),
    ],
)
def test_what_becomes_of_each_folder(
    folders: dict[str, str], move: tuple[str, str] | None, others: list[str], superseded: list[str]
) -> None:
    found = kept(**folders)
    assert (found.move, found.others, found.superseded) == (move, others, superseded)
    assert found.has_wanted == (NOW in found.folders or bool(move and move[1] == NOW))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"m": 1}', '{"m": {}}', "pd-model: /models: Permission denied"])
def test_an_answer_that_cannot_be_read_is_no_empty_folder(text: str) -> None:
    with pytest.raises(PlanError, match="what /models holds of model m could not be read"):
        read({"kept": Answer(1, text)}, "m", WANTED, "/models")
