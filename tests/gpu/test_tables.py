"""The tables of docs/measurements.md, from the JSON that real GPUs left."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tasks.plan.bench.figures import compare
from tasks.plan.bench.goodput import Limits
from tasks.plan.bench.page import view
from tests.gpu import tables

KEPT = Path(__file__).resolve().parents[1] / "plan" / "fixtures" / "bench-h200"


def test_each_layout_has_a_column_and_each_load_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(KEPT / "single-0.5.23.json", tmp_path / "load-single.json")
    shutil.copy(KEPT / "pd.json", tmp_path / "load-pd.json")
    shutil.copy(KEPT / "single-rates.json", tmp_path / "rates-single.json")
    assert tables.main([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "| in / out, in flight | prefill + decode | one server |\n" in told
    assert "| 8,192 / 256, 16 | 850; 2,168, 6.6, 8.3 | 847; 1,662, 12.4, 7.8 |\n" in told
    assert "| 256 / 128, 16 | 1,984; 350, 4.9, 6.9 | - |\n" in told
    assert "| 1,024 / 256, 4 a second | 93 % |\n" in told
    assert "| 1,024 / 256, **goodput** | 4 |\n" in told
    assert "kv_checksum" not in told


def test_the_checksum_and_the_stages(tmp_path: Path) -> None:
    for name in tables.CHECKSUM:
        shutil.copy(KEPT / "pd.json", tmp_path / f"{name}.json")
    stage = {"name": "sglang:per_stage_req_latency_seconds", "stage": "bootstrap", "count": 3, "mean": 0.0021}
    counted = {"stages": {"http://127.0.0.1:30000": [stage, {"name": "sglang:tokens", "count": 3, "mean": 9.0}]}}
    (tmp_path / "measured.json").write_text(json.dumps({"stages": counted}))
    told = tables.page(tmp_path, Limits(450, 40))
    assert "| in / out, in flight | without | with kv_checksum | without again |\n" in told
    assert "| http://127.0.0.1:30000 | per_stage_req_latency_seconds | bootstrap | 3 | 2.1 |\n" in told
    assert "tokens |" not in told


def test_both_roles_on_one_card() -> None:
    """As measured in December 2026, with the loads in flight and at rates in files of their own."""
    told = tables.page(KEPT / "one-card", Limits(450, 40))
    assert (
        "| 8,192 / 256, 64 | 657 (657 to 658); 21,307, 11.5, 14.5 | 1,047 (1,047 to 1,047); 6,393, 36.2, 14.6 |" in told
    )
    assert "| in / out, in flight | without | with kv_checksum |\n" in told
    assert "| http://127.0.0.1:30000 | per_stage_req_latency_seconds | prefill_forward | 162 | 256.1 |" in told
    kept = tables.results(KEPT / "one-card", ["load-pd", "rates-single"])
    shown = view(compare([kept["load-pd"], kept["rates-single"]]), Limits(450, 40))
    assert not shown["sentence"] and not shown["alone"], "the newest of each have no load in common"


def test_the_patch_that_puts_both_roles_on_one_card_applies() -> None:
    patch = ["git", "apply", "--check", "tests/gpu/one-card.patch"]
    assert subprocess.run(patch, cwd=Path(__file__).resolve().parents[2]).returncode == 0


def test_a_folder_with_nothing(tmp_path: Path) -> None:
    assert tables.main([str(tmp_path)]) == 3
