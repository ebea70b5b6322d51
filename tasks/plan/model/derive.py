"""A profile whose gaps the model's folder fills, and what contradicts the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.plan.errors import PlanError
from tasks.plan.model import questions, shape
from tasks.plan.model.folder import ABSENT, CLOSED, Folder
from tasks.plan.model.profile import ModelProfile, Source, Stated
from tasks.plan.model.shape import Chosen, Shape
from tasks.plan.settings.settings import Settings

GB = 1_000_000_000
DRAFT = "NEXTN"  # SGLang's name for drafts that sit in the checkpoint


def check_folder(folder: Folder, user: str) -> None:
    """Raises PlanError, one line, where no server could load what is there."""
    path = folder.path
    if folder.state == ABSENT:
        raise PlanError(f"model {path}: no such folder on this host, so it holds no config.json: {ELSEWHERE}")
    if folder.state == CLOSED:
        raise PlanError(
            f"model {path}: service_user = {user!r} cannot enter this folder: give others the right to "
            f"(`chmod o+x` for each folder on the way, `chmod -R o+rX` for it)"
        )
    if folder.fault:
        raise PlanError(f"{folder.fault}: {ELSEWHERE}")
    if folder.missing:
        more = f" and {len(folder.missing) - 2} more" if len(folder.missing) > 2 else ""
        raise PlanError(
            f"model {path}: its index names {', '.join(folder.missing[:2])}{more}, not there: copy or fetch the rest"
        )
    if not folder.size:
        raise PlanError(f"model {path} holds no weights (*.safetensors): {ELSEWHERE}")


ELSEWHERE = "put the model there, or name another folder (model_dir); with None it is fetched"


@dataclass(frozen=True)
class Model:
    """A whole profile, and what of it the model's folder filled."""

    profile: ModelProfile
    derived: tuple[str, ...]  # names of fields
    told: str  # what was read from the folder, in one line; "" where there was nothing to read


def is_read(stated: Stated, settings: Settings) -> bool:
    """Whether the model's folder says something that is not known without the host."""
    return settings.serves and (not (stated.source and stated.source.bundled) or is_brought(stated.source, settings))


def is_brought(source: Source | None, settings: Settings) -> bool:
    """Whether the host holds the model already, so that no run fetches or changes it."""
    return bool(settings.model_dir or (source and source.directory))


def model(stated: Stated, found: Folder | None, settings: Settings, page_size: int | None) -> Model:
    """The model as the settings, its profile and its folder say together.

    found: None where it was not read. page_size: as for settled. Raises PlanError, one line a fault.
    """
    if found and not is_brought(stated.source, settings) and not (found.config and found.size):
        found = None  # it is fetched by this run
    profile, derived = settled(stated, found, settings.served_name, page_size)
    shaped = shape_of(stated, found, page_size) if found else None
    return Model(profile, derived, told(profile, shaped, profile.context(settings.context_length)) if shaped else "")


def settled(
    stated: Stated, folder: Folder | None, served_name: str | None, page_size: int | None = None
) -> tuple[ModelProfile, tuple[str, ...]]:
    """The whole profile, and the names of the fields that the folder filled.

    folder: None where there is none to read, or nothing in it yet. served_name: the setting. page_size: tokens, the
    only size that the release can serve, None: any. Raises PlanError, one line a fault: gaps and contradictions.
    """
    found: dict[str, Any] = {}
    shaped = None if folder is None else shape_of(stated, folder, page_size)
    if folder and shaped:
        if parts := contradictions(stated, shaped):
            raise PlanError(
                f"profile {stated.name} contradicts config.json of {folder.path}: it says {'; '.join(parts)}: that is "
                'another model, or the profile is wrong (model = "auto" reads all of it from the folder)'
            )
        found = fields(shaped, folder)
    elif folder:
        found = {"size_gb": folder.size / GB}
    elif stated.missing:
        raise PlanError(
            f"profile {stated.name} leaves out {', '.join(stated.missing)}: name the model's folder (model_dir), from "
            "which that is read, or write it"
        )
    whole = {
        "name": stated.name,
        "served_name": stated.name,
        "source": stated.source or Source(directory=folder.path if folder else "/"),
        "quantization": None, "dtype": None, "kv_cache_dtype": None, "attention_backend": None,
        "moe_runner_backend": {}, "arguments": [], "decode_arguments": [], "environment": {},
        "reasoning_parser": None, "tool_call_parser": None, "golden": questions.questions(frozenset()),
        **found,
        **stated.fields,
        **({"served_name": served_name} if served_name else {}),
    }  # fmt: skip
    return ModelProfile.model_validate(whole), tuple(sorted(found.keys() - stated.fields.keys()))


