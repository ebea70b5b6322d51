"""Servers of a test, within a node's reach."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.node.node import Node
from tests.node.waiting import until


@contextmanager
def within_reach(node: Node, *urls: str) -> Iterator[None]:
    """The loopback ports of these URLs, on the node's loopback too."""
    ports = [urlsplit(url).port for url in urls]
    forwards = [word for port in ports for word in ("-R", f"127.0.0.1:{port}:127.0.0.1:{port}")]
    line = node.ssh_command()
    tunnel = subprocess.Popen([*line[:-1], "-N", "-o", "ExitOnForwardFailure=yes", *forwards, line[-1]])
    try:
        listening = " && ".join(f"ss -Hltn 'sport = :{port}' | grep -q ." for port in ports)
        until(lambda: node.run(listening).returncode == 0, "the test's servers are within the node's reach", 30)
        yield
    finally:
        tunnel.terminate()
        tunnel.wait()
