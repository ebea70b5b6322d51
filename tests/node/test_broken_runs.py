"""A sample of the matrix of broken runs, on a host that serves. All of it: make test-faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.node.asking import CONFIG, answers, out, pids
from tests.node.broken_runs import Case, look, matrix, run_until, whole_again
from tests.node.deploying import deploy
from tests.node.node import Node
from tests.node.test_service import SITE

SCRIPT = f"Launch | File {CONFIG}/router.env"
# What makes work for one operation, and how the run that does it ends.
SAMPLE = {
    "control machine dies between two commands": (
        f"echo '# by hand' >>{CONFIG}/router.env",
        Case("control process ended", SCRIPT, "after", number=0),
    ),
    "connection lost within a command": (
        f"rm -r {SITE}/markdown_it {SITE}/markdown_it_py-*",
        Case("connection cut", "Runtime | Release ", "within"),
    ),
}


@pytest.fixture
def ssh_key(served: Node) -> Iterator[None]:
    """The line that lets the harness in is as before."""
    before = out(served, "cat ~/.ssh/authorized_keys")
    yield
    served.run("cat >~/.ssh/authorized_keys; rm -f /usr/local/sbin/held-shell", text=f"{before}\n")


@pytest.mark.parametrize("name", SAMPLE)
def test_the_next_run_mends_what_a_broken_one_left(served: Node, ssh_key: None, name: str) -> None:
    mess, case = SAMPLE[name]
    seen, before = look(served), pids(served)
    out(served, mess)
    planned = deploy(served, "--dry").planned
    [operation] = [one for one in planned if one.startswith(case.operation)]
    broken = run_until(served, replace(case, operation=operation), {})
    assert broken.struck, broken.output
    assert broken.status != 0
    wrong = whole_again(served, seen)
    assert wrong == []
    assert answers(served)
    assert pids(served) == before


def test_the_matrix_is_the_same_for_a_seed_and_its_parts_are_all_of_it() -> None:
    operations = {"System | Folder /a": [0.1], "Runtime | Release x": [3.0, 0.2]}
    cases = matrix(operations, 7)
    assert cases == matrix(operations, 7) != matrix(operations, 8)
    parts = [case for number in range(3) for case in cases[number::3]]
    assert sorted(parts, key=repr) == sorted(cases, key=repr)
    assert {(case.operation, case.kind) for case in cases if case.kind == "package source gone"} == {
        ("Runtime | Release x", "package source gone")
    }
