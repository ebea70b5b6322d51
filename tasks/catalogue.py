"""What files/ offers: releases, model profiles, overlays. Read from this checkout, typed, with one-line errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tasks.plan import lock
from tasks.plan.choice import AUTO
from tasks.plan.errors import PlanError, nearest
from tasks.plan.kept import Description
from tasks.plan.model import ModelProfile
from tasks.plan.release import Existing, Manifest, Overlay, Release, RouterPackage

ROOT = Path(__file__).resolve().parent.parent
LOCKS, MODELS, KERNELS, TOOLS = (ROOT / "files" / name for name in ("locks", "models", "kernels", "bin"))

M = TypeVar("M", bound=BaseModel)


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
    return tuple(found for found in every if found.device == "cuda" and any((LOCKS / found.name).glob("python*.txt")))


def release(found: Manifest, python: str, torch_wheel: str, router: RouterPackage = "sglang-router") -> Release:
    """A manifest with its locks for one Python and its overlays. Raises PlanError where one is missing."""
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
        overlays=tuple(overlay(name, found) for name in found.patches),
        router=router,
    )


def described(found: Manifest, python: str, torch_wheel: str, router: RouterPackage) -> Description:
    """A release to build, with the options that its server knows."""
    return Description(release(found, python, torch_wheel, router), tuple(sorted(accepted_arguments(found))))


def adopted(found: Manifest, existing: Existing, router: RouterPackage) -> Description:
    """A release in an environment that is there already; nothing is placed into it."""
    made = Release(found, existing.servers.version, "", "", (), router, existing)
    return Description(made, tuple(sorted(accepted_arguments(found))))


def accepted_arguments(found: Manifest) -> frozenset[str]:
    """The long options that the server of a release knows."""
    return frozenset((LOCKS / found.name / "arguments.txt").read_text().split())


def profile(name: str) -> ModelProfile:
    """A model profile. Raises PlanError for an unknown name or a profile with faults."""
    known = sorted(path.stem for path in MODELS.glob("*.yaml"))
    if name not in known:
        raise PlanError(f"unknown model {name!r}: files/models holds {', '.join(known)}.{nearest(name, known)}")
    return _typed(ModelProfile, MODELS / f"{name}.yaml")


def overlay(name: str, found: Manifest) -> Overlay:
    """An overlay of files/kernels with the bytes of its files."""
    folder = KERNELS / name
    if not (folder / "manifest.yaml").is_file():
        raise PlanError(f"release {found.name} names patch {name!r}: files/kernels/{name}/manifest.yaml is not there")
    described: dict[str, Any] = yaml.safe_load((folder / "manifest.yaml").read_text())
    missing = [path for path in described["files"] if not (folder / path).is_file()]
    if missing:
        raise PlanError(f"patch {name}: files/kernels/{name}/{missing[0]} is named in its manifest, but not there")
    return Overlay(
        name=name,
        files={path: (folder / path).read_bytes() for path in described["files"]},
        environment=tuple(described.get("environment", ())),
    )


def bundled_model(name: str) -> dict[str, bytes]:
    """The files of a model that this checkout carries, by name."""
    return {path.name: path.read_bytes() for path in sorted((MODELS / name).iterdir()) if path.is_file()}


def tools() -> dict[str, bytes]:
    """The on-host tools of files/bin, by name."""
    return {path.name: path.read_bytes() for path in sorted(TOOLS.glob("pd-*"))}


def uv_lock() -> str:
    """The pinned, hashed requirement of the package installer."""
    return (LOCKS / "uv.txt").read_text()


def _lock(folder: Path, name: str) -> str:
    path = folder / name
    if not any(folder.glob("python*.txt")):
        raise PlanError(
            f'release {folder.name} has no lock, it serves environment = "existing" only: set that, or choose another'
        )
    if not path.is_file():
        raise PlanError(f"release {folder.name} has no lock {name}: it serves other Python versions only")
    text = path.read_text()
    lock.read(text, f"files/locks/{folder.name}/{name}")
    return text


def _typed(kind: type[M], path: Path) -> M:
    where = path.relative_to(ROOT)
    try:
        return kind.model_validate(yaml.safe_load(path.read_text()))
    except yaml.YAMLError as error:
        raise PlanError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        faults = [f"{where}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise PlanError(*faults) from None
