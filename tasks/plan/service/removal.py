"""Everything of ours on a host, by its own name: what nobody of ours put there is not in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tasks.plan.errors import PlanError
from tasks.plan.files import FoundPaths
from tasks.plan.service.paths import (
    ANSWERS,
    DEVICES,
    JOURNALD,
    KV_CACHES,
    NEEDRESTART,
    PASSED,
    RUN,
    STOPPED,
    SYSCTL,
    TARGET,
    UNITS,
    Paths,
)
from tasks.plan.service.sandbox import HOMES
from tasks.plan.settings.settings import Settings

LAYOUTS = ("", "-single", "-data_parallel")  # ends of the names of what pd-probe measured
ROOT = ("cache", "current", "previous", "locks", "models", "releases", "tools", "bin")  # bin last: by it we know them
HOME = (".cache", ".config", ".local", ".nv", ".triton")  # what servers leave in their home, which is the state folder


@dataclass(frozen=True)
class Removal:
    """Paths to take away: of root, of the service user, then folders that are empty by then."""

    of_root: tuple[str, ...]
    of_user: tuple[str, ...]
    folders: tuple[str, ...]
    units: tuple[str, ...]  # to be stopped and disabled first
    root: str
    tool: str  # of every playbook: where it is, so are we

    @property
    def asked(self) -> list[str]:
        return [*self.of_root, *self.folders, self.tool]

    def there(self, found: FoundPaths) -> Removal:
        """What of it is on the host."""

        def left(paths: Iterable[str]) -> tuple[str, ...]:
            return tuple(path for path in paths if found[path].kind != "absent")

        of_root, folders = left(self.of_root), left(self.folders)
        if found[self.tool].kind == "absent":  # another root_dir than that of the run: what is below is somebody's
            below = tuple(path for path in of_root if path.startswith(f"{self.root}/"))
            of_root = tuple(path for path in of_root if path not in below)
            folders = (*(path for path in below if found[path].kind == "directory"), *folders)
        return replace(self, of_root=of_root, of_user=left(self.of_user), folders=folders)

    def is_nothing(self, models: str) -> bool:
        """Whether nothing is left but models that are kept, and the folder above them."""
        above = {models, models.rpartition("/")[0]}
        return not (self.of_root or self.of_user or self.units or set(self.folders) - above)


def brought(paths: Paths, settings: Settings) -> tuple[str, ...]:
    """Paths that the user named and filled, and the models that were fetched: they stay, wherever they lie."""
    own = () if paths.model.startswith(f"{paths.bundled}/") else (paths.model,)
    named = (settings.model_dir, settings.existing_python, settings.existing_router_python, *settings.existing_paths)
    return (paths.models, paths.state, *own, *(path for path in named if path))


def removal(paths: Paths, units: Sequence[str], stays: Sequence[str] = ()) -> Removal:
    """units: every unit file of ours on the host. stays: as `brought` says; no folder above one of them goes."""
    root, state = paths.root, paths.state
    of_units = [path for unit in units for path in paths.files_of(unit)]
    in_home = any(state.startswith(f"{home}/") for home in HOMES)  # then a person lives there, who has such folders too

    def without(every: Iterable[str]) -> tuple[str, ...]:
        return tuple(path for path in every if not any(f"{one}/".startswith(f"{path}/") for one in stays))

    planned = Removal(
        of_root=(
            *of_units,
            f"{UNITS}/{TARGET}", f"{UNITS}/{TARGET}.wants", f"{UNITS}/{DEVICES}", SYSCTL, NEEDRESTART, JOURNALD,
            *(f"{root}/{name}" for name in ROOT),
            paths.verify, paths.passed, paths.watchdog, paths.workers, paths.probe, paths.told, paths.pin, paths.bench,
            paths.secret, paths.tls, f"{paths.tls}.new", paths.earlier_secret, *paths.secret_leftovers[:-1],
            RUN, PASSED, STOPPED, ANSWERS, KV_CACHES,
        ),
        of_user=(
            paths.cache, paths.benched,
            *(f"{state}/probe{end}.json{draft}" for end in LAYOUTS for draft in ("", ".new")),
            *(f"{state}/{name}" for name in HOME if not in_home),
        ),
        folders=(root, paths.config, paths.models, state),
        units=tuple(units),
        root=root,
        tool=f"{paths.bin}/pd-launch",
    )  # fmt: skip
    return replace(planned, of_root=without(planned.of_root), of_user=without(planned.of_user))


def confirmed(host_name: str, given: object) -> None:
    """Raises PlanError where the host was not named once more."""
    if given != host_name:
        said = f", not {given!r}" if given else ""
        raise PlanError(
            f"removes everything but models from {host_name}: say its name to go on, NAME={host_name}{said}"
        )
