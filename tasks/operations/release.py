"""The release's environments: uv, build, repair, and the pointer that makes it current."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, StringCommand, operation

from tasks.facts.history import InUse
from tasks.operations.files import as_user
from tasks.operations.progress import begun_in_own_unit, left_by, pass_checks, run_and_log, say, until_ended
from tasks.operations.upload import sent
from tasks.plan.files import FoundPath
from tasks.plan.phases.activate import Kernels, Told
from tasks.plan.plan import Plan
from tasks.plan.release.manifest import damage
from tasks.plan.service.paths import JIT_UNIT

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def uv(spec: str, tool: str, installed: bool) -> Commands:
    """The package installer, pinned and hashed, in an environment of its own."""
    if installed:
        host.noop("uv is installed")
        return
    yield FunctionCommand(run_and_log, [f"{shlex.quote(tool)} installer --spec {shlex.quote(spec)}"], {})


@operation()
def built(directory: str, spec: str, tool: str, found: Mapping[str, Any] | None) -> Commands:
    """A release, whole: built when it is not there, repaired where it differs from its lock or record."""
    if found is not None and all(part and part.get("whole") for part in found.values()):
        host.noop(f"{directory} is whole")
        return
    verb = "build" if found is None else "repair"
    for name, part in (found or {}).items():
        for line in damage(part):
            say(host, f"{name}: {line}")
    yield FunctionCommand(run_and_log, [f"{shlex.quote(tool)} {verb} --spec {shlex.quote(spec)}"], {})


@operation()
def adopted(directory: str, description: bytes, parts: Mapping[str, str], found: Mapping[str, FoundPath]) -> Commands:
    """A release's folder that leads to environments which are there already.

    parts: "env" and "router" -> folder of the environment, above the interpreter's folder bin.
    """
    if all(found[f"{directory}/{name}"].target == target for name, target in parts.items()):
        host.noop(f"{directory} leads to {', '.join(parts.values())}")
        return
    place, whole = shlex.quote(f"{directory}.new"), shlex.quote(directory)
    yield StringCommand(f"rm -rf {place} && mkdir {place}")
    for name, target in parts.items():
        yield StringCommand(f"ln -s {shlex.quote(target)} {place}/{name}")
    mark = f"{directory}.new/release.json"
    yield sent(description, mark)
    yield StringCommand(f"chmod 644 {shlex.quote(mark)} && rm -rf {whole} && mv -T {place} {whole}")


@operation()
def compiling(plan: Plan, kernels: Kernels, mark: str, found: str | None) -> Commands:
    """Kernels that every server would compile at its start: begun here, to go on beside all that comes before one.

    mark: a file that names what was compiled. found: its text.
    """
    if kernels.named_by(found):
        host.noop(f"{mark} names them")
        return
    # set up as a server is: a variable more, such as CC, and servers would compile all of it again
    asked = kernels.asked
    yield FunctionCommand(run_and_log, [begun_in_own_unit(plan, JIT_UNIT, asked.words, mark), asked.told], {})


@operation()
def compiled(plan: Plan, kernels: Kernels, mark: str, found: str | None) -> Commands:
    """What `compiling` began is there, in the release's cache."""
    if kernels.named_by(found):
        host.noop(f"{mark} names them")
        return
    yield FunctionCommand(await_kernels, [plan, kernels, mark], {})


def await_kernels(state: State, host: Host, plan: Plan, kernels: Kernels, mark: str) -> bool:
    run_and_log(state, host, until_ended(JIT_UNIT))
    if kernels.named_by(left_by(host, plan.settings.service_user, mark)):
        return True
    say(host, "not every kernel is compiled, for the reason above; the next run goes on", "red")
    return False


@operation()
def passed(directory: str, current: str, checks: Sequence[Told]) -> Commands:
    """A finished release has passed its checks before it becomes current.

    current: the release that is.
    """
    if not checks or current == directory:
        host.noop(f"{directory} passed them before")
        return
    for check in checks:
        yield FunctionCommand(pass_checks, [check], {})


@operation()
def linked(directory: str, link: str, found: str, first: str = "", changes: Sequence[str] = ()) -> Commands:
    """A link points at a release, moved in one step.

    first: a command that comes before the link moves. changes: what the switch does to packages and patches, a line
    each.
    """
    if found == directory:
        host.noop(f"{link} points at {directory}")
        return
    for line in changes:
        say(host, line)
    if first:
        yield StringCommand(first)
    new, folder = shlex.quote(f"{link}.new"), shlex.quote(link.rpartition("/")[0])
    yield StringCommand(f"ln -sfnT {shlex.quote(directory)} {new} && mv -fT {new} {shlex.quote(link)} && sync {folder}")


@operation()
def served(mark: str, found: bool) -> Commands:
    """A mark in a release that gave right answers: what a rollback may go back to."""
    if found:
        host.noop(f"{mark} is there")
        return
    yield StringCommand(f"touch {shlex.quote(mark)}")


@operation()
def removed(
    releases: str, unwanted: Mapping[str, Sequence[str]], caches: Mapping[str, str], user: str, leftovers: Sequence[str]
) -> Commands:
    """Releases that nothing needs are removed, never one from which a process runs.

    unwanted: id -> files that belong to it. caches: id -> folder that the user's servers filled, and that the user
    removes. leftovers: what an interrupted build or removal left beside them.
    """
    folders = {f"{releases}/{old}": belongings for old, belongings in unwanted.items()}
    used = host.get_fact(InUse, folders=sorted(folders)) if folders else []
    for folder in used:
        say(host, f"{folder} stays: a process still runs from it", "yellow")
    going = {folder: belongings for folder, belongings in folders.items() if folder not in used}
    if not going and not leftovers:
        host.noop("no release is there that is not needed")
        return
    for folder, belongings in going.items():
        old = folder.rpartition("/")[2]
        hidden = f"{releases}/.{old}.removing"
        # gone under its name at once: half a release never looks like one
        yield StringCommand(
            f"mv -T {shlex.quote(folder)} {shlex.quote(hidden)} && rm -rf {shlex.join([hidden, *belongings])}"
        )
        yield StringCommand(as_user(user, "rm", "-rf", caches[old]))
    if leftovers:
        # a build that runs holds the lock
        places = shlex.join([f"{releases}/{name}" for name in leftovers])
        yield StringCommand(f"flock -n -E 0 {shlex.quote(releases)}/.pd-build.lock rm -rf {places}")
