"""Runs that are broken off at one operation: the next run must mend what they left.

make test-faults PART=1/20 SEED=3 plays that part of the matrix: every operation of a first run, ended in every way. One
unbroken run on a bare host comes first. It tells the operations, and what a host looks like on which nothing broke.

Every command of the run that is to break waits on the host, in front of the user's shell, until the harness lets it go.
So the fault strikes while the operation is under way: before, within or after one of its commands. Nothing of the
playbook knows of it.

A case: the run breaks off; what was taken away comes back; a second run, which tells whose lock it takes over, must end
well; the service must answer; a third run must change nothing; the host must hold what an unbroken one holds, and no
more. TOGETHER=N breaks N runs over one host, each at a later operation than the one before, and then asks for all this
once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.node.asking import answers, out
from tests.node.closed import closed
from tests.node.deploying import Result, command_line, deploy, environment
from tests.node.node import REPOSITORY, Node
from tests.node.process import NodeError, command

DISK_GB = 24
ENDS_S = 60.0  # for a run whose host is gone, or that was asked to end; then it is killed
FOLDER, SHELL = "run/held", "usr/local/sbin/held-shell"
STARTING = re.compile(r"Starting operation: (.+)")
# Stands before the shell of whoever logs in with the harness's key.
HELD = f"""#!/bin/sh
run() {{ "${{SHELL:-/bin/sh}}" -c "$SSH_ORIGINAL_COMMAND"; }}
[ -p /{FOLDER}/ask ] || {{ run; exit; }}
exec 3<>/{FOLDER}/ask
mkfifo "/{FOLDER}/$$"
echo "$$ $PPID begins" >&3
read -r what <"/{FOLDER}/$$"
case $what in
    go) exec 3>&-; run; exit ;;
    watched) (exec 3>&-; run); ended=$?; echo "$$ $PPID ended" >&3; read -r what <"/{FOLDER}/$$"; exit $ended ;;
esac
"""
# What may differ between two hosts that were made alike: caches, logs, what the system itself keeps, and what is told
# once a reboot has made the proof stale.
NOT_OURS = re.compile(
    r"^/(var/lib/(apt|dpkg|systemd|private|sglang-pd/cache)|var/(log|cache)|usr|run/(held|systemd|user|log|lock|utmp)|"
    r"etc/(ld\.so\.cache|ssl|sglang-pd/probe-stale)|opt/sglang-pd/cache|lib/systemd|(var/)?tmp/systemd-private)\b|"
    r"/__pycache__|\.pyc$|^/etc/.*[~-]$|^\(sd-|^/usr/sbin/sshd|^sshd: "
)
LOOK = """find /etc /opt /root /tmp /var /run /home /srv /dev/shm -xdev 2>/dev/null
for process in /proc/[0-9]*; do [ $process = /proc/$$ ] || tr '\\0' ' ' <$process/cmdline && echo; done 2>/dev/null; true"""
# The same file of two hosts: random parts, process numbers and dates do not count.
VARYING = re.compile(r"(?<=/tmp/tmp)\w{8}|(?<=[./_@-])(?=[0-9a-zA-Z_]*\d)[0-9a-zA-Z_]{8,}|\d+")


class Ask:
    """The place on a host where commands ask whether they may go."""

    def __init__(self, node: Node) -> None:
        self.node = node
        root = node.inside
        self.folder = root / FOLDER
        key = (root / "root/.ssh/authorized_keys").read_text().split("ssh-ed25519", 1)[1]
        (root / SHELL).write_text(HELD)
        (root / SHELL).chmod(0o755)
        (root / "root/.ssh/authorized_keys").write_text(f'command="/{SHELL}" ssh-ed25519{key}')
        self.folder.mkdir(exist_ok=True)
        os.mkfifo(self.folder / "ask")
        self.descriptor = os.open(self.folder / "ask", os.O_RDWR | os.O_NONBLOCK)

    def asked(self) -> list[tuple[int, int, str]]:
        """The command's process, that of its connection, and what it says."""
        lines = os.read(self.descriptor, 1 << 16).decode().splitlines()
        return [(int(pid), int(parent), what) for pid, parent, what in (line.split() for line in lines)]

    def answer(self, pid: int, word: str) -> None:
        end = time.monotonic() + 10
        while True:
            try:
                descriptor = os.open(self.folder / str(pid), os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # it has not opened its end yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.001)
        os.write(descriptor, f"{word}\n".encode())
        os.close(descriptor)

    def open_for_all(self) -> None:
        """From now on no command asks any more; the one that waits goes on waiting."""
        (self.folder / "ask").unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self.descriptor)
        with contextlib.suppress(NodeError):
            self.node.run(f"rm -rf /{FOLDER}")


