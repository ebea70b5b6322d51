"""python -m tests.node up|down|down-all|reboot|rebuild|hardware|ssh|status: simulated hosts by hand."""

import argparse
import os
import shlex
import signal
import sys
from types import FrameType

from tests.node import earlier
from tests.node.node import DEFAULT_HARDWARE, Node, all_nodes
from tests.node.process import NodeError


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.node", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default="rehearsal", help="the node's name (default: %(default)s)")
    up = actions.add_parser("up", parents=[named], help="make a node and boot it")
    up.add_argument("--hardware", default=DEFAULT_HARDWARE, metavar="NAME", help="of tests/node/hardware or recordings")
    up.add_argument("--left-by", metavar="COMMIT", help="as a deploy of that commit left it, its servers running")
    actions.add_parser("down", parents=[named], help="take a node away")
    actions.add_parser("down-all", help="take all nodes away")
    actions.add_parser("reboot", parents=[named], help="reboot a node")
    actions.add_parser("rebuild", parents=[named], help="same name and address, new host key, empty disk")
    swap = actions.add_parser("hardware", parents=[named], help="put other recorded hardware into a running node")
    swap.add_argument("hardware", metavar="NAME", help="of tests/node/hardware or recordings")
    ssh = actions.add_parser("ssh", parents=[named], help="a shell, or a command, on a node")
    ssh.add_argument("command", nargs=argparse.REMAINDER)
    actions.add_parser("status", help="all nodes")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs deaf to it
    signal.signal(signal.SIGTERM, _terminate)

    if given.action == "status":
        for node in all_nodes():
            print(f"{node.name}: {_state(node)}")
        return 0
    if given.action == "down-all":
        return _take_all_away()

    node = Node(given.name)
    if given.action == "up":
        node = Node(given.name, given.hardware)
        node.up(earlier.deployed(given.left_by) if given.left_by else "")
        print(f"{node.name}: {_state(node)}")
    elif given.action == "down":
        node.down()
    elif given.action == "reboot":
        node.reboot()
    elif given.action == "rebuild":
        node.rebuild()
    elif given.action == "hardware":
        node.hardware(given.hardware)
    elif given.action == "ssh":
        line = node.ssh_command()
        sys.stdout.flush()
        os.execvp(line[0], [*line, *given.command])
    return 0


def _take_all_away() -> int:
    failed = 0
    for node in all_nodes():
        try:
            node.down()
        except NodeError as error:
            print(f"node: {error}", file=sys.stderr)
            failed = 1
    return failed


def _state(node: Node) -> str:
    try:
        state = "up" if node.is_up else "down"
        return f"{state}, {node.address}, {node.hardware_name}; {shlex.join(node.ssh_command())}"
    except NodeError:
        return "half made: take it away with down"


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except NodeError as error:
        sys.exit(f"node: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
