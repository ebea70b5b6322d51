"""What Prometheus of a rehearsed host sees, asked without our own tool."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Sequence
from typing import Any

import yaml

from tasks.plan.phases import monitoring
from tasks.support import catalogue
from tests.node.node import Node
from tests.node.process import NodeError

URL = "http://127.0.0.1:9090"
METRIC = re.compile(r"(?<![\w:\"])(?:sglang:|sglang_pd_|smg_|node_|up(?=\{))[a-z0-9_A-Z]*")
NOT_IN_A_CONTAINER = {"node_timex_sync_status"}  # there node-exporter may not ask the kernel for its clock
AFTER_A_BENCHMARK = {"sglang_pd_bench_ttft_p99_seconds", "sglang_pd_bench_itl_p99_seconds"}
WITH_TLS = {"sglang_pd_certificate_end_seconds"}
# The KV path between two hosts is not measured.
PROVED = {"sglang_pd_proof_kv_gigabytes_per_second", "sglang_pd_proof_time_seconds"}
# Counters that a server or router makes at its first failure.
AT_FAILURE = {
    "smg_worker_retries_exhausted_total", "sglang:num_transfer_failed_reqs_total", "sglang:num_bootstrap_failed_reqs_total",
    "smg_worker_retries_total", "smg_worker_errors_total", "sglang:num_aborted_requests_total",
}  # fmt: skip


def rules() -> dict[str, str]:
    """Alert -> its expression."""
    groups = yaml.safe_load(catalogue.alert_rules())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def panels() -> dict[str, list[str]]:
    """DASHBOARD: PANEL -> its queries."""
    return {
        f"{one.title}: {panel.title}": [query for query, _ in panel.queries]
        for one in catalogue.dashboards()
        for panel in one.panels
    }


def metrics() -> set[str]:
    """Every metric that a rule or a panel names; of a histogram the buckets."""
    queries = [*rules().values(), *(query for of_panel in panels().values() for query in of_panel)]
    return {name for query in queries for name in METRIC.findall(query)}


def asked(node: Node, path: str) -> Any:
    """Data of Prometheus' answer."""
    ran = node.run(f"python3 - {shlex.quote(URL + path)}", text="import sys, urllib.request as u; "
                   "print(u.urlopen(sys.argv[1], timeout=30).read().decode())")  # fmt: skip
    if ran.returncode != 0:
        raise NodeError(f"Prometheus does not answer {path}: {(ran.stderr.strip() or 'nothing').splitlines()[-1]}")
    return json.loads(ran.stdout)["data"]


def listening(node: Node) -> dict[str, str]:
    """ADDRESS:PORT -> unit, of every TCP socket that a daemon of ours listens on."""
    found = {}
    for unit in (f"{package}.service" for package in monitoring.PACKAGES):
        pid = node.run(f"systemctl show -p MainPID --value {unit}").stdout.strip()
        for line in node.run("ss -ltnpH").stdout.splitlines():
            if f"pid={pid}," in line:
                found[line.split()[3]] = unit
    return found


def require_watched(nodes: Sequence[Node], absent: Collection[str] = ()) -> str:
    """What is seen on hosts with a Prometheus, in words. absent: metrics that they cannot have. Raises NodeError for a
    target that is down, a rule that is not evaluated, a metric that a rule names and nobody has, a socket beyond
    loopback, and an alert."""
    told, known = [], set()
    for node in nodes:
        ran = node.run(f"/opt/sglang-pd/bin/pd-metrics check --prometheus {URL}")
        if ran.returncode != 0:
            raise NodeError(f"{node.name}: Prometheus does not see everything: {ran.stderr.strip()}")
        sockets = listening(node)
        if wide := [where for where in sockets if not where.startswith("127.0.0.1:")]:
            raise NodeError(f"{node.name}: monitoring listens beyond loopback: {', '.join(wide)}")
        if len(sockets) != len(monitoring.PACKAGES):
            raise NodeError(f"{node.name}: monitoring listens on {sorted(sockets)} alone")
        if firing := alerts(node):
            raise NodeError(f"{node.name}: alerts of a healthy service: {', '.join(firing)}")
        known |= set(asked(node, "/api/v1/label/__name__/values"))
        told.append(ran.stdout.strip())
    if missing := sorted(
        metrics() - known - AT_FAILURE - NOT_IN_A_CONTAINER - AFTER_A_BENCHMARK - WITH_TLS - {*absent}
    ):
        raise NodeError(f"rules or panels name what nobody exports: {', '.join(missing)}")
    return f"{'; '.join(told)}, no alert"


def alerts(node: Node) -> list[str]:
    """Names of those that fire."""
    found = asked(node, "/api/v1/alerts")["alerts"]
    return sorted({one["labels"]["alertname"] for one in found if one["state"] == "firing"})
