"""A wheel folder that a host installs from alone: is every wheel of the plan in it?"""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy
from tasks.plan.host.answers import NO_FOLDER
from tasks.plan.phases.runtime import pins
from tasks.plan.release import lock

SHOWN = 3  # wheels named in the line


@check(
    "host/wheelhouse/complete",
    "plan",
    judges="package_wheelhouse holds a wheel for each line of both locks and uv, as long as the release is not built",
    source="the locks; hashes are compared when a wheel is installed",
    settings=("package_wheelhouse",),
    ask="ls PACKAGE_WHEELHOUSE",
    never_silenced=True,
)
def complete(found: Found) -> Verdict:
    plan, folder = found.plan, found.settings.package_wheelhouse
    if folder is None:
        return healthy("packages come from an index")
    if plan.release.existing is not None:
        return healthy("the environment is there already, nothing is installed")
    if plan.release_file in found.text_or_empty("files").splitlines():
        return healthy(f"release {plan.release.id} is built")
    make = (
        f"fill it with `make wheelhouse RELEASE={plan.release.manifest.name} PYTHON={plan.release.python}"
        f"{'' if plan.release.router == 'sglang-router' else f' ROUTER={plan.release.router}'}`"
    )
    answer = found.answers.get("wheels")
    if answer is not None and answer.status == NO_FOLDER:
        return error(f"package_wheelhouse {folder} is not a folder on this host", make)
    files, packages = found.text_or_empty("wheels").splitlines(), pins(plan)
    missing = lock.without_wheel(packages, plan.release.python, files)
    if missing:
        names = ", ".join(f"{pin.name}=={pin.version}" for pin in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        return error(
            f"package_wheelhouse {folder} lacks {names}{more} (for Python {plan.release.python})", make, *files[:SHOWN]
        )
    return healthy(f"{folder} holds the {len(packages)} wheels of the release and uv", *files[:SHOWN])
