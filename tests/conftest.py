"""For every test."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No test judges by the clock; the same examples each time, so that a failure is everybody's.
settings.register_profile("playbook", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("playbook")

# A shell's background job ignores SIGINT, and so would whatever a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]


class Checkout:
    """What a user edits, copied into a folder of its own beside the code of this checkout, and pyinfra run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("config.py", "deploy.py", "inventory.py"):
            shutil.copy(REPOSITORY / name, folder)
        (folder / "group_data").mkdir()
        shutil.copy(REPOSITORY / "group_data" / "all.py", folder / "group_data")
        for name in ("files", "tasks", "templates"):
            (folder / name).symlink_to(REPOSITORY / name)

    def hosts(self, *hosts: object) -> None:
        """Put hosts into the inventory, as a user does."""
        path = self.folder / "inventory.py"
        text, count = re.subn(
            r"^hosts = \[.*?^\]",
            lambda _: f"hosts = [{', '.join(map(repr, hosts))}\n]",
            path.read_text(),
            flags=re.M | re.S,
        )
        assert count == 1, text
        path.write_text(text)

    def roles(self, **roles: list[str]) -> None:
        """Fill the inventory's lists of who plays what, and `hosts` from them, as a user does."""
        path = self.folder / "inventory.py"
        text = path.read_text()
        for name, members in roles.items():
            text, count = re.subn(
                rf"^{name} = \[\]", lambda _, these=members, of=name: f"{of} = {these!r}", text, flags=re.M
            )
            assert count == 1, text
        path.write_text(text)

    def command(self, *arguments: str, inventory: str = "inventory.py", operations: str = "deploy.py") -> list[str]:
        return [str(Path(sys.executable).with_name("pyinfra")), *arguments, inventory, operations]

    @property
    def environment(self) -> dict[str, str]:
        quick = {"PYINFRA_FAKE_DELAY": "0", "PYINFRA_FAKE_DELAY_JITTER": "0", "PYINFRA_PROGRESS": "off"}
        return {**os.environ, **quick, "HOME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def pyinfra(self, *arguments: str, inventory: str = "inventory.py") -> tuple[int, str]:
        """Exit status and all output of a deploy, with no terminal to ask at."""
        ran = subprocess.run(
            self.command(*arguments, inventory=inventory),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return ran.returncode, ran.stdout

    def data(self) -> dict[str, dict[str, Any]]:
        """Host -> its merged data, as pyinfra sees it."""
        command = self.command("--json", operations="debug-inventory")
        ran = subprocess.run(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        return {host["name"]: host["data"] for host in json.loads(ran.stdout)}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus' own checker of rules and metrics; `make promtool` unpacks it."""
    found = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found, "promtool is not there: make promtool"
    return found
