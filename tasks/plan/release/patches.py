"""Patches to SGLang: what a manifest may say, what a release carries, and what the host is told to place."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tasks.plan.errors import PlanError, nearest
from tasks.plan.release.versions import fits

HOOK = "hook"  # the patch that every release with another one carries: it binds and reports
ALWAYS = "always"  # stands for a variable in `targets` of an overlay that none switches on
PREFIX = "pd_overlay_"  # of everything that an overlay puts into site-packages itself
OVERLAY_LOG = "active: {variable}: {module}.{function} is ours"
FILE_LOG = "active: {patch}: {path} is ours"


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a version specifier such as >=0.5.13,<0.5.24") from None
    return text


def _relative(path: str) -> str:
    parts = path.split("/")
    if not path or path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{path!r} is not a plain path relative to site-packages")
    return path


Specifier = Annotated[str, AfterValidator(_specifier)]
RelativePath = Annotated[str, AfterValidator(_relative)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Text = Annotated[str, Field(min_length=1)]
Dotted = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Target(BaseModel):
    """What an overlay binds to: a function, Class.method or class of a module, in SGLang of these versions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    module: Dotted
    function: Dotted
    sglang: Specifier = ""
    parameters: tuple[str, ...] | None = None  # names in their order; None = not compared


class PatchManifest(BaseModel):
    """manifest.yaml of a patch. docs/patches.md says what each field means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    description: Text
    why: Text
    sglang: Specifier
    compute_capabilities: tuple[str, ...] = ()  # "12.0"; () = any
    apply: Literal["overlay", "file", "diff"]
    files: tuple[RelativePath, ...] = ()  # of an overlay, relative to site-packages
    diff: RelativePath | None = None  # the unified diff, relative to the manifest
    replaces: dict[RelativePath, Sha256] = {}  # file, diff: path in site-packages -> sha256 of the original
    environment: tuple[VariableName, ...] = ()  # variables that it makes known
    targets: dict[str, tuple[Target, ...]] = {}  # overlay: by the variable that switches it on
    log: Text | None = None  # the server's line once it is in place
    tests: Text
    source: Text

    @model_validator(mode="after")
    def _fits_together(self) -> PatchManifest:
        needed = {"overlay": ("files",), "file": ("replaces",), "diff": ("diff", "replaces")}[self.apply]
        allowed = {*needed, *(("targets",) if self.apply == "overlay" else ())}
        for field in ("files", "diff", "replaces", "targets"):
            if field in needed and not getattr(self, field):
                raise ValueError(f"apply: {self.apply} needs {field}")
            if field not in allowed and getattr(self, field):
                raise ValueError(f"apply: {self.apply} has no {field}")
        strangers = [path for path in self.files if not path.startswith(PREFIX)]
        if strangers:
            raise ValueError(
                f"files: {strangers[0]!r} must lie in site-packages under a name that starts with {PREFIX}"
            )
        unknown = [name for name in self.targets if name not in (*self.environment, ALWAYS)]
        if unknown:
            raise ValueError(f"targets: {unknown[0]!r} is neither {ALWAYS!r} nor a variable of environment")
        try:
            self.line(variable="", module="", function="", path="")
        except (KeyError, IndexError, ValueError):
            raise ValueError(
                f"log: {self.log!r} may hold {{patch}}, {{variable}}, {{module}}, {{function}}, {{path}} only"
            ) from None
        return self

    def line(self, **values: str) -> str:
        """What the log holds once the patch is in place there."""
        template = self.log or (OVERLAY_LOG if self.apply == "overlay" else FILE_LOG)
        return template.format(patch=self.name, **values)


@dataclass(frozen=True)
class Patch:
    """A manifest with its files: of an overlay and of whole files by path in site-packages, of a diff by its own."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    manifest: PatchManifest
    files: Mapping[str, bytes]

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def environment(self) -> tuple[str, ...]:
        return self.manifest.environment

    @property
    def sha256(self) -> str:
        """Of the manifest as it was understood, and of names and contents in the order of the names."""
        digest = hashlib.sha256(json.dumps(self.manifest.model_dump(), sort_keys=True).encode())
        for path in sorted(self.files):
            digest.update(b"\0" + path.encode() + b"\0" + hashlib.sha256(self.files[path]).digest())
        return digest.hexdigest()

    @property
    def written(self) -> tuple[str, ...]:
        """Paths in site-packages that it writes."""
        return self.manifest.files or tuple(self.manifest.replaces)

    @property
    def summary(self) -> str:
        """'overlay, 5 files', 'replaces sglang/srt/x.py', 'changes 2 files'."""
        if self.manifest.apply == "overlay":
            return f"overlay, {len(self.files)} files"
        first, *more = sorted(self.manifest.replaces)
        verb = "replaces" if self.manifest.apply == "file" else "changes"
        return f"{verb} {first}" + (f" and {len(more)} more" if more else "")

    def serves(self, capabilities: Set[str]) -> bool:
        """Whether it is for GPUs of all these compute capabilities."""
        return not self.manifest.compute_capabilities or capabilities <= set(self.manifest.compute_capabilities)

    def targets(self, sglang: str) -> list[tuple[str, Target]]:
        """Variable and target, of those that this version of SGLang must have."""
        return [
            (variable, target)
            for variable, targets in self.manifest.targets.items()
            for target in targets
            if fits(sglang, target.sglang)
        ]


