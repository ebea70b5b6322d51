"""Every variant fits a multiprocessor of sm_120, as the compiler that is installed makes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.kernels.conftest import HC_PRE, PACKAGE

SHARED = 99 * 1024  # bytes that a block may have on compute capability 12.0


def test_every_variant_fits_sm_120_without_spilling(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": f"{PACKAGE}:{HC_PRE}", "TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernels.resources"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {line["kernel"] for line in found} == {"decode", "merge", "logits", "product", "finish"}
    for line in found:
        assert line["shared"] <= SHARED, line
        assert line["stack"] == line["local"] == 0, line
        assert line["registers"] * line["warps"] * 32 <= 65536, line
