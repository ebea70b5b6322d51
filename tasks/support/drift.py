"""Does a host differ from what the settings ask for? A table, and an exit status that pyinfra does not have.

It makes a dry run of deploy.py, which changes nothing, and compares what each server was started with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.plan.report.drift import Row, in_planned, others, table

NOTHING, UNKNOWN, DRIFT = range(3)
EPILOG = """\
exit codes:
  0  nothing differs
  1  could not tell: a host was not reached, or is refused; the reason is on stderr
  2  something differs

What follows -- goes to pyinfra, for example -- --data decode_mem_fraction=0.62"""


def main() -> int:
    arguments = parse_arguments()
    command = [str(Path(sys.executable).with_name("pyinfra")), "--dry", "--json", "--limit", arguments.host]
    ran = subprocess.run(
        [*command, arguments.inventory, "deploy.py", "tasks/drift.py", *arguments.more],
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    compared = {one["host"]: one["rows"] for one in told if "rows" in one}
    report = next((one for one in told if one.get("plan") is not None), None)
    if ran.returncode or report is None or not compared:
        print(ran.stderr.rstrip(), file=sys.stderr)
        print(f"drift: {arguments.host}: could not tell, for the reason above", file=sys.stderr)
        return UNKNOWN
    found = {host: rows_of(report, host, rows) for host, rows in compared.items()}
    if arguments.json:
        print(json.dumps({host: [row.as_data() for row in rows] for host, rows in found.items()}, indent=2))
    else:
        print("\n".join(line for host, rows in found.items() for line in in_words(host, rows)))
    return DRIFT if any(found.values()) else NOTHING


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.support.drift",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("host", help="a host or a group of the inventory")
    parser.add_argument("--inventory", default="inventory.py", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="the table as JSON, on stdout")
    parser.add_argument("more", nargs="*", metavar="-- ARGUMENT", help="of pyinfra")
    return parser.parse_args()


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
