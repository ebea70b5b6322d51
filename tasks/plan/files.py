"""Files and folders: wanted, found, and the difference."""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer


def to_json(value: object) -> bytes:
    """JSON as files on a host hold it."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True)
class WantedFile:
    path: str
    content: bytes
    mode: str = "644"  # as stat -c %a prints it
    owner: str = "root"
    group: str = "root"
    salt: str = ""  # of a secret, whose content is never printed: what a host hashes its own behind
    gist: str = ""  # of a file that nobody reads line by line: what it holds, for a diff to say instead

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.salt.encode() + self.content).hexdigest()


@dataclass(frozen=True)
class WantedDirectory:
    path: str
    mode: str = "755"
    owner: str = "root"
    group: str = "root"
    by: str = "root"  # user that makes it: its owner, where it lies below a folder of that user


@dataclass(frozen=True)
class FoundPath:
    """A path as it is on the host. kind: 'file', 'directory', 'link', 'other' or 'absent'."""

    kind: str
    mode: str = ""
    owner: str = ""
    group: str = ""
    content: bytes | None = None  # of files up to 256 KiB
    sha256: str = ""  # of larger files, and of secrets
    target: str = ""  # of links

    @property
    def text(self) -> str | None:
        """Content as text; None where there is no file, or a large one."""
        return self.content.decode(errors="replace").strip() if self.content is not None else None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest() if self.content is not None else self.sha256


ABSENT = FoundPath("absent")


class FoundPaths(dict[str, FoundPath]):
    """By path. A path that is not in it was not read, which is another thing than an absent one."""

    def __missing__(self, path: str) -> FoundPath:
        raise PlanError(f"{path} was not read from the host; run again")


def read_paths(lines: Iterable[str]) -> FoundPaths:
    """From the lines of the fact Paths: path, kind, mode, owner, group, value in base64, tab-separated.

    A line of another form is not ours: a banner, or one that another user broke. Its path was then not read.
    """
    found = FoundPaths()
    for line in lines:
        try:
            path, kind, mode, owner, group, value = line.split("\t")
            large = value.startswith("sha256:")
            content = b"" if large else base64.b64decode(value, validate=True)
        except ValueError:
            continue
        found[path] = FoundPath(
            kind, mode, owner, group,
            content if kind == "file" and not large else None,
            value.removeprefix("sha256:") if large else "",
            content.decode(errors="replace") if kind == "link" else "",
        )  # fmt: skip
    return found


def read_secret(sections: Mapping[str, Answer]) -> tuple[FoundPath, list[str]]:
    """From the fact Secret: the file, and the leftovers that are there. Raises PlanError for a cut answer."""
    try:
        told, left = (sections[name].text for name in ("secret", "left"))
        kind, mode, owner, group, sha256 = [*told.strip().split("\t"), "", "", "", ""][:5]
    except KeyError:
        raise PlanError("the host's answer about the API key is cut short; run again") from None
    return FoundPath(kind or "absent", mode, owner, group, None, sha256), left.splitlines()


@dataclass(frozen=True)
class Difference:
    """What keeps a found file from being the wanted one."""

    content: bool
    mode: bool
    owner: bool

    def __bool__(self) -> bool:
        return self.content or self.mode or self.owner


def compare(wanted: WantedFile, found: FoundPath) -> Difference:
    if found.kind != "file":
        return Difference(content=True, mode=True, owner=True)
    return Difference(
        content=found.digest != wanted.sha256,
        mode=found.mode != wanted.mode,
        owner=(found.owner, found.group) != (wanted.owner, wanted.group),
    )


def as_wanted(wanted: WantedFile | None, found: FoundPath) -> bool:
    """None: no such path is wanted."""
    return not compare(wanted, found) if wanted else found.kind == "absent"


SHORT = 20  # changed lines; so few are shown of any file: they are an edit by hand, or an upgrade's
FOLD = 5  # lines in a row that two files share


def lines_of(content: bytes) -> list[str]:
    """As a diff shows them, line ends kept; one line for what is no text."""
    try:
        return content.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return [f"({len(content)} bytes)\n"]


def in_one_line(wanted: WantedFile, found: FoundPath) -> str:
    """What a diff says of new content where it does not show it: gist, size, hash, what moved. "" where it does."""
    if not wanted.gist:
        return ""
    now = lines_of(wanted.content)
    size = f"{len(now)} lines" if now[1:] else f"{len(wanted.content)} bytes"
    told = f"{wanted.gist}, {size}, sha256 {wanted.sha256[:12]}"
    if found.kind != "file":
        return told
    if found.content is None:
        return f"{told}, was {found.digest[:12]}"
    removed, added = _changed(lines_of(found.content), now)
    return f"{told}, was {found.digest[:12]}: {removed} lines less, {added} more" if removed + added > SHORT else ""


def all_in_one_line(wanted: Sequence[WantedFile], found: Mapping[str, FoundPath]) -> str:
    """What a diff says of files with one gist that are all new; "" where they are to be shown one by one."""
    if len({one.gist for one in wanted} - {""}) != 1 or any(found[one.path].kind != "absent" for one in wanted):
        return ""
    lines = sum(len(lines_of(one.content)) for one in wanted)
    digest = hashlib.sha256("".join(one.sha256 for one in wanted).encode()).hexdigest()
    return f"{len(wanted)} files, {wanted[0].gist}, {lines} lines, sha256 {digest[:12]}"


def folded(content: bytes, like: WantedFile | None) -> list[str]:
    """The lines of a new file; where FOLD or more in a row stand in a file shown before, that is said instead."""
    now, before = lines_of(content), lines_of(like.content) if like else []
    shown, end = [], 0
    for _, start, length in difflib.SequenceMatcher(None, before, now, autojunk=False).get_matching_blocks():
        if like and length >= FOLD:
            shown += [*(f"+ {line}" for line in now[end:start]), f"  ({length} lines as in {like.path})"]
            end = start + length
    return [*shown, *(f"+ {line}" for line in now[end:])]


def _changed(before: list[str], now: list[str]) -> tuple[int, int]:
    """How many lines go, and how many come."""
    moves = [move for move in difflib.SequenceMatcher(None, before, now).get_opcodes() if move[0] != "equal"]
    return sum(move[2] - move[1] for move in moves), sum(move[4] - move[3] for move in moves)


def same_directory(wanted: WantedDirectory, found: FoundPath) -> bool:
    return found == FoundPath("directory", wanted.mode, wanted.owner, wanted.group)
