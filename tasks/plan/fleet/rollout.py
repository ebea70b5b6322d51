"""Servers of several hosts that must restart: one at a time, or all at once, since KV of two kinds does not mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.plan.plan import Plan
from tasks.plan.service.instances import Instance, goes_with
from tasks.plan.service.restarts import DOWN, Running

# Options of a launch script that say what KV is made of and how it moves: SGLang compares few of them.
KV_OPTIONS = (
    "--model-path", "--dtype", "--quantization", "--page-size", "--kv-cache-dtype", "--speculative-algorithm",
    "--disaggregation-transfer-backend", "--disaggregation-enable-kv-checksum",
)  # fmt: skip
ADDRESS_OPTIONS = ("--host", "--port")  # where the router finds a server
BOOTSTRAP_OPTION = "--disaggregation-bootstrap-port"  # where decode finds a prefill server; of others it says nothing


@dataclass(frozen=True)
class Found:
    """A server of this run before it changes anything."""

    name: str
    role: str
    serves: bool
    fits: bool  # its KV is the same before and after
    moves: bool = False  # its address or a port is another afterwards


def found(worker: Instance, plan: Plan, running: Running, was: str, becomes: str) -> Found:
    """was, becomes: texts of its launch script, as it runs and as it is wanted."""
    left = running.fingerprint
    addressed = (*ADDRESS_OPTIONS, *([BOOTSTRAP_OPTION] if worker.bootstrap_port else []))
    kv, address = (_lines(was, names) == _lines(becomes, names) for names in (KV_OPTIONS, addressed))
    fits = left is not None and left.release == plan.release.id and kv
    return Found(worker.name, worker.role, running.active not in DOWN, fits, moves=not address)


def _lines(script: str, options: Sequence[str]) -> list[list[str]]:
    lines = [line.removesuffix("\\").split() for line in script.splitlines()]
    return [words for words in lines if words and words[0] in options]


def turns(restart: Sequence[Instance], plan: Plan) -> list[tuple[Instance, ...]]:
    """The servers of a host that restart, those together that systemd restarts together."""
    along = goes_with(plan.instances)
    leads = [one for one in restart if along.get(one.name) not in restart]
    return [(*(other for other in restart if along.get(other.name) == one), one) for one in leads]


def at_once(every: Sequence[Found], servers: Mapping[str, int]) -> str | None:
    """Why all restart together, "" where nothing serves yet; None where they restart one at a time.

    servers: role -> how many the whole service has.
    """
    serving = [one for one in every if one.serves]
    if not serving:
        return ""
    if any(not one.fits for one in serving):
        return "release, model or KV changes, and old servers must exchange none with new ones: all restart at once"
    if max(servers.values()) < 2:
        return "the service has one server of each role: what must restart does so at once"
    for role, count in servers.items():
        if sum(one.moves for one in serving if one.role == role) >= count:
            return f"every {role} gets another address or port, which the router knows already: all restart at once"
    return None