def shape_of(stated: Stated, folder: Folder, page_size: int | None = None) -> Shape | None:
    """What the folder's config.json says, with what the profile decides. Raises PlanError, one line, where it cannot be
    read; None where the profile says all of it itself."""
    said = stated.fields
    page = (said["page_size"],) if "page_size" in said else (page_size,) if page_size else None
    chosen = Chosen(page, said.get("kv_cache_dtype"), said.get("dtype"))
    try:
        return shape.read(folder.config, folder.modelopt, folder.path, chosen)
    except PlanError:
        if set(stated.missing) <= {"size_gb"}:
            return None
        raise


def fields(shaped: Shape, folder: Folder) -> dict[str, Any]:
    """What a folder says of a profile's fields."""
    layers = shaped.layers + shaped.draft_layers
    return {
        "size_gb": folder.size / GB,
        "heads": shaped.heads,
        "kv_heads": shaped.kv_heads,
        "maximum_context": shaped.context,
        "page_size": shaped.page_size,
        "kv_buffers": list(shaped.buffers),
        "kv_cache_dtype": shaped.kv_cache_dtype,
        "speculative_algorithm": DRAFT if shaped.draft_layers else None,
        "draft_share": shaped.draft_layers / layers,
        "chat_template_kwargs": questions.switch(folder.words),
        "golden": questions.questions(folder.words),
    }


def contradictions(stated: Stated, shaped: Shape) -> list[str]:
    """What a profile says otherwise than the model's config.json: "16 attention heads (heads), not 8"."""
    known: Mapping[str, tuple[Any, str]] = {
        "heads": (shaped.heads, "attention heads"),
        "kv_heads": (shaped.kv_heads, "KV heads"),
    }
    parts = [
        f"{stated.fields[name]} {what} ({name}), not {value}"
        for name, (value, what) in known.items()
        if name in stated.fields and stated.fields[name] != value
    ]
    counted = {buffer.name: buffer.count for buffer in shaped.buffers}
    parts += [
        f"{buffer.count} buffers of {buffer.name} (kv_buffers), not {counted[buffer.name]}"
        for buffer in stated.fields.get("kv_buffers", [])
        if counted.get(buffer.name, buffer.count) != buffer.count
    ]
    longest = stated.fields.get("maximum_context")
    if longest and shaped.context and longest > shaped.context and not _stretches(stated):
        parts.append(f"{longest} tokens of context (maximum_context), not {shaped.context}")
    return parts


def _stretches(stated: Stated) -> bool:
    """Whether the profile itself changes what SGLang reads from config.json."""
    arguments: list[str] = stated.fields.get("arguments", [])
    return any(word.startswith("--json-model-override-args") for word in arguments)


def told(profile: ModelProfile, shaped: Shape, context: int) -> str:
    """What was read, in one line for people. context: tokens that are served."""
    return (
        f"{shaped.architecture}, {shaped.layers} layers, {shaped.heads} heads, {shaped.attention}, {shaped.numbers}, "
        f"{profile.size_gb:.3g} GB, context {context}"
        + (f" of {profile.maximum_context}" if profile.maximum_context and profile.maximum_context != context else "")
    )
