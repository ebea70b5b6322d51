"""Any mapping of settings gives a plan, or lines that say what is wrong; a plan gives scripts and units that are read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as play
from hypothesis import strategies as st

from tasks.plan.errors import PlanError
from tasks.plan.plan import Plan
from tasks.plan.settings.settings import load
from tasks.support import catalogue, render
from tests.plan.builders import REPOSITORY, TWO_SOCKETS, catalogue_plan, defaults, hardware, settings

DEFAULTS = defaults()
HARDWARE = hardware(TWO_SOCKETS)
TRIES = int(os.environ.get("TRIES", "25"))  # 2,000 and more were played: docs/reliability.md

ODD = [
    "",
    " ",
    "a b",
    "a\nb",
    "\0",
    "$HOME",
    "`id`",
    "'",
    '"',
    "%n",
    "{{x}}",
    "-x",
    "--",
    "../..",
    "/",
    "/etc",
    "ä",
    "²",
    "1e9",
    "nan",
]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.sampled_from(ODD),
    st.text(max_size=12),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(-2, 9), st.text(max_size=5)), max_size=5),
    st.dictionaries(st.text(max_size=6), st.one_of(st.text(max_size=6), st.integers(), st.none()), max_size=3),
)
WORDS: dict[str, list[Any]] = {
    "layout": ["pd", "single", "data_parallel"],
    "release": ["auto", *sorted(path.parent.name for path in catalogue.LOCKS.glob("*/manifest.yaml"))],
    "model": sorted(path.stem for path in catalogue.MODELS.glob("*.yaml")),
    "router": ["sglang-router", "smg"],
    "python": ["3.11", "3.12", "3.13", "auto"],
    "router_policy": ["cache_aware", "round_robin", "random", "power_of_two"],
    "transfer_backend": ["nixl", "mooncake"],
    "restart_scope": ["pair", "changed"],
    "environment": ["release", "existing"],
    "root_dir": ["/srv/pd", "/opt/a-b_c.d"],
    "decode_retraction_backup": ["host_pool", "cpu_tensor", None],
}


def like(name: str, value: object) -> st.SearchStrategy[Any]:
    """Values of the kind that a setting takes, ordinary and at the edge."""
    if name in WORDS:
        return st.sampled_from(WORDS[name])
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.one_of(st.sampled_from([1, 2, 4, 8, value, value + 1, 65535, 1024]), st.integers(0, 70000))
    if isinstance(value, float):
        return st.floats(0, 2)
    if name.endswith("_gpus"):
        return st.lists(st.integers(0, 9), max_size=8)
    if name.endswith("_arguments"):
        return st.lists(
            st.sampled_from(["--log-level", "debug", "--tp", "8", "--log-level=info", "a b", "$(id)"]), max_size=3
        )
    if name.endswith("_environment"):
        return st.dictionaries(
            st.sampled_from(["NCCL_DEBUG", "A", "PATH", "a-b"]), st.sampled_from(["1", *ODD]), max_size=2
        )
    return JUNK


CHANGES = st.lists(
    st.sampled_from(sorted(DEFAULTS)).flatmap(
        lambda name: st.tuples(st.just(name), st.one_of(like(name, DEFAULTS[name]), like(name, DEFAULTS[name]), JUNK))
    ),
    max_size=6,
).map(dict)


def planned(changes: dict[str, object]) -> Plan:
    wanted = settings(**changes)
    if wanted.release == "auto":
        changes = {**changes, "release": DEFAULTS["release"]}
    return catalogue_plan(changes, HARDWARE)


def refused_in_lines(fault: PlanError) -> None:
    assert fault.lines
    for line in fault.lines:
        assert line.strip() and "\n" not in line, line
        assert "pydantic" not in line.lower() and "Traceback" not in line, line


@play(max_examples=TRIES * 2, deadline=None)
@given(st.dictionaries(st.one_of(st.sampled_from(sorted(DEFAULTS)), st.text(max_size=12)), JUNK, max_size=5))
def test_any_mapping_is_settings_or_lines(changes: dict[str, object]) -> None:
    try:
        load({**DEFAULTS, **changes})
    except PlanError as fault:
        refused_in_lines(fault)


@play(max_examples=TRIES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CHANGES)
def test_any_settings_are_a_plan_that_bash_reads_or_lines(changes: dict[str, object]) -> None:
    try:
        plan = planned(changes)
    except PlanError as fault:
        refused_in_lines(fault)
        return
    for instance in plan.instances:
        files = render.instance_files(plan, instance).all
        scripts = [file for file in files if file.path.endswith(".sh")]
        assert scripts
        for script in scripts:
            read = subprocess.run(["bash", "-n"], input=script.content, capture_output=True, check=False)
            assert (read.returncode, read.stderr) == (0, b""), script.path


def test_units_of_many_plans_are_what_systemd_reads(tmp_path: Path) -> None:
    """All plans of a run at once: systemd-analyze takes a second to begin with."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    found: dict[tuple[str, bytes], None] = {}

    @play(max_examples=TRIES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(CHANGES)
    def collect(changes: dict[str, object]) -> None:
        try:
            plan = planned(changes)
        except PlanError:
            return
        files = [render.target(plan), *(f for one in plan.instances for f in render.instance_files(plan, one).all)]
        for file in files:
            if Path(file.path).suffix in (".service", ".target"):
                # systemd looks for the commands on this machine: the tools of this checkout stand for those of a host
                content = file.content.replace(f"{plan.paths.bin}/".encode(), f"{REPOSITORY}/files/bin/".encode())
                found.setdefault((Path(file.path).name, content))

    collect()
    assert len(found) >= 3
    rooms: list[Path] = []  # one for each version of a unit: systemd reads a name once
    for name, content in found:
        room = next((room for room in rooms if not (room / name).exists()), None)
        if room is None:
            room = tmp_path / str(len(rooms))
            room.mkdir()
            rooms.append(room)
        (room / name).write_bytes(content)
    for room in rooms:
        ran = subprocess.run(
            [analyze, "verify", "--man=no", "--recursive-errors=no", *sorted(room.iterdir())],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, "")
