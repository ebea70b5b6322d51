"""The model's files: fetched from a hub, or only looked at."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence

from pyinfra import host, state
from pyinfra.api import FunctionCommand, StringCommand, operation

from tasks.facts.model import ModelState
from tasks.operations.files import as_user
from tasks.operations.progress import run_and_log, say

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def moved(move: Sequence[str], owner: str) -> Commands:
    """A folder from and to where its owner renames it; [] for none.

    Until servers have been started on the new name, the old one leads there.
    """
    if not move:
        host.noop("every revision has")
        return
    say(host, f"{move[0]} becomes {move[1]}: nothing of it is fetched again")
    old, new = map(shlex.quote, move)
    yield StringCommand(as_user(owner, "sh", "-c", f"mv -T {old} {new} && ln -sT {new} {old}"))


@operation()
def superseded(unwanted: Sequence[str], owner: str) -> Commands:
    """Folders of revisions that no server loads any more, and names that led to one; their owner removes them."""
    if not unwanted:
        host.noop("no other revision is there")
        return
    for path in unwanted:
        say(host, f"{path}: no server loads it any more")
        yield StringCommand(as_user(owner, "rm", "-rf", path))


@operation()
def fetched(
    directory: str,
    owner: str,
    home: str,
    repository: str,
    revision: str,
    hub: str | None,
    tool: str,
    python: str,
    was: str = "",
    beside: Sequence[str] = (),
) -> Commands:
    """The pinned revision of a hub's repository, whole. Fetched as the service user; goes on where it broke off.

    was: where it lies before this run renames it. beside: folders of other revisions; what they share is linked.
    """
    there = directory if state.is_executing else was or directory
    found = host.get_fact(ModelState, directory=there, user=owner)
    if found and found["whole"] and (found.get("repo"), found.get("revision")) == (repository, revision):
        host.noop(f"{directory} is whole")
        return
    command = ["runuser", "-u", owner, "--", "env", f"HOME={home}", *([f"HF_ENDPOINT={hub}"] if hub else [])]
    command += [tool, "fetch", "--repo", repository, "--revision", revision, "--directory", directory]
    command += [word for folder in beside for word in ("--beside", folder)]
    yield FunctionCommand(run_and_log, [shlex.join([*command, "--python", python])], {})


@operation()
def whole(directory: str, user: str) -> Commands:
    """A model that the host brings along: looked at as the user that will load it, never changed."""
    found = host.get_fact(ModelState, directory=directory, user=user)
    if (found and found["whole"]) or (found is None and not state.is_executing):
        host.noop(f"{directory} is whole")
        return
    reason = found["reason"] if found else "it cannot be read"
    message = f"model {directory} is not whole: {reason}; mend it, or set model_dir to None to have it fetched"
    yield StringCommand(f"echo {shlex.quote(message)} >&2; exit 1")
