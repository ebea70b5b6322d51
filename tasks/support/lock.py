"""One run at a time: a lock on each host, from the first look at it to the end of the run.

pyinfra opens a channel for each command, over one connection for the whole run. Another channel of that connection
keeps the lock's holder going: it holds the lock until its input ends, with the run, with the connection, or with the
machine that runs pyinfra.
"""

from __future__ import annotations

import contextlib
import getpass
import shlex
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Lock, get_ident
from typing import Any, cast

from paramiko import SSHException, Transport
from pyinfra import host, logger, state
from pyinfra.api import Host, State, StringCommand
from pyinfra.api.state import BaseStateCallback, StateStage
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.util import extract_control_arguments, make_unix_command_for_host
from pyinfra.context import ctx_host

from tasks.facts.runs import Runs
from tasks.plan.errors import PlanError
from tasks.plan.run import record
from tasks.plan.run.record import Found, Locked, Record
from tasks.plan.service.paths import KEPT, LOCK, RESTORING, RESUME, RUN_RECORD, STAMP
from tasks.plan.settings.settings import Settings
from tasks.support import checkout, connection, summary
from tasks.support.dry import is_dry
from tasks.support.refusal import RunEnds

AGAIN = 5.0  # seconds between two attempts of a run that waits
ANSWER = 60.0  # seconds that a host may take to say whether its lock is free

# Bash, which every Debian has: its `read` has a time limit. Lines of standard input are records of tasks.plan.run; each
# takes the place of the one before. After the line "stamp" they are the host's stamp too. Where the input ends and the
# last record has no end yet, the run was lost. The stamp has to outlive a power cut, the record does not.
#
# A change that a run takes back is taken back to its end, also where that run is gone: the next one waits for it.
#
# A line of output now and then: the host's kernel ends a connection whose other side no longer takes it, after
# tcp_retries2 attempts, 15 to 16 minutes. The kernel over there takes it also while pyinfra waits for Enter.
_BEAT = 20  # seconds
_HOLDER = f"""umask 077; trap '' PIPE
[ "$(id -u)" = 0 ] || {{ echo unprivileged; exit; }}
mkdir -p -m 700 {LOCK.rpartition("/")[0]} && exec 9>>{LOCK} || exit 1
flock -w 5 9 || {{ echo held; exit 0; }}
[ ! -e {RESTORING} ] || flock -s -n {RESTORING} true || {{ echo held; exit 0; }}
echo $$ >{LOCK}
if systemctl is-active -q {RESUME}; then systemctl restart {RESUME} </dev/null >&2; fi
echo taken
stamped= last= part=
keep() {{ printf '%s\\n' "$last" >"$1.new" && $2 "$1.new" && mv -fT "$1.new" "$1" && $2 "${{1%/*}}"; }}
note() {{ keep {RUN_RECORD} :; [ -z "$stamped" ] || keep {STAMP} sync; }}
finish() {{ case $last in *'"ended":null}}') last="${{last%null\\}}}}\\"lost\\"}}"; note ;; esac; }}
trap finish EXIT; trap exit TERM HUP INT
while :; do
  if IFS= read -r -t {_BEAT} line; then line=$part$line; part=
    if [ "$line" = forget ]; then stamped=; rm -f {STAMP}; rmdir {KEPT} 2>/dev/null; continue; fi
    if [ "$line" = stamp ]; then mkdir -p -m 700 {KEPT} && stamped=1; else last=$line; fi
    note
  elif [ $? -gt 128 ]; then part=$part$line; echo || exit
  else exit
  fi
done"""


