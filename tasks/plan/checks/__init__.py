"""May this host be provisioned? Pure checks over what was found, one subject a file.

The order of the imports is the order of the findings.
"""

# ruff: noqa: I001, F401
from tasks.plan.checks import (
    system, driver, gpus, xids, fabric, links, numa, limits, disk, folders, readable, wheelhouse, ports, network, clock,
    model, environment, release, patches, monitoring,
)  # fmt: skip
from tasks.plan.checks.registry import CHECKS, Found, judged, table
from tasks.plan.service.strays import Stray, joined

__all__ = ["CHECKS", "Found", "judged", "strays", "table"]


def strays(found: Found) -> tuple[Stray, ...]:
    """Servers of SGLang's outside every unit that hold a port or a GPU of the plan."""
    of_gpus = gpus.strays(found) if found.manifest.device == "cuda" else []
    return joined([*ports.strays(found), *of_gpus])
