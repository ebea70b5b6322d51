"""Everything of ours on a host, by its own name: what nobody of ours put there is not in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tasks.plan.errors import PlanError
from tasks.plan.files import FoundPaths
from tasks.plan.service.paths import DEVICES, KV_CACHES, NEEDRESTART, PASSED, RUN, STOPPED, SYSCTL, TARGET, UNITS, Paths

LAYOUTS = ("", "-single", "-data_parallel")  # ends of the names of what pd-probe measured
ROOT = ("bin", "cache", "current", "previous", "locks", "models", "releases", "tools")
HOME = (".cache", ".config", ".local", ".nv", ".triton")  # what servers leave in their home, which is the state folder


@dataclass(frozen=True)
class Removal:
    """Paths to take away: of root, of the service user, then folders that are empty by then."""

    of_root: tuple[str, ...]
    of_user: tuple[str, ...]
    folders: tuple[str, ...]
    units: tuple[str, ...]  # to be stopped and disabled first

    @property
    def asked(self) -> list[str]:
        return [*self.of_root, *self.folders]

    def there(self, found: FoundPaths) -> Removal:
        """What of it is on the host."""

        def left(paths: Iterable[str]) -> tuple[str, ...]:
            return tuple(path for path in paths if found[path].kind != "absent")

        return Removal(left(self.of_root), left(self.of_user), left(self.folders), self.units)

    def is_nothing(self, models: str) -> bool:
        """Whether nothing is left but models that are kept, and the folder above them."""
        above = {models, models.rpartition("/")[0]}
        return not (self.of_root or self.of_user or self.units or set(self.folders) - above)


def removal(paths: Paths, units: Sequence[str]) -> Removal:
    """units: every unit file of ours on the host."""
    root, state = paths.root, paths.state
    of_units = [path for unit in units for path in paths.files_of(unit)]
    return Removal(
        of_root=(
            *of_units,
            f"{UNITS}/{TARGET}", f"{UNITS}/{TARGET}.wants", f"{UNITS}/{DEVICES}", SYSCTL, NEEDRESTART,
            *(f"{root}/{name}" for name in ROOT),
            paths.verify, paths.passed, paths.watchdog, paths.workers, paths.probe, paths.told, paths.pin, paths.bench,
            paths.secret, paths.tls, paths.earlier_secret, *paths.secret_leftovers[:-1],
            RUN, PASSED, STOPPED, KV_CACHES,
        ),
        of_user=(
            paths.cache, paths.benched,
            *(f"{state}/probe{end}.json{draft}" for end in LAYOUTS for draft in ("", ".new")),
            *(f"{state}/{name}" for name in HOME),
        ),
        folders=(root, paths.config, paths.models, state),
        units=tuple(units),
    )  # fmt: skip


def confirmed(host_name: str, given: object) -> None:
    """Raises PlanError where the host was not named once more."""
    if given != host_name:
        said = f", not {given!r}" if given else ""
        raise PlanError(
            f"removes everything but models from {host_name}: say its name to go on, NAME={host_name}{said}"
        )
