"""Does a host, or a service, differ from what the settings ask for? A table, and an exit status as pyinfra has none.

It makes a dry run of deploy.py, which changes nothing, and compares what each server was started with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.plan.errors import PlanError
from tasks.plan.fleet import members
from tasks.plan.fleet.members import Inventoried
from tasks.plan.report.drift import Row, in_planned, others, table, verdict

NOTHING, UNKNOWN, DRIFT = range(3)
EPILOG = """\
exit codes:
  0  nothing differs
  1  could not tell: a host was not reached, or is refused; the reason is on stderr
  2  something differs

What follows -- goes to pyinfra, for example -- --data decode_mem_fraction=0.62"""


def main() -> int:
    arguments = parse_arguments()
    pyinfra = str(Path(sys.executable).with_name("pyinfra"))
    hosts = [arguments.host]
    if arguments.service:
        ran = ask([pyinfra, "--json", arguments.inventory, "debug-inventory", *arguments.more])
        if ran.returncode:
            return could_not_tell(ran, f"service {arguments.service}")
        try:
            hosts = serving(json.loads(ran.stdout), arguments.service)
        except PlanError as fault:
            print(*(f"drift: {line}" for line in fault.lines), sep="\n", file=sys.stderr)
            return UNKNOWN
    limits = [word for host in hosts for word in ("--limit", host)]
    ran = ask(
        [pyinfra, "--dry", "--json", *limits, arguments.inventory, "deploy.py", "tasks/drift.py", *arguments.more]
    )
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    compared = {one["host"]: one["rows"] for one in told if "rows" in one}
    report = next((one for one in told if one.get("plan") is not None), None)
    if ran.returncode or report is None or not compared or (arguments.service and {*hosts} - {*compared}):
        return could_not_tell(ran, ", ".join(hosts))
    order = hosts if arguments.service else list(compared)
    found = {host: rows_of(report, host, compared[host]) for host in order}
    if arguments.json:
        print(json.dumps({host: [row.as_data() for row in rows] for host, rows in found.items()}, indent=2))
    else:
        print("\n".join(line for host, rows in found.items() for line in in_words(host, rows)))
        if arguments.service:
            print(verdict(arguments.service, found))
    return DRIFT if any(found.values()) else NOTHING


def ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def could_not_tell(ran: subprocess.CompletedProcess[str], of: str) -> int:
    print(ran.stderr.rstrip(), file=sys.stderr)
    print(f"drift: {of}: could not tell, for the reason above", file=sys.stderr)
    return UNKNOWN


def serving(inventory: list[dict[str, Any]], service: str) -> list[str]:
    """The hosts of a service, of what pyinfra tells about an inventory. Raises PlanError."""
    told = (Inventoried(one["name"], tuple(one["groups"]), one["data"]) for one in inventory)
    return members.of_service(members.members(told), service)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.support.drift",
        usage="%(prog)s [-h] (HOST | --service NAME) [--inventory FILE] [--json] [-- ARGUMENT ...]",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("host", nargs="?", metavar="HOST", help="a host or a group of the inventory")
    which.add_argument("--service", metavar="NAME", help="every host of a service, and a verdict for it")
    parser.add_argument("--inventory", default="inventory.py", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="the table as JSON, on stdout")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:end])
    arguments.more = words[end + 1 :]
    return arguments


def rows_of(report: dict[str, Any], host: str, rows: list[dict[str, str]]) -> list[Row]:
    """The rows that the host was compared by, then what else a run would change."""
    known = [Row(**row) for row in rows]
    return [*known, *others(in_planned(report, host), known)]


def in_words(host: str, rows: list[Row]) -> list[str]:
    if not rows:
        return [f"{host}: nothing differs"]
    return [f"{host}: {len(rows)} {'thing differs' if len(rows) == 1 else 'things differ'}", *table(rows)]


if __name__ == "__main__":
    sys.exit(main())
