"""What files/ offers: releases, model profiles, patches. Read from this checkout, typed, with one-line errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tasks.plan.errors import PlanError, nearest
from tasks.plan.files import WantedFile
from tasks.plan.model.folder import name_of
from tasks.plan.model.profile import Source, Stated
from tasks.plan.release import lock
from tasks.plan.release.choice import AUTO
from tasks.plan.release.history import Description
from tasks.plan.release.manifest import Existing, Manifest, Release, RouterPackage
from tasks.plan.release.patches import HOOK, Patch, PatchManifest, check, unknown
from tasks.plan.report import status
from tasks.plan.report.status import Dashboard
from tasks.plan.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
LOCKS, MODELS, KERNELS, TOOLS = (ROOT / "files" / name for name in ("locks", "models", "kernels", "bin"))
DASHBOARDS = ROOT / "files" / "dashboards"
DEFAULT_MODEL = "deepseek-v4-flash-nvfp4"  # of model = "auto" without a model_dir

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


def manifest(name: str) -> Manifest:
    """The manifest of a release. Raises PlanError for an unknown name or a manifest with faults."""
    known = sorted(path.parent.name for path in LOCKS.glob("*/manifest.yaml"))
    if name not in known:
        raise PlanError(f"unknown release {name!r}: files/locks holds {', '.join(known)}.{nearest(name, known)}")
    found = _typed(Manifest, LOCKS / name / "manifest.yaml")
    if found.name != name:
        raise PlanError(f"files/locks/{name}/manifest.yaml calls itself {found.name!r}: name and folder must agree")
    return found


def offered(name: str) -> tuple[Manifest, ...]:
    """The releases that a setting stands for: the named one, or with "auto" every one for GPUs that can be built.

    Raises PlanError.
    """
    if name != AUTO:
        return (manifest(name),)
    every = (manifest(path.parent.name) for path in sorted(LOCKS.glob("*/manifest.yaml")))
    return tuple(found for found in every if found.device == "cuda" and _has_lock(LOCKS / found.name))


def release(
    found: Manifest,
    python: str,
    torch_wheel: str,
    router: RouterPackage = "sglang-router",
    patches: tuple[Patch, ...] | None = None,
) -> Release:
    """A manifest with its locks for one Python and its patches (None: its own).

    Raises PlanError where one is missing.
    """
    folder = LOCKS / found.name
    of_router = "router" if router == "sglang-router" else f"router-{router}"
    ordinary = f"python{python}-ordinary-torch.txt"
    return Release(
        manifest=found,
        python=python,
        lock=_lock(
            folder, ordinary if torch_wheel == "ordinary" and (folder / ordinary).is_file() else f"python{python}.txt"
        ),
        router_lock=_lock(folder, f"{of_router}-python{python}.txt"),
        patches=chosen_patches(found) if patches is None else patches,
        router=router,
    )


def described(
    found: Manifest, python: str, torch_wheel: str, router: RouterPackage, patches: tuple[Patch, ...] | None = None
) -> Description:
    """A release to build, with the options that its server knows."""
    arguments = tuple(sorted(accepted_arguments(found)))
    return Description(release(found, python, torch_wheel, router, patches), arguments)


def described_without_servers(found: Manifest, python: str, router: RouterPackage) -> Description:
    """As described, for a host that has the router alone: the servers' environment holds no package."""
    whole = release(found, python, "cpu", router, ())
    return Description(replace(whole, lock=lock.NO_SERVERS), ())


def adopted(found: Manifest, existing: Existing, router: RouterPackage) -> Description:
    """A release in an environment that is there already; nothing is placed into it."""
    made = Release(found, existing.servers.version, "", "", (), router, existing)
    return Description(made, tuple(sorted(accepted_arguments(found))))


