"""A node's network: its own namespace, a veth to this machine, masquerading to the world, plain routes to other nodes."""

import contextlib
import ipaddress
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.node.process import NodeError, command, locked

NAMESPACES = Path("/run/netns")
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
LINKS = "pd-node-"
WIRE = "wire0"  # a second interface, as hosts have that serve together over a network of their own
WIRES = ipaddress.IPv6Network("fd13:213::/64")
FORWARD_MARK = "pd_node_forwarding"  # this nft table exists while ip_forward is 1 because a node set it


@dataclass(frozen=True)
class Network:
    """The network of node `number` (1-254): all names and addresses follow from the number."""

    number: int

    @property
    def link(self) -> str:
        """Name of the namespace and of the veth's end on this machine."""
        return f"{LINKS}{self.number}"

    @property
    def table(self) -> str:
        return f"pd_node_{self.number}"

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"10.213.{self.number}.0/30")

    @property
    def gateway(self) -> str:
        return str(self.subnet[1])

    @property
    def address(self) -> str:
        return str(self.subnet[2])

    @property
    def address6(self) -> str:
        """On the wire of a service, where there is one."""
        return str(WIRES[self.number])

    @property
    def namespace(self) -> Path:
        return NAMESPACES / self.link


@contextlib.contextmanager
def _machine_lock() -> Iterator[None]:
    """Other checkouts on this machine share its network: the lock cannot live in this one."""
    with locked(Path("/run")):
        yield


def claim() -> Network:
    """Take the lowest number whose namespace and subnet nobody on this machine uses, and make its namespace."""
    with _machine_lock():
        routes = [route["dst"] for route in json.loads(command("ip", "-json", "-4", "route").stdout)]
        taken = [ipaddress.IPv4Network(route) for route in routes if route != "default"]
        for number in range(1, 255):
            network = Network(number)
            # a wide route (a VPN's 10.0.0.0/8) does no harm: the node's own is more specific
            clash = any(route.prefixlen >= 16 and route.overlaps(network.subnet) for route in taken)
            if not clash and not network.namespace.exists():
                command("ip", "netns", "add", network.link)
                return network
    raise NodeError("no free subnet for a node in 10.213.0.0/16")


def set_up(network: Network) -> None:
    """Fill a claimed namespace: veth, routes, masquerading; the caller tears down when this is interrupted."""
    link, namespace = network.link, network.link
    with _machine_lock():
        command("ip", "link", "add", link, "type", "veth", "peer", "name", "host0", "netns", namespace)
        command("ip", "address", "add", f"{network.gateway}/30", "dev", link)
        command("ip", "link", "set", link, "up")
        inside = ["address add {0}/30 dev host0", "link set lo up", "link set host0 up", "route add default via {1}"]
        batch = "\n".join(inside).format(network.address, network.gateway)
        command("ip", "-netns", namespace, "-batch", "-", text=batch + "\n")
        command("nft", "-f", "-", text=_masquerade(network))
        if FORWARD.read_text().strip() == "0":
            command("nft", "add", "table", "ip", FORWARD_MARK)
            FORWARD.write_text("1")


def wire(one: Network, other: Network) -> None:
    """A network of IPv6 alone between two nodes that are up; it goes with either of them."""
    with _machine_lock():
        ends = ["name", WIRE, "netns", one.link, "type", "veth", "peer", "name", WIRE, "netns", other.link]
        command("ip", "link", "add", *ends)
        for network in (one, other):
            lines = f"address add {network.address6}/{WIRES.prefixlen} dev {WIRE} nodad\nlink set {WIRE} up\n"
            command("ip", "-netns", network.link, "-batch", "-", text=lines)


def _masquerade(network: Network) -> str:
    """Only on the way to the world: another node sees this one's own address, as hosts of one network do."""
    return f"""
        table ip {network.table} {{
            chain postrouting {{
                type nat hook postrouting priority srcnat;
                ip saddr {network.subnet} oifname != "{LINKS}*" masquerade
            }}
        }}
    """


def tear_down(network: Network) -> None:
    """Remove whatever of the network exists, and ip_forward with the last node that needed it."""
    with _machine_lock():
        if network.namespace.exists():
            for pid in command("ip", "netns", "pids", network.link, check=False).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        if Path("/sys/class/net", network.link).exists():
            command("ip", "link", "delete", network.link)
        if network.namespace.exists():
            command("ip", "netns", "delete", network.link)
        tables = command("nft", "list", "tables", "ip").stdout.split()
        if network.table in tables:
            command("nft", "delete", "table", "ip", network.table)
        if FORWARD_MARK in tables and not any(Path("/sys/class/net").glob(f"{LINKS}*")):
            FORWARD.write_text("0")
            command("nft", "delete", "table", "ip", FORWARD_MARK)
        # `ip netns` binds the folder onto itself, which is_mount() does not see
        bound = f" {NAMESPACES} " in Path("/proc/self/mountinfo").read_text()
        if bound and not any(NAMESPACES.iterdir()):
            command("umount", NAMESPACES)
            NAMESPACES.rmdir()


def dropping_chains() -> list[str]:
    """Names of the firewall chains on this machine that drop forwarded packets by policy (docker sets one)."""
    rules = json.loads(command("nft", "--json", "list", "chains").stdout or '{"nftables": []}')["nftables"]
    chains = [rule["chain"] for rule in rules if "chain" in rule]
    return [
        f"{chain['family']} {chain['table']} {chain['name']}"
        for chain in chains
        if chain.get("hook") == "forward" and chain.get("policy") == "drop"
    ]
