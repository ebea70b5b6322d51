"""What runs of before left on a host that nothing needs any more."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tasks.plan.plan import Plan
from tasks.plan.service.paths import UNITS

_SERVER = re.compile(r"((?:prefill|decode|server)(?:-[0-9]+)?|router)\.(sh|env)")
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*-(?:py3\.[0-9]+|existing)-[0-9a-f]{10}")
# Of a file or link that was to be put in place in one step: by an operation, by a tool.
_DRAFT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]*\.new|\.[A-Za-z0-9][A-Za-z0-9._+@-]*\.[0-9a-f]{16}")


def looked_into(plan: Plan) -> list[str]:
    """Folders in which leftovers may lie."""
    paths = plan.paths
    return [paths.root, paths.bin, paths.locks, paths.config, UNITS, paths.cache]


def leftovers(plan: Plan, lying: Iterable[str]) -> tuple[list[str], list[str]]:
    """Those among the paths: root's own, and the service user's. By their whole names: whatever else lies there is
    somebody's."""
    paths, history = plan.paths, plan.history
    names = {instance.name for instance in plan.instances}
    staying = {plan.release.id, *history.built, history.current, history.previous}
    staying |= {plan.pin.release, plan.pin.instead_of} if plan.pin else set()
    of_root, of_user = [], []
    looked = looked_into(plan)
    for path in sorted(lying):
        folder, _, name = path.rpartition("/")
        if folder not in looked:
            continue  # half of a name with a line break in it, which the service user may choose
        server, release = _SERVER.fullmatch(name), _RELEASE.match(name)
        gone = release is not None and release[0] not in staying
        if folder == paths.cache:
            of_user += [path] if release and gone and release[0] == name else []
        elif folder == UNITS:
            of_root += [path] if name.lstrip(".").startswith("sglang-pd") and _DRAFT.fullmatch(name) else []
        elif (
            _DRAFT.fullmatch(name)
            or path == paths.earlier_secret
            or (folder == paths.config and server and server[1] not in names)
            or (folder == paths.locks and release and gone and path in paths.belongings(release[0]))
        ):
            of_root.append(path)
    return of_root, of_user
