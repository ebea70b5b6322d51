"""Servers of several hosts out of use: out of the file of each router, drained, and back into it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum

from pyinfra import host
from pyinfra.api import Host, State, StringCommand, operation
from pyinfra.connectors.util import CommandOutput

from tasks.facts import paths
from tasks.operations import files
from tasks.operations.passed import before_changes
from tasks.operations.progress import run_and_log, say
from tasks.operations.upload import sent
from tasks.plan.errors import PlanError
from tasks.plan.files import FoundPath, as_wanted
from tasks.plan.phases.passed import arming, disarming
from tasks.plan.phases.routing import listed, shortened, workers_file
from tasks.plan.plan import Plan
from tasks.plan.service.paths import Paths
from tasks.support import fleet
from tasks.support.connection import way

FOLLOWS = 30  # seconds in which a router follows its file, at which it looks every 2 s
LOOKS = 6  # seconds in which it has looked; it has a server of its file once that has answered


@dataclass(frozen=True)
class Router:
    """A router that reads from a file which servers get requests, and its host."""

    host: Host
    paths: Paths
    url: str
    certificate: str | None  # the file with the one that it shows
    units: tuple[str, ...]  # of its host, that go on while the file changes; () where nothing runs there

    def asked(self) -> str:
        """The questions with known answers, asked through it: what is wrong, "" where every answer is right."""
        right, output = self._run(shlex.join([f"{self.paths.bin}/pd-verify", "--config", self.paths.verify]))
        lines = [line.strip() for line in (*output.stderr_lines, *output.stdout_lines)]
        said = [line for line in lines if line.startswith(("FAIL ", "why: "))] or lines[-1:]
        return "" if right else f"asked through {self.host.name}: {' '.join(said)}"

    def count(self) -> int | None:
        """How many servers it has now; None where it does not tell."""
        _, output = self._run(shlex.join(self._ask(1)))
        told = "".join(output.stdout_lines[-1:])
        return int(told) if told.isdecimal() else None

    def follows(self, count: int, sure: bool) -> str:
        """Waits until it has so many servers; why it has not, "" where it has.

        sure: it had all of its file before. Else nobody knows which of them it had, and it is given time to look.
        """
        good, output = self._run(shlex.join([*self._ask(FOLLOWS if sure else LOOKS), "--servers", str(count)]))
        return "" if good or not sure else " ".join(output.stderr_lines)

    def listed(self) -> str:
        _, output = self._run(f"cat {shlex.quote(self.paths.workers)}")
        return "\n".join(output.stdout_lines)

    def told(self, content: bytes, returns: bool) -> str:
        """Writes the file; why it could not, "" where it did.

        returns: should this run break off, the file becomes again what it was when it last passed.
        """
        file = shlex.quote(self.paths.workers)
        put = f"for how in chown chmod; do $how --reference={file} {file}.new || exit; done; mv -fT {file}.new {file}"
        if returns:
            put = f"{{ {arming(self.paths, self.units)}; }} && {{ {put}; }}"
        upload = sent(content, f"{self.paths.workers}.new")
        good, output = self._run(upload.get_raw_value(), **upload.connector_arguments)
        if good:
            good, output = self._run(put)
        return "" if good else " ".join(output.stderr_lines)

    def disarm(self) -> None:
        """Its file stays as it is, whatever becomes of this run."""
        self._run(disarming())

    def _run(self, command: str, **more: object) -> tuple[bool, CommandOutput]:
        return self.host.run_shell_command(StringCommand(command), **{**way(self.host), **more})

    def _ask(self, limit: int) -> list[str]:
        words = [f"{self.paths.bin}/pd-drain", "router", "--url", self.url, "--limit", str(limit)]
        return [*words, "--certificate", self.certificate] if self.certificate else words


class Then(Enum):
    """What becomes of servers that were out of use, and until when they are."""

    SERVE = "until it is back"
    REST = "until it is started again"  # in the router's file, and given requests as soon as it is ready
    LEAVE = "from then on"


@dataclass(frozen=True)
class Away:
    """Servers of one host that are out of use for a while, or for good."""

    servers: Mapping[str, str]  # URL -> name
    lone: tuple[str, ...]  # why no request is answered meanwhile, in words
    routers: tuple[Router, ...]
    tool: str  # pd-drain on their host
    limit: int  # seconds in which they drain
    then: Then = Then.SERVE

    @property
    def names(self) -> str:
        return " and ".join(self.servers.values())


def out_of_use(state: State, host: Host, away: Away, act: Callable[[State, Host], bool]) -> bool:
    """What act returns, called while no router sends the servers anything, and nothing is in flight in them.

    False, and nothing done, where a router cannot be told.
    """
    began = time.monotonic()
    for line in away.lone:
        say(host, f"{line}: no request is answered {away.then.value}", "yellow")
    # where nothing runs nothing is sent, and the way back of a run that breaks off would start what somebody stopped
    told = [router for router in away.routers if router.units or away.then is Then.LEAVE]
    before = [(router, router.listed(), router.count()) for router in told]
    for number, (router, text, count) in enumerate(before):
        if fault := _leave(host, away, router, text, count):
            _tell(host, router, fault)
            say(host, f"{away.names}: no change, since a router still sends requests there", "red")
            for one, was, _ in before[:number]:
                one.told(shortened(was), returns=False)
            return False
    for url in sorted(away.servers):
        run_and_log(state, host, shlex.join([away.tool, "server", "--url", url, "--limit", str(away.limit)]))
    good = act(state, host)
    if away.then is Then.LEAVE:
        return good
    for router, text, count in before:
        fault = router.told(shortened(text), returns=False)
        if good and not fault and count is not None and away.then is Then.SERVE:
            fault = router.follows(count, count == len(listed(text)))
        if fault:
            _tell(host, router, fault)
    if away.then is Then.SERVE and (away.lone or away.servers):
        took = f"{time.monotonic() - began:.0f} s"
        say(host, f"no request was answered for {took}" if away.lone else f"{away.names} was away for {took}")
    return good


def _leave(host: Host, away: Away, router: Router, text: str, count: int | None) -> str:
    """Takes the servers out of a router's file; why it could not, "" where it could."""
    try:
        content = shortened(text, away.servers)
    except PlanError as error:
        return " ".join(error.lines)
    if fault := router.told(content, returns=away.then is not Then.LEAVE):
        return fault
    # without the last of a role it has no count to tell
    if count and not away.lone and (late := router.follows(count - len(away.servers), count == len(listed(text)))):
        _tell(host, router, late)
    return ""


def _tell(host: Host, router: Router, fault: str) -> None:
    say(host, f"{router.host.name}, {router.paths.workers}: {fault[-240:]}", "yellow")


@operation()
def written(plan: Plan, found: FoundPath | None = None, first: str = "") -> Generator[StringCommand, None, None]:
    """The file that this host's router reads, without servers of hosts that failed and do not serve the same.

    found: None once it was written, to look again. first: a command that comes before the change.
    """
    gone = fleet.gone(plan)
    wanted = workers_file(plan, gone)
    assert wanted is not None
    if found is None:
        if not gone:
            host.noop("no server is left out")
            return
        found = host.get_fact(paths.Paths, paths=[wanted.path])[wanted.path]
    first = first or before_changes(plan, not as_wanted(wanted, found))
    yield from files.file._inner(wanted=wanted, found=found, first=first)
