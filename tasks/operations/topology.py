"""Says where each server runs. Measuring the links is another matter: the driver's matrix proves nothing."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra import host, logger
from pyinfra.api import StringCommand, operation

from tasks.plan.host import Hardware
from tasks.plan.instances import Instance
from tasks.plan.topology import weak_pairs


@operation()
def placed(worker: Instance, hardware: Hardware) -> Generator[StringCommand, None, None]:
    """Nothing to change: shows the placement, warns where the driver refuses peer copies inside a TP group."""
    placement = worker.placement
    assert placement is not None
    host.noop(f"{worker.name}: GPU {placement.gpus}, node {placement.numa_node}: {placement.rule}")
    for a, b, status in weak_pairs(hardware.p2p, placement.gpus):
        logger.warning(
            f"{host.print_prefix}{worker.name}: no peer copies between GPU {a} and {b} (topo -p2p: {status})"
        )
    yield from ()
