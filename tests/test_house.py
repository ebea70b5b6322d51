"""The rules of the house that a machine can read: which way imports go, what stands where."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from tests.plan.builders import REPOSITORY

TASKS = REPOSITORY / "tasks"


def name(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


def imports() -> dict[str, set[str]]:
    """Module of tasks/ -> everything that it imports, modules of tasks/ by their full names."""
    modules = {name(path): path for path in TASKS.rglob("*.py")}
    found: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found[module] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.module and not node.level, f"{path}: imports are absolute"
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                found[module] |= {one if one in modules else node.module for one in full}
    return found


def room(module: str) -> str:
    """tasks.plan.release.lock -> tasks.plan.release; a file directly in a folder is its own room."""
    path = TASKS.parent.joinpath(*module.split("."))
    return module if path.is_dir() else ".".join(module.split(".")[:-1]) if module.count(".") > 2 else module


def test_no_circle_between_modules() -> None:
    TopologicalSorter(
        {one: {to for to in into if to.startswith("tasks")} - {one} for one, into in imports().items()}
    ).prepare()


def test_no_circle_between_rooms_of_the_plan() -> None:
    rooms: dict[str, set[str]] = {}
    for module, into in imports().items():
        if module.startswith("tasks.plan."):
            own = room(module)
            rooms.setdefault(own, set()).update({room(to) for to in into if to.startswith("tasks.plan.")} - {own})
    TopologicalSorter(rooms).prepare()


def test_the_plan_knows_no_host_and_no_pyinfra() -> None:
    for module, into in imports().items():
        if module.startswith("tasks.plan"):
            outside = {to for to in into if to.startswith(("tasks", "pyinfra")) and not to.startswith("tasks.plan")}
            assert not outside, f"{module} imports {outside}"


def test_facts_change_nothing_and_operations_are_called_by_phases() -> None:
    for module, into in imports().items():
        if module.startswith(("tasks.facts", "tasks.support")):
            assert not {to for to in into if to.startswith("tasks.operations")}, module


def test_whoever_opens_the_plan_sees_rooms() -> None:
    assert len(list((TASKS / "plan").glob("*.py"))) <= 5
