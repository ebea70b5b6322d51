"""The form of what pd-probe leaves on a host, as far as it is read. The service user owns that file."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _time(text: str) -> str:
    """Raises ValueError."""
    if datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is None:
        raise ValueError("a time without a zone")
    return text


Speed = Annotated[float, Field(ge=0)]  # GB/s


class Read(BaseModel):
    """Numbers are numbers, and not nan."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Row(Read):
    """One size of descriptor."""

    descriptor_bytes: Annotated[int, Field(gt=0)]
    gbps: Speed
    us_per_descriptor: Speed | None
    same_bytes: bool
    rounds: list[Speed] = []


class Copy(Read):
    source: int = Field(alias="from")
    to: int
    gbps: Speed
    same_bytes: bool


class Path(Read):
    """Between two GPUs, one after the other and all at once."""

    source: int = Field(alias="from")
    to: int
    prefill: str
    decode: str
    lane: str
    cuda_ipc: bool
    plain_gbps: Speed | None
    alone: Annotated[list[Row], Field(min_length=1)]
    together: Annotated[list[Row], Field(min_length=1)]


class Control(Read):
    outcome: str


class Group(Read):
    instance: str
    gpus: list[int]
    outcome: Literal["right", "single", "hang", "wrong", "broken"]
    reason: str
    bus_gbps: Speed | None = None
    control: Control | None = None

    @model_validator(mode="after")
    def _right_ones_are_measured(self) -> Group:
        if self.outcome == "right" and self.bus_gbps is None:
            raise ValueError("right sums without a speed")
        return self


class Part(Read):
    status: Literal["done", "failed", "timeout", "skipped"]
    exit: int
    seconds: float
    reason: str


class Peer(Part):
    pairs: list[Copy] = []


class Reduce(Part):
    groups: list[Group] = []


class KvPath(Part):
    pairs: list[Path] = []


class Parts(Read):
    peer: Peer | None = None
    all_reduce: Reduce | None = None
    kv_path: KvPath | None = None


class Result(Read):
    format: Literal[1]
    started: Annotated[str, AfterValidator(_time)]
    seconds: float
    device: str
    depends: Annotated[dict[str, Any], Field(min_length=1)]
    parts: Parts
