"""A bare Debian host in systemd-nspawn, with recorded GPU hardware, for tests and rehearsals."""

from tests.node.node import Node
from tests.node.process import NodeError

__all__ = ["Node", "NodeError"]
