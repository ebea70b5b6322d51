"""Your hosts: edit this file first. Settings are in group_data/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where pyinfra was started elsewhere: groups() says so

from tasks.support.inventory import groups

hosts = [
    # "gpu-1.example.com",
    # ("gpu-2.example.com", {"ssh_user": "root", "ssh_key": "~/.ssh/id_ed25519"}),
]

# Hosts that serve together, docs/fleet.md: what each of them plays. A host in none of these lists serves alone.
prefill = []
decode = []
server = []  # whole servers, layout "single" or "data_parallel"; in one service no host plays prefill or decode then
router = []  # a host may be in several lists; the setting `router` is another thing, which package it is

# The host whose Prometheus watches every host with the setting `monitoring` (docs/monitoring.md); without one, each
# watches itself. It has that setting itself then.
monitoring = []

# Makes a group of each host, so that group_data/HOST.py is for that host alone. For a group of several hosts, with its
# settings in group_data/fleet.py, write groups(hosts, fleet=["gpu-1.example.com", "gpu-2.example.com"]).
globals().update(groups(hosts, prefill=prefill, decode=decode, server=server, router=router, monitoring=monitoring))
