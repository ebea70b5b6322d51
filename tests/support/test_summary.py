"""The last lines of a run that never got as far as a host, and the names of what it does on one."""

from __future__ import annotations

from typing import Any

from pyinfra.api import Config, Inventory, State
from pyinfra.api.operation import OperationMeta
from pyinfra.api.state import StateOperationHostData, StateOperationMeta

from tasks.support.summary import name_of
from tests.conftest import Checkout

CLOSED = ("gpu-1", {"ssh_hostname": "127.0.0.1", "ssh_port": 1})


def said(checkout: Checkout, *arguments: str) -> list[str]:
    status, output = checkout.pyinfra(*arguments)
    assert status != 0
    return [line.strip() for line in output.splitlines() if line.strip()]


def test_hosts_that_are_not_reached_are_named_with_the_command_to_go_on(checkout: Checkout) -> None:
    checkout.hosts(CLOSED, ("gpu-2", CLOSED[1]))
    last = said(checkout, "-y", "--limit", "gpu-1")
    assert last[-3:] == [
        "--> gpu-1: was not reached",
        "--> nothing was changed; not done: gpu-1 (was not reached). To go on, once that is mended:",
        "pyinfra -y --limit gpu-1 inventory.py deploy.py",
    ]


def test_a_fault_of_the_inventory_is_told_once(checkout: Checkout) -> None:
    assert "the inventory has no hosts" in said(checkout, "-y")[-1]


def test_an_operation_has_the_name_that_its_host_gave_it() -> None:
    """At one line of a phase, hosts of different roles write different files."""
    inventory = Inventory((["gpu-1", "gpu-2"], {}))
    state = State(inventory, Config())
    state.op_meta["x"] = StateOperationMeta((1,))
    for host, role in zip(inventory, ("prefill", "decode"), strict=True):
        state.op_meta["x"].names.add(f"Launch | File {role}.sh")
        arguments: Any = {"name": f"File {role}.sh"}
        state.ops[host]["x"] = StateOperationHostData(lambda: iter(()), arguments, OperationMeta("x", None))
    assert [name_of(state, host, "x") for host in inventory] == ["Launch | File prefill.sh", "Launch | File decode.sh"]
