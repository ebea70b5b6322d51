"""The way onto a host, tried before anything is asked: it stays open while others work, and sudo works."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any, cast

from pyinfra import host, state
from pyinfra.api import Host, StringCommand
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, pop_global_arguments

from tasks.plan.errors import PlanError

KEEPALIVE = 30  # seconds; firewalls cut connections that are idle for 5 to 15 minutes, while another host is at work
# pyinfra's helper, which hands sudo the password, lies here; config.TEMP_DIR and TMPDIR say where
_RUNS = r"""(
folder=${TMPDIR:-%s}
helper=$(mktemp "$folder/pyinfra-XXXXXXXX") && printf '#!/bin/sh\n' >"$helper" && chmod 755 "$helper" && "$helper"
status=$?; rm -f "$helper"; echo "$folder"; exit $status
) 2>/dev/null"""


def prepare() -> None:
    """Keep the connection alive, and try sudo where it is asked for. Raises PlanError with its one line."""
    client = getattr(host.connector, "client", None)  # of ssh
    transport = client.get_transport() if client else None
    if transport:
        transport.set_keepalive(KEEPALIVE)
    arguments = _of_run(host)
    if arguments.get("_sudo"):
        _try_sudo(arguments)


def way(other: Host) -> dict[str, Any]:
    """The way of this run onto a host (sudo and so on), beside any operation."""
    return of_connector(_of_run(other))


def of_connector(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of pyinfra's global arguments that say how a command gets onto a host."""
    return {key: arguments[key] for key in CONNECTOR_ARGUMENT_KEYS if key in arguments}


def _of_run(other: Host) -> dict[str, Any]:
    return cast(dict[str, Any], pop_global_arguments(state, other, {})[0])


def _try_sudo(arguments: dict[str, Any]) -> None:
    as_user = ["-u", arguments["_sudo_user"]] if arguments.get("_sudo_user") else []
    words = shlex.join(["sudo", "-H", *as_user] if arguments.get("_use_sudo_login") else ["sudo", *as_user])
    good, said = _ask(f"{words} -n true")
    if good:
        return
    if not any("password is required" in line or "authentication is required" in line for line in said):
        raise PlanError(f"sudo does not work on this host: {' '.join(said)[:240]}")
    login = " ".join(_ask("id -un")[1])
    password = arguments.get("_sudo_password")
    if not password and not sys.stdin.isatty():
        raise PlanError(
            "sudo asks for a password on this host, and there is no terminal to ask you for it: add "
            '"_sudo_password": os.environ.get("SUDO_PASSWORD") to the host in inventory.py and set that variable, or '
            f"let the host ask for none: `{login} ALL=(ALL) NOPASSWD: ALL` in /etc/sudoers.d"
        )
    runs, folder = _ask(_RUNS % (arguments.get("_temp_dir") or state.config.DEFAULT_TEMP_DIR))
    if not runs:
        raise PlanError(
            f"sudo asks for a password on this host, and no program runs in {' '.join(folder)} (mounted noexec?), "
            "where pyinfra puts the helper that hands it over: set config.TEMP_DIR in config.py (and the login's "
            "TMPDIR, if any) to a folder that takes programs, or write "
            f"`{login} ALL=(ALL) NOPASSWD: ALL` into /etc/sudoers.d"
        )
    if password:
        good, said = _ask(f"{words} -S -k -p '' true", stdin=str(password))
        if not good:
            raise PlanError(f"sudo does not take {login}'s _sudo_password: {' '.join(said)[:240]}")


def _ask(command: str, stdin: str | None = None) -> tuple[bool, list[str]]:
    """As the user that logs in: whether a command succeeds, and its lines.

    Each line gets a mark: at the bare words of sudo pyinfra itself would ask for the password.
    """
    given: dict[str, Any] = {"_stdin": stdin} if stdin is not None else {}
    marked = f"{{ {command}\necho $?; }} 2>&1 | sed 's/^/| /'"
    _, output = host.run_shell_command(StringCommand(marked), **given)
    *lines, status = [line.removeprefix("| ") for line in output.stdout_lines] or [""]
    return status == "0", [line for line in lines if line.strip()]
