"""The running service under load, by SGLang's own client through the router."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.node.asking import UNITS, answers, out, pids
from tests.node.deploying import INVENTORY, deploy, environment
from tests.node.node import REPOSITORY, Node


def measured(node: Node, folder: Path, **data: object) -> tuple[int, str]:
    """Exit status and all output of a small benchmark."""
    small = {"bench_loads": "48/8,96/4", "bench_concurrency": "1,2", "bench_repeats": 1, "bench_rates": 4,
             "bench_rate_seconds": 2, "report_dir": folder, **data}  # fmt: skip
    values = [word for name, value in small.items() for word in ("--data", f"{name}={value}")]
    pyinfra = str(Path(sys.executable).with_name("pyinfra"))
    ran = subprocess.run(
        [pyinfra, "-y", INVENTORY, "tasks.bench.serving", *values], cwd=REPOSITORY, env=environment(node),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return ran.returncode, ran.stdout


def test_loads_are_measured_kept_and_shown(served: Node, tmp_path: Path) -> None:
    assert deploy(served, "-y").status == 0
    before = pids(served)
    status, said = measured(served, tmp_path)
    assert status == 0, said
    [kept] = (tmp_path / "serving" / "rehearsal").glob("sglang-0.5.20-cpu.pd.*.json")
    found = json.loads(kept.read_text())
    assert [(p["input"], p["output"], p["concurrency"], p["rate"]) for p in found["passes"]] == [
        (48, 8, 1, None), (48, 8, 2, None), (48, 8, None, 4), (96, 4, 1, None), (96, 4, 2, None), (96, 4, None, 4),
    ]  # fmt: skip
    assert all(p["status"] == "done" and p["result"]["completed"] == p["requests"] == 8 for p in found["passes"])
    assert all(p["result"]["output_throughput"] > 0 and p["result"]["p99_itl_ms"] > 0 for p in found["passes"])
    assert all(len(p["each"]) == 8 and min(first for first, _ in p["each"]) > 0 for p in found["passes"])
    assert all(max(gap for _, gap in p["each"]) > 0 for p in found["passes"])
    assert "Requests a second answered in time (first token within 450 ms, 40 ms between tokens): at 48/8" in said
    page = (tmp_path / "rehearsal.serving.html").read_text()
    assert "48 tokens in, 8 out" in page and "Measured in one layout only" in page
    assert pids(served) == before, "what serves is left alone"
    assert deploy(served, "-y").changed == []


def test_what_does_not_run_as_planned_is_not_measured(served: Node, tmp_path: Path) -> None:
    out(served, f"systemctl stop {UNITS[2]}")
    try:
        status, said = measured(served, tmp_path)
        assert status != 0
        assert "the service does not run what is planned (router: starts, it is inactive): deploy first" in said
        status, said = measured(served, tmp_path, bench_loads="1024/1024")
        assert status != 0
        assert "setting bench_loads: 1024/1024 needs 2048 tokens, context_length is 1024" in said
    finally:
        assert deploy(served, "-y").status == 0
    assert answers(served)
    assert list(tmp_path.iterdir()) == []
