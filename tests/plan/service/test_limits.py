"""What clients can ask for: as options of the routers, and for the servers."""

from __future__ import annotations

import pytest

from tasks.plan.errors import PlanError
from tests.plan.builders import TWO_SOCKETS, hardware, options, servers, settings

LIMITS = (
    "--max-concurrent-requests", "--queue-size", "--queue-timeout-secs", "--rate-limit-tokens-per-second",
    "--request-timeout-secs", "--max-payload-size",
)  # fmt: skip


def of_router(name: str, **changes: object) -> dict[str, str]:
    made = settings(router=name, **changes)
    said = options(servers(made, hardware(TWO_SOCKETS))[-1])
    return {option: said[option] for option in LIMITS if option in said}


def test_sglang_router_refuses_at_once_and_lets_in_one_more_each_second() -> None:
    assert of_router("sglang-router", router_max_requests=8, router_request_limit=60, router_body_limit_mib=2) == {
        "--max-concurrent-requests": "8",
        "--queue-size": "0",
        "--rate-limit-tokens-per-second": "1",
        "--request-timeout-secs": "60",
        "--max-payload-size": "2097152",
    }


def test_smg_has_no_rate_unless_one_is_asked_for() -> None:
    """What is given back to sglang-router is not given back to smg: 1 would be one request a second."""
    assert "--rate-limit-tokens-per-second" not in of_router("smg")
    asked = of_router("smg", router_queue=5, router_queue_limit=7, router_rate=20)
    assert (asked["--queue-size"], asked["--queue-timeout-secs"]) == ("5", "7")
    assert asked["--rate-limit-tokens-per-second"] == "20"


@pytest.mark.parametrize("name", ["router_queue", "router_rate"])
def test_what_sglang_router_cannot_do_is_refused(name: str) -> None:
    with pytest.raises(PlanError) as error:
        settings(**{name: 5})
    (line,) = error.value.lines
    assert line.startswith(f"setting {name} = 5: sglang-router cannot do that") and 'router = "smg"' in line


def test_servers_cut_answers_where_a_setting_says_so() -> None:
    def limit(**changes: object) -> list[str]:
        made = servers(settings(**changes), hardware(TWO_SOCKETS))
        return [v.value for one in made for v in one.environment if v.name == "SGLANG_MAX_NEW_TOKENS_LIMIT"]

    assert limit() == []
    assert limit(max_answer_tokens=4096) == ["4096", "4096"]
