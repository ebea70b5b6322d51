"""Files, folders and links."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence

from pyinfra import host, logger, state
from pyinfra.api import StringCommand, operation
from pyinfra.api.output import format_text
from pyinfra.operations.util.files import generate_color_diff

from tasks.operations.upload import sent
from tasks.plan.errors import without_passwords
from tasks.plan.files import (
    FoundPath,
    FoundPaths,
    WantedDirectory,
    WantedFile,
    all_in_one_line,
    compare,
    folded,
    in_one_line,
    lines_of,
    same_directory,
)

Commands = Generator[StringCommand, None, None]


def as_user(user: str, *words: str) -> str:
    """The command that root runs as another user, within minutes."""
    return shlex.join(["timeout", "-k", "5", "300", "runuser", "-u", user, "--", *words])


@operation()
def directory(wanted: WantedDirectory, found: FoundPath) -> Commands:
    """A folder with its mode and owner. What lies in it is left alone.

    Below a folder of a user, that user makes it: root would follow a link that the user put there meanwhile.
    """
    if same_directory(wanted, found):
        host.noop(f"{wanted.path} is as wanted")
        return
    if wanted.by != "root":
        command = ["mkdir", "-m", wanted.mode] if found.kind == "absent" else ["chmod", wanted.mode]
        yield StringCommand(as_user(wanted.by, *command, wanted.path))
        return
    words = ["install", "-d", "-m", wanted.mode, "-o", wanted.owner, "-g", wanted.group, wanted.path]
    yield StringCommand(shlex.join(words))


@operation()
def file(
    wanted: WantedFile,
    found: FoundPath,
    first: str = "",
    then: str | None = None,
    leftovers: Sequence[str] = (),
    like: WantedFile | None = None,
) -> Commands:
    """A file with content, mode and owner; put in place in one step.

    --diff shows new files whole; of those with a gist it says that in one line, unless full_diff is set.

    first: a command that comes before the change. then: one that makes new content known, such as systemctl
    daemon-reload. leftovers: files to be removed.
    like: a file shown before; --diff does not repeat what a new one has in common with it.
    """
    if leftovers:
        yield StringCommand(f"rm -f {shlex.join(leftovers)}")
    if not compare(wanted, found):
        if not leftovers:
            host.noop(f"{wanted.path} is as wanted")
        return
    if state.config.DIFF and not state.is_executing:
        _show(wanted, found, like)
    if first:
        yield StringCommand(first)
    yield from _placed(wanted, found, then)


@operation()
def files(wanted: Sequence[WantedFile], found: FoundPaths) -> Commands:
    """Several files that belong together, each put in place in one step."""
    differing = [one for one in wanted if compare(one, found[one.path])]
    if not differing:
        host.noop("every file is as wanted")
        return
    if state.config.DIFF and not state.is_executing:
        together = "" if host.data.get("full_diff") else all_in_one_line(wanted, found)
        if together:
            folder = wanted[0].path.rpartition("/")[0]
            host.log(f"Will create in {format_text(folder, bold=True)}: {together}")
        for one in differing if not together else ():
            _show(one, found[one.path], None)
    for one in differing:
        yield from _placed(one, found[one.path])


def _placed(wanted: WantedFile, found: FoundPath, then: str | None = None) -> Commands:
    difference, path = compare(wanted, found), shlex.quote(wanted.path)
    if difference.content:
        beside = f"{wanted.path}.new"
        yield sent(wanted.content, beside)
        new = shlex.quote(beside)
        # on the disk before it has its name: a power cut leaves no empty file
        yield StringCommand(f"{_given_to(wanted, new)} && sync {new} && mv -fT {new} {path}")
        if then:
            yield StringCommand(then)
        return
    yield StringCommand(_given_to(wanted, path))


@operation()
def absent(path: str, found: FoundPath, first: str = "", then: str = "", leftovers: Sequence[str] = ()) -> Commands:
    """No such path. first, then: commands that come before and after it is removed. leftovers: files to be removed with
    it."""
    if found.kind == "absent" and not leftovers:
        host.noop(f"{path} is not there")
        return
    if leftovers:
        yield StringCommand(f"rm -f {shlex.join(leftovers)}")
    if first and found.kind != "absent":
        yield StringCommand(first)
    yield StringCommand(f"rm -rf {shlex.quote(path)}")
    if then:
        yield StringCommand(then)


@operation()
def swept(paths: Sequence[str], theirs: Sequence[str], user: str) -> Commands:
    """Files and links of root's are removed, and folders that the user removes."""
    if not paths and not theirs:
        host.noop("nothing is left over")
        return
    for path in (*paths, *theirs):
        logger.info(f"{host.print_prefix}{path}: an earlier run left it, nothing needs it")
    if paths:
        yield StringCommand(f"rm -f {shlex.join(paths)}")
    if theirs:
        yield StringCommand(as_user(user, "rm", "-rf", *theirs))


def _given_to(wanted: WantedFile, path: str) -> str:
    """path: quoted already."""
    owner = shlex.quote(f"{wanted.owner}:{wanted.group}")
    return f"chown {owner} {path} && chmod {shlex.quote(wanted.mode)} {path}"


def _show(wanted: WantedFile, found: FoundPath, like: WantedFile | None) -> None:
    """The difference, as pyinfra's own --diff prints it."""
    if wanted.salt:
        host.log(f"Will write {format_text(wanted.path, bold=True)} (a secret: not shown)")
        return
    difference = compare(wanted, found)
    whole = bool(host.data.get("full_diff"))
    instead = "" if whole or not difference.content else in_one_line(wanted, found)
    said = f": {instead}" if instead else ""
    if found.kind != "file":
        place = f"{wanted.mode} {wanted.owner}:{wanted.group}"
        host.log(f"Will create {format_text(wanted.path, bold=True)} ({place}){said}")
    else:
        host.log(f"Will modify {format_text(wanted.path, bold=True)}{said}")
        if difference.mode:
            logger.info("  mode %s -> %s", found.mode, wanted.mode)
        if difference.owner:
            logger.info("  owner %s:%s -> %s:%s", found.owner, found.group, wanted.owner, wanted.group)
    if instead:
        return
    if found.kind != "file":
        for line in folded(wanted.content, None if whole else like):
            logger.info("  %s", format_text(without_passwords(line.rstrip()), "green"))
    elif difference.content:
        for line in generate_color_diff(lines_of(found.content or b""), lines_of(wanted.content)):
            logger.info("  %s", without_passwords(line))
    logger.info("")