def chosen_patches(
    found: Manifest,
    names: list[str] | None = None,
    own: str | None = None,
    capabilities: Set[str] = frozenset(),
    more: Sequence[str] = (),
) -> tuple[Patch, ...]:
    """The named patches, behind the hook that binds and reports them. None: those of the release's manifest that serve
    GPUs of these compute capabilities.

    own: a folder with more patches than files/kernels. more: names of patches besides these. Raises PlanError, one line
    a fault: an unknown name, a manifest with faults, a version that does not fit.
    """
    folders = {path.parent.name: path.parent for path in sorted(KERNELS.glob("*/manifest.yaml"))}
    where, hint = "files/kernels", " For a patch of your own, set patch_dir to the folder that holds it."
    if own is not None:
        if not Path(own).is_dir():
            raise PlanError(f"setting patch_dir = {own!r}: no such folder on this machine")
        theirs = {path.parent.name: path.parent for path in sorted(Path(own).glob("*/manifest.yaml"))}
        if both := sorted(theirs.keys() & folders.keys()):
            raise PlanError(f"{own}/{both[0]}: files/kernels has a patch {both[0]} too, give yours another name")
        folders |= theirs
        where, hint = f"files/kernels with {own}", ""
    is_chosen = names is not None
    names = names if names is not None else found.patches
    asked_by = "setting patches" if is_chosen else f"release {found.name}"
    lines = [*unknown(names, folders, where, asked_by), *unknown(more, folders, where, "setting more_patches")]
    if lines:
        raise PlanError(*(f"{line}{hint}" for line in lines))
    named = [patch(folders[name]) for name in dict.fromkeys(names)]
    if not is_chosen:
        named = [one for one in named if one.serves(capabilities)]
    named += [patch(folders[name]) for name in dict.fromkeys(more) if name not in {one.name for one in named}]
    if not named:
        return ()
    chosen = (patch(folders[HOOK]), *named)
    check(chosen, found.sglang, found.name)
    return chosen


def accepted_arguments(found: Manifest) -> frozenset[str]:
    """The long options that the server of a release knows."""
    return frozenset((LOCKS / found.name / "arguments.txt").read_text().split())


def router_arguments(found: Manifest, router: RouterPackage) -> frozenset[str]:
    """The long options that a router of this release knows; empty for a router that the release does not have."""
    file = LOCKS / "routers" / f"{router}-{found.routers.get(router)}.txt"
    return frozenset(file.read_text().split()) if file.is_file() else frozenset()


def stated(name: str, model_dir: str | None = None, own: str | None = None) -> Stated:
    """What is said of the model that the settings name, before its folder is read.

    name, model_dir: the settings. own: a folder with more profiles than files/models. Raises PlanError, one line a
    fault: an unknown name, a profile with faults.
    """
    folders = {path.stem: path for path in sorted(MODELS.glob("*.yaml"))}
    where = "files/models"
    if own is not None:
        if not Path(own).is_dir():
            raise PlanError(f"setting model_profiles = {own!r}: no such folder on this machine")
        theirs = {path.stem: path for path in sorted(Path(own).glob("*.yaml"))}
        if both := sorted(theirs.keys() & folders.keys()):
            raise PlanError(f"{own}/{both[0]}.yaml: files/models has a {both[0]} too, give yours another name")
        folders |= theirs
        where = f"files/models with {own}"
    if name == AUTO:
        called = name_of(model_dir) if model_dir else DEFAULT_MODEL
        alike = [known for known in folders if known.casefold() == called.casefold()]
        if not alike:
            return Stated(called, Source(directory=model_dir))
        name = alike[0]
    if name not in folders:
        raise PlanError(
            f"unknown model {name!r}: {where} holds {', '.join(folders)}. For a model of your own set model = "
            f'"auto" and model_dir (docs/models.md).{nearest(name, list(folders))}'
        )
    found = _read(Stated.of, folders[name])
    if found.name != name:
        raise PlanError(f"{_shown(folders[name])} calls itself {found.name!r}: name and file must agree")
    return found


