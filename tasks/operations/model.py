"""The model's files: fetched from a hub, or only looked at."""

from __future__ import annotations

import shlex
from collections.abc import Generator

from pyinfra import host, state
from pyinfra.api import FunctionCommand, StringCommand, operation

from tasks.facts.model import ModelState
from tasks.operations.progress import run_and_log

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def fetched(
    directory: str, owner: str, home: str, repository: str, revision: str, hub: str | None, tool: str, python: str
) -> Commands:
    """The pinned revision of a hub's repository, whole. Fetched as the service user; goes on where it broke off."""
    found = host.get_fact(ModelState, directory=directory, user=owner)
    if found and found["whole"] and (found.get("repo"), found.get("revision")) == (repository, revision):
        host.noop(f"{directory} is whole")
        return
    command = ["runuser", "-u", owner, "--", "env", f"HOME={home}", *([f"HF_ENDPOINT={hub}"] if hub else [])]
    command += [tool, "fetch", "--repo", repository, "--revision", revision, "--directory", directory]
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
