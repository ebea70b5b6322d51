"""Every alert fires on figures that should fire it, and is silent on those that are nearly as bad: by Prometheus' own
test of rules. One figure a minute; `VALUExN` is N more of it, `A+BxN` grows by B."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tasks.plan.settings.settings import Settings
from tasks.support import catalogue
from tests.node.watching import AT_FAILURE, metrics, panels, rules
from tests.plan.builders import REPOSITORY, settings

Series = dict[str, str]  # a series -> its figures
ROUTER = 'up{job="router",instance="router",role="router",host="a",service="main"}'
SERVER = 'up{job="server",instance="%s",role="%s",host="a",service="main"}'
STOPPED, RUNS = (f'sglang_pd_{name}{{host="%s",service="main"}}' for name in ("stopped", "run_active"))
REPLAYS = 'sglang_pd_gpu_pcie_replays{uuid="GPU-1"}'
AVOIDED = 'smg_worker_health{worker="a",host="a",service="main"}'
OF_DRIVER, DRIVER = (
    'sglang_pd_proof_time_seconds{host="a",driver="580.1"}',
    'sglang_pd_gpu_driver_info{host="a",driver="%s"}',
)
WAITED = {
    f'sglang:{name}_bucket{{service="main",instance="decode",le="{le}"}}': values
    for name, per_minute in (("time_to_first_token_seconds", 30), ("inter_token_latency_seconds", 300))
    for le, values in (("1", f"0+{per_minute * 0.97}x50"), ("8", f"0+{per_minute}x50"), ("+Inf", f"0+{per_minute}x50"))
} | {
    'sglang:time_to_first_token_seconds_count{service="main",instance="decode"}': "0+30x50",
    'sglang:inter_token_latency_seconds_count{service="main",instance="decode"}': "0+300x50",
}  # 3 of 100 take between 1 and 8 s
FEW = {
    name: re.sub(r"[0-9.]+(?=x)", lambda found: f"{float(found[0]) / 10:g}", values) for name, values in WAITED.items()
}
TTFT, ITL = (
    'sglang_pd_bench_ttft_p99_seconds{host="a",service="main"}',
    'sglang_pd_bench_itl_p99_seconds{host="a",service="main"}',
)
ANSWERS = 'smg_http_responses_total{status_code="%s",instance="router"}'
RETRIES = 'smg_worker_retries_exhausted_total{worker_type="decode",instance="router",host="a",service="main"}'
QUEUE, USAGE = 'sglang:num_queue_reqs{instance="prefill"}', 'sglang:token_usage{instance="decode"}'
STUCK, MOVED = (
    'sglang:num_prefill_inflight_queue_reqs{instance="prefill"}',
    'sglang:kv_transfer_latency_ms_count{instance="prefill"}',
)
TRANSFERS, BOOTSTRAPS, GIVEN_UP = (
    f'sglang:num_{name}_total{{host="a",service="main",instance="prefill"}}'
    for name in ("transfer_failed_reqs", "bootstrap_failed_reqs", "aborted_requests")
)
PREFILL = SERVER % ("prefill", "prefill")
ERRORS = 'smg_worker_errors_total{service="main",worker_type="prefill",error_type="backend_error"}'
MB, N, MS = (
    f'sglang:kv_transfer_{name}{{host="a",instance="prefill"}}'
    for name in ("total_mb_sum", "latency_ms_count", "latency_ms_sum")
)
PROOF = 'sglang_pd_proof_kv_gigabytes_per_second{host="a",prefill="prefill",decode="decode",source="0",target="4"}'
TOKENS, FIRST = (
    'sglang:max_total_num_tokens{instance="decode"}',
    'sglang_pd_kv_cache_first_tokens{server="decode",instance="host"}',
)
XID = 'sglang_pd_gpu_xids{bus="0000:01:00",xid="%s"}'
FREE, SIZE, READONLY = (
    f'node_filesystem_{name}{{mountpoint="/",fstype="ext4"}}' for name in ("avail_bytes", "size_bytes", "readonly")
)
# alert, minute, series that fire it, series that do not
CASES: list[tuple[str, int, Series, Series]] = [
    ("RouterDown", 5, {ROUTER: "1x2 0x9"}, {ROUTER: "1x4 0 1x9"}),
    ("RouterDown", 5, {ROUTER: "0x9", STOPPED % "a": "0x9", RUNS % "a": "0x9"}, {ROUTER: "0x9", STOPPED % "a": "1x9", RUNS % "a": "0x9"}),
    ("RouterDown", 5, {ROUTER: "0x9", RUNS % "a": "1x2 0x9"}, {ROUTER: "0x9", RUNS % "b": "1x9"}),
    ("RoleDown", 5, {SERVER % ("decode", "decode"): "0x9", RUNS % "b": "0x9"}, {SERVER % ("decode", "decode"): "0x9", RUNS % "b": "1x9"}),
    ("RouterDown", 5, {ROUTER: "0x9", STOPPED % "b": "1x9"}, {ROUTER: "0x9", STOPPED % "a": "1x9"}),
    ("RoleDown", 5, {SERVER % ("decode", "decode"): "0x9", STOPPED % "b": "1x9"}, {SERVER % ("decode", "decode"): "0x9", STOPPED % "a": "1x9"}),
    ("ServerDown", 5, {SERVER % ("decode", "decode"): "0x9", STOPPED % "b": "1x9"}, {SERVER % ("decode", "decode"): "0x9", STOPPED % "a": "1x9"}),
    ("RoleDown", 5,
     {SERVER % ("decode", "decode"): "0x9", SERVER % ("decode-2", "decode"): "0x9"},
     {SERVER % ("decode", "decode"): "0x9", SERVER % ("decode-2", "decode"): "1x9"}),
    ("ServerDown", 5, {SERVER % ("decode", "decode"): "0x9"}, {SERVER % ("decode", "decode"): "1x3 0x9"}),
    ("RouterAvoidsServer", 5, {'smg_worker_health{worker="a"}': "0x9"}, {'smg_worker_health{worker="a"}': "1x9"}),
    ("RouterAvoidsServer", 5, {'smg_worker_cb_state{worker="a"}': "1x9"}, {'smg_worker_cb_state{worker="a"}': "2x9"}),
    *(
        ("RouterAvoidsServer", 5, {AVOIDED: "0x9", why: "0x9"}, {AVOIDED: "0x9", why: "1x9"})
        for why in (STOPPED % "b", RUNS % "b")
    ),
    ("RequestsFail", 30,
     {ANSWERS % "200": "0+94x40", ANSWERS % "503": "0+6x40"}, {ANSWERS % "200": "0+96x40", ANSWERS % "503": "0+4x40"}),
    ("RequestsFail", 30, {ANSWERS % "200": "0+1x40", ANSWERS % "502": "0+1x40"}, {ANSWERS % "200": "0+1x40", ANSWERS % "404": "0+9x40"}),
    ("RetriesExhausted", 12, {RETRIES: "_x9 1x9", ROUTER: "1x20"}, {RETRIES: "1x20", ROUTER: "1x20"}),
    ("RetriesExhausted", 12, {RETRIES: "1x9 2x9"}, {RETRIES: "_x9 1x9", ROUTER: "_x9 1x9"}),
    ("RetriesExhausted", 12, {RETRIES: "1x9 2x9"}, {RETRIES: "1x3 2x20"}),
    ("RestartsOftenByItself", 60, {'sglang_pd_restarts{server="decode"}': "0x20 1x20 2x40"}, {'sglang_pd_restarts{server="decode"}': "7x20 8x60"}),
    ("RestartsOftenByItself", 60, {'sglang_pd_restarts{server="decode"}': "7x20 8x20 0x3 1x40"}, {'sglang_pd_restarts{server="decode"}': "7x20 0x60"}),
    ("QueueGrows", 18, {QUEUE: "0+3x50"}, {QUEUE: "40x50"}),
    ("QueueGrows", 18, {QUEUE: "0+3x50"}, {QUEUE: "0+0.2x50"}),
    ("KvTransferFails", 12, {TRANSFERS: "_x9 1x9", PREFILL: "1x20"}, {TRANSFERS: "_x9 1x9", PREFILL: "1x20", GIVEN_UP: "_x9 1x9"}),
    ("KvTransferFails", 12, {BOOTSTRAPS: "3x9 4x9", PREFILL: "_x9 1x9"}, {TRANSFERS: "_x9 3x9", PREFILL: "_x9 1x9"}),
    ("KvTransferFails", 12, {BOOTSTRAPS: "3x9 4x9", PREFILL: "1x20"}, {BOOTSTRAPS: "3x9 4x9", PREFILL: "1x20", GIVEN_UP: "7x8 8x9"}),
    ("KvTransferFails", 12,
     {TRANSFERS: "3x9 4x9", BOOTSTRAPS: "_x9 1x9", PREFILL: "1x20", GIVEN_UP: "6x9 7x9"},
     {TRANSFERS: "3x9 4x9", BOOTSTRAPS: "_x9 1x9", PREFILL: "1x20", GIVEN_UP: "6x9 8x9"}),
    ("KvTransferFails", 12,
     {TRANSFERS: "3x9 1x9", PREFILL: "1x20", GIVEN_UP: "6x9 0x9"}, {TRANSFERS: "3x9 1x9", PREFILL: "1x20", GIVEN_UP: "6x9 1x9"}),
    ("KvTransferFails", 12,
     {TRANSFERS: "3x9 4x9", PREFILL: "1x20", GIVEN_UP: "6x9 40x9", ERRORS: "1x9 2x9"},
     {TRANSFERS: "3x9 4x9", PREFILL: "1x20", GIVEN_UP: "6x9 40x9", ERRORS: "2x20"}),
    ("KvStuck", 20, {STUCK: "2x30", MOVED: "5x30"}, {STUCK: "2x30", MOVED: "0+1x30"}),
    ("KvStuck", 20, {STUCK: "2x30", MOVED: "5x30"}, {STUCK: "2x17 0 2x30", MOVED: "5x30"}),
    ("KvSlow", 40, {MB: "0+1000x50", N: "0+10x50", MS: "0+3100x50", PROOF: "5x50"}, {MB: "0+1000x50", N: "0+10x50", MS: "0+2900x50", PROOF: "5x50"}),
    ("KvSlow", 40, {MB: "0+1000x50", N: "0+110x50", MS: "0+14000x50", PROOF: "5x50"}, {MB: "0+10x50", N: "0+1000x50", MS: "0+90000x50", PROOF: "5x50"}),
    ("KvPoolFull", 15, {USAGE: "0.97x20"}, {USAGE: "0.97x10 0.9 0.97x9"}),
    ("KvCacheSmaller", 10, {TOKENS: "516480x20", FIRST: "1033600x20"}, {TOKENS: "950000x20", FIRST: "1033600x20"}),
    ("ProofBeforeBoot", 40, {OF_DRIVER: "99x50", 'node_boot_time_seconds{host="a"}': "100x50"}, {OF_DRIVER: "101x50", 'node_boot_time_seconds{host="a"}': "100x50"}),
    ("ProofBeforeDriver", 40, {OF_DRIVER: "99x50", DRIVER % "580.2": "1x50"}, {OF_DRIVER: "99x50", DRIVER % "580.1": "1x50"}),
    ("ProofBeforeDriver", 40, {OF_DRIVER: "99x50", DRIVER % "580.2": "1x50"}, {OF_DRIVER: "99x50", (DRIVER % "580.2").replace('"a"', '"b"'): "1x50"}),
    ("ProofBeforeDriver", 40, {OF_DRIVER: "99x50", DRIVER % "580.2": "1x50"}, {'sglang_pd_proof_time_seconds{host="a"}': "99x50", DRIVER % "580.2": "1x50"}),
    ("GpuLinkResends", 70, {REPLAYS: "0x60 20x60"}, {REPLAYS: "20x60 25x60"}),
    ("WatchdogRestarts", 30, {'sglang_pd_watchdog_restarts{host="a"}': "0x20 1x20"}, {'sglang_pd_watchdog_restarts{host="a"}': "2x10 0x30"}),
    ("AnswersWrong", 10, {'sglang_pd_answers_right{host="a"}': "0x20"}, {'sglang_pd_answers_right{host="a"}': "0x20", RUNS % "a": "1x20"}),
    ("AnswersWrong", 10, {'sglang_pd_answers_right{host="a"}': "0x20"}, {'sglang_pd_answers_right{host="a"}': "0x3 1x20"}),
    ("AnswersOld", 10, {'sglang_pd_answers_time_seconds{host="a"}': "-700000x20"}, {'sglang_pd_answers_time_seconds{host="a"}': "-600000x20"}),
    ("FirstTokenSlow", 40, WAITED | {TTFT: "1x50"}, WAITED | {TTFT: "3x50"}),
    ("FirstTokenSlow", 40, WAITED | {TTFT: "1x50"}, FEW | {TTFT: "1x50"}),
    ("TokensSlow", 40, WAITED | {ITL: "1x50"}, WAITED | {ITL: "3x50"}),
    ("TokensSlow", 40, WAITED | {ITL: "1x50"}, FEW | {ITL: "1x50"}),
    ("CertificateEnds", 1, {'sglang_pd_certificate_end_seconds{host="a"}': "1209000x5"}, {'sglang_pd_certificate_end_seconds{host="a"}': "1210000x5"}),
    ("RunsOther", 20, {'sglang_pd_runs_as_written{host="a",server="decode"}': "0x30"}, {'sglang_pd_runs_as_written{host="a",server="decode"}': "1x6 0x30"}),
    ("GpusDoNotAnswer", 5, {'sglang_pd_read{part="gpus"}': "0x9"}, {'sglang_pd_read{part="gpus"}': "1x2 0x9", 'sglang_pd_read{part="run"}': "0x9"}),
    ("GpuSlowed", 8, {'sglang_pd_gpu_slowed_by_heat{gpu="1"}': "1x9"}, {'sglang_pd_gpu_slowed_by_heat{gpu="1"}': "1x5 0 1x9"}),
    ("GpuSlowed", 8, {'sglang_pd_gpu_slowed_by_hardware{gpu="1"}': "1x9"}, {'sglang_pd_gpu_slowed_by_hardware{gpu="1"}': "0x9"}),
    ("GpuXid", 15, {XID % 79: "_x13 1x9"}, {XID % 31: "_x13 1x9"}),
    ("GpuXid", 15, {XID % 48: "1x13 2x9"}, {XID % 48: "2x20"}),
    ("GpuMemoryErrors", 1, {'sglang_pd_gpu_ecc_uncorrected{uuid="GPU-1"}': "1x5"}, {'sglang_pd_gpu_ecc_corrected{uuid="GPU-1"}': "9x5"}),
    ("GpuMemoryErrors", 1, {'sglang_pd_gpu_rows_failed{uuid="GPU-1"}': "1x5"}, {'sglang_pd_gpu_rows_pending{uuid="GPU-1"}': "1x5"}),
    ("GpuRowsPending", 1, {'sglang_pd_gpu_rows_pending{uuid="GPU-1"}': "1x5"}, {'sglang_pd_gpu_rows_pending{uuid="GPU-1"}': "0x5"}),
    ("ChangedByHand", 20, {"sglang_pd_as_passed": "0x30"}, {"sglang_pd_as_passed": "1x6 0x30"}),
    ("DiskFull", 15, {FREE: "9x20", SIZE: "100x20"}, {FREE: "11x20", SIZE: "100x20"}),
    ("DiskFull", 15, {FREE: "9x20", SIZE: "100x20"},
     {FREE.replace("ext4", "tmpfs"): "1x20", SIZE.replace("ext4", "tmpfs"): "100x20"}),
    ("DiskFull", 15, {FREE: "49e9x20", SIZE: "1e12x20"}, {FREE: "51e9x20", SIZE: "1e12x20"}),
    ("DiskFull", 15, {FREE: "9x20", SIZE: "100x20", READONLY: "0x20"}, {FREE: "9x20", SIZE: "100x20", READONLY: "1x20"}),
    ("MemoryLow", 8, {"node_memory_MemAvailable_bytes": "4x9", "node_memory_MemTotal_bytes": "100x9"}, {"node_memory_MemAvailable_bytes": "6x9", "node_memory_MemTotal_bytes": "100x9"}),
    ("ClockWrong", 70, {"node_timex_sync_status": "0x80"}, {"node_timex_sync_status": "1x11 0x80"}),
    ("FiguresOld", 6, {'node_textfile_mtime_seconds{file="x.prom"}': "0x9"}, {'node_textfile_mtime_seconds{file="x.prom"}': "60x9"}),
    ("FiguresOld", 6, {'node_textfile_mtime_seconds{file="x.prom"}': "0x9"}, {'node_textfile_mtime_seconds{file="x.prom"}': "-9000x5 360x9"}),
    ("WatcherDown", 8, {'up{job="host",instance="host"}': "0x9"}, {'up{job="host",instance="host"}': "1x4 0x9"}),
]  # fmt: skip


def test_every_alert_has_a_case() -> None:
    assert {alert for alert, *_ in CASES} == rules().keys()


@pytest.mark.parametrize("fires", [True, False], ids=["fires", "near miss"])
def test_alerts(fires: bool, promtool: str, tmp_path: Path) -> None:
    """All cases at once, each on series of its own; annotations are the rule's, their words filled in."""
    groups = []
    for alert, minute, firing, near in CASES:
        series = [{"series": name, "values": values} for name, values in (firing if fires else near).items()]
        expected = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > 0'
        samples = [{"value": 1}] if fires else []
        groups.append({
            "name": f"{alert} at {minute} min", "interval": "1m", "input_series": series,
            "promql_expr_test": [{"expr": f"clamp_max({expected}, 1)", "eval_time": f"{minute}m", "exp_samples": samples}],
        })  # fmt: skip
    file = tmp_path / "cases.yml"
    tests = {
        "rule_files": [str(REPOSITORY / "files/monitoring/alerts.yml")],
        "evaluation_interval": "1m",
        "tests": groups,
    }
    file.write_text(yaml.safe_dump(tests))
    ran = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_prometheus_reads_the_rules_and_the_configuration(promtool: str) -> None:
    ran = subprocess.run(
        [promtool, "check", "rules", REPOSITORY / "files/monitoring/alerts.yml"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_alert_says_what_to_do() -> None:
    for group in yaml.safe_load(catalogue.alert_rules())["groups"]:
        for rule in group["rules"]:
            assert set(rule["annotations"]) == {"summary", "do"}, rule["alert"]
            pages = re.findall(r"docs/[\w-]+\.md", rule["annotations"]["do"])
            assert pages and all((REPOSITORY / page).is_file() for page in pages), rule["alert"]
            assert "vector(" not in rule["expr"], "a missing metric would be hidden"


def test_the_alert_on_xids_knows_those_that_refuse_a_host() -> None:
    failing: Settings = settings()
    (pattern,) = re.findall(r'xid=~"([^"]+)"', rules()["GpuXid"])
    assert {number for number in range(1, 300) if re.fullmatch(pattern, str(number))} == set(failing.failing_xids)


def test_every_counter_of_failures_is_one_that_a_rule_reads() -> None:
    assert metrics() >= AT_FAILURE


def test_prometheus_reads_every_query_of_the_dashboards(promtool: str, tmp_path: Path) -> None:
    queries = [query for of_panel in panels().values() for query in of_panel]
    assert len(queries) > 30
    recorded = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    ran = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_dashboard_asks_for_its_data_source_on_import() -> None:
    files = sorted(catalogue.DASHBOARDS.glob("*.json"))
    made = [json.loads(path.read_text()) for path in files]
    assert len({one["uid"] for one in made}) == len(files) == 3
    for dashboard in made:
        (source,) = dashboard["__inputs"]
        assert {panel["datasource"] for panel in dashboard["panels"]} == {f"${{{source['name']}}}"}
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_page_lists_every_alert() -> None:
    page = (REPOSITORY / "docs/monitoring.md").read_text()
    listed = re.findall(r"^\| `([A-Z]\w+)`( \(warning\))? \|", page, re.MULTILINE)
    groups = yaml.safe_load(catalogue.alert_rules())["groups"]
    severities = {rule["alert"]: rule["labels"]["severity"] for group in groups for rule in group["rules"]}
    assert {name: "warning" if warns else "page" for name, warns in listed} == severities
