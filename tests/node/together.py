"""Nodes that serve together: who plays what, and the inventory that says so."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.plan.settings.place import PARTS
from tests.node.node import DEFAULT_HARDWARE, Node
from tests.node.process import NodeError

ALONE, TOGETHER = "tests/node/inventory.py", "tests/node/fleet.py"
LAYOUTS = {  # how many hosts -> what each plays; the first always has the router
    2: (("prefill", "router"), ("decode",)),
    3: (("prefill", "router"), ("decode",), ("decode",)),
    4: (("prefill", "router"), ("prefill",), ("decode",), ("decode",)),
}


@dataclass(frozen=True)
class Service:
    """One node that plays all roles, or several that share them."""

    nodes: tuple[Node, ...]
    roles: dict[str, tuple[str, ...]] = field(default_factory=dict)  # node -> what it plays; {} for one node

    @property
    def inventory(self) -> str:
        return TOGETHER if self.roles else ALONE

    @property
    def variables(self) -> dict[str, str]:
        """What the inventory reads."""
        if not self.roles:
            return {"NODE": self.nodes[0].name}
        names = {role.upper(): ",".join(node.name for node in self.of(role)) for role in PARTS}
        return {"NODES": ",".join(node.name for node in self.nodes), **names}

    def of(self, role: str) -> tuple[Node, ...]:
        """The nodes that play a role."""
        return tuple(node for node in self.nodes if not self.roles or role in self.roles[node.name])

    @property
    def router(self) -> Node:
        return self.of("router")[0]

    def without(self, node: Node) -> Service:
        """The same service before a node joined it, or after it left."""
        return Service(tuple(one for one in self.nodes if one is not node), self.roles)

    def __str__(self) -> str:
        said = [f"{node.name} ({', '.join(self.roles[node.name])})" for node in self.nodes if self.roles]
        return ", ".join(said)


def service(name: str, hosts: int, hardware: str = DEFAULT_HARDWARE) -> Service:
    """Of so many hosts: NAME alone, or NAME-1, NAME-2, ... Raises NodeError."""
    if hosts == 1:
        return Service((Node(name, hardware),))
    if hosts not in LAYOUTS:
        raise NodeError(f"no service of {hosts} hosts is made up here: there is 1, {', '.join(map(str, LAYOUTS))}")
    nodes = tuple(Node(f"{name}-{number}", hardware) for number in range(1, hosts + 1))
    return Service(nodes, {node.name: roles for node, roles in zip(nodes, LAYOUTS[hosts], strict=True)})
