"""A model profile: what a model needs from its servers, and the answers that prove it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.plan.release.manifest import Manifest


class Source(BaseModel):
    """Where the weights come from: exactly one of hub (with a pinned revision), directory, bundled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hub: str | None = None
    revision: str | None = None
    directory: str | None = None
    bundled: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Source:
        if sum(value is not None for value in (self.hub, self.directory, self.bundled)) != 1:
            raise ValueError("source must name exactly one of hub, directory, bundled")
        return self


class Golden(BaseModel):
    """One question with the answer that a right service gives at temperature 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    prompt: str
    expect: str
    match: Annotated[str, Field(pattern=r"^(contains|equals|regex|words:[0-9]+)$")] = "contains"
    max_tokens: Annotated[int, Field(ge=1)] = 64


class KvBuffer(BaseModel):
    """KV buffers of one kind: what a prefill rank sends of each page, one descriptor a buffer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    count: Annotated[int, Field(ge=1)]  # buffers of this kind in the whole model
    page_bytes: Annotated[int, Field(ge=4)]  # bytes of one page of page_size tokens, over all KV heads


class ModelProfile(BaseModel):
    """files/models/NAME.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    served_name: str
    source: Source
    size_gb: float
    heads: int
    kv_heads: int
    maximum_context: int
    quantization: str | None
    dtype: str | None
    page_size: int | None
    kv_buffers: Annotated[list[KvBuffer], Field(min_length=1)]
    kv_cache_dtype: str | None
    attention_backend: str | None
    moe_runner_backend: dict[str, str]  # by SGLang version; absent or "auto": the server chooses
    arguments: list[str]
    decode_arguments: list[str]
    environment: dict[str, str]
    reasoning_parser: str | None
    tool_call_parser: str | None
    speculative_algorithm: str | None = None  # for the draft that the checkpoint carries; None: it carries none
    golden: Annotated[list[Golden], Field(min_length=1)]

    def moe_backend(self, release: Manifest) -> str | None:
        chosen = self.moe_runner_backend.get(release.sglang)
        return None if chosen == "auto" else chosen
