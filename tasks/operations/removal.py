"""Everything of ours goes."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from functools import partial

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, StringCommand, operation

from tasks.operations.files import as_user
from tasks.operations.progress import ask, run_and_log, say
from tasks.operations.routes import Away, out_of_use
from tasks.plan.phases.passed import disarming
from tasks.plan.service.paths import TARGET
from tasks.plan.service.removal import Removal
from tasks.support import lock, summary


@operation()
def removed(
    there: Removal, models: str, user: str, away: Away
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """Servers end, then their files go. models: the folder that stays, with the folder above it."""
    if there.is_nothing(models):
        summary.last(host, "there is nothing of ours on this host")
        lock.forget(host)
        host.noop("nothing is there")
        return
    stop = f"{disarming()}; systemctl disable -q --now {TARGET} 2>/dev/null; true"
    if there.units:
        units = shlex.join(there.units)
        stop = f"{stop}; systemctl stop {units} && systemctl disable -q {units}"
    yield FunctionCommand(out_of_use, [away, partial(run_and_log, command=stop)], {})
    if there.of_user:
        yield StringCommand(as_user(user, "rm", "-rf", *there.of_user))
    if there.of_root:
        gone = f"rm -rf {shlex.join(there.of_root)}"
        yield StringCommand(f"{gone}; status=$?; systemctl daemon-reload; exit $status")  # of rm: a mount point stays
    yield FunctionCommand(_forget, [there, user], {})


def _forget(state: State, host: Host, there: Removal, user: str) -> bool:
    """The stamp of this run goes too, and folders that hold nothing any more; says what stays."""
    lock.forget(host)
    left = [folder for folder in there.folders if ask(host, f"rmdir {shlex.quote(folder)} 2>/dev/null || echo left")]
    say(host, f"gone: {len(there.units)} units, {len(there.of_root) + len(there.of_user)} files and folders")
    stays = f"stays: {', '.join(left)}; " if left else "stays: "
    summary.last(host, f"removed; {stays}user {user}, Debian packages, the NVIDIA driver", "green")
    return True