@dataclass(frozen=True)
class Case:
    """One way for a run to end."""

    kind: str
    operation: str
    moment: str = "before"  # one of its commands; "within" or "after" it
    share: float = 0.5  # "within": of the seconds that the command took in the unbroken run
    number: int = 0  # which of the operation's commands
    signal: signal.Signals = signal.SIGKILL

    @property
    def how(self) -> str:
        if self.kind in TAKEN:
            return f"{self.kind} from command {self.number + 1} on"
        named = f"{self.kind} ({self.signal.name})" if self.kind == "control process ended" else self.kind
        return f"{named} {self.moment} command {self.number + 1}"


@dataclass
class Broken:
    """What became of a run."""

    status: int
    output: str
    result: Result
    commands: dict[str, list[float]]  # operation: seconds of each command; only of watched runs
    struck: str = ""  # what shows that the fault struck; "" where it did not


@dataclass
class Outcome:
    """What became of a host after its runs broke."""

    cases: list[Case]
    struck: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


@contextlib.contextmanager
def full_disk(node: Node) -> Iterator[None]:
    """Not a byte is free."""
    filler = node.folder / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            size, part = 0, 1 << 30
            while part >= 4096:  # what is free changes meanwhile, and a file takes more than its bytes
                try:
                    os.posix_fallocate(file.fileno(), size, part)
                    size += part
                except OSError:
                    part //= 2
            file.seek(0, os.SEEK_END)
            with contextlib.suppress(OSError):
                while file.write(b"\0" * 4096):
                    pass
        yield
    finally:
        filler.unlink(missing_ok=True)


@contextlib.contextmanager
def no_source(node: Node) -> Iterator[None]:
    with closed(node):
        yield


def end_process(node: Node, run: subprocess.Popen[str], parent: int, case: Case) -> None:
    run.send_signal(case.signal)


def cut_connection(node: Node, run: subprocess.Popen[str], parent: int, case: Case) -> None:
    """The host's end of it; what it started there runs on."""
    node.run(f"kill -KILL {parent}")


def cut_cable(node: Node, run: subprocess.Popen[str], parent: int, case: Case) -> None:
    """No packet comes through until the control machine has gone too."""
    command("ip", "link", "set", node.network.link, "down")
    try:
        run.kill()
        run.wait()
    finally:
        command("ip", "link", "set", node.network.link, "up")


def cut_power(node: Node, run: subprocess.Popen[str], parent: int, case: Case) -> None:
    node.power_cut()


ENDED: dict[str, Callable[[Node, subprocess.Popen[str], int, Case], None]] = {
    "control process ended": end_process,
    "connection cut": cut_connection,
    "cable pulled": cut_cable,
    "host powered off": cut_power,
}
TAKEN = {"disk full": full_disk, "package source gone": no_source}
FETCHING = re.compile(r"packages$|uv$|Runtime \| Release |Model \| Model ")  # operations that ask a source or the hub


