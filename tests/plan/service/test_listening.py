"""Do servers listen where they are planned to?"""

from __future__ import annotations

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.service.instances import Instance
from tasks.plan.service.listening import Verdict, judge
from tests.plan.builders import TWO_SOCKETS, hardware, servers, settings

PREFILL, DECODE, ROUTER = (f"sglang-pd-{name}.service" for name in ("prefill", "decode", "router"))
SHUT = "IPAddressAllow=127.0.0.0/8 ::1/128\nIPAddressDeny=::/0 0.0.0.0/0"
OPEN = "IPAddressAllow=\nIPAddressDeny="
LOOPBACK, EVERY, OWN = "0100007F", "00000000", "0201D50A"
PLANNED = f"tcp {LOOPBACK}:7530 1\ntcp {LOOPBACK}:1F40 2\ntcp {EVERY}:0016 3\ntcp {LOOPBACK}:7531 7"


HELD = "1 10\n4 10\n5 10\n2 20\n6 20\n3 30\n7 40"


def verdict(
    listeners: str = "", enforced: str = "refused", filtered: str = SHUT, held: str = HELD, **changes: object
) -> Verdict:
    """Prefill is pid 10, the router 20, sshd 30, decode 40; inode 1, 4 and 5 are prefill's, 2 and 6 the router's."""
    made = settings(**changes)
    instances: tuple[Instance, ...] = servers(made, hardware(TWO_SOCKETS))
    texts = {
        "listeners": f"{PLANNED}\n{listeners}".strip(),
        "sockets": held,
        "owners": f"10\t{PREFILL}\tsglang::scheduler\n20\t{ROUTER}\tsglang::router\n30\tssh.service\tsshd\n"
        f"40\t{DECODE}\tsglang::scheduler",
        "enforced": enforced,
        **{instance.unit: filtered for instance in instances},
    }
    return judge({name: Answer(0, text) for name, text in texts.items()}, instances, made)


def test_sockets_on_loopback_and_those_of_others_are_no_fault() -> None:
    assert verdict() == Verdict((), (), 3)


def test_a_wider_socket_that_an_enforced_filter_closes_is_told_but_no_fault() -> None:
    found = verdict(f"tcp {EVERY}:767F 4\nudp {OWN}:9C40 5")
    assert found.faults == ()
    assert found.closed == (
        "prefill: every address, port 30335/tcp (prefill_dist_init_port)",
        "prefill: 10.213.1.2, port 40000/udp",
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"enforced": "passed"}, "the address filter of its unit is not enforced on this host"),
        ({"enforced": ""}, "the address filter of its unit is not enforced on this host"),
        ({"filtered": OPEN}, "its unit has no address filter"),
        ({"filtered": ""}, "its unit has no address filter"),
        ({"filtered": "IPAddressAllow=\nIPAddressDeny=10.0.0.0/8"}, "its unit has no address filter"),
        ({"filtered": "IPAddressAllow=0.0.0.0/0\nIPAddressDeny=::/0 0.0.0.0/0"}, "its unit has no address filter"),
    ],
)
def test_a_wider_socket_that_nothing_closes_is_named_with_process_address_and_port(
    given: dict[str, str], why: str
) -> None:
    (line,) = verdict(f"tcp {EVERY}:767F 4", **given).faults
    assert line == (
        "prefill: pid 10 (sglang::scheduler) listens on every address, port 30335/tcp (prefill_dist_init_port); "
        f"planned is 127.0.0.1, and {why}"
    )


def test_the_router_listens_beyond_loopback_where_its_settings_say_so_and_nowhere_else() -> None:
    wide = {"router_host": "0.0.0.0", "router_api_key_env": "KEY", "filtered": OPEN}
    assert verdict(f"tcp {EVERY}:1F40 6", **wide).faults == ()
    (line,) = verdict(f"tcp {EVERY}:7149 6", **wide).faults
    assert line.startswith("router: pid 20 (sglang::router) listens on every address, port 29001/tcp")
    (line,) = verdict(f"tcp {EVERY}:1F40 6", filtered=OPEN).faults
    assert "port 8000/tcp (router_port)" in line


def test_a_look_that_saw_nothing_of_a_server_does_not_pass() -> None:
    (line,) = verdict(held=HELD.removesuffix("\n7 40")).faults
    assert line == f"decode: no socket of {DECODE} could be seen, although it answers"
    assert len(verdict(held="").faults) == 3


def test_an_answer_that_is_cut_short_is_no_good_answer() -> None:
    with pytest.raises(PlanError, match="cut short"):
        judge({}, servers(settings(), hardware(TWO_SOCKETS)), settings())