def check(patches: Sequence[Patch], sglang: str, release: str) -> None:
    """Raises PlanError, one line a fault, where patches do not fit a release's SGLang, themselves, or one another."""
    lines = []
    for patch in patches:
        manifest = patch.manifest
        if not fits(sglang, manifest.sglang):
            lines.append(
                f"patch {patch.name} is for SGLang {manifest.sglang}, release {release} has {sglang}: "
                "take it out of patches or more_patches, or choose another release"
            )
            continue
        at_hand = {variable for variable, _ in patch.targets(sglang)}
        lines += [
            f"patch {patch.name}: no target of {variable} is for SGLang {sglang}: it would bind nothing"
            for variable in manifest.targets
            if variable not in at_hand
        ]
        text = b"\n".join(patch.files.values()).decode(errors="replace")
        lines += [
            f"patch {patch.name}: environment names {variable}, but no file of it does: nothing would read it"
            for variable in manifest.environment
            if not re.search(rf"\b{variable}\b", text)
        ]
    lines += _twice(patches)
    if lines:
        raise PlanError(*lines)


def _twice(patches: Sequence[Patch]) -> Iterable[str]:
    """Files that two patches write."""
    taken: dict[str, str] = {}
    for patch in patches:
        for path in patch.written:
            if path in taken:
                yield f"patches {taken[path]} and {patch.name} both write {path}: make one patch of them"
            taken[path] = patch.name


def unknown(names: Iterable[str], known: Iterable[str], where: str, asked_by: str) -> list[str]:
    """A line for each name that is no patch."""
    known = sorted(set(known) - {HOOK})
    return [
        f"{asked_by} names patch {name!r}: {where} holds {', '.join(known) or 'none'}.{nearest(name, known)}"
        for name in names
        if name not in known
    ]


def demands(patches: Iterable[Patch], sglang: str) -> list[dict[str, Any]]:
    """Lines that a server's log must hold: patch, the variables that ask for it ([]: always), line, and for a
    replaced file its path."""
    found: list[dict[str, Any]] = []
    for patch in patches:
        for variable, target in patch.targets(sglang):
            line = patch.manifest.line(variable=variable, module=target.module, function=target.function, path="")
            asked = [] if variable == ALWAYS else [variable]
            found.append({"patch": patch.name, "variables": asked, "line": line, "path": None})
        for path in patch.manifest.replaces:
            line = patch.manifest.line(variable="", module="", function="", path=path)
            found.append({"patch": patch.name, "variables": [*patch.environment], "line": line, "path": path})
    return found


def patch_list(patches: Sequence[Patch], sglang: str, *, contents: bool = True) -> bytes:
    """What pd-patch is told, as JSON. contents=False leaves out what only placing needs."""
    listed = [
        {
            "name": patch.name,
            "apply": patch.manifest.apply,
            "replaces": patch.manifest.replaces,
            "targets": [
                {"variable": variable, **target.model_dump(include={"module", "function", "parameters"})}
                for variable, target in patch.targets(sglang)
            ],
            "files": {
                path: _lines(content)
                for path, content in patch.files.items()
                if contents or patch.manifest.apply == "diff"
            },
        }
        for patch in patches
    ]
    content = {"sglang": sglang, "patches": listed, "demands": demands(patches, sglang)}
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _lines(content: bytes) -> list[str] | str:
    """Text as lines, so that a diff of the list can be read; anything else in base64."""
    try:
        return content.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return base64.b64encode(content).decode()
