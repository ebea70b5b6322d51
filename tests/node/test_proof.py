"""The links are measured before servers start, kept, and measured again only when that is asked for."""

from __future__ import annotations

import json
from typing import Any

from tests.node.asking import CONFIG, UNITS, answers, out, pids, states
from tests.node.deploying import deploy
from tests.node.node import REPOSITORY, Node
from tests.node.waiting import until

KEPT_ANEW = "Verify | Kept as what passed last"
KEPT = "/var/lib/sglang-pd/probe.json"
LIMIT = 300.0  # seconds until servers are back


def kept(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out(node, f"cat {KEPT}"))
    return found


def test_the_kv_path_of_the_servers_was_measured(served: Node) -> None:
    found = kept(served)
    assert {name: part["status"] for name, part in found["parts"].items()} == dict.fromkeys(
        ("peer", "all_reduce", "kv_path"), "done"
    )
    assert found["depends"]["boot"] == out(served, "cat /proc/sys/kernel/random/boot_id")
    assert found["depends"]["settings"] == out(served, f"sha256sum {CONFIG}/probe.json").split()[0]
    [pair] = found["parts"]["kv_path"]["pairs"]
    assert (pair["from"], pair["to"]) == (0, 4)
    assert "intra-node" in pair["lane"] and "memory" in pair["lane"], "UCX printed how it moves bytes"
    sizes = [shape["descriptor_bytes"] for shape in pair["alone"]]
    assert sizes == [128, 128_000, 1 << 20, 1 << 28]
    for shape in (*pair["alone"], *pair["together"]):
        assert shape["same_bytes"] and shape["gbps"] > 0
    assert found["parts"]["kv_path"]["parameters"] == {"prefill": {"num_threads": "8"}, "decode": {}}


def test_a_stale_proof_beside_servers_is_a_warning_and_nothing_else(served: Node) -> None:
    before = pids(served)
    whole = out(served, f"cat {KEPT}")
    try:
        boot = kept(served)["depends"]["boot"]
        out(served, f"sed -i s/{boot}/00000000-0000-0000-0000-000000000000/ {KEPT}")
        again, later = deploy(served, "-y"), deploy(served, "-y")
        report = (REPOSITORY / "reports/rehearsal.json").read_text()
    finally:
        served.run(f"cat >{KEPT}", text=whole)
        assert deploy(served, "-y").changed == ["Topology | No stale proof", KEPT_ANEW]
    assert again.status == 0, again.output
    assert again.changed == ["Topology | Stale proof told", KEPT_ANEW]
    assert (later.status, later.changed) == (0, []) and "reprove=True" not in later.output, "once is enough"
    assert "proof/state: the proof of the KV path is stale" in later.output, "the last lines name it each time"
    assert "is stale (other boot)" in report
    line = next(line for line in again.output.splitlines() if "proof/state" in line)
    assert "other boot" in line and "--data reprove=True" in line
    assert pids(served) == before


def test_a_proof_that_fails_brings_back_what_served_and_a_good_one_follows(served: Node) -> None:
    before = pids(served)
    failed = deploy(served, "-y", reprove=True, decode_environment='{"UCX_TLS":"nothing"}')
    assert failed.status != 0
    assert "proof/kv/run: KV path: failed, exit 30" in failed.output
    assert "the servers start again as they were" in failed.output
    until(lambda: states(served) == ["active"] * 3, "the servers are back", LIMIT)
    assert not set(pids(served).values()) & set(before.values()), "they were drained for it"
    assert out(served, f"cat {CONFIG}/decode.env").count("UCX_TLS") == 0, "nothing of the failed run is served"
    assert "UCX" not in out(served, f"systemctl show -p Environment {UNITS[1]}")

    good = deploy(served, "-y", reprove=True)
    assert good.status == 0, good.output
    assert "decode: starts again, it was drained for the proof" in good.output
    assert kept(served)["parts"]["kv_path"]["status"] == "done"
    assert answers(served)
    again = deploy(served, "-y")
    assert (again.status, again.changed) == (0, []), again.output
