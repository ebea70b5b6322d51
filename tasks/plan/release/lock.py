"""A lock: one exact version a line, each with the hashes of its files; and which wheels it can be installed from."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tasks.plan.errors import PlanError

PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([A-Za-z0-9.+!_-]+)((?:\s+--hash=\S+)*)")
NO_SERVERS = "# no server runs on this host\n"  # the servers' lock where a router runs alone: it pins nothing
WHEEL = re.compile(r"([\w.]+)-([\w.!+]+)(?:-\d\w*)?-([\w.]+)-([\w.]+)-([\w.]+)\.whl")


@dataclass(frozen=True)
class Pin:
    """One line of a lock."""

    name: str  # normalised: "nvidia-cublas"
    version: str
    hashes: tuple[str, ...]  # "sha256:..." of every file of this version

    @property
    def requirement(self) -> str:
        """The line as an installer reads it."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash={value}" for value in self.hashes)])


def read(text: str, where: str) -> tuple[Pin, ...]:
    """The pins of a lock. Raises PlanError that names the first line without a hash; `where` names the lock."""
    found = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if not line:
            continue
        match = PIN.fullmatch(line)
        if match is None:
            raise PlanError(
                f"{where}: {line.split(' --hash')[0]!r} is not NAME==VERSION with hashes: make the lock anew"
            )
        if not match[3]:
            raise PlanError(f"{where}: {line} has no hash: make the lock anew")
        hashes = tuple(word.removeprefix("--hash=") for word in match[3].split())
        found.append(Pin(normalised(match[1]), match[2], hashes))
    if not found and text != NO_SERVERS:
        raise PlanError(f"{where} pins nothing: make the lock anew")
    return tuple(found)


def read_all(texts: Mapping[str, str]) -> tuple[Pin, ...]:
    """The pins of several locks, given by what names each; one that stands in two of them once."""
    return tuple({pin: None for where, text in texts.items() for pin in read(text, where)})


NAMED = 12  # packages in one line


def moves(before: Iterable[Pin], now: Iterable[Pin]) -> str:
    """'2 packages move: torch 2.9.0 -> 2.9.1, +triton 3.5.1, -apex 0.1', "" where none does; the first few by name."""
    old, new = ({pin.name: pin.version for pin in pins} for pins in (before, now))
    each = [
        f"{name} {old[name]} -> {new[name]}"
        if name in old and name in new
        else f"+{name} {new[name]}"
        if name in new
        else f"-{name} {old[name]}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if not each:
        return ""
    more = f" and {len(each) - NAMED} more" if len(each) > NAMED else ""
    return f"{len(each)} package{'s move' if each[1:] else ' moves'}: {', '.join(each[:NAMED])}{more}"


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def without_wheel(pins: Iterable[Pin], python: str, files: Collection[str]) -> list[Pin]:
    """Those pins that no file name of `files` serves on this Python ("3.11") and x86_64 Linux."""
    there: set[tuple[str, str]] = set()
    for file in files:
        match = WHEEL.fullmatch(file)
        if match and _fits(match[3], match[4], match[5], int(python.split(".")[1])):
            there.add((normalised(match[1]), match[2].replace("_", "-")))
    return [pin for pin in pins if (pin.name, pin.version.replace("_", "-")) not in there]


def _fits(pythons: str, abis: str, platforms: str, minor: int) -> bool:
    """Whether CPython 3.MINOR on x86_64 Linux can install a wheel with these tags."""
    if not any(each == "any" or re.fullmatch(r"(many)?linux\w*_x86_64", each) for each in platforms.split(".")):
        return False
    abi = set(abis.split("."))
    for each in pythons.split("."):
        tag = re.fullmatch(r"(py|cp)3(\d*)", each)
        since = int(tag[2] or 0) if tag else minor + 1
        if tag is None or since > minor:
            continue
        of_this = since == minor and abi & {f"cp3{minor}", "none"}
        if of_this or (tag[1] == "py" and "none" in abi) or (tag[1] == "cp" and "abi3" in abi):
            return True
    return False
