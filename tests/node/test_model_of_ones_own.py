"""A model that only its folder describes: served and answered, on the host that serves the rehearsal's profile."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.node.asking import CONFIG, answer, out, pids, states
from tests.node.deploying import command_line, deploy, environment, provisioned
from tests.node.node import REPOSITORY, Node

pytestmark = pytest.mark.skipif("FAULTS" not in os.environ, reason="prefill and decode start twice: make test-faults")
FOLDER = "/srv/models/My-Tiny"
# What a machine of two cores cannot do without: a small cache, and numbers of 32 bits for answers that are the same
# on every CPU.
SMALL = json.dumps(["--max-total-tokens", "4096", "--max-running-requests", "8", "--sleep-on-idle", "--dtype", "float32"])  # fmt: skip
OWN: dict[str, object] = {
    "model": "auto", "model_dir": FOLDER, "context_length": 131072, "prefill_arguments": SMALL, "decode_arguments": SMALL,
    "prefill_environment": '{"OMP_NUM_THREADS": "1"}', "decode_environment": '{"OMP_NUM_THREADS": "1"}',
}  # fmt: skip


def test_a_model_that_only_its_folder_describes_answers(served: Node) -> None:
    made = served.run(
        f"mkdir -p {FOLDER} && cp /opt/sglang-pd/models/rehearsal-qwen2/* {FOLDER}/ && chmod -R o+rX /srv"
    )
    assert made.returncode == 0, made.stderr
    before = pids(served)
    try:
        shown = subprocess.run(
            command_line("--dry", "--diff", **OWN), cwd=REPOSITORY, env=environment(served), capture_output=True,
            text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert shown.returncode == 0, shown.stderr
        read = f"model My-Tiny, read from {FOLDER}: Qwen2ForCausalLM, 3 layers, 4 heads, 2 KV heads of 16, float32"
        assert read in shown.stderr and "context 2048" in shown.stderr
        assert "+   --context-length 2048 \\" in shown.stderr and "+   --served-model-name My-Tiny \\" in shown.stderr
        assert pids(served) == before, "a dry run touches nothing"

        provisioned(served, **OWN)
        assert states(served) == ["active"] * 3
        asked = json.loads(out(served, f"cat {CONFIG}/verify.json"))
        assert (asked["model"], [one["name"] for one in asked["golden"]]) == (
            "My-Tiny",
            ["arithmetic", "capital", "primes"],
        )
        assert "391" in answer(served, "What is 17*23? Answer with the number only.", model="My-Tiny")
        again = deploy(served, "-y", **OWN)
        assert (again.status, again.changed) == (0, []), again.output
    finally:
        provisioned(served)
        served.run(f"rm -rf {FOLDER}")
    assert "391" in answer(served, "What is 17*23? Answer with the number only.")
