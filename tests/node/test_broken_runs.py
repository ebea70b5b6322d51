"""A sample of the matrix of broken runs, on a host that serves. All of it: make test-faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.asking import CONFIG, answers, out, pids
from tests.node.broken_runs import Case, look, matrix, run_until, whole_again
from tests.node.node import Node

# What makes work for one operation that restarts nothing, and how the run that does it ends.
SAMPLE = {
    "control machine dies after a command": (
        f"echo '# by hand' >>{CONFIG}/router.env",
        Case("control process ended", f"Launch | File {CONFIG}/router.env", "after", number=0),
    ),
    "connection lost before a command": (
        f"echo >>{CONFIG}/verify.json",
        Case("connection cut", f"Launch | File {CONFIG}/verify.json", "before", number=1),
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
    broken = run_until(served, case, {})
    assert broken.struck, broken.output
    assert broken.status != 0
    wrong = whole_again(served, seen)
    assert wrong == []
    assert answers(served)
    assert pids(served) == before


def test_the_matrix_is_the_same_for_a_seed_and_its_parts_are_all_of_it() -> None:
    operations = {name: [0.1] for name in ("System | Folder /a", "Retire | Release x has served")}
    operations |= {name: [3.0, 0.2] for name in ("System | Debian packages", "Runtime | Package installer uv")}
    cases = matrix(operations, 7)
    assert cases == matrix(operations, 7) != matrix(operations, 8)
    parts = [case for number in range(3) for case in cases[number::3]]
    assert sorted(parts, key=repr) == sorted(cases, key=repr)
    assert {(case.operation, case.kind) for case in cases if case.kind == "package source gone"} == {
        ("System | Debian packages", "package source gone"),
        ("Runtime | Package installer uv", "package source gone"),
    }
