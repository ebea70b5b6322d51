"""Whole plans, held as text: what the servers of a release and a model are started with.

A change of these texts is a change of what users run. `python -m tests.golden` writes them anew; look at the
difference before you commit it.
"""

from pathlib import Path

from tasks.support import render
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware

FOLDER = Path(__file__).parent

# File -> the settings that differ from group_data/all.py, on a host with 8 GPUs on two NUMA nodes.
GOLDEN: dict[str, dict[str, object]] = {
    "sglang-0.5.13.post1-cu130.deepseek-v4-flash-nvfp4.txt": {
        "release": "sglang-0.5.13.post1-cu130",
        "model": "deepseek-v4-flash-nvfp4",
    },
    "default.txt": {},
    "single.txt": {"layout": "single"},
    "data-parallel.txt": {"layout": "data_parallel"},
}


def text(name: str) -> str:
    """Launch script and environment file of every server as rendered but for the release's id, each under its path."""
    plan = catalogue_plan(GOLDEN[name], hardware(TWO_SOCKETS))
    files = [render.instance_files(plan, instance) for instance in plan.instances]
    shown = [file for one in files for file in (one.script, one.environment)]
    whole = "".join(f"==> {file.path} <==\n{file.content.decode()}" for file in shown)
    return whole.replace(plan.release.id, "RELEASE-ID")
