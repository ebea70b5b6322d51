"""The roles that servers play: what group_data says in prefill_*, decode_* and server_*, each parsed once.

`decode_mem_fraction` of group_data/all.py is `mem_fraction` of Decode, and so on: a field without a default is a
setting, behind the role's name. One with a default is none: what only other roles have, and the address.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1)]

LOOPBACK = "127.0.0.1"
PORT_STEP = 10  # between the ports of two servers of one role: prefill and decode sit 1 apart
PAIR = ("prefill", "decode")  # KV moves from the first to the second
WHOLE = "server"  # it computes prompts and answers, and no KV moves


def is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name: nobody knows yet where it leads
        return False


def at(address: str, port: int) -> str:
    """127.0.0.1:30000; [::1]:30000."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class Role(BaseModel):
    """A kind of server: group_data/all.py holds units and meanings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: ClassVar[str]

    address: str = LOOPBACK  # where its servers listen, and the others reach them
    instances: Count
    tensor_parallel: Count
    gpus: Annotated[list[Annotated[int, Field(ge=0)]] | None, Field(min_length=1)]
    numa_node: Annotated[int, Field(ge=0)] | None
    port: Port
    bootstrap_port: Port | None = None  # None: whole servers, no KV moves
    dist_init_port: Port
    mem_fraction: Annotated[float, Field(gt=0.0, lt=1.0)]
    chunked_prefill: Count | None = None  # None: it computes no prompts
    prefill_cuda_graph: bool | None = None
    cuda_graph_max_batch: Count | None = None  # None: it generates no tokens
    arguments: list[str]
    environment: dict[str, str]

    @classmethod
    def settings(cls) -> list[str]:
        """The names of its settings in group_data."""
        return [str(field.alias) for field in cls.model_fields.values() if field.is_required()]

    def server(self, number: int) -> str:
        """A server's name, number 0 is the first: prefill; prefill-0, prefill-1 where there are several."""
        return f"{self.name}-{number}" if self.instances > 1 else self.name

    def ports(self, number: int) -> dict[str, int]:
        """Setting -> TCP port, for those that a server listens on."""
        step = number * PORT_STEP
        return {f"{self.name}_port": self.port + step, f"{self.name}_dist_init_port": self.dist_init_port + step}


class Prefill(Role, alias_generator="prefill_{}".format):
    name = "prefill"

    bootstrap_port: Port
    chunked_prefill: Count
    prefill_cuda_graph: bool = Field(alias="prefill_cuda_graph")

    def ports(self, number: int) -> dict[str, int]:
        return {**super().ports(number), "prefill_bootstrap_port": self.bootstrap_port + number * PORT_STEP}


class Decode(Role, alias_generator="decode_{}".format):
    name = "decode"

    bootstrap_port: Port  # nothing listens there: SGLang takes it for requests that name no port
    cuda_graph_max_batch: Count
    retraction_backup: Literal["host_pool", "cpu_tensor"] | None
    retraction_gb: Count | None


class Server(Role, alias_generator="server_{}".format):
    name = WHOLE

    chunked_prefill: Count
    prefill_cuda_graph: bool
    cuda_graph_max_batch: Count


KINDS: tuple[type[Role], ...] = (Prefill, Decode, Server)
ROLES = tuple(kind.name for kind in KINDS)