def run_until(node: Node, case: Case | None, seconds: dict[str, list[float]], **data: object) -> Broken:
    """One run, broken as the case says; without one it is watched to its end. Whatever was taken is back afterwards."""
    asking = Ask(node)
    commands: dict[str, list[float]] = {}
    operation, text, struck = "", "", ""
    begun: dict[int, tuple[str, float]] = {}
    due: tuple[float, int, int] | None = None  # when to act, on whose command
    with contextlib.ExitStack() as taken, tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            command_line("-y", "--json", **data), cwd=REPOSITORY, env=environment(node), stdin=subprocess.DEVNULL,
            stdout=told, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        said = process.stderr.fileno()
        os.set_blocking(said, False)
        selector = selectors.DefaultSelector()
        selector.register(said, selectors.EVENT_READ)
        selector.register(asking.descriptor, selectors.EVENT_READ)

        def hear() -> bool:
            """What it said so far; False once it says nothing more."""
            nonlocal text, operation
            with contextlib.suppress(BlockingIOError):
                while part := os.read(said, 1 << 16):
                    text += part.decode(errors="replace")
                    operation = (STARTING.findall(text) or [""])[-1].strip()
                return False
            return True

        def act(pid: int, parent: int) -> None:
            nonlocal struck, due
            assert case is not None
            due = None
            asking.open_for_all()
            hear()
            finished = operation != case.operation
            ENDED[case.kind](node, process, parent, case)
            struck = "" if finished else f"{case.operation}: begun, {case.how}, not finished"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDS_S)
            process.kill()
            if case.kind != "host powered off":
                node.run(f"kill -KILL {pid}")

        try:
            heard = True
            while heard:
                limit = max(0.0, due[0] - time.monotonic()) if due else None
                ready = [key.fd for key, _ in selector.select(limit)]
                heard = hear()  # before what is asked: a command of an operation comes after the line that names it
                if due and time.monotonic() >= due[0]:
                    act(*due[1:])
                if asking.descriptor not in ready or struck:
                    continue
                for pid, parent, what in asking.asked():
                    if what == "ended":
                        name, since = begun.pop(pid)
                        if due and due[1] == pid:
                            act(pid, parent)
                        else:
                            commands.setdefault(name, []).append(time.monotonic() - since)
                            asking.answer(pid, "go")
                        continue
                    begun[pid] = (operation, time.monotonic())
                    if case is None:
                        asking.answer(pid, "watched")
                        continue
                    number = len(commands.setdefault(operation, []))
                    if operation != case.operation or number != case.number:
                        commands[operation].append(0.0)
                        asking.answer(pid, "go")
                    elif case.kind in TAKEN:
                        asking.open_for_all()
                        taken.enter_context(TAKEN[case.kind](node))
                        asking.answer(pid, "go")
                    elif case.moment == "before":
                        act(pid, parent)
                    else:
                        took = seconds.get(operation, [])[number : number + 1] or [1.0]
                        share = case.share if case.moment == "within" else 1e6
                        due = (time.monotonic() + share * took[0], pid, parent)
                        asking.answer(pid, "watched")
            process.wait()
        finally:
            process.kill()
            process.wait()
            asking.open_for_all()
        told.seek(0)
        last = told.read().strip().splitlines()[-1:] or [""]
    asking.close()
    report = json.loads(last[0]) if last[0].startswith("{") else {}
    if case and case.kind in TAKEN and process.returncode != 0:
        struck = f"{operation}: failed, {case.how}"
    return Broken(process.returncode, text, Result(process.returncode, text, report), commands, struck)


def look(node: Node) -> set[str]:
    """Files and processes, as far as two hosts that were made alike have the same."""
    lines = filter(str.strip, out(node, LOOK).splitlines())
    return {VARYING.sub("#", line.strip()) for line in lines if not NOT_OURS.search(line) and "held-shell" not in line}


@dataclass
class Unbroken:
    """A first run on a bare host, to its end."""

    operations: dict[str, list[float]]  # that changed something, in their order: seconds of each command
    seen: set[str]


def unbroken(node: Node) -> Unbroken:
    started = time.monotonic()
    ran = run_until(node, None, {})
    assert ran.status == 0, ran.output
    say(f"unbroken: {time.monotonic() - started:.0f} s")
    changed = [name for name in ran.result.changed if name in ran.commands]
    again = deploy(node, "-y")
    assert (again.status, again.changed) == (0, []), again.output
    return Unbroken({name: ran.commands[name] for name in changed}, look(node))


def whole_again(node: Node, seen: set[str], **data: object) -> list[str]:
    """What is still wrong after one run more; [] when all is well."""
    second = deploy(node, "-y", wait=True, **data)  # the lock of a run whose cable was pulled outlives it for a while
    for line in second.output.splitlines():
        if "takes over: " in line:
            say(f"  {line.strip()}")
    if second.status != 0:
        last = [line for line in second.output.splitlines() if line.strip()][-12:]
        return ["the second run failed: " + " / ".join(line.strip()[:300] for line in last)]
    wrong = [] if answers(node) else ["it does not answer"]
    third = deploy(node, "-y", **data)
    if third.status != 0 or third.changed:
        wrong.append(f"the third run ended with {third.status} and changed {third.changed}")
    if left := look(node) - seen:
        wrong.append(f"left over: {sorted(left)[:8]}")
    return wrong


def matrix(operations: dict[str, list[float]], seed: int) -> list[Case]:
    """Every operation, ended in every way; when and how exactly, the seed says."""
    cases = []
    for operation, commands in operations.items():
        for kind in (*ENDED, *TAKEN):
            if kind == "package source gone" and not FETCHING.search(operation):
                continue
            dice = random.Random(f"{seed} {kind} {operation}")
            cases.append(
                Case(
                    kind, operation, dice.choice(["before", "within", "within", "after"]), dice.random(),
                    0 if kind in TAKEN else dice.randrange(len(commands)),
                    dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM]),
                )
            )  # fmt: skip
    random.Random(seed).shuffle(cases)
    return cases


