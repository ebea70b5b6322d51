"""Commands on the machine that runs the nodes, and what Ctrl-C may interrupt."""

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


class NodeError(Exception):
    """A node cannot be made or reached; the message is one line for the user."""


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM inside the block; a held-back signal is delivered when the block ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)

    previous = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if held:
            signal.raise_signal(held[0])


def command(
    *arguments: str | Path,
    check: bool = True,
    text: str | None = None,
    timeout: float | None = None,
    log: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command with `text` on its stdin; kill it and its children when we are interrupted.

    Output is captured, or appended to `log`. Raises NodeError on a non-zero exit when `check` is set, and
    on `timeout` (seconds).
    """
    line = [str(argument) for argument in arguments]
    process: subprocess.Popen[str] | None = None
    with contextlib.ExitStack() as files:
        output = files.enter_context(log.open("a")) if log else subprocess.PIPE
        try:
            with interrupts_deferred():
                process = subprocess.Popen(
                    line,
                    stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT if log else subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # a terminal's Ctrl-C reaches us only: clean-up commands must finish
                )
            stdout, stderr = process.communicate(text, timeout=timeout)
        except BaseException as error:
            if process is not None:
                with interrupts_deferred():
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise NodeError(f"{' '.join(line)}: no end after {timeout:.0f} s") from None
            raise
    if check and process.returncode != 0:
        said = log.read_text() if log else stderr or stdout
        last = said.strip().splitlines()[-1] if said and said.strip() else "no message"
        raise NodeError(f"{' '.join(line)}: exit {process.returncode}: {last}")
    return subprocess.CompletedProcess(line, process.returncode, stdout or "", stderr or "")


@contextlib.contextmanager
def locked(path: Path, busy: str = "") -> Iterator[None]:
    """Hold an exclusive lock on a file or folder; with `busy`, raise NodeError(busy) instead of waiting for it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            raise NodeError(busy) from None
        yield
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Delete a tree; refuse when something is mounted inside it, since that would delete through the mount."""
    inside = [
        line.split()[4]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if line.split()[4].startswith(f"{path}/")
    ]
    if inside:
        raise NodeError(f"{path} is not deleted: {', '.join(inside)} is mounted inside it")
    command("rm", "-rf", "--one-file-system", path)
