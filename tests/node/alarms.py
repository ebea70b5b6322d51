"""Which alert fires for which fault, and when, measured on a simulated host: python -m tests.node.alarms

A host is deployed with Prometheus, and broken. Times are Prometheus' own, with the rules as they are installed: it looks
every 15 s. Faults of one group are made at the same time, each is mended once all its alerts have fired. The table goes
to the terminal; --write puts it into docs/monitoring.md, with the day and the machine.

exit codes: 0 each alert fired and cleared, and none where none should; 1 not so; 2 wrong usage
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from tests.node import hanging
from tests.node.asking import CONFIG, out
from tests.node.crashes import arguments, put, whole
from tests.node.deploying import provisioned
from tests.node.node import REPOSITORY, Node
from tests.node.process import command
from tests.node.steady import steady
from tests.node.waiting import until
from tests.node.watching import alerts, asked, panels, rules

PAGE = REPOSITORY / "docs/monitoring.md"
BEGIN, END = "<!-- alarms: written by python -m tests.node.alarms --write -->", "<!-- alarms end -->"
GIVES_UP = Path(__file__).with_name("gives_up.py")
LEND = Path(__file__).with_name("lend.py")
LIMIT_S = 1800.0  # until an alert fires, or clears
SILENT_S = 120.0  # so long nothing may fire after a fault that is none
FOR_AN_HOUR = {"RestartsOftenByItself", "WatchdogRestarts"}  # they count within an hour
DISK_GB = 12


@dataclass(frozen=True)
class Drill:
    name: str
    break_it: Callable[[Node], object]
    fires: tuple[str, ...] = ()  # () = nothing may fire
    mend: Callable[[Node], object] | None = None
    asked: bool = False  # whether a client asks meanwhile
    shows: tuple[str, ...] = ()  # panels, DASHBOARD: TITLE, that must show something above zero while it lasts


@dataclass
class Seen:
    """Seconds from the fault, and from its repair."""

    drill: Drill
    began: float
    fired: dict[str, float] = field(default_factory=dict)
    mended: float = 0.0
    cleared: dict[str, float] = field(default_factory=dict)

    def look(self, firing: list[str]) -> None:
        now = time.monotonic()
        for alert in self.drill.fires:
            if alert in firing:
                self.fired.setdefault(alert, now - self.began)
            elif self.mended and alert in self.fired:
                self.cleared.setdefault(alert, now - self.mended)

    @property
    def all_fired(self) -> bool:
        return set(self.drill.fires) == self.fired.keys()

    @property
    def over(self) -> bool:
        return self.mended > 0 and set(self.drill.fires) == self.cleared.keys()


def give_up(node: Node) -> None:
    """Requests that their clients leave: in queues, while KV cache is on its way, while decode answers."""
    with_watchdog = "systemctl stop sglang-pd-watchdog; {}; systemctl start sglang-pd-watchdog"
    ran = node.run(with_watchdog.format("python3 -"), text=GIVES_UP.read_text(), timeout=300)
    assert ran.returncode == 0, ran.stderr
    print(ran.stdout, flush=True)


def shell(body: str) -> Callable[[Node], object]:
    return lambda node: out(node, hanging.script(body))


def run_again(node: Node) -> None:
    provisioned(node)


# decode ends and does not come back
DROP_IN = "/run/systemd/system/sglang-pd-decode.service.d"
GONE = (
    f"mkdir -p {DROP_IN}; printf '[Service]\\nExecStartPre=/bin/false\\n' >{DROP_IN}/drill.conf; systemctl daemon-reload; "
    "kill -KILL $(main decode)"
)
BACK = f"rm {DROP_IN}/drill.conf; systemctl daemon-reload; systemctl reset-failed; systemctl restart --no-block sglang-pd.target"
# UCX on TCP alone, and the loopback device, which both servers of a host use, made slow. NIXL refuses a UCX_TLS without
# cuda_copy where it sees GPUs, and here nvidia-smi shows some.
SLOW = f"""
for role in prefill decode; do echo UCX_TLS=tcp,cuda_copy >>{CONFIG}/$role.env; done
systemctl restart sglang-pd.target
tc qdisc add dev lo root tbf rate 8mbit burst 128k limit 20m
"""
FAST = "tc qdisc del dev lo root"
# room enough for Prometheus to go on: on a disk without any it tells nothing more
FULL = "fallocate -l $(( $(df -k --output=avail /var/lib | tail -n 1) - 512 * 1024 ))k /var/lib/full"
EDIT = f"sed -i 's/--max-running-requests 8/--max-running-requests 7/' {CONFIG}/prefill.sh"
HELD = """
import os, signal, subprocess, sys, time
sys.path.insert(0, "/run")
import gives_up
os.kill(gives_up.scheduler("prefill"), signal.SIGSTOP)
lines = [gives_up.send(False, 100, 50) for _ in range(10)]
time.sleep(2)
subprocess.run(["systemctl", "kill", "-s", "KILL", "sglang-pd-prefill"], check=True)
time.sleep(20)
"""


def killed_while_asked(node: Node) -> None:
    """Prefill dies while decode has made room for requests whose KV cache it waits for."""
    node.run("cat >/run/gives_up.py", text=GIVES_UP.read_text())
    ran = node.run("python3 -", text=HELD)
    assert ran.returncode == 0, ran.stderr


def fast_again(node: Node) -> None:
    shell(FAST)(node)
    provisioned(node)


GROUPS = [
    [Drill("clients give requests up, before and after their KV cache has moved", give_up)],
    [
        Drill(
            "prefill killed, which ten requests wait for",
            killed_while_asked,
            ("KvTransferFails", "RetriesExhausted"),
            lambda node: None,  # systemd starts it again
            shows=(
                "Prefill to decode: Failures within 5 minutes",
                "Prefill to decode: Tries of the router within 5 minutes",
            ),
        )
    ],
    [
        Drill(
            "decode killed, and does not come back, while a client asks once a second",
            shell(GONE),
            ("RoleDown", "RouterAvoidsServer", "ServerDown", "RetriesExhausted", "RequestsFail"),
            shell(BACK),
            asked=True,
            shows=("SGLang service: Answers by status",),
        ),
        Drill(f"a disk of {DISK_GB} GB filled", shell(FULL), ("DiskFull",), shell("rm /var/lib/full")),
        Drill("a line of prefill's launch script changed by hand", shell(EDIT), ("ChangedByHand",), run_again),
    ],
    [Drill("KV cache moves over TCP at 8 Mbit/s (`tc`'s TBF)", shell(SLOW), ("KvSlow",), fast_again, asked=True)],
]


def shown(node: Node, drill: Drill) -> list[str]:
    """Panels that show nothing of the fault."""
    missing = []
    for panel in drill.shows:
        series = [
            one for query in panels()[panel] for one in asked(node, f"/api/v1/query?query={quote(query)}")["result"]
        ]
        if not any(float(one["value"][1]) > 0 for one in series):
            missing.append(panel)
    return missing


def played(node: Node, group: list[Drill]) -> tuple[list[Seen], list[str]]:
    """What was seen of faults that are made at the same time, and what is wrong with it."""
    wanted = {alert for drill in group for alert in drill.fires}
    mute = wanted or set(rules()) - FOR_AN_HOUR
    until(lambda: mute.isdisjoint(alerts(node)), "no alert of before fires any more", LIMIT_S)
    before = set(alerts(node))
    wrong: list[str] = []
    every: list[Seen] = []
    with ExitStack() as stack:
        if any(drill.asked for drill in group):
            stack.enter_context(steady(node, rate=1))
        for drill in group:
            every.append(Seen(drill, time.monotonic()))
            drill.break_it(node)
        strange: set[str] = set()
        end = time.monotonic() + LIMIT_S
        while not all(seen.over for seen in every) and time.monotonic() < end:
            firing = alerts(node)
            strange |= set(firing) - wanted - before
            for seen in every:
                seen.look(firing)
                silent = not seen.drill.fires and time.monotonic() - seen.began > SILENT_S
                if not seen.mended and seen.all_fired and (seen.drill.fires or silent):
                    wrong += [f"{seen.drill.name}: nothing in {panel}" for panel in shown(node, seen.drill)]
                    if seen.drill.mend:
                        seen.drill.mend(node)
                    seen.mended = time.monotonic()
            time.sleep(2)
    for seen in every:
        left = set(seen.drill.fires) - seen.cleared.keys()
        wrong += [f"{seen.drill.name}: {alert} did not {'clear' if alert in seen.fired else 'fire'}" for alert in left]
    for alert in sorted(strange):
        print(f"also fired: {alert}", flush=True)
    if strange and not any(drill.fires for drill in group):
        wrong.append(f"{group[0].name}: {', '.join(sorted(strange))} fired")
    return every, wrong


def rows(seen: Seen) -> list[str]:
    if not seen.drill.fires:
        return [f"| {seen.drill.name} | none | | |"]
    return [
        f"| {seen.drill.name} | `{alert}` | {_time(seen.fired.get(alert))} | {_time(seen.cleared.get(alert))} |"
        for alert in sorted(seen.drill.fires, key=lambda one: seen.fired.get(one, LIMIT_S))
    ]


def _time(seconds: float | None) -> str:
    return "not" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def table(lines: list[str], commit: str) -> str:
    head = (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} at {commit}: simulated host, {os.cpu_count()} cores beside other "
        "load, release for the CPU. Minutes and seconds.\n\n"
        "| fault | alert | fires after | clears after the repair |\n|---|---|---|---|"
    )
    return "\n".join([head, *lines])


def measured(node: Node, groups: list[list[Drill]]) -> tuple[list[str], list[str]]:
    """Rows of the table, and what is wrong."""
    lines: list[str] = []
    wrong: list[str] = []
    for group in filter(None, groups):
        whole(node)
        every, found = played(node, group)
        wrong += found
        lines += [line for seen in every for line in rows(seen)]
        print(*lines, *wrong, sep="\n", flush=True)
    return lines, wrong


def main() -> int:
    given = arguments("tests.node.alarms", __doc__, "docs/monitoring.md")
    os.environ["MONITORING"] = "1"
    groups = [[drill for drill in group if re.search(given.only, drill.name)] for group in GROUPS]
    node = Node(f"alarms-{os.getpid()}")
    try:
        node.up(disk_gb=DISK_GB)
        # node-exporter leaves out overlays, which a node's root is: it sees the disk below one more folder
        command(sys.executable, LEND, node.folder, node.inside.parent.name, "/srv/disk")
        provisioned(node)
        lines, wrong = measured(node, groups)
    finally:
        node.down()
    written = table(lines, command("git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD").stdout.strip())
    print(written, *wrong, sep="\n")
    if given.write:
        put(PAGE, BEGIN, END, written)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