def groups(cases: list[Case], order: list[str], together: int) -> list[list[Case]]:
    """Cases that one host takes one after the other, at ascending operations."""
    count = -(-len(cases) // together)
    ordered = sorted(cases, key=lambda case: order.index(case.operation))
    return [ordered[number::count] for number in range(count)]


def play(name: str, cases: list[Case], reference: Unbroken) -> Outcome:
    outcome, started, node = Outcome(cases), time.monotonic(), Node(name)
    try:
        node.up(disk_gb=DISK_GB)
        for case in cases:
            broken = run_until(node, case, reference.operations, wait=True)
            outcome.struck.append(broken.struck)
            say(
                f"  {broken.struck or f'{case.operation}: {case.how}: did not strike, the run ended with {broken.status}'}"
            )
        outcome.wrong = whole_again(node, reference.seen)
    except (AssertionError, NodeError, OSError) as error:
        outcome.wrong.append(f"the harness: {type(error).__name__}: {str(error)[:600]}")
    finally:
        node.down()
    outcome.seconds = time.monotonic() - started
    say(f"  {'mended' if not outcome.wrong else outcome.wrong} ({outcome.seconds:.0f} s)")
    return outcome


def table(outcomes: list[Outcome]) -> str:
    """Counts for each kind, as docs/reliability.md has them."""
    tried: Counter[str] = Counter(case.kind for outcome in outcomes for case in outcome.cases)
    struck: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for outcome in outcomes:
        for case, shown in zip(outcome.cases, outcome.struck, strict=False):
            struck[case.kind] += bool(shown)
            survived[case.kind] += bool(shown) and not outcome.wrong
    kinds = [kind for kind in (*ENDED, *TAKEN) if tried[kind]]
    rows = [(kind, tried[kind], struck[kind], survived[kind]) for kind in kinds]
    rows.append(("all", tried.total(), struck.total(), survived.total()))
    lines = ["| how the run ended | tried | struck | survived |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def say(line: str) -> None:
    print(line, flush=True)


def part(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    if not (number.isdigit() and of.isdigit() and 0 < int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"not a part such as 1/20: {text}")
    return int(number), int(of)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.node.broken_runs", description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=part, default=(1, 40), metavar="N/M", help="of the matrix (default: 1/40)")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="runs that break over one host")
    parser.add_argument("--kind", action="append", choices=[*ENDED, *TAKEN], help="only this one; may be repeated")
    parser.add_argument("--only", default="", metavar="REGEX", help="only operations whose name it matches")
    parser.add_argument("--unbroken", type=Path, metavar="FILE", help="what the unbroken run told: read, or written")
    arguments = parser.parse_args()
    number, of = arguments.part
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(
        f"== {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: part {number}/{of}, seed {arguments.seed}, together {arguments.together}"
    )

    if arguments.unbroken and arguments.unbroken.exists():
        told = json.loads(arguments.unbroken.read_text())
        reference = Unbroken(told["operations"], set(told["seen"]))
    else:
        node = Node(f"unbroken-{os.getpid()}")
        try:
            node.up(disk_gb=DISK_GB)
            reference = unbroken(node)
        finally:
            node.down()
        if arguments.unbroken:
            told = {"operations": reference.operations, "seen": sorted(reference.seen)}
            arguments.unbroken.write_text(json.dumps(told, indent=1) + "\n")
    cases = matrix(reference.operations, arguments.seed)
    chosen = [
        case
        for case in cases[number - 1 :: of]
        if re.search(arguments.only, case.operation) and case.kind in (arguments.kind or [*ENDED, *TAKEN])
    ]
    say(f"{len(reference.operations)} operations; the matrix has {len(cases)} cases, this part {len(chosen)}")
    outcomes = []
    for at, group in enumerate(groups(chosen, [*reference.operations], arguments.together)):
        say(f"-- host {at + 1}: {len(group)} broken runs")
        outcomes.append(play(f"broken-{os.getpid()}", group, reference))
    say(table(outcomes))
    for outcome in outcomes:
        if outcome.wrong:
            say(f"NOT MENDED: {[f'{case.operation}: {case.how}' for case in outcome.cases]}: {outcome.wrong}")
    return int(any(outcome.wrong for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
