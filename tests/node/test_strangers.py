"""Other people's units and processes on a simulated host: left alone, and in nobody's way."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from tests.node.asking import CONFIG, out
from tests.node.deploying import deploy
from tests.node.node import Node
from tests.node.waiting import until

UNITS = "/etc/systemd/system"
SLEEPER = "[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
# Listens on a port, under a name of its own choice; with a second word, in a group of processes with that name.
LISTEN = """
import ctypes, os, socket, sys
ctypes.CDLL(None).prctl(15, b'x",pid=1,f\\n\\xff', 0, 0, 0)
if sys.argv[2:] and sys.argv[2].endswith(".service"):
    for line in open("/proc/self/cgroup"):
        _, kind, path = line.strip().split(":", 2)
        tops = {"": ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"), "name=systemd": ("/sys/fs/cgroup/systemd",)}
        for top in tops.get(kind, ()):
            if os.path.isdir(top + path):
                os.mkdir(f"{top}{path}/{sys.argv[2]}")
                open(f"{top}{path}/{sys.argv[2]}/cgroup.procs", "w").write(str(os.getpid()))
                break
held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    held.accept()[0].close()
"""
PORT = 8123


@contextmanager
def stranger(node: Node, *words: str) -> Iterator[None]:
    """A process of an ordinary user that listens."""
    unit = "--unit=stranger -p User=nobody -p Delegate=yes"
    out(node, f"systemd-run -q {unit} /usr/bin/python3 -c {shlex.quote(LISTEN)} {PORT} {shlex.join(words)}")
    try:
        until(lambda: node.run(f"ss -Hltn sport = :{PORT} | grep -q .").returncode == 0, "the stranger listens", 60)
        yield
    finally:
        node.run("systemctl stop stranger; systemctl reset-failed stranger")


def test_units_of_others_are_left_alone(served: Node) -> None:
    """A name like ours, a template, and a script beside ours of the same name."""
    files = [f"{UNITS}/sglang-pd-exporter.service", f"{UNITS}/sglang-pd-x@.service", f"{CONFIG}/exporter.sh"]
    for file in files:
        out(served, f"printf %s {shlex.quote(SLEEPER)} >{file}")
    out(served, "systemctl daemon-reload; systemctl enable -q --now sglang-pd-exporter sglang-pd-x@1")
    try:
        ran = deploy(served, "-y")
        assert ran.status == 0 and ran.changed == [], ran.output
        assert out(served, "systemctl is-active sglang-pd-exporter sglang-pd-x@1") == "active\nactive"
        assert out(served, "systemctl is-enabled sglang-pd-exporter") == "enabled"
        assert served.run(f"ls {shlex.join(files)}").returncode == 0
    finally:
        served.run(f"systemctl disable -q --now sglang-pd-exporter sglang-pd-x@1; rm -f {shlex.join(files)}")


def test_a_unit_of_somebody_else_is_not_written_over(served: Node) -> None:
    file = f"{UNITS}/sglang-pd-server.service"
    out(served, f"printf %s {shlex.quote(SLEEPER)} >{file}")
    try:
        ran = deploy(served, "-y", layout="single")
        assert ran.status != 0 and not ran.report.get("results", {}).get("totals"), ran.output
        assert f"refused: {file} was not written by this playbook, and it needs that name: move it away" in ran.output
        assert out(served, f"cat {file}") == SLEEPER.strip()
    finally:
        served.run(f"rm {file}; systemctl daemon-reload")
    assert deploy(served, "-y").changed == []


def test_no_name_that_a_process_gives_itself_stops_a_run(served: Node) -> None:
    with stranger(served, "a\nb\t1\n@@section owners 0", "ä" * 100):
        ran = deploy(served, "-y")
        assert ran.status == 0 and ran.changed == [], ran.output


def test_a_process_is_not_ours_by_the_name_of_a_group_that_its_user_made(served: Node) -> None:
    with stranger(served, "sglang-pd-router.service"):
        assert "sglang-pd-router.service" in out(
            served, "cat /proc/$(systemctl show -p MainPID --value stranger)/cgroup"
        )
        ran = deploy(served, "--dry", router_port=PORT)
    assert ran.status != 0
    assert f"port {PORT} of router (router_port) is taken by pid" in ran.output
