"""A node without a way out: it reaches nothing but the machine that its ssh comes from, and what it tries is noted."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.node.network import Network
from tests.node.node import Node
from tests.node.process import NodeError, command

TABLE = "pd_closed"
# In the node's own network, on the way out. The sets hold what the kernel saw tried, whatever process it was.
RULES = """
table inet {table} {{
    set tried4 {{ type ipv4_addr . inet_proto . inet_service; flags dynamic; size 65535; }}
    set tried6 {{ type ipv6_addr . inet_proto . inet_service; flags dynamic; size 65535; }}
    chain output {{
        type filter hook output priority filter; policy accept;
        oif lo accept
        tcp sport 22 accept
        ip daddr {peer} udp dport 53 accept
        ip daddr {peer} tcp dport {{ 53{ports} }} accept
        meta l4proto ipv6-icmp accept
        meta l4proto {{ tcp, udp }} add @tried4 {{ ip daddr . meta l4proto . th dport }}
        meta l4proto {{ tcp, udp }} add @tried6 {{ ip6 daddr . meta l4proto . th dport }}
        reject
    }}
}}
"""
NO_SUCH_NAME = 0x8183  # flags of an answer: a response, recursion asked for and there, NXDOMAIN


@dataclass
class Tried:
    """What a closed node tried in vain."""

    network: Network
    names: set[str]  # that it asked its name server for

    @property
    def connections(self) -> set[str]:
        """ADDRESS PROTOCOL PORT of each."""
        found = set()
        for name in ("tried4", "tried6"):
            listed = json.loads(_nft(self.network, "--json", "list", "set", "inet", TABLE, name))["nftables"]
            for entry in next(item["set"] for item in listed if "set" in item).get("elem", []):
                key = entry["elem"]["val"] if "elem" in entry else entry
                found.add(" ".join(map(str, key["concat"])))
        return found

    def forget(self) -> None:
        self.names.clear()
        for name in ("tried4", "tried6"):
            _nft(self.network, "flush", "set", "inet", TABLE, name)

    def __str__(self) -> str:
        return f"names: {sorted(self.names) or 'none'}; connections: {sorted(self.connections) or 'none'}"


@contextmanager
def closed(node: Node, *ports: int) -> Iterator[Tried]:
    """The node without a way out, but for these TCP ports of its ssh peer and a name server there that knows no name."""
    network, names = node.network, set[str]()

    class NameServer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            question, socket = self.request
            names.add(_name(question))
            socket.sendto(question[:2] + NO_SUCH_NAME.to_bytes(2) + question[4:], self.client_address)

    before = node.run("cat /etc/resolv.conf").stdout
    with socketserver.ThreadingUDPServer((network.gateway, 53), NameServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            _checked(node, "cat >/etc/resolv.conf", f"nameserver {network.gateway}\n")
            listed = "".join(f", {port}" for port in ports)
            _nft(network, "-f", "-", text=RULES.format(table=TABLE, peer=network.gateway, ports=listed))
            yield Tried(network, names)
        finally:
            _nft(network, "delete", "table", "inet", TABLE)
            _checked(node, "cat >/etc/resolv.conf", before)
            server.shutdown()
            thread.join()


def _nft(network: Network, *arguments: str, text: str | None = None) -> str:
    return command("ip", "netns", "exec", network.link, "nft", *arguments, text=text).stdout


def _checked(node: Node, line: str, text: str) -> None:
    ran = node.run(line, text=text)
    if ran.returncode:
        raise NodeError(f"node {node.name}: {line}: {ran.stderr.strip()}")


def _name(question: bytes) -> str:
    """The name that a DNS question is about."""
    labels, place = [], 12
    while length := question[place]:
        labels.append(question[place + 1 : place + 1 + length].decode(errors="replace"))
        place += 1 + length
    return ".".join(labels)
