"""The revisions of a model that a host keeps, a folder each: the one that serves, and one that the next run leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer, json_object

REVISION = re.compile(r"[0-9a-f]{40}")


def folder_of(name: str, revision: str) -> str:
    """What the folder of a revision is called."""
    return f"{name}-{revision[:12]}"


@dataclass(frozen=True)
class Kept:
    """Folders of one model below its owner's: by name their kind ("directory", "link", "other") and, where pd-model
    recorded one, their revision."""

    name: str = ""  # of the model
    wanted: str = ""  # revision, 40 hexadecimal digits
    folders: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def move(self) -> tuple[str, str] | None:
        """From and to: a folder named after the model alone, as every revision's was until December 2026.

        What it holds, its record says; where there is none, it is what a fetch of the wanted one goes on with.
        """
        kind, revision = self.folders.get(self.name, ("", ""))
        if kind != "directory":
            return None
        to = folder_of(self.name, revision or self.wanted)
        return None if to in self.folders else (self.name, to)

    @property
    def has_wanted(self) -> bool:
        """Whether the wanted revision is there, under whichever name, or was begun."""
        folder = folder_of(self.name, self.wanted)
        return folder in self.folders or bool(self.move and self.move[1] == folder)

    @property
    def others(self) -> list[str]:
        """Folders of other revisions, once what is to be moved was moved."""
        found = {name for name in self.folders if name != self.name}
        if self.move:
            found.add(self.move[1])
        return sorted(found - {folder_of(self.name, self.wanted)})

    @property
    def superseded(self) -> list[str]:
        """What to remove once the wanted revision has answered: other revisions, and the name that led to one."""
        kind, revision = self.folders.get(self.name, ("", ""))
        ours = kind == "link" or bool(self.move) or bool(revision)
        return [*self.others, *([self.name] if ours else [])]


NOTHING = Kept()


def read(answers: Mapping[str, Answer], name: str, wanted: str, folder: str) -> Kept:
    """From the section "kept" of the fact Planned. Raises PlanError where it cannot be read: what is there already
    would be fetched again."""
    told = json_object(answers["kept"].text) if "kept" in answers else None
    try:
        folders = {str(one): (str(entry["kind"]), str(entry["revision"])) for one, entry in (told or {}).items()}
    except (TypeError, KeyError):
        told = None
    if told is None:
        said = answers["kept"].text.strip().splitlines()[-1:] if "kept" in answers else []
        raise PlanError(f"what {folder} holds of model {name} could not be read: {' '.join(said) or 'no answer'}")
    known = {
        one: (kind, revision if REVISION.fullmatch(revision) else "")
        for one, (kind, revision) in folders.items()
        if re.fullmatch(rf"{re.escape(name)}(-[0-9a-f]{{12}})?", one)
    }
    return Kept(name, wanted, known)
