"""Measure a deploy on real GPUs in one go: python -m tests.gpu.measure INVENTORY --host NAME --model SERVED --out FOLDER

1. deploy, as the host is found; then again, with nothing to change
2. kill one server under load: when are requests answered again, and what did clients see?
3. for each layout: deploy it, measure it under load, keep its greedy answers; the answers of all are compared

Needs a host of the inventory that a run of the playbook may change. Without --on this runs on that host itself
(inventory: @local). What is measured goes to FOLDER/measured.json after every step, and as a table to the terminal;
what pyinfra said, to FOLDER/STEP.log. A step that fails is told, and the next one is tried.

exit codes: 0 every step ended well; 1 one did not; 2 wrong usage
"""

from __future__ import annotations

import argparse
import base64
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
KILLED = {"pd": "decode", "single": "server", "data_parallel": "server-0"}  # layout -> server


class Failed(Exception):
    """One line: what a step did instead."""


class Measurement:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.found: dict[str, Any] = {
            "commit": self._commit(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self.whole = True

    def step(self, name: str, measure: Callable[..., dict[str, Any]], *given: str) -> None:
        """One step, told and kept, whether it ends well or not."""
        began = time.monotonic()
        try:
            found = measure(*given)
        except Failed as problem:
            found, self.whole = {"failed": str(problem)}, False
        self.found[name] = {"seconds": round(time.monotonic() - began, 1), **found}
        (self.given.out / "measured.json").write_text(json.dumps(self.found, indent=1) + "\n")
        told = ", ".join(f"{key} {value}" for key, value in self.found[name].items())
        print(f"{name}: {told}", flush=True)

    def pyinfra(self, log: str, operations: str, *words: str) -> dict[str, Any]:
        """pyinfra's own report. Raises Failed."""
        line = [
            sys.executable,
            "-m",
            "pyinfra",
            "-y",
            "--json",
            "--limit",
            self.given.host,
            self.given.inventory,
            operations,
        ]
        ran = subprocess.run([*line, *words], cwd=REPOSITORY, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        (self.given.out / f"{log}.log").write_text(ran.stderr + ran.stdout)
        last = ran.stdout.strip().splitlines()[-1:] or [""]
        if ran.returncode or not last[0].startswith("{"):
            said = [one for one in ran.stderr.splitlines() if one.strip()][-1:]
            raise Failed(f"{operations} ended with {ran.returncode}: {' '.join(said)[:200]}")
        report: dict[str, Any] = json.loads(last[0])
        return report

    def deploy(self, log: str, layout: str) -> dict[str, Any]:
        done = self.pyinfra(log, "deploy.py", "--data", f"layout={layout}")["results"]["operations"]
        return {"operations": len(done), "changed": sum(bool(one["success"]) for one in done)}

    def under_load(self, layout: str) -> dict[str, Any]:
        given = self.given
        words = [f"layout={layout}", f"bench_loads={given.loads}", f"bench_concurrency={given.concurrency}"]
        words += [f"bench_repeats={given.repeats}", f"bench_limits={given.limits}"]
        words += [f"bench_rates={given.rates}"] if given.rates else []
        self.pyinfra(f"bench-{layout}", "tasks.bench.serving", *(word for one in words for word in ("--data", one)))
        return {}

    def killed(self, layout: str) -> dict[str, Any]:
        unit = f"sglang-pd-{KILLED[layout]}.service"
        kill = ["systemctl", "kill", "--signal", "KILL", unit]
        return {"unit": unit, **json.loads(self.on_host("under_fault.py", self.given.url, self.given.model, *kill))}

    def answers(self, layout: str, first: str) -> dict[str, Any]:
        """Kept under the layout's name; compared with the first layout's."""
        kept = [f"/run/measured-{name}.json" for name in (first, layout)]
        words = [self.given.url, "--prompts", str(self.given.prompts), "--longest", str(self.given.longest)]
        if layout == first:
            self.on_host("compare.py", *words, "--keep", kept[0])
            return {}
        found = json.loads(self.on_host("compare.py", *words, kept[0], "--json", good=(0, 1)))
        return {"equal": found["prompts"] - len(found["differences"]), "of": found["prompts"]}

    def on_host(self, script: str, *words: str, good: tuple[int, ...] = (0,)) -> str:
        """A script of this folder, run on the host as root; its output. Raises Failed."""
        text = base64.b64encode(Path(__file__).with_name(script).read_bytes()).decode()
        starter = f"import base64, sys; __name__ = '__main__'; exec(base64.b64decode('{text}'))"
        command = shlex.join(["python3", "-c", starter, *words])
        ran = subprocess.run(
            [*shlex.split(self.given.on), command], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if ran.returncode not in good:
            raise Failed(f"{script} ended with {ran.returncode}: {' '.join((ran.stderr + ran.stdout).split())[-200:]}")
        return ran.stdout

    def _commit(self) -> str:
        ran = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
        return ran.stdout.strip() or "no git"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.measure", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inventory", metavar="INVENTORY")
    parser.add_argument("--host", required=True, metavar="NAME", help="as the inventory names it")
    parser.add_argument("--model", required=True, metavar="SERVED", help="name that the service serves")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--on", default="sh -c", metavar="WORDS", help='runs a command there as root, "ssh root@gpu-1"')
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the router, on the host")
    parser.add_argument("--layouts", default="pd,single,data_parallel")
    parser.add_argument("--loads", default="1024/1024,8192/256")
    parser.add_argument("--concurrency", default="16,64")
    parser.add_argument("--rates", default="", help="requests a second")
    parser.add_argument("--limits", default="450/40", help="ms to the first token / ms between tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=50, help="greedy answers to compare (50)")
    parser.add_argument("--longest", type=int, default=4000, help="tokens of the longest of these prompts (4000)")
    given = parser.parse_args(words)
    layouts = given.layouts.split(",")
    if strange := [name for name in layouts if name not in KILLED]:
        parser.error(f"--layouts {strange[0]}: {', '.join(KILLED)}")
    given.out.mkdir(parents=True, exist_ok=True)
    measured = Measurement(given)
    first = layouts[0]
    measured.step("deploy", measured.deploy, "deploy", first)
    measured.step("again", measured.deploy, "again", first)
    measured.step("killed", measured.killed, first)
    for layout in layouts:
        if layout != first:
            measured.step(f"deploy-{layout}", measured.deploy, f"deploy-{layout}", layout)
        measured.step(f"load-{layout}", measured.under_load, layout)
        measured.step(f"answers-{layout}", measured.answers, layout, first)
    return 0 if measured.whole else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
