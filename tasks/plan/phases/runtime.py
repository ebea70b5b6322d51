"""What a release is built from: locks, patches and uv, and what pd-build is told."""

from __future__ import annotations

from typing import Any

from tasks.plan.files import WantedFile, to_json
from tasks.plan.plan import Plan
from tasks.plan.release import lock
from tasks.plan.release.history import Description


def lock_files(plan: Plan) -> tuple[WantedFile, WantedFile]:
    """The locks that this release is built from, kept on the host: repair and checks read them there."""
    texts = {".txt": plan.release.lock, "-router.txt": plan.release.router_lock}
    servers, router = (
        WantedFile(
            f"{plan.paths.locks}/{plan.release.id}{end}",
            text.encode(),
            gist=f"pins {len(lock.read(text, end))} packages",
        )
        for end, text in texts.items()
    )
    return servers, router


def description(plan: Plan) -> WantedFile:
    """The release as the host keeps it for a rollback."""
    path, content = plan.paths.description(plan.release.id), Description(plan.release, plan.arguments).to_json()
    return WantedFile(path, content, gist="what a rollback needs")


def mark(plan: Plan) -> dict[str, Any]:
    """What a release says of itself in release.json, built or adopted: it is there once the release is whole."""
    return {
        "id": plan.release.id,
        "name": plan.release.manifest.name,
        "python": plan.release.python,
        "patches": {patch.name: patch.sha256 for patch in plan.release.patches},
    }


def patch_list_file(plan: Plan) -> WantedFile | None:
    """The patches of this release, kept on the host as its locks are; None where it carries none."""
    if not plan.release.patches:
        return None
    path, names = f"{plan.paths.locks}/{plan.release.id}-patches.json", [patch.name for patch in plan.release.patches]
    return WantedFile(path, plan.release.patch_list(), gist=f"patches {', '.join(names)}")


def uv_lock(plan: Plan) -> WantedFile:
    """The lock that uv itself is installed from."""
    return WantedFile(f"{plan.paths.locks}/uv.txt", plan.uv_requirement.encode(), gist="pins the package installer")


def pins(plan: Plan) -> tuple[lock.Pin, ...]:
    """Every package that this host installs: of both locks, and uv."""
    return lock.read_all(
        {"lock": plan.release.lock, "router's lock": plan.release.router_lock, "uv.txt": plan.uv_requirement}
    )


def uv_metadata(plan: Plan) -> str:
    """A file that is there when the wanted uv is installed."""
    version = plan.uv_requirement.split()[0].partition("==")[2]
    return f"{plan.paths.uv_environment}/lib/python{plan.release.python}/site-packages/uv-{version}.dist-info/METADATA"


def build_spec(plan: Plan) -> WantedFile:
    """What pd-build is told."""
    settings = plan.settings
    servers, router = lock_files(plan)
    patches = patch_list_file(plan)
    spec = {
        "id": plan.release.id,
        "mark": mark(plan),
        "python": plan.release.python,
        "releases": plan.paths.releases,
        "uv": f"{plan.paths.uv_environment}/bin/uv",
        "cache": plan.paths.package_cache,
        "lock": servers.path,
        "router_lock": router.path,
        "uv_lock": uv_lock(plan).path,
        "lock_sha256": servers.sha256,
        "patch_list": patches.path if patches else None,
        "wheelhouse": settings.package_wheelhouse,
        "index_url": settings.package_index,
        "extra_index_urls": settings.package_extra_indexes,
        "find_links": settings.package_find_links,
        "certificate": settings.package_certificate,
        "pd_env": f"{plan.paths.bin}/pd-env",
        "pd_patch": f"{plan.paths.bin}/pd-patch",
    }
    path = f"{plan.paths.locks}/{plan.release.id}.json"
    return WantedFile(path, to_json(spec), "600", gist="what pd-build is told")  # a URL in it can hold a password
