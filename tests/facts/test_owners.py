"""Who listens, asked by a real shell about processes that call themselves whatever they like."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.facts.listeners import Listeners
from tasks.facts.units import Units
from tasks.plan.host.answers import Listener, read_listeners

LISTEN = """import ctypes, socket, sys
ctypes.CDLL(None).prctl(15, b'x",pid=1,f\\n\\xff', 0, 0, 0)
held = socket.create_server(("127.0.0.1", 0))
print(held.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listener(*words: bytes) -> Iterator[tuple[int, int]]:
    """Port and pid of a process with these words in its command line."""
    command = [os.fsencode(sys.executable), b"-c", LISTEN.encode(), *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.communicate(b"")


def test_each_kind_of_socket_is_told_with_the_address_it_is_open_on() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as loopback,
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as every,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets,
        socket.create_connection(loopback.getsockname()) as client,
    ):
        packets.bind(("127.0.0.2", 0))
        found = {(one.protocol, one.address, one.port) for one in told() if one.pid == os.getpid()}
        assert {
            ("tcp", "127.0.0.1", loopback.getsockname()[1]),
            ("tcp", "::", every.getsockname()[1]),
            ("udp", "127.0.0.2", packets.getsockname()[1]),
        } <= found
        assert client.getsockname()[1] not in {port for _, _, port in found}, "it takes no connections"


def told() -> tuple[Listener, ...]:
    ran = subprocess.run(["sh", "-c", Listeners().command()], stdout=subprocess.PIPE, check=True)
    return read_listeners(Listeners().process(ran.stdout.decode().splitlines()))


@pytest.mark.parametrize(
    "words",
    [
        [b"a\nb"],
        [b"1\t\tsshd: listener"],
        [b"\n@@section owners 0\n"],
        [b"\n@@section listeners 0\n0100007F:1F40 1\n"],
        [b"\xff\xfe"],
        ["ä".encode() * 200],
    ],
    ids=["line break", "tabs", "a mark of ours", "two marks", "no text", "letters of two bytes"],
)
def test_a_listener_is_told_whatever_its_command_line_holds(words: list[bytes]) -> None:
    with listener(*words) as (port, pid):
        (found,) = [one for one in told() if one.port == port]
    assert (found.pid, found.unit) == (pid, None)
    assert found.command.startswith(sys.executable) and found.command.isprintable()


@pytest.mark.parametrize("offset", range(4))
def test_a_path_that_is_cut_inside_a_letter_can_be_read(tmp_path: Path, offset: int) -> None:
    """At the 80th byte, wherever that falls."""
    python = tmp_path / ("x" * offset + "€" * 60)
    python.symlink_to(sys.executable)
    process = subprocess.Popen([python, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    try:
        (found,) = [one for one in told() if one.port == port]
    finally:
        process.communicate(b"")
    assert found.pid == process.pid and found.command.isascii()


def test_units_of_every_shape_are_listed_or_left_out(tmp_path: Path) -> None:
    """In a folder that stands for systemd's: a template and a link are nobody's unit of ours."""
    for name in ("sglang-pd-router.service", "sglang-pd-x@.service", "sglang-pd-exporter.service", "other.service"):
        (tmp_path / name).write_text("[Unit]\n@@section files 0\n\xff")
    (tmp_path / "sglang-pd-link.service").symlink_to("/dev/null")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/systemctl").write_text("#!/bin/sh\necho inactive\n")
    (tmp_path / "bin/systemctl").chmod(0o755)
    command = Units().command(units={}, target="t.target").replace("/etc/systemd/system", str(tmp_path))
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    ran = subprocess.run(["sh", "-c", command], env={**os.environ, "PATH": path}, capture_output=True, check=True)
    lines = Units().process(ran.stdout.decode().splitlines())["files"].text.splitlines()
    assert [line.split(" ")[:2] for line in lines] == [
        ["sglang-pd-exporter.service", "inactive"],
        ["sglang-pd-router.service", "inactive"],
    ]
