"""The service as it lies on a host, whatever is planned for it: what a part such as `make stop` works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.plan.errors import PlanError, one_line
from tasks.plan.files import WantedFile, to_json
from tasks.plan.host.answers import Answer, json_object
from tasks.plan.service.paths import DEVICES, STOPPED, WATCHDOG, name_of, unit_of
from tasks.plan.service.restarts import DOWN, own_units
from tasks.plan.settings import place

ROUTER = unit_of(place.ROUTER)


@dataclass(frozen=True)
class Installed:
    """Units of servers and router that are ours, in the order in which they are shown, with systemd's state of each."""

    units: Mapping[str, str]
    has_passed: bool  # whether a run has come to its end here

    @property
    def running(self) -> tuple[str, ...]:
        """Those that hold something, also while they start."""
        return tuple(unit for unit, state in self.units.items() if state not in DOWN)

    @property
    def is_running(self) -> bool:
        """Whether none of them is down."""
        return set(self.running) == set(self.units)

    @property
    def names(self) -> dict[str, str]:
        """Name of a server -> its unit."""
        return {name_of(unit): unit for unit in self.units}

    @property
    def is_routed(self) -> bool:
        """Whether its questions are asked here: else its router is on another host."""
        return ROUTER in self.units

    def whole(self) -> Installed:
        """Raises PlanError where no run has come to its end, so that the service may not run as it lies there."""
        if not self.has_passed:
            raise PlanError("the service is installed here in part, and never answered: run deploy.py to its end first")
        return self

    def serving(self, stopped: str) -> Installed:
        """Raises PlanError where nothing runs. stopped: who stopped it, "" for nobody."""
        if not self.whole().running:
            raise PlanError(f"nothing runs here{': ' if stopped else ''}{stopped}: start it with `make start`")
        return self


def read(sections: Mapping[str, Answer], has_passed: bool) -> Installed:
    """From the fact Units. Raises PlanError where nothing of ours is installed, or the answer is cut short."""
    found = {unit: state for unit, state in own_units(sections).items() if unit not in (DEVICES, WATCHDOG)}
    if not found:
        raise PlanError("nothing is installed on this host: run deploy.py first")
    order = sorted(found, key=lambda unit: (unit == ROUTER, "prefill" not in unit, unit))
    return Installed({unit: found[unit] for unit in order}, has_passed)


def stopped_file(by: str, at: str) -> WantedFile:
    """There while the service is stopped because somebody asked for it."""
    return WantedFile(STOPPED, to_json({"by": by, "at": at}), "600")


def stopped_by(text: str | None) -> str:
    """Who stopped the service and when, from that file; "" where nobody did."""
    if not text:
        return ""
    told = json_object(text) or {}
    return one_line(f"{told.get('by', 'somebody')} stopped it at {told.get('at', 'some time')}")


def with_who_stopped(reasons: Mapping[str, str], text: str | None) -> dict[str, str]:
    """Reasons to start, with who stopped the service before this run."""
    who = stopped_by(text)
    return {name: f"{why}: {who}" if who and why.startswith("starts") else why for name, why in reasons.items()}
