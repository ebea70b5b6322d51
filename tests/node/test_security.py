"""What a server that was taken over, or another user of the host, tries on root; each is tried for real."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from tests.node.asking import UNITS, out, states
from tests.node.deploying import deploy, provisioned
from tests.node.node import Node

STATE, RUN = "/var/lib/sglang-pd", "/run/sglang-pd"
PWNED = "/root/PWNED"


def as_user(node: Node, script: str, user: str = "sglang") -> int:
    """Exit status of a script that the service user, or another one, runs."""
    return node.run(f"runuser -u {user} -- sh -c {shlex.quote(script)}").returncode


@pytest.fixture
def untouched(served: Node) -> Iterator[Node]:
    """A served host on which nothing was run as root that is not ours, before and after."""
    assert served.run(f"test -e {PWNED}").returncode != 0
    yield served
    assert served.run(f"test -e {PWNED}").returncode != 0
    assert out(served, "stat -c %U:%G:%a /etc /root") == "root:root:755\nroot:root:700"


# ---- what root reads

FORGED = "{}\n\n@@section x 0\nsglang-pd-x;id>/root/PWNED active\n\n@@section files 0\n"  # as 7060253 read it


def test_a_server_cannot_write_what_root_reads_of_it_nor_would_it_be_believed(untouched: Node) -> None:
    node = untouched
    for name in ("prefill", "decode", "router"):
        for file in ("gate.json", "fingerprint.json", "executed/x", "x"):
            assert as_user(node, f"printf %s {shlex.quote(FORGED)} >{RUN}/{name}/{file}") != 0
        assert as_user(node, f"mv {RUN}/{name} {RUN}/x") != 0
        assert as_user(node, f"cat {RUN}/{name}/executed/{name}.sh") == 0, "it executes them"
        assert node.run(f"runuser -u nobody -- ls {RUN}/{name}").returncode != 0
    ran = node.run(f"cat >{RUN}/decode/gate.json", text=FORGED)
    assert ran.returncode == 0
    result = deploy(node, "-y")
    assert result.status == 0 and result.changed == [], result.output


def test_a_folder_below_run_that_is_not_roots_says_nothing(untouched: Node) -> None:
    """As an earlier version left it, or whoever got hold of it."""
    node = untouched
    out(node, f"chown sglang {RUN}/router")
    result = provisioned(node)
    assert "it left no fingerprint" in result.output
    assert out(node, f"stat -c %U:%G:%a {RUN}/router {RUN}/router/executed").split() == ["root:sglang:750"] * 2


def test_another_user_writes_no_line_into_what_a_gate_reads(untouched: Node) -> None:
    node, unit = untouched, "sglang-pd-decode.service"
    invocation = out(node, f"systemctl show -p InvocationID --value {unit}")
    forged = f"MESSAGE=torch.OutOfMemoryError: forged\nINVOCATION_ID={invocation}\nUNIT={unit}\n_PID=1\n"
    assert as_user(node, f"printf %s {shlex.quote(forged)} | logger --journald", "nobody") == 0
    out(node, "journalctl --sync")
    assert "forged" in out(node, "journalctl -q -o cat _UID=65534")
    gate = (
        f"INVOCATION_ID={invocation} /opt/sglang-pd/bin/pd-gate worker --instance decode --role decode "
        f"--url http://127.0.0.1:30001 --unit {unit} --limit 60 --status /root/gate.json"
    )
    said = node.run(gate)
    assert said.returncode == 0 and "forged" not in said.stdout, said.stdout


# ---- links


@pytest.mark.parametrize("name", ["cache", "models"])
def test_root_follows_no_link_that_the_service_user_put_below_its_folder(untouched: Node, name: str) -> None:
    node = untouched
    assert as_user(node, f"cd {STATE} && mv {name} x && ln -s /etc {name}") == 0
    try:
        for how in ("--dry", "-y"):
            result = deploy(node, how)
            assert result.status != 0
            (line,) = [said for said in result.output.splitlines() if "refused:" in said]
            assert f"{STATE}/{name} is a link to /etc, a folder belongs there" in line
            assert "Traceback" not in result.output
        assert out(node, "stat -c %U:%a /etc") == "root:755"
    finally:
        assert as_user(node, f"cd {STATE} && rm {name} && mv x {name}") == 0
    assert deploy(node, "-y").changed == []


def test_what_lies_where_a_tool_leaves_its_result_is_read_as_its_user(untouched: Node) -> None:
    """A link to root's own files is not read, a pipe that never ends holds nobody up."""
    node = untouched
    for trap in ("ln -s /root/secret probe.json", "mkfifo probe.json"):
        node.run('echo \'{"only": "roots"}\' >/root/secret')
        assert as_user(node, f"cd {STATE} && mv probe.json x && {trap}") == 0
        try:
            result = deploy(node, "--dry", "-vv")
            assert result.status == 0, result.output
            assert "roots" not in result.output
        finally:
            assert as_user(node, f"cd {STATE} && rm probe.json && mv x probe.json") == 0


# ---- Python of root's


def test_nothing_in_a_users_home_is_imported_by_roots_python(untouched: Node) -> None:
    """pyinfra's commands start in the home of whoever logs in; root's part of a unit has the service user's HOME."""
    node = untouched
    taken = f"open({PWNED!r}, 'w')"
    site = "lib/python$(python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])')/site-packages"
    for module in ("signal", "json", "argparse"):
        out(node, f"echo {shlex.quote(taken)} >/root/{module}.py")
    planted = f"mkdir -p {STATE}/.local/{site} && echo {shlex.quote(taken)} >{STATE}/.local/{site}/usercustomize.py"
    assert as_user(node, planted) == 0
    try:
        out(node, "systemctl restart sglang-pd-router.service")
        assert states(node) == ["active"] * 3
        result = deploy(node, "-y")
        assert result.status == 0, result.output
    finally:
        out(node, f"rm -rf /root/signal.py /root/json.py /root/argparse.py {STATE}/.local")


# ---- caches


def test_every_cache_of_a_release_lies_below_its_own_folder(untouched: Node) -> None:
    node = untouched
    cache = f"{STATE}/cache/{out(node, 'basename $(readlink /opt/sglang-pd/current)')}"
    asked = """
import os, torch._inductor.runtime.runtime_utils as inductor
from sglang.srt.environ import envs
print(inductor.cache_dir(), os.path.expanduser(envs.SGLANG_CACHE_DIR.get()), os.path.expanduser("~/.cache/deep_gemm"))
"""
    script = f"set -a; . /etc/sglang-pd/decode.env; /opt/sglang-pd/current/env/bin/python -c {shlex.quote(asked)}"
    said = out(node, f"runuser -u sglang -- sh -c {shlex.quote(script)} 2>/dev/null | tail -n 1").split()
    assert len(said) == 3 and all(folder.startswith(f"{cache}/") for folder in said), said
    measured = {"probe.json", "probe-single.json", "bench.json"}  # the last two by tests before, if at all
    assert {*out(node, f"ls -A {STATE}").split()} - measured == {"cache", "models"}
    assert out(node, "ls -d /tmp/torchinductor_* 2>/dev/null; true") == ""
    assert out(node, f"ls -d {cache}/inductor") == f"{cache}/inductor", "a server made it there"


def test_the_servers_have_no_more_than_they_need(untouched: Node) -> None:
    for unit in UNITS:
        pid = out(untouched, f"systemctl show -p MainPID --value {unit}")
        groups = out(untouched, f"grep ^Groups: /proc/{pid}/status").removeprefix("Groups:").split()
        assert groups == [out(untouched, "id -g sglang")], "no journal group"
