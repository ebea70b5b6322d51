"""What a unit of ours may not do, tried inside each unit's own sandbox, and outside of it: there it must succeed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.plan.service.paths import UNITS as FOLDER
from tests.node.asking import UNITS, out
from tests.node.deploying import deploy
from tests.node.node import Node

PROBE = Path(__file__).with_name("sandbox_probe.py")
STATE, HOME = "/var/lib/sglang-pd", "/home/somebody"
# What starts, ends and names a unit, and no part of its sandbox.
NOT_CONFINING = ("Exec", "Type", "Timeout", "Restart", "Kill", "User", "Environment", "WorkingDirectory", "Success")

REFUSED_TO_ALL = {
    "write /etc",
    "write /usr",
    "write /run",
    "write the release",
    "write the model",
    "read a home",
    "see processes of others",
    "make a user namespace",
    "make a mount namespace",
    "trace a process",
    "set up io_uring",
    "leave a setuid file",
}
REFUSED_TO_ROUTER = REFUSED_TO_ALL | {"write the cache", "write code and run it", "bind CPUs"}


def confinement(node: Node, unit: str) -> list[str]:
    """The lines of a unit file on the host that confine it."""
    service = out(node, f"cat {FOLDER}/{unit}").partition("[Service]")[2].partition("\n[")[0]
    lines = [line for line in service.splitlines() if line.partition("=")[1] and not line.startswith("#")]
    return [line for line in lines if not line.startswith(NOT_CONFINING)]


def tried(node: Node, user: str, options: list[str]) -> tuple[set[str], dict[str, str]]:
    """What a unit with these options could do as a user, and what the kernel says of its process."""
    run = ["systemd-run", "--quiet", "--collect", "--wait", "--pipe", f"--property=User={user}"]
    run += [f"--property={line}" for line in options]
    ran = node.run(shlex.join([*run, "python3", "-I", "-", STATE, HOME]), text=PROBE.read_text())
    assert ran.returncode == 0, ran.stderr
    faults = json.loads(ran.stdout)
    done = {name for name, fault in faults.items() if fault is None}
    return done, {name.removeprefix("status "): said for name, said in faults.items() if name.startswith("status ")}


@pytest.fixture
def home(served: Node) -> Iterator[None]:
    """Somebody's home, which the service user may read as far as its mode goes."""
    out(served, f"chmod 755 /home && mkdir -m 755 {HOME}")
    yield
    out(served, f"rmdir {HOME}")


def everything(node: Node) -> set[str]:
    """What root or the service user can do on this host outside of any sandbox."""
    return tried(node, "root", [])[0] | tried(node, "sglang", [])[0]


@pytest.mark.usefixtures("home")
def test_no_unit_does_what_it_does_not_need(served: Node) -> None:
    possible = everything(served)
    assert possible >= REFUSED_TO_ROUTER, "what fails outside of the sandbox too proves nothing"
    for unit in UNITS:
        refused = REFUSED_TO_ROUTER if "router" in unit else REFUSED_TO_ALL
        done, status = tried(served, "sglang", confinement(served, unit))
        assert done == possible - refused, unit
        assert status == {"NoNewPrivs": "1", "CapBnd": "0" * 16, "CapEff": "0" * 16}, (
            "no power of root's, and none to gain"
        )


@pytest.mark.usefixtures("home")
def test_root_itself_would_change_nothing_of_the_system_in_there(served: Node) -> None:
    """A hole that gives uid 0 inside the sandbox does not give the host."""
    for unit in UNITS:
        done, _ = tried(served, "root", confinement(served, unit))
        assert done & REFUSED_TO_ALL <= {"see processes of others"}, unit


def test_what_runs_is_what_was_tried(served: Node) -> None:
    """The servers that serve, not a copy of their units: the kernel tells of their own processes."""
    for unit in UNITS:
        pids = out(served, f"cat /sys/fs/cgroup$(systemctl show -p ControlGroup --value {unit})/cgroup.procs").split()
        assert pids, unit
        words = r"grep -hE '^(NoNewPrivs|CapBnd|Seccomp):' $(printf '/proc/%s/status ' " + " ".join(pids) + ")"
        said = {tuple(line.split()) for line in out(served, words).splitlines()}
        assert said == {("NoNewPrivs:", "1"), ("CapBnd:", "0" * 16), ("Seccomp:", "2")}, unit
        roots = out(served, "cut -d' ' -f5,6 $(printf '/proc/%s/mountinfo ' " + " ".join(pids) + ") | grep '^/ '")
        assert all(root.startswith("/ ro,") for root in roots.splitlines()), unit


@pytest.mark.usefixtures("home")
def test_a_model_that_the_sandbox_hides_is_refused_before_anything_changes(served: Node) -> None:
    """The service user itself could read it: the link leads into a home, which is empty for a server."""
    out(served, f"cp -r /opt/sglang-pd/models/rehearsal-qwen2 {HOME}/model && ln -s {HOME}/model /srv/linked")
    try:
        assert served.run("runuser -u sglang -- cat /srv/linked/config.json").returncode == 0
        hidden = deploy(served, "--dry", model_dir="/srv/linked")
        open_homes = {"ProtectHome": {"value": "read-only", "reason": "the model's links lead there"}}
        seen = deploy(served, "--dry", model_dir="/srv/linked", unit_options=json.dumps(open_homes))
    finally:
        out(served, f"rm -r {HOME}/model /srv/linked")
    assert hidden.status != 0
    assert f"it cannot get to where /srv/linked leads (a link to {HOME}/model)" in hidden.output
    assert seen.status == 0, seen.output
