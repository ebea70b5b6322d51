from tests.node.fixtures import bare_node

__all__ = ["bare_node"]
