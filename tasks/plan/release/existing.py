"""A Python environment that others made (an image, conda, unpacked wheels): read and compared, never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.plan.errors import PlanError
from tasks.plan.findings import Refused, error
from tasks.plan.host.answers import Answer
from tasks.plan.release import versions
from tasks.plan.release.manifest import Environment, Existing, Manifest
from tasks.plan.settings.settings import Settings

CHECK = "release/environment/fits"


@dataclass(frozen=True)
class Asked:
    """What the settings say of an environment that is there."""

    python: str  # its interpreter
    router_python: str
    paths: tuple[str, ...]  # folders that its PYTHONPATH adds

    @classmethod
    def of(cls, settings: Settings) -> Asked:
        assert settings.existing_python is not None
        return cls(
            python=settings.existing_python,
            router_python=settings.existing_router_python or settings.existing_python,
            paths=tuple(settings.existing_paths),
        )


def read(answers: Mapping[str, Answer], asked: Asked) -> Existing:
    """From the fact ExistingEnvironment. Raises Refused where an interpreter gives no answer or knows no SGLang."""
    servers = _part(answers, "servers", asked.python, "existing_python")
    router = _part(answers, "router", asked.router_python, "existing_router_python")
    if servers.site_packages is None:
        where = f" and {', '.join(asked.paths)}" if asked.paths else ""
        raise Refused(
            error(CHECK, f"{asked.python}{where} finds no sglang", "correct existing_python, or existing_paths")
        )
    return Existing(asked.paths, servers, router)


def misfits(found: Existing, manifest: Manifest, router: str) -> list[str]:
    """What in the environment differs from what the release says, a line each."""
    lines = []
    if found.servers.version not in manifest.python:
        lines.append(f"Python is {found.servers.version}, the release serves {' and '.join(manifest.python)}")
    wanted = {"sglang": manifest.sglang, "torch": manifest.torch, **manifest.packages}
    for name, version in wanted.items():
        there = found.servers.packages.get(name)
        if there is None:
            lines.append(f"{name} is missing, the release says {version}")
        elif not versions.same(there, version):
            lines.append(f"{name} is {there}, the release says {version}")
    if found.servers.cuda != manifest.cuda and manifest.device == "cuda":
        lines.append(f"torch is built for CUDA {found.servers.cuda or 'none'}, the release says {manifest.cuda}")
    there = found.router.packages.get(router)
    version = manifest.routers.get(router)  # type: ignore[call-overload]
    if there is None or (version and not versions.same(there, version)):
        lines.append(f"{router} is {there or 'missing'}, the release says {version}")
    return lines


def _part(answers: Mapping[str, Answer], name: str, python: str, setting: str) -> Environment:
    answer = answers.get(name)
    if answer is None:
        raise PlanError(f"the answer about {python} is cut short; run again")
    if answer.status != 0:
        said = " ".join(answer.text.split())[-200:] or f"it ended with {answer.status}"
        raise Refused(error(CHECK, f"setting {setting}: {python} does not run: {said}", "name a Python that does"))
    try:
        told = json.loads(answer.text.strip().splitlines()[-1])
        return Environment(
            python=python,
            version=told["version"],
            site_packages=told["site_packages"],
            cuda=told["cuda"],
            packages=dict(sorted(told["packages"].items())),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise PlanError(f"the answer of {python} cannot be read: {answer.text.strip()[:80]!r}; run again") from None