def patch(folder: Path) -> Patch:
    """The patch in a folder, with the bytes of its files. Raises PlanError, one line a fault."""
    found = _typed(PatchManifest, folder / "manifest.yaml")
    if found.name != folder.name:
        raise PlanError(f"{_shown(folder)}/manifest.yaml calls itself {found.name!r}: name and folder must agree")
    named = [found.diff] if found.diff else [*found.files] or [*found.replaces]
    if missing := [path for path in named if not (folder / path).is_file()]:
        raise PlanError(f"patch {found.name}: {_shown(folder)}/{missing[0]} is named in its manifest, but not there")
    return Patch(found, {path: (folder / path).read_bytes() for path in named})


def bundled_model(name: str) -> dict[str, bytes]:
    """The files of a model that this checkout carries, by name."""
    return {path.name: path.read_bytes() for path in sorted((MODELS / name).iterdir()) if path.is_file()}


def tools() -> dict[str, bytes]:
    """The on-host tools of files/bin by name, after what they share: a module, and how servers fail."""
    return {path.name: path.read_bytes() for path in [*sorted(TOOLS.glob("pd_*.*")), *sorted(TOOLS.glob("pd-*"))]}


def placed_tools(folder: str) -> list[WantedFile]:
    """All of them as a host keeps them: tools of two versions never meet one module."""
    return [
        WantedFile(f"{folder}/{name}", content, "644" if name.startswith("pd_") else "755", gist="runs on the host")
        for name, content in tools().items()
    ]


def alert_rules() -> bytes:
    """What Prometheus watches for."""
    return (ROOT / "files" / "monitoring" / "alerts.yml").read_bytes()


def dashboard_files() -> dict[str, bytes]:
    """By name, as they are imported into a Grafana."""
    return {path.name: path.read_bytes() for path in sorted(DASHBOARDS.glob("*.json"))}


def dashboards() -> list[Dashboard]:
    """In the order in which somebody looks: the service, the way between its servers, hosts."""
    return [status.dashboard((DASHBOARDS / f"{name}.json").read_text()) for name in ("service", "kv-path", "host")]


def alertmanager(settings: Settings) -> bytes | None:
    """The user's configuration of alertmanager, which may hold passwords; None where the setting names none.

    Raises PlanError, which never shows it.
    """
    name = settings.alertmanager_config
    if name is None or not settings.monitoring:
        return None
    try:
        content = Path(name).read_bytes()
        said = yaml.safe_load(content)
    except OSError as error:
        raise PlanError(
            f"setting alertmanager_config = {name!r} cannot be read on this machine: {error.strerror}"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise PlanError(f"setting alertmanager_config = {name!r} is no YAML") from None
    if not isinstance(said, dict) or not {"route", "receivers"} <= said.keys():
        raise PlanError(f"setting alertmanager_config = {name!r} needs route and receivers, as alertmanager reads them")
    return content


def uv_lock() -> str:
    """The pinned, hashed requirement of the package installer."""
    return (LOCKS / "uv.txt").read_text()


def _has_lock(folder: Path) -> bool:
    """Whether a release can be built at all."""
    return any(folder.glob("python*.txt"))


def _lock(folder: Path, name: str) -> str:
    path = folder / name
    if not _has_lock(folder):
        raise PlanError(
            f'release {folder.name} has no lock, it serves environment = "existing" only: set that, or choose another'
        )
    if not path.is_file():
        raise PlanError(f"release {folder.name} has no lock {name}: it serves other Python versions only")
    text = path.read_text()
    lock.read(text, f"files/locks/{folder.name}/{name}")
    return text


def _typed(kind: type[M], path: Path) -> M:
    return _read(kind.model_validate, path)


def _read(parse: Callable[[Any], T], path: Path) -> T:
    """Raises PlanError, one line a fault."""
    where = _shown(path)
    try:
        return parse(yaml.safe_load(path.read_text()))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlanError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        faults = [
            ": ".join([where, *([".".join(map(str, fault["loc"]))] if fault["loc"] else []), _message(fault["msg"])])
            for fault in error.errors()
        ]
        raise PlanError(*faults) from None


def _message(text: str) -> str:
    return text.removeprefix("Value error, ")


def _shown(path: Path) -> str:
    """A path below this checkout without the checkout's own."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
