"""Measure a deploy on real GPUs in one go: python -m tests.gpu.measure INVENTORY --host NAME --model SERVED --out FOLDER

again      deploy, as the host is found; then three times with nothing to change
killed     kill one server under load: when are requests answered again, and what did clients see?
load       for each layout: deploy it, measure it under load
answers    keep its greedy answers; those of all layouts are compared
rates      measure it with requests that arrive at a rate, for goodput
stages     of layout pd: where its first token spends its time, from the servers' histograms, with the first load of
           the rates and the first concurrency
checksum   of layout pd: the loads of the rates at the first concurrency, three times without kv_checksum, three times
           with it, and three times without it again

Needs a host of the inventory that a run of the playbook may change. Without --on this runs on that host itself
(inventory: @local). What is measured goes to FOLDER/measured.json after every step, and to the terminal; the tables of
docs/measurements.md to FOLDER/measured.md; what pyinfra said, with seconds, to FOLDER/STEP.log. A step that fails is
told, and the next one is tried.

exit codes: 0 every step ended well; 1 one did not; 2 wrong usage
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.plan.bench.goodput import Limits
from tasks.support.report import file_stem
from tests.gpu import tables

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = ("again", "killed", "load", "answers", "rates", "stages", "checksum")
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
        began, said = time.monotonic(), []
        with (
            (self.given.out / f"{log}.log").open("w") as kept,
            subprocess.Popen(
                [*line, *words], cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            ) as run,
        ):  # fmt: skip
            assert run.stdout
            for text in run.stdout:
                kept.write(f"{time.monotonic() - began:7.1f} {text}")
                said += [text.strip()] if text.strip() else []
        last = next((one for one in reversed(said) if one.startswith("{")), "")
        if run.returncode or not last:
            why = [one for one in said if one.startswith("why ")][:1] or said[-3:]
            raise Failed(f"{operations} ended with {run.returncode}: {' '.join(why)[:200]}")
        report: dict[str, Any] = json.loads(last)
        return report

    def deploy(self, log: str, layout: str, *more: str) -> dict[str, Any]:
        done = self.pyinfra(log, "deploy.py", *data(f"layout={layout}", *more))["results"]["operations"]
        found = {"operations": len(done), "changed": sum(bool(one["success"]) for one in done)}
        run = self.report().get("run") or {}
        return {**found, "phases": run.get("seconds"), "compiled": run.get("compiled")}

    def report(self) -> dict[str, Any]:
        """What the last run wrote about the host."""
        page = REPOSITORY / "reports" / f"{file_stem(self.given.host)}.json"
        found: dict[str, Any] = json.loads(page.read_text()) if page.exists() else {}
        return found

    def load(self, log: str, layout: str, *more: str) -> dict[str, Any]:
        """tasks.bench.serving, as more settings say."""
        given = self.given
        words = [f"layout={layout}", f"bench_repeats={given.repeats}", f"bench_limits={given.limits}"]
        words += [f"bench_requests={given.requests}", f"bench_rate_seconds={given.rate_seconds}", *more]
        before = set(self.results())
        self.pyinfra(log, "tasks.bench.serving", *data(*words))
        (name,) = set(self.results()) - before
        kept = self.given.out / f"{log}.json"
        kept.write_text(name.read_text())
        return {"result": kept.name}

    def results(self) -> list[Path]:
        return sorted((REPOSITORY / "reports" / "serving" / file_stem(self.given.host)).glob("*.json"))

    def under_load(self, layout: str) -> dict[str, Any]:
        given = self.given
        wanted = (f"bench_loads={given.loads}", f"bench_concurrency={given.concurrency}", "bench_rates=")
        return self.load(f"load-{layout}", layout, *wanted)

    def at_rates(self, layout: str) -> dict[str, Any]:
        given = self.given
        wanted = (f"bench_loads={given.rate_loads}", "bench_concurrency=", f"bench_rates={given.rates}")
        return self.load(f"rates-{layout}", layout, *wanted)

    def few(self, log: str, loads: str, *more: str) -> dict[str, Any]:
        """Layout pd three times at the first concurrency."""
        wanted = (f"bench_loads={loads}", f"bench_concurrency={self.given.concurrency.split(',')[0]}", "bench_rates=")
        return self.load(log, "pd", *wanted, "bench_repeats=3", *more)

    def stages(self) -> dict[str, Any]:
        """What the servers' histograms counted meanwhile."""
        words = [*self.given.servers.split(","), "--", "cat"]
        with subprocess.Popen(
            self.command("stages.py", *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        ) as counting:  # fmt: skip
            assert counting.stdin and counting.stderr
            print("counting", file=counting.stdin, flush=True)  # cat says it again once the servers were read
            said = counting.stderr.readline()
            found = self.few("stages", self.given.rate_loads.split(",")[0]) if said.strip() == "counting" else {}
            out, error = counting.communicate()
        if counting.returncode:
            raise Failed(f"stages.py ended with {counting.returncode}: {said} {error}"[-200:])
        return {**found, "stages": json.loads(out)}

    def checksum(self, log: str, wanted: str) -> dict[str, Any]:
        """Deployed with or without kv_checksum, then measured."""
        deployed = self.deploy(f"deploy-{log}", "pd", f"kv_checksum={wanted}")
        return {**deployed, **self.few(log, self.given.rate_loads, f"kv_checksum={wanted}")}

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
        ran = subprocess.run(self.command(script, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if ran.returncode not in good:
            raise Failed(f"{script} ended with {ran.returncode}: {' '.join((ran.stderr + ran.stdout).split())[-200:]}")
        return ran.stdout

    def command(self, script: str, *words: str) -> list[str]:
        """Runs a script of this folder on the host."""
        text = base64.b64encode(Path(__file__).with_name(script).read_bytes()).decode()
        starter = f"import base64, sys; __name__ = '__main__'; exec(base64.b64decode('{text}'))"
        return [*shlex.split(self.given.on), shlex.join(["python3", "-c", starter, *words])]

    def _commit(self) -> str:
        ran = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
        return ran.stdout.strip() or "no git"


def data(*settings: str) -> list[str]:
    """pyinfra's words for settings."""
    return [word for one in settings for word in ("--data", one)]


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
    parser.add_argument("--rates", default="1,2,4,8,16", help="requests a second")
    parser.add_argument("--rate-loads", default="1024/256,8192/256", help="loads of the passes with a rate")
    parser.add_argument("--rate-seconds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=4, help="of a pass, for each one in flight (4)")
    parser.add_argument("--limits", default="450/40", help="ms to the first token / ms between tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=50, help="greedy answers to compare (50)")
    parser.add_argument("--longest", type=int, default=4000, help="tokens of the longest of these prompts (4000)")
    parser.add_argument("--servers", default="http://127.0.0.1:30000,http://127.0.0.1:30001", help="of layout pd")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure (%(default)s)")
    given = parser.parse_args(words)
    if strange := [part for part in given.parts.split(",") if part not in PARTS]:
        parser.error(f"--parts {strange[0]}: {', '.join(PARTS)}")
    layouts = given.layouts.split(",")
    if strange := [name for name in layouts if name not in KILLED]:
        parser.error(f"--layouts {strange[0]}: {', '.join(KILLED)}")
    given.out.mkdir(parents=True, exist_ok=True)
    measured = Measurement(given)
    first = layouts[0]
    parts = given.parts.split(",")
    measured.step(f"deploy-{first}", measured.deploy, f"deploy-{first}", first)
    for number in (1, 2, 3) if "again" in parts else ():
        measured.step(f"again-{number}", measured.deploy, f"again-{number}", first)
    if "killed" in parts:
        measured.step("killed", measured.killed, first)
    for layout in layouts:
        if layout != first:
            measured.step(f"deploy-{layout}", measured.deploy, f"deploy-{layout}", layout)
        if "answers" in parts:
            measured.step(f"answers-{layout}", measured.answers, layout, first)
        if "load" in parts:
            measured.step(f"load-{layout}", measured.under_load, layout)
        if "rates" in parts:
            measured.step(f"rates-{layout}", measured.at_rates, layout)
        if layout == "pd" and "stages" in parts:
            measured.step("stages", measured.stages)
        if layout == "pd" and "checksum" in parts:
            for log, wanted in (("checksum-off", "False"), ("checksum-on", "True"), ("checksum-off-again", "False")):
                measured.step(log, measured.checksum, log, wanted)
    (given.out / "measured.md").write_text(tables.page(given.out, Limits.of(given.limits)))
    return 0 if measured.whole else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
