"""The rehearsal's inventory: one host, the node that `python -m tests.node up` made (NODE names another)."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # pyinfra runs this file by its path alone

from tasks.support.inventory import groups
from tests.node import Node
from tests.node.settings import of_node

_node = Node(os.environ.get("NODE", "rehearsal"))

hosts = [
    (
        "rehearsal",
        {
            "ssh_hostname": _node.address,
            "ssh_user": "root",
            "ssh_key": str(_node.ssh_key),
            "ssh_known_hosts_file": str(_node.known_hosts),
            **of_node(),
        },
    ),
]

globals().update(groups(hosts, group_data=False))
