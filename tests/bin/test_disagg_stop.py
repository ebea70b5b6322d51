"""files/kernels/disagg-stop in interpreters of its own, with the real hook and an SGLang of three modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tasks.plan.release import patches
from tasks.support import catalogue

KERNELS = Path(__file__).resolve().parents[2] / "files/kernels"
LOOPS = """
class {mixin}:
    gracefully_exit = False
    def process_input_requests(self, recv_reqs):
        print("handled", recv_reqs)
        self.gracefully_exit = "stop" in recv_reqs
        if "fail" in recv_reqs: raise RuntimeError("theirs")
    def event_loop_normal_disagg_{role}(self):
        for round in self.rounds:
            self.process_input_requests(round)
            print("ran")
    event_loop_overlap_disagg_{role} = event_loop_normal_disagg_{role}
"""
CONN = """
import threading
class NixlKVManager:
    def _start_bootstrap_thread(self):
        threading.Thread(target=threading.Event().wait).start()
"""
ROLES = {"prefill": "SchedulerDisaggregationPrefillMixin", "decode": "SchedulerDisaggregationDecodeMixin"}
WAYS = ("normal", "overlap")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    shutil.copytree(KERNELS / "hook/pd_overlay_hook", tmp_path / "pd_overlay_hook")
    shutil.copy(KERNELS / "disagg-stop/pd_overlay_disagg_stop.py", tmp_path)
    modules = {f"{role}.py": LOOPS.format(role=role, mixin=mixin) for role, mixin in ROLES.items()}
    for path, text in {**modules, "nixl/conn.py": CONN}.items():
        module = tmp_path / "sglang/srt/disaggregation" / path
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(text)
    return tmp_path


def run(site: Path, code: str, patched: bool = True) -> subprocess.CompletedProcess[str]:
    (site / "main.py").write_text("import pd_overlay_disagg_stop\n" * patched + dedent(code))
    return subprocess.run(
        [sys.executable, site / "main.py"],
        env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True,
    )  # fmt: skip


def loop(role: str, way: str, *rounds: list[str]) -> str:
    return f"""
    from sglang.srt.disaggregation.{role} import {ROLES[role]} as Scheduler
    scheduler = Scheduler()
    scheduler.rounds = {list(rounds)}
    scheduler.event_loop_{way}_disagg_{role}()
    print("left", scheduler.gracefully_exit)
    """


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("role", ROLES)
def test_the_round_in_which_it_is_told_is_the_last(site: Path, role: str, way: str) -> None:
    ran = run(site, loop(role, way, ["a"], ["stop", "b"], [], ["c"]))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["handled ['a']", "ran", "handled ['stop', 'b']", "ran", "left True"]


@pytest.mark.parametrize("role", ROLES)
def test_an_error_of_a_loop_stays_one(site: Path, role: str) -> None:
    ran = run(site, loop(role, "normal", ["a"], ["fail"], ["b"]))
    assert ran.returncode != 0 and ran.stderr.endswith("RuntimeError: theirs\n")
    assert ran.stdout.splitlines() == ["handled ['a']", "ran", "handled ['fail']"]


def test_the_thread_that_waits_for_messages_keeps_no_process(site: Path) -> None:
    ran = run(
        site,
        """
        import threading
        from sglang.srt.disaggregation.nixl.conn import NixlKVManager
        NixlKVManager()._start_bootstrap_thread()
        print([thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()])
        """,
    )
    assert (ran.returncode, ran.stdout) == (0, "[True]\n"), ran.stderr


def test_each_place_reports_the_line_that_the_gate_waits_for(site: Path) -> None:
    modules = ("prefill", "decode", "nixl.conn")
    ran = run(site, "".join(f"import sglang.srt.disaggregation.{module}\n" for module in modules))
    demanded = patches.demands([catalogue.patch(KERNELS / "disagg-stop")], "0.5.20")
    assert [one["variables"] for one in demanded] == [[]] * 5, "it is asked for wherever it is placed"
    assert ran.stderr.splitlines() == [one["line"] for one in demanded]
