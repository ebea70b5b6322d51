"""What clients see when something breaks, measured on a simulated host: python -m tests.node.crashes

A host is deployed as users deploy, with a watchdog_limit of 30 s. Then one fault after the other is made while four
answers stream (tests/gpu/under_fault.py), and each is waited out until the service is whole again. The table, one row a
fault, goes to the terminal; --write puts it into docs/reliability.md, with the day and the machine.

exit codes: 0 every fault was outlived; 1 one was not; 2 wrong usage
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.node import found, hanging
from tests.node.asking import answers, states
from tests.node.deploying import provisioned
from tests.node.node import REPOSITORY, Node
from tests.node.process import command
from tests.node.waiting import until

PAGE = REPOSITORY / "docs/reliability.md"
BEGIN, END = "<!-- crashes: written by python -m tests.node.crashes --write -->", "<!-- crashes end -->"
CLIENT = REPOSITORY / "tests/gpu/under_fault.py"
URL, MODEL = "http://127.0.0.1:8000", "rehearsal"
CLIENTS, TOKENS, WORDS = 4, 600, 20  # as many as the KV cache of the rehearsal's model holds at once
WHOLE_S = 600.0  # until the service is whole again after a fault
LIMIT_S = 30  # watchdog_limit


@dataclass(frozen=True)
class Fault:
    name: str
    command: str
    mend: str = ""  # what takes the fault away, where it does not go by itself


def port_taken(unit: str, port: int, seconds: int) -> str:
    """The server dies, and for a while somebody else has its port."""
    holds = (
        "import socket, time\nwhile True:\n  try:\n"
        f"    taken = socket.create_server(('127.0.0.1', {port}))\n    break\n  except OSError:\n    time.sleep(0.05)\n"
        f"time.sleep({seconds})"
    )
    return hanging.script(
        f"kill -KILL $(main {unit}); systemd-run -q --collect --unit=holds-port python3 -c {shlex.quote(holds)}"
    )


# All but some MiB of what is free goes to a file; the servers run on.
FULL = "fallocate -l $(( $(df -k --output=avail /var/lib | tail -n 1) - 64 ))k /var/lib/full"
FAULTS = [
    Fault("prefill killed", hanging.killed("prefill")),
    Fault("prefill's scheduler killed", hanging.killed("prefill", "scheduler")),
    Fault("prefill's scheduler frozen", hanging.frozen("prefill", "scheduler")),
    Fault("decode killed (NIXL's peer gone)", hanging.killed("decode")),
    Fault("decode's scheduler killed", hanging.killed("decode", "scheduler")),
    Fault("decode's scheduler frozen", hanging.frozen("decode", "scheduler")),
    Fault("router killed", hanging.killed("router")),
    Fault("router frozen", hanging.frozen("router")),
    Fault("decode killed, its port taken for 20 s", port_taken("decode", 30001, 20)),
    Fault("prefill's registration lost", hanging.registration_lost()),
    Fault("decode killed on a full disk", hanging.script(f"{FULL}; kill -KILL $(main decode)"), "rm -f /var/lib/full"),
]


def measured(node: Node, fault: Fault) -> dict[str, Any]:
    """What clients saw; {"failed": why} where nothing was measured."""
    line = shlex.join(
        [
            "env",
            f"CLIENTS={CLIENTS}",
            f"TOKENS={TOKENS}",
            f"WORDS={WORDS}",
            "python3",
            "-",
            URL,
            MODEL,
            "sh",
            "-c",
            fault.command,
        ]
    )
    ran = node.run(line, text=CLIENT.read_text(), timeout=900)
    if fault.mend:
        node.run(fault.mend)
    last = ran.stdout.strip().splitlines()[-1:] or [""]
    if not last[0].startswith("{"):
        return {"failed": f"exit {ran.returncode}: {' '.join(ran.stderr.split())[-200:]}"}
    seen: dict[str, Any] = json.loads(last[0])
    return seen


def whole(node: Node) -> None:
    """It serves again, no start counts any more, and the watchdog has heard an answer."""
    node.run("systemctl reset-failed; systemctl restart sglang-pd-watchdog")
    until(lambda: states(node) == ["active"] * 3 and answers(node), "the service is whole", WHOLE_S)
    well = "systemctl show -p StatusText --value sglang-pd-watchdog"
    until(lambda: node.run(well).stdout.strip() == "all is well", "the watchdog is content", 120)


def told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count}x {text}" for text, count in sorted(counts.items())) or "none"


def row(fault: Fault, seen: Mapping[str, Any]) -> str:
    if "failed" in seen:
        return f"| {fault.name} | not measured | | | |"
    again = f"{seen['again_s']:.0f}" if seen["again_s"] is not None else "not within 600"
    lost = sum(seen["errors"].values())
    return f"| {fault.name} | {again} | {lost} of {CLIENTS} | {told(seen['errors'])} | {told(seen['again'])} |"


def table(rows: list[str], commit: str) -> str:
    head = (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} at {commit}: simulated host, {os.cpu_count()} cores beside other "
        f"load, release for the CPU, `watchdog_limit = {LIMIT_S}`.\n\n"
        "| fault | seconds until a request is answered | answers lost | what their clients saw | "
        "what new requests got until then |\n|---|---|---|---|---|"
    )
    return "\n".join([head, *rows])


def put(page: Path, begin: str, end: str, text: str) -> None:
    """Text between two marks of a page."""
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}")


def arguments(program: str, about: str, page: str) -> argparse.Namespace:
    """Of a program that writes a table about faults into a page of docs. about: its docstring."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put the table into {page}")
    parser.add_argument("--only", default="", metavar="REGEX", help="faults whose name it matches")
    given = parser.parse_args()
    if given.write and given.only:
        parser.error("--write puts the whole table there: leave --only out")
    return given


def main() -> int:
    given = arguments("tests.node.crashes", __doc__, "docs/reliability.md")
    chosen = [fault for fault in FAULTS if re.search(given.only, fault.name)]
    node = Node(f"crashes-{os.getpid()}")
    rows, failed = [], False
    try:
        node.up(disk_gb=12)
        node.run(found.SCRIPT)
        provisioned(node, watchdog_limit=LIMIT_S, watchdog_interval=5)
        for fault in chosen:
            whole(node)
            seen = measured(node, fault)
            failed |= seen.get("again_s") is None
            rows.append(row(fault, seen))
            print(rows[-1], *([seen["failed"]] if "failed" in seen else []), flush=True)
    finally:
        node.down()
        written = table(rows, _commit())
        print(written, flush=True)
    if given.write:
        put(PAGE, BEGIN, END, written)
    return int(failed)


def _commit() -> str:
    return command("git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD").stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
