"""A model's folder as it is on the host: config.json, the files with their sizes, what the indexes name.

All of it is the word of whoever may write to that folder: it is read within limits, and believed only as far as its
form is right.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer, json_object

THERE, ABSENT, CLOSED = "there", "absent", "closed"
CONFIG_BYTES = 1 << 20  # of config.json that are read; the largest public ones have 200 KB, names of layers most of it
WEIGHTS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\.safetensors")
SNAPSHOT = re.compile(r"/models--[^/]*?--([^/]+)/snapshots/[0-9a-f]{40}$")  # the hub's own cache


@dataclass(frozen=True)
class Folder:
    """What the fact ModelFolder brought, parsed."""

    path: str
    state: str  # THERE; ABSENT: there is no such folder; CLOSED: the service user cannot enter it
    config: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""  # why there is no config: one line that names the folder
    modelopt: Mapping[str, Any] = field(default_factory=dict)  # hf_quant_config.json, {} where there is none
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of each file in it
    indexed: frozenset[str] = frozenset()  # names of weight files in the indexes
    words: frozenset[str] = frozenset()  # of the chat template, those that were asked for

    @property
    def weights(self) -> dict[str, int]:
        """The files that a server loads, with their bytes: those of an index, else every safetensors file."""
        if self.indexed:
            return {name: self.sizes[name] for name in sorted(self.indexed & self.sizes.keys())}
        return {name: size for name, size in sorted(self.sizes.items()) if WEIGHTS.fullmatch(name)}

    @property
    def missing(self) -> list[str]:
        return sorted(self.indexed - self.sizes.keys())

    @property
    def size(self) -> int:
        """Bytes of weights."""
        return sum(self.weights.values())


def read(answers: Mapping[str, Answer], path: str) -> Folder:
    """From the sections of the fact ModelFolder. Raises PlanError where the host gave no whole answer."""
    there, content = answers.get("folder"), answers.get("content")
    if there is None or content is None:
        raise PlanError(f"model {path}: the host's answer is cut short; run again")
    if there.text.strip() != THERE:
        return Folder(path, ABSENT)
    lines = [line.partition(" ")[::2] for line in content.text.splitlines()]
    told = dict(lines)
    if "closed" in told or not lines:
        return Folder(path, CLOSED)
    if "end" not in told:
        raise PlanError(f"model {path}: it cannot be read within 60 s; look at its file system")
    config, fault = _config(told.get("config"), path)
    files = [rest.partition(" ") for kind, rest in lines if kind == "file"]
    return Folder(
        path,
        THERE,
        config,
        fault,
        json_object(_text(told.get("modelopt", ""))) or {},
        {name: int(size) for size, _, name in files if re.fullmatch(r"[0-9]{1,18}", size)},
        frozenset(rest for kind, rest in lines if kind == "index" and WEIGHTS.fullmatch(rest)),
        frozenset(rest for kind, rest in lines if kind == "word"),
    )


def name_of(path: str) -> str:
    """What a folder is called: its last part, or the model's name in the hub's own cache."""
    snapshot = SNAPSHOT.search(path.rstrip("/"))
    return snapshot[1] if snapshot else path.rstrip("/").rpartition("/")[2]


def _config(encoded: str | None, path: str) -> tuple[Mapping[str, Any], str]:
    if encoded is None:
        return {}, f"model {path} holds no config.json"
    text = _text(encoded)
    if not text:
        return {}, f"model {path}: its config.json is empty, or the service user cannot read it"
    if len(text.encode()) > CONFIG_BYTES:
        return {}, f"model {path}: its config.json has more than {CONFIG_BYTES >> 10} KiB"
    found = json_object(text)
    return (found, "") if found else ({}, f"model {path}: its config.json is no JSON object, or an empty one")


def _text(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except ValueError:
        return ""
