"""Checks of the inventory that pyinfra does not make, before it connects to anything."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from pathlib import Path
from traceback import extract_tb
from typing import Any

import click
from pyinfra.api import State
from pyinfra.api.exceptions import PyinfraError
from pyinfra.context import ctx_state

from tasks.plan.errors import one_line
from tasks.support import fleet, interrupt, summary
from tasks.support.catalogue import ROOT

_SEPARATELY = ("serial", "no_wait")  # options of pyinfra's with which hosts do not wait for each other
Host = str | tuple[str, dict[str, Any]]


def groups(hosts: Sequence[Host], group_data: bool = True, **more: Sequence[Host]) -> dict[str, list[Host]]:
    """Groups for an inventory: every host in one of its own name, besides those in `more`.

    group_data: False where hosts bring all their settings themselves: what lies there is for another inventory.
    Raises PyinfraError for an inventory without hosts, a --limit that matches none of them, and a file in
    group_data that no group reads or that Python cannot run.
    """
    interrupt.follow()
    _check_folder()
    for group, members in {"hosts": hosts, **more}.items():
        if not isinstance(members, list):  # pyinfra takes a tuple for a host with its data, and ends in a traceback
            raise PyinfraError(f'{group} = {members!r}: write a list, such as {group} = ["gpu-1"]')
        for host in members:
            _check_host(group, host, more)
    once = {host if isinstance(host, str) else host[0]: host for host in hosts}  # one may play several roles
    names = [*once]
    if not names:
        raise PyinfraError("the inventory has no hosts: add one to the list `hosts` in inventory.py")
    # Hosts last: what the last group says wins.
    found: dict[str, list[Host]] = {group: list(members) for group, members in more.items() if members}
    for group, members in found.items():
        _check_members(group, members, names)
    if len(names) < len(hosts):
        found["hosts"] = list(once.values())
    found |= {name: [host] for name, host in once.items()}
    parameters = _command_line()
    inventory = Path(parameters.get("inventory") or "inventory.py")
    is_deploy = [*(parameters.get("operations") or ())] == ["deploy.py"]
    if is_deploy:
        summary.expect()
        fleet.separately = next((f"--{name.replace('_', '-')}" for name in _SEPARATELY if parameters.get(name)), "")
    known = [*found, "all", "hosts", inventory.stem]  # pyinfra makes groups of the file's name and its variables
    _check_limit(parameters.get("limit") or (), names, known)
    for folder in dict.fromkeys(place.resolve() for place in (Path(), inventory.parent) if group_data):
        _check_group_data(folder / "group_data", known)
    _without_a_terminal(parameters)
    if is_deploy and ctx_state.isset():
        _left_out(ctx_state.get())
    return found


def _check_members(group: str, members: Sequence[Host], names: Sequence[str]) -> None:
    for host in members:
        name = host if isinstance(host, str) else host[0]
        if name not in names:
            raise PyinfraError(f"{name} is in the group {group}, but not in the list `hosts`: add it there")


def _check_host(group: str, host: object, groups: Collection[str]) -> None:
    if isinstance(host, tuple) and len(host) == 2 and isinstance(host[0], str) and isinstance(host[1], dict):
        name: object = host[0]
    else:
        name = host
    if not isinstance(name, str):
        raise PyinfraError(
            f'{group} holds {name!r}: write a name, such as "gpu-1", or ("gpu-1", {{"ssh_user": "root"}})'
        )
    if name in groups:  # its own group would take that one's place
        raise PyinfraError(f"{group} holds a host called {name!r}, and a group has that name: give the host another")


def _check_folder() -> None:
    """pyinfra reads config.py and group_data where it is started: elsewhere it would run without both."""
    if Path("tasks").resolve() != ROOT / "tasks":
        raise PyinfraError(
            f"pyinfra must be started in {ROOT}: cd there, or add --chdir {ROOT} and name files from there"
        )


def _command_line() -> dict[str, Any]:
    context = click.get_current_context(silent=True)
    return dict(context.params) if context else {}


def _check_limit(patterns: Sequence[str], names: Sequence[str], known: Sequence[str]) -> None:
    for pattern in patterns:
        if pattern not in known and not any(fnmatch(name, pattern) for name in names):
            raise PyinfraError(f"--limit {pattern} matches no host of the inventory: it holds {', '.join(names)}")


def _check_group_data(folder: Path, known: Sequence[str]) -> None:
    for path in sorted(folder.glob("*")):
        if path.name.startswith((".", "__")):
            continue
        if path.suffix != ".py":
            raise PyinfraError(f"{_short(path)} is not read: pyinfra reads *.py in group_data; rename or remove it")
        if path.stem not in known:
            raise PyinfraError(f"{_short(path)} is read by no group: no host or group is called {path.stem!r}")
        _check_runs(path)


def _check_runs(path: Path) -> None:
    """Run a file as pyinfra is about to: there a fault in it would end in a traceback."""
    try:
        runpy.run_path(str(path))
    except PyinfraError:
        raise
    except Exception as fault:
        if isinstance(fault, SyntaxError):
            lines, said = [fault.lineno], fault.msg
        else:
            lines = [frame.lineno for frame in extract_tb(fault.__traceback__) if frame.filename == str(path)]
            said = one_line(f"{type(fault).__name__}: {fault}")
        place = f"{_short(path)} line {lines[-1]}" if lines else f"{_short(path)}"
        raise PyinfraError(
            f"{place}: Python says {said}: mend it; values are written as in Python: text in quotes, True, False, None"
        ) from None


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _without_a_terminal(parameters: dict[str, Any]) -> None:
    """Where nobody can be asked pyinfra's prompts would end in a traceback."""
    if sys.stdin.isatty():
        return
    deploys = any(str(name).endswith(".py") or "." in str(name) for name in parameters.get("operations") or ())
    if deploys and not any(parameters.get(name) for name in ("yes", "dry", "json_output")):
        raise PyinfraError("no terminal to ask for a go-ahead: add -y, or --dry for a look")
    if ctx_state.isset():
        ctx_state.get().should_raise_failed_hosts = lambda _: True  # a failed host ends the run


def _left_out(state: State) -> None:
    """Hosts that fail are left out where what they serve goes on without them; else the run ends, or pyinfra asks."""
    ask = state.should_raise_failed_hosts
    state.should_raise_failed_hosts = lambda state: not fleet.goes_on(state) and (ask is None or ask(state))
