"""What servers measured while a command ran, from two pages of their metrics."""

from __future__ import annotations

from tests.gpu.stages import between, main, read

BEFORE = """
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_sum{model_name="m",tp_rank="0"} 10.0
sglang:time_to_first_token_seconds_count{model_name="m",tp_rank="0"} 4.0
sglang:time_to_first_token_seconds_bucket{le="0.5",model_name="m",tp_rank="0"} 0.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m",tp_rank="0"} 4.0
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="idle"} 1.0
sglang:per_stage_req_latency_seconds_count{model_name="m",stage="idle"} 1.0
sglang:num_running_reqs{model_name="m"} 3.0
"""
AFTER = """
sglang:time_to_first_token_seconds_sum{model_name="m",tp_rank="0"} 11.2
sglang:time_to_first_token_seconds_count{model_name="m",tp_rank="0"} 7.0
sglang:time_to_first_token_seconds_bucket{le="0.25",model_name="m",tp_rank="0"} 1.0
sglang:time_to_first_token_seconds_bucket{le="0.5",model_name="m",tp_rank="0"} 2.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m",tp_rank="0"} 7.0
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="idle"} 1.0
sglang:per_stage_req_latency_seconds_count{model_name="m",stage="idle"} 1.0
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="forward"} 0.3
sglang:per_stage_req_latency_seconds_count{model_name="m",stage="forward"} 3.0
"""


def test_only_what_was_counted_in_between_is_told() -> None:
    assert between(read(BEFORE), read(AFTER)) == [
        {
            "name": "sglang:per_stage_req_latency_seconds", "stage": "forward", "count": 3, "mean": 0.1,
            "median_between": [0.0, None],
        },
        {
            "name": "sglang:time_to_first_token_seconds", "count": 3, "mean": 0.4,
            "median_between": [0.25, 0.5],
        },
    ]  # fmt: skip


def test_a_server_that_does_not_answer() -> None:
    assert main(["http://127.0.0.1:1", "--", "true"]) == 3
    assert main(["http://127.0.0.1:1"]) == 2
