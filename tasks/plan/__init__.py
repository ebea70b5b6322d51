"""Decisions: settings, releases, topology, placement, arguments. Pure Python: no host, no pyinfra, no I/O."""