def operator() -> str:
    """Who runs this, and from where."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def take(settings: Settings, also: Sequence[Host] = ()) -> None:
    """Lock every host of this run, or none: the first host that comes here does it for all. A dry run only looks.

    also: hosts that --limit leaves out, and that this run changes nevertheless.
    Tells of the runs before. Raises Locked where another run holds one of the hosts (the setting `wait` waits
    instead), PlanError where a newer playbook ran on this one.
    """
    global _locks
    with _taking:
        if _locks is None:
            locks = _Locks(Record.begun(checkout.here(), settings, operator()), also)
            locks.take(settings.wait)
            state.add_callback_handler(locks)
            _locks = locks
    found = _locks.outcomes[host.name]
    for outcome in (found, *(_locks.outcomes[one.name] for one in also)):
        if isinstance(outcome, PlanError):
            raise outcome
    assert isinstance(found, Found)
    for line in found.told(is_dry()):
        logger.warning(f"{host.print_prefix}{line}")
    if line := found.last(settings):
        logger.info(f"{host.print_prefix}{line}")
    record.older(_locks.record.checkout, found, settings.allow_older)


def again(host: Host) -> None:
    """Lock a host that has booted in the middle of this run. Raises PlanError where another run was there first."""
    if _locks:
        _locks.again(host)


def forget(host: Host) -> None:
    """This run leaves no stamp on a host that it takes everything off."""
    if _locks:
        _locks.forget(host.name)


class _Locks(BaseStateCallback):
    """The locks of this run, and its record, which follows it from operation to operation."""

    def __init__(self, begun: Record, also: Sequence[Host]) -> None:
        self.record = begun
        self._also = also
        self.outcomes: dict[str, Found | PlanError] = {}  # by name of host
        self._holders: dict[str, _Holder] = {}
        self._changes = False

    def take(self, wait: bool) -> None:
        hosts = sorted({*state.inventory.get_active_hosts(), *self._also}, key=lambda one: one.name)
        told = ""
        while True:
            with ThreadPoolExecutor(len(hosts)) as side_by_side:
                found = side_by_side.map(self._attempt, hosts)
                self.outcomes = {one.name: outcome for one, outcome in zip(hosts, found, strict=True)}
            held = {n: f for n, f in self.outcomes.items() if isinstance(f, Found) and f.holder}
            if not held or is_dry():
                break
            for name in [*self._holders]:
                self._holders.pop(name).end()
            lines = [f"{name} is locked by another run of the playbook: {one.held_by}" for name, one in held.items()]
            if not wait:
                also = "; a run locks all of its hosts or none" if len(hosts) > 1 else ""
                advice = f"{also}: try again later, or wait with --data wait=True"
                self.outcomes = dict.fromkeys(self.outcomes, Locked(*(f"{line}{advice}" for line in lines)))
                return
            if told != (told := "; ".join(lines)):
                logger.info(f"waits: {told}")
            time.sleep(AGAIN)
        for holder in self._holders.values():
            holder.send(self.record.line)

    def again(self, one: Host) -> None:
        found = self._attempt(one)
        if isinstance(found, PlanError):
            raise found
        if found.holder:
            raise PlanError(f"another run of the playbook locked it after the reboot: {found.held_by}")
        if holder := self._holders.get(one.name):
            holder.send("stamp", self.record.line)
            holder.stamps, holder.operation = True, get_ident()

    def forget(self, name: str) -> None:
        if holder := self._holders.get(name):
            holder.send("forget", self.record.line)

    def _attempt(self, one: Host) -> Found | PlanError:
        """What the host says of runs; a `holder` in it means that this one has no lock."""
        with ctx_host.use(one):
            try:
                connection.prepare()
                found = record.read(one.get_fact(Runs))
                if is_dry() or found.holder:
                    return found
                holder = _Holder.on(one)
                if holder is None:
                    return found
                if holder.said == "taken":
                    self._holders[one.name] = holder
                    return found
                holder.end()
                if holder.said == "unprivileged":  # the check of root says what to do
                    return found
                if holder.said == "held":
                    return replace(record.read(one.get_fact(Runs)), holder="unknown")
                raise PlanError(f"the lock of this host cannot be taken: {holder.said or holder.complaint}")
            except PlanError as fault:
                return fault

    # ---- called by pyinfra

    def operation_host_start(self, state: State, host: Host, op_hash: str) -> None:  # type: ignore[override]
        holder = self._holders.get(host.name)
        if holder is None:
            return
        if holder.ended:
            raise RunEnds(f"{host.name}: this run has lost its lock there ({LOCK}): what held it has ended; run again.")
        self.record = self.record.model_copy(update={"phase": f"at {summary.name_of(state, host, op_hash)!r}"})
        holder.send(*([] if holder.stamps else ["stamp"]), self.record.line)
        holder.stamps = True
        holder.operation = get_ident()

    def host_disconnect(self, state: State, host: Host) -> None:  # type: ignore[override]
        holder = self._holders.pop(host.name, None)
        if holder is None:
            return
        ended = record.ending(
            began=holder.stamps,
            rebooting=bool(host.executing_op_hash) and get_ident() == holder.operation,
            failed=bool(state.failed_hosts or (host.connected and state.get_results_for_host(host).error_ops)),
            over=state.current_stage is StateStage.Disconnect,
        )
        holder.send(self.record.model_copy(update={"ended": ended}).line)
        holder.end()


class _OverSsh:
    """A process on a host, in a channel of pyinfra's own connection."""

    def __init__(self, transport: Transport, command: str) -> None:
        self._channel = transport.open_session(timeout=ANSWER)
        self._channel.settimeout(ANSWER)
        self._channel.exec_command(command)
        self.stdin: Any = self._channel.makefile_stdin("wb", 0)
        self.stdout: Any = self._channel.makefile("rb", 0)
        self.stderr: Any = self._channel.makefile_stderr("rb", 0)

    @property
    def ended(self) -> bool:
        return self._channel.closed or self._channel.exit_status_ready()

    def wait(self) -> None:
        self._channel.shutdown_write()
        self._channel.status_event.wait(ANSWER)


