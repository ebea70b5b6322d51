"""A model profile: what a model needs from its servers, and the answers that prove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.plan.release.manifest import Manifest
from tasks.plan.settings.questions import Golden


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


class KvBuffer(BaseModel):
    """KV buffers of one kind: what a prefill rank sends of each page, one descriptor a buffer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    count: Annotated[int, Field(ge=1)]  # buffers of this kind in the whole model
    page_bytes: Annotated[int, Field(ge=4)]  # bytes of one page of page_size tokens, over all KV heads
    heads: Annotated[int, Field(ge=1)] | None = None  # KV heads that it is split by; None: the model's
    share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the cache's tokens that it has room for


class ModelProfile(BaseModel):
    """A whole profile: files/models/NAME.yaml, or one whose gaps the model's own folder filled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    served_name: str
    source: Source
    size_gb: Annotated[float, Field(gt=0)]
    heads: Annotated[int, Field(ge=1)]
    kv_heads: Annotated[int, Field(ge=1)]
    maximum_context: Annotated[int, Field(ge=1)] | None  # None: nobody says; the setting holds
    quantization: str | None
    dtype: str | None
    page_size: Annotated[int, Field(ge=1)] | None
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
    draft_share: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of the weights that only a draft loads
    chat_template_kwargs: dict[str, Any] = {}  # sent with each question, such as {"enable_thinking": False}
    golden: Annotated[list[Golden], Field(min_length=1)]

    def moe_backend(self, release: Manifest) -> str | None:
        chosen = self.moe_runner_backend.get(release.sglang)
        return None if chosen == "auto" else chosen

    def rank_bytes(self, buffer: KvBuffer, parallel: int) -> int:
        """Bytes of one page of one buffer in one rank: KV heads are split over the ranks as far as they go."""
        return -(-buffer.page_bytes // min(parallel, buffer.heads or self.kv_heads))

    def context(self, wanted: int) -> int:
        """Tokens of prompt and answer together: the smaller of the setting and what the model can."""
        return wanted if self.maximum_context is None else min(wanted, self.maximum_context)


# For the gaps of a profile that is checked before the model's folder is read.
_FILLER: dict[str, Any] = {
    "served_name": "", "source": {"directory": "/"}, "size_gb": 1, "heads": 1, "kv_heads": 1, "maximum_context": None,
    "quantization": None, "dtype": None, "page_size": None,
    "kv_buffers": [{"name": "", "count": 1, "page_bytes": 4}], "kv_cache_dtype": None, "attention_backend": None,
    "moe_runner_backend": {}, "arguments": [], "decode_arguments": [], "environment": {}, "reasoning_parser": None,
    "tool_call_parser": None, "golden": [{"name": "", "prompt": "", "match": "words:1"}],
}  # fmt: skip


@dataclass(frozen=True)
class Stated:
    """What a file says of a model. What it leaves out is read from the model's folder."""

    name: str
    source: Source | None = None  # None: the folder that the setting model_dir names
    fields: Mapping[str, Any] = field(
        default_factory=dict
    )  # of ModelProfile, as the file has them; None is a value too

    @classmethod
    def of(cls, content: object) -> Stated:
        """From a file's content. Raises ValidationError."""
        given = content if isinstance(content, dict) else {"name": content}
        found = ModelProfile.model_validate({**_FILLER, **given})
        fields = {name: getattr(found, name) for name in given if name != "name"}
        return cls(found.name, fields.pop("source", None), fields)

    @property
    def missing(self) -> list[str]:
        """What only the model's folder can tell."""
        return [name for name in _READ if name not in self.fields]


_READ = ("size_gb", "heads", "kv_heads", "maximum_context", "page_size", "kv_buffers")
