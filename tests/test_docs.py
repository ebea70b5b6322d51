"""README.md and docs/: what they name is there, and they tell the phases in the order of deploy.py."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from tests.conftest import Checkout

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)\)")
MAKE = re.compile(r"(?m)(?:`|^\s*|&& )make ([a-z][a-z-]*)\b")


def _named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(REPOSITORY)) for path in paths]


@pytest.mark.parametrize("page", PAGES, ids=_named(PAGES))
def test_links_lead_to_files(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_index_lists_every_page() -> None:
    listed = set(LINK.findall((REPOSITORY / "docs" / "README.md").read_text()))
    assert {page.name for page in PAGES[1:]} - {"README.md"} - listed == set()


@pytest.mark.parametrize("page", PAGES, ids=_named(PAGES))
def test_targets_of_make_are_there(page: Path) -> None:
    known = set(re.findall(r"(?m)^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text()))
    assert set(MAKE.findall(page.read_text())) - known == set()


def test_the_readme_draws_the_phases_of_deploy_py_in_order() -> None:
    called = re.findall(r"(?m)^    (?:\w+ = )?(\w+)\.\w+\(", (REPOSITORY / "deploy.py").read_text())
    drawn = re.findall(r"(?m)^   [├└]─ (\w+) ", (REPOSITORY / "README.md").read_text())
    assert called[0] == "preflight"
    assert drawn == called


def test_the_inventories_of_the_readme_are_read_as_they_stand(checkout: Checkout) -> None:
    blocks = re.findall(r"(?ms)^ *```python\n(\s*hosts = \[.*?)```", (REPOSITORY / "README.md").read_text())
    seen = []
    for block in blocks:
        checkout.hosts(*ast.literal_eval(textwrap.dedent(block).partition("hosts = ")[2]))
        (data,) = checkout.data().values()
        seen.append((data["ssh_user"], data.get("_sudo", False)))
    assert seen == [("root", False), ("ubuntu", True)]
