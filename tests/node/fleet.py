"""An inventory of several nodes: those that NODES names, each under its own name."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # pyinfra runs this file by its path alone

from tasks.support.inventory import groups
from tests.node.node import Node
from tests.node.settings import of_node

_nodes = [Node(name) for name in os.environ["NODES"].split(",")]

hosts = [
    (
        node.name,
        {
            "ssh_hostname": node.address,
            "ssh_user": "root",
            "ssh_key": str(node.ssh_key),
            "ssh_known_hosts_file": str(node.known_hosts),
            **of_node(),
        },
    )
    for node in _nodes
]

globals().update(groups(hosts, group_data=False))
