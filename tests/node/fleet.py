"""An inventory of several nodes: those that NODES names, each under its own name.

PREFILL, DECODE, SERVER and ROUTER name those of them that serve together, each with what it plays. KEEPER names the one with
the Prometheus of all those that WATCHED names. WIRED: they reach each other over a wire of their own, not where ssh
reaches them.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # pyinfra runs this file by its path alone

from tasks.plan.settings import place
from tasks.support.inventory import groups
from tests.node.node import Node
from tests.node.settings import of_node


def _names(variable: str) -> list[str]:
    return [name for name in os.environ.get(variable, "").split(",") if name]


_nodes = [Node(name) for name in _names("NODES")]
_playing = {role: _names(role.upper()) for role in place.PARTS}  # as a name of this file it would be a group
_keeping, _watched = _names("KEEPER"), _names("WATCHED")

hosts = [
    (
        node.name,
        {
            "ssh_hostname": node.address,
            "ssh_user": "root",
            "ssh_key": str(node.ssh_key),
            "ssh_known_hosts_file": str(node.known_hosts),
            **of_node(),
            **({"monitoring": node.name in _watched} if _keeping else {}),
            **(
                {"service_address": node.network.address6 if "WIRED" in os.environ else node.address}
                if any(node.name in names for names in _playing.values())
                else {}
            ),
        },
    )
    for node in _nodes
]

_played = {role: [host for host in hosts if host[0] in names] for role, names in _playing.items()}
_played["monitoring"] = [host for host in hosts if host[0] in _keeping]
globals().update(groups(hosts, group_data=False, **{role: members for role, members in _played.items() if members}))