class _Here:
    """A process on this machine, which is the host."""

    def __init__(self, command: str) -> None:
        # a session of its own: Ctrl-C at the terminal is pyinfra's
        self._process = Popen(command, shell=True, start_new_session=True, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        self.stdin: Any = self._process.stdin
        self.stdout: Any = self._process.stdout
        self.stderr: Any = self._process.stderr

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> None:
        self.stdin.close()
        self._process.wait(ANSWER)


class _Holder:
    """What holds the lock of a host. said: its first line."""

    def __init__(self, process: _OverSsh | _Here) -> None:
        self._process = process
        self.stamps = False  # whether its record is also the host's stamp
        self.operation = 0  # thread of the last operation there: Ctrl-C can leave one behind, half done
        self.said = process.stdout.readline().decode().strip()
        self.complaint = "" if self.said else " ".join(process.stderr.read().decode(errors="replace").split())[:240]

    @classmethod
    def on(cls, host: Host) -> _Holder | None:
        """Raises PlanError. None where pyinfra comes neither by ssh nor as @local."""
        client = getattr(host.connector, "client", None)
        transport = client.get_transport() if client else None
        if transport is None and not isinstance(host.connector, LocalConnector):
            return None
        arguments = connection.way(host)
        extract_control_arguments(cast(Any, arguments))
        asked = StringCommand(f"exec bash -c {shlex.quote(_HOLDER)}")
        try:
            command = make_unix_command_for_host(state, host, asked, **arguments).get_raw_value()
            return cls(_OverSsh(transport, command) if transport else _Here(command))
        except (OSError, EOFError, SSHException) as fault:
            raise PlanError(f"the lock of this host cannot be taken: {fault or type(fault).__name__}") from None

    @property
    def ended(self) -> bool:
        return self._process.ended

    def send(self, *lines: str) -> None:
        with contextlib.suppress(OSError):  # it has ended: the next look at it tells
            self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            self._process.stdin.flush()

    def end(self) -> None:
        """Let go of the lock, and wait until it is free."""
        with contextlib.suppress(OSError, EOFError, TimeoutExpired):
            self._process.wait()


_taking = Lock()
_locks: _Locks | None = None
