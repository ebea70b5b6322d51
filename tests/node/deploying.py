"""Run the playbook against a node, as a user does, and read what it said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.node.node import REPOSITORY, STORE, Node
from tests.node.process import remove_tree
from tests.node.together import ALONE, Service

INVENTORY = ALONE


@dataclass(frozen=True)
class Result:
    status: int
    output: str  # what a user sees
    report: dict[str, Any]  # pyinfra's own JSON, {} where the run ended before it

    @property
    def changed(self) -> list[str]:
        """Operations that a run changed something with."""
        return [operation["name"] for operation in self.report["results"]["operations"] if operation["success"]]

    @property
    def planned(self) -> list[str]:
        """Operations that a dry run would change something with."""
        return [operation["name"] for operation in self.report["plan"] if operation["hosts_with_change"]]


def command_line(
    *arguments: str, inventory: str = INVENTORY, operations: str = "deploy.py", **data: object
) -> list[str]:
    """The pyinfra command; `data` becomes --data NAME=VALUE."""
    values = [word for name, value in data.items() for word in ("--data", f"{name}={value}")]
    return [str(Path(sys.executable).with_name("pyinfra")), *arguments, inventory, operations, *values]


def environment(where: Node | Service) -> dict[str, str]:
    return {**os.environ, **_service(where).variables}


def _service(where: Node | Service) -> Service:
    return where if isinstance(where, Service) else Service((where,))


def deploy(where: Node | Service, *arguments: str, operations: str = "deploy.py", **data: object) -> Result:
    """`pyinfra ARGUMENTS inventory deploy.py --json`: `-y` runs it, `--dry` only plans."""
    line = command_line(*arguments, "--json", inventory=_service(where).inventory, operations=operations, **data)
    ran = subprocess.run(
        line, cwd=REPOSITORY, env=environment(where), stdin=subprocess.DEVNULL,
        capture_output=True, text=True,
    )  # fmt: skip
    last = ran.stdout.strip().splitlines()[-1:] or [""]
    report = json.loads(last[0]) if last[0].startswith("{") else {}
    return Result(ran.returncode, ran.stderr + ran.stdout, report)


def plain_user(node: Node, password: str = "") -> tuple[str, ...]:
    """A user "plain" who may use sudo: without a password, or with this one. Returns pyinfra's arguments."""
    may = "ALL" if password else "NOPASSWD: ALL"
    made = node.run(
        "useradd -m plain && install -d -o plain -m 700 /home/plain/.ssh && "
        "install -o plain -m 600 /root/.ssh/authorized_keys /home/plain/.ssh/ && "
        f"echo 'plain ALL=(ALL) {may}' >/etc/sudoers.d/plain"
        + (f" && echo 'plain:{password}' | chpasswd" if password else "")
    )
    assert made.returncode == 0, made.stderr
    return ("--ssh-user", "plain", "--sudo", *(("--data", f"_sudo_password={password}") if password else ()))


def without_plain_user(node: Node) -> None:
    """Also where a session of that user has not quite ended."""
    node.run("userdel -rf plain; rm -f /etc/sudoers.d/plain")


def provisioned(where: Node | Service, *arguments: str, **data: object) -> Result:
    """Deploy to verified answers; the test's set-up failed where this does."""
    result = deploy(where, "-y", *arguments, **data)
    assert result.status == 0 and result.report, result.output
    return result


def broken_off(
    where: Node | Service,
    at: str,
    act: signal.Signals | Callable[[subprocess.Popen[str]], object],
    after: int = 0,
    operations: str = "deploy.py",
    **data: object,
) -> int:
    """Exit status of a run that a signal, or an act, breaks off as soon as it has said `at` and `after` lines more."""
    process = subprocess.Popen(
        command_line("-y", inventory=_service(where).inventory, operations=operations, **data), cwd=REPOSITORY,
        env=environment(where), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    more = -1  # lines to wait for; -1: not said yet
    for line in process.stderr:
        more = after if more < 0 and at in line else more - (more > 0)
        if more == 0:
            process.send_signal(act) if isinstance(act, signal.Signals) else act(process)
            break
    process.communicate()
    return process.returncode


@contextmanager
def built_once() -> Iterator[str]:
    """Name of a disk with the release on it, for several nodes to begin with: Node.up() takes it."""
    builder, kept = Node(f"builder-{os.getpid()}"), f"built-{os.getpid()}"
    try:
        builder.up()
        built = deploy(builder, "-y", operations="tests/node/install.py", router="smg")
        assert built.status == 0, built.output
        builder.keep(kept)
        yield kept
    finally:
        builder.down()
        if (STORE / kept).exists():
            remove_tree(STORE / kept)
