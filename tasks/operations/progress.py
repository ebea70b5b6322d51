"""Long commands and bring-ups whose progress the user sees: pyinfra hides the output of operations."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from pyinfra import logger
from pyinfra.api import FactBase, Host, State, StringCommand
from pyinfra.api.output import format_text

from tasks.facts.paths import Paths
from tasks.facts.units import Gates
from tasks.operations.files import as_user
from tasks.plan.errors import one_line
from tasks.plan.files import FoundPaths
from tasks.plan.phases import confinement
from tasks.plan.phases.activate import Told
from tasks.plan.plan import Plan
from tasks.plan.release.manifest import checked
from tasks.plan.service.paths import run_of
from tasks.plan.service.restarts import Phase, read_gates
from tasks.support import summary
from tasks.support.connection import of_connector

F = TypeVar("F")
POLL = 0.5  # seconds between two looks at a gate


def run_and_log(state: State, host: Host, command: str, told: str = "") -> bool:
    """Run a command on the host; what it prints is shown line by line as it comes. False when it fails.

    told: its standard input.
    """
    arguments = {**_as_operation(host), "_stdin": told}
    good, output = host.run_shell_command(StringCommand(command), print_output=True, **arguments)
    if not good:
        for line in output.stderr_lines[-1:]:
            summary.fault(host, one_line(line))
    return bool(good)


def start_again(state: State, host: Host, units: Sequence[str]) -> None:
    """Units that an operation has stopped for something that then did not come about."""
    say(host, "the servers start again as they were", "yellow")
    run_and_log(state, host, f"systemctl start --no-block {shlex.join(units)}")


def pass_checks(state: State, host: Host, check: Told) -> bool:
    """Run a check of a release; what it skipped and what failed is shown, a line each. False when it fails."""
    arguments = {**_as_operation(host), "_stdin": check.told}
    good, output = host.run_shell_command(StringCommand(check.command), **arguments)
    try:
        lines = checked(json.loads(output.stdout))
    except ValueError:  # it broke off, or speaks on stderr alone
        lines = output.stderr_lines
    for line in lines:
        say(host, line, None if good else "red")
    return bool(good)


def in_own_unit(plan: Plan, unit: str, command: Sequence[str], keep: str, **limits: object) -> str:
    """The command that runs a tool of ours as the servers' user, in a unit: as servers it inherits nothing of the
    user's environment, and nothing of it outlives the unit.

    keep: the file that the tool leaves its result in. limits: more properties of the unit.
    """
    run = ["systemd-run", "--wait", "--pipe", *_unit(plan, unit, [*command, "--keep", keep], **limits)]
    return f"{_made_room(plan, unit, keep)}; {shlex.join(run)} >/dev/null"


def begun_in_own_unit(plan: Plan, unit: str, command: Sequence[str], keep: str) -> str:
    """As in_own_unit, but the tool goes on while the run does: `until_ended` waits for it.

    Its standard input is that of this command, and gone from the host once the tool has it open.
    """
    words = ["--service-type=exec", f"--property=StandardError=truncate:{_said_by(unit)}"]
    words += ["--property=StandardOutput=null", *_unit(plan, unit, [*command, "--keep", keep])]
    run = f'systemd-run --property=StandardInput=file:"$told" {shlex.join(words)}'
    told = f'told=$(mktemp /run/sglang-pd-told.XXXXXX) && cat >"$told" && {run}; code=$?; rm -f "$told"; exit $code'
    return f"{_made_room(plan, unit, keep)}; ({told})"


def until_ended(unit: str) -> str:
    """The command that shows what a unit of begun_in_own_unit says, until it has ended."""
    said, quoted = shlex.quote(_said_by(unit)), shlex.quote(unit)
    return (
        f"pid=$(systemctl show -p MainPID --value {quoted}); "
        f'if [ "${{pid:-0}}" -gt 0 ]; then tail -n +1 -s 0.2 -f --pid="$pid" {said}; else cat {said}; fi'
    )


def _unit(plan: Plan, unit: str, command: Sequence[str], **limits: object) -> list[str]:
    """systemd-run's words for a unit that is set up as a server's is."""
    properties = {
        "User": plan.settings.service_user,
        "WorkingDirectory": plan.paths.state,
        "LimitNOFILE": plan.open_files,
        **limits,
    }
    words = ["--quiet", "--collect", f"--unit={unit}"]
    words += [f"--property={name}={value}" for name, value in properties.items()]
    words += [f"--property={line}" for option in confinement.of_tool(plan) for line in option.lines]
    return [*words, f"--setenv=HOME={plan.paths.state}", *command]


def _made_room(plan: Plan, unit: str, keep: str) -> str:
    """An interrupted run can have left its unit, and a result of before must not pass for this one."""
    gone = as_user(plan.settings.service_user, "rm", "-f", keep)
    devices = f"; {shlex.quote(plan.paths.bin)}/pd-devices" if plan.on_gpu else ""
    return f"systemctl stop {shlex.quote(unit)} 2>/dev/null; {gone}{devices}"


def _said_by(unit: str) -> str:
    """Where a unit that goes on leaves what it says: root's own folder."""
    return f"/run/{unit.removesuffix('.service')}.log"


