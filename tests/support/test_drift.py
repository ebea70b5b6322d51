"""The command behind `make drift`, as far as it comes without a host: which hosts it asks, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Checkout

CLOSED = {"ssh_hostname": "127.0.0.1", "ssh_port": 1}


def drift(checkout: Checkout, *arguments: str) -> tuple[int, list[str]]:
    """Exit status, and the lines on stderr."""
    ran = subprocess.run(
        [sys.executable, "-m", "tasks.support.drift", *arguments], cwd=checkout.folder, env=checkout.environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stdout == "" and "Traceback" not in ran.stderr
    return ran.returncode, ran.stderr.splitlines()


@pytest.fixture
def fleet(checkout: Checkout) -> Checkout:
    checkout.hosts(("gpu-1", CLOSED), ("gpu-2", CLOSED), ("gpu-3", CLOSED))
    return checkout


def test_a_service_is_every_host_of_it(fleet: Checkout) -> None:
    fleet.roles(prefill=["gpu-1"], decode=["gpu-2"], router=["gpu-1"])
    status, said = drift(fleet, "--service", "main", "--", "--data", "stop_limit=30")
    assert (status, said[-1]) == (1, "drift: gpu-1, gpu-2: could not tell, for the reason above")


def test_a_service_that_is_none_is_one_line(fleet: Checkout) -> None:
    fleet.roles(prefill=["gpu-1"], decode=["gpu-2"], router=["gpu-1"])
    assert drift(fleet, "--service", "mian") == (
        1,
        ["drift: no host is in a service 'mian': the inventory has main. Did you mean main?"],
    )


@pytest.mark.parametrize("arguments", [(), ("gpu-1", "--service", "main")])
def test_a_host_or_a_service_is_named(arguments: tuple[str, ...], fleet: Checkout) -> None:
    status, said = drift(fleet, *arguments)
    assert status == 2 and said[0].startswith("usage: python -m tasks.support.drift [-h] (HOST | --service NAME)")


def test_an_inventory_with_a_fault_is_told(checkout: Checkout) -> None:
    status, said = drift(checkout, "--service", "main")
    assert status == 1 and "the inventory has no hosts" in said[-2]
    assert said[-1] == "drift: service main: could not tell, for the reason above"