def ask(host: Host, command: str) -> str:
    """What a command of the running operation prints, "" where it fails."""
    good, output = host.run_shell_command(StringCommand(command), **_as_operation(host))
    return "\n".join(output.stdout_lines) if good else ""


def left_by(host: Host, user: str, path: str) -> str:
    """The text of a file that a tool left below a folder of its user, "" where there is none."""
    found: FoundPaths = asked(host, Paths(), paths=[], user=user, theirs=[path])
    return found[path].text or "" if path in found else ""


def asked(host: Host, fact: FactBase[F], **arguments: object) -> F:
    """A fact, asked while an operation runs: nothing of it is logged."""
    _, output = host.run_shell_command(StringCommand(str(fact.command(**arguments))), **_as_operation(host))
    return fact.process(output.stdout_lines)


def follow_gates(state: State, host: Host, units: Mapping[str, str], limit: int) -> bool:
    """Wait until every unit is active. Logs what each gate waits for; False with its reason when one fails.

    units: server name -> unit. limit: seconds in line, and as many for the start itself;
    how long the one before may drain, its unit says.
    """
    pending = dict(units)
    said: dict[str, str] = {}
    started = time.monotonic()
    since: dict[str, tuple[Phase, float]] = {}  # of each its phase, and when that began
    while pending:
        folders = {unit: run_of(name) for name, unit in pending.items()}
        looks = read_gates(asked(host, Gates(), units=folders), list(folders))
        for name in [name for name, unit in pending.items() if unit in looks]:
            look = looks[pending[name]]
            now = time.monotonic()
            waited = now - started
            if name not in since or since[name][0] is not look.phase:
                since[name] = (look.phase, now)
            late = look.phase is not Phase.STOPPING and now - since[name][1] > limit
            if look.phase is Phase.READY:
                say(host, f"{name}: ready after {waited:.0f} s", "green")
                del pending[name]
                continue
            if look.phase is Phase.FAILED or late:
                unit = pending[name]
                for line in _reasons(host, unit) or [f"its unit is {look.active} ({look.sub}) after {waited:.0f} s"]:
                    say(host, f"{name}: {line}", "red")
                say(host, f"{name}: more with `journalctl -u {unit}` on the host")
                return False
            if said.get(name) != look.words:
                said[name] = look.words
                say(host, f"{name}: {look.words}, {waited:.0f} s", "blue")
        if pending:
            time.sleep(POLL)
    return True


def say(host: Host, message: str, colour: str | None = None) -> None:
    """One line to the user, with the host's name in front, whatever a server's answer or a user's file put into it."""
    message = one_line(message)
    if colour == "red":
        summary.fault(host, message)
    logger.info(f"{host.print_prefix}{format_text(message, colour) if colour else message}")


def _reasons(host: Host, unit: str) -> list[str]:
    """What root's own steps of the unit said last, its launcher and its gate: the server can write no such line."""
    invocation = f"$(systemctl show -p InvocationID --value {shlex.quote(unit)})"
    script = (
        f'journalctl -o cat "_SYSTEMD_INVOCATION_ID={invocation}" _UID=0 | '
        "grep -aE '^pd-gate: [^:]+: (failed|log line): |^pd-launch: cannot start ' | tail -n 2"
    )
    _, output = host.run_shell_command(StringCommand(script), **_as_operation(host))
    return [line.split(": ", 2)[-1] for line in output.stdout_lines]


def _as_operation(host: Host) -> dict[str, Any]:
    """The running operation's way onto the host (sudo and so on)."""
    return of_connector(cast(dict[str, Any], host.current_op_global_arguments or {}))
