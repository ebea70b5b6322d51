"""A host without a way out: installed from a wheelhouse, then from a mirror alone, to verified answers.

It prints every name and connection that the host tried. In make test the second half ends before the servers start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pip._internal.models.index import PyPI

from tasks.plan.phases.system import debian_packages
from tasks.support import catalogue
from tests.bin.indexes import Index, certificate, index
from tests.node import wheels
from tests.node.asking import UNITS, answers, out
from tests.node.closed import Tried, closed
from tests.node.deploying import Result, deploy
from tests.node.node import Node
from tests.node.settings import RELEASE
from tests.node.test_release import GPU_HOST

WHEELS = "/srv/wheels"
INSTALL = "tests/node/install.py"
OURS = "/opt/sglang-pd /etc/sglang-pd /var/lib/sglang-pd"
GPU_RELEASE = "sglang-0.5.23-cu130"
WHOLE = "EVERY_RELEASE" in os.environ
MIRRORED = "deploy.py" if WHOLE else INSTALL
DOCUMENTATION = "192.0.2.1"  # an address that nobody has

pytestmark = pytest.mark.serving


@dataclass
class Gap:
    node: Node
    tried: Tried
    mirror: Index

    @property
    def outward(self) -> set[str]:
        """What it tried, the names of its own loopback aside."""
        return {name for name in self.tried.names if not name.endswith(".127.in-addr.arpa")} | self.tried.connections

    def deploy(self, **data: object) -> Result:
        result = deploy(self.node, "-y", **data)
        print(f"tried by a run with {data}: {self.tried}")
        return result


@pytest.fixture(scope="module")
def gap(bare_node: Callable[..., Node], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gap]:
    """A closed host with its Debian packages and the wheelhouse, no pip or uv configuration, and a mirror at its peer
    whose certificate the host's system knows."""
    node = bare_node()
    folder = wheels.of(node, "sglang-router")
    wheels.copy(node, folder, WHEELS)
    packages = [
        package
        for name in (RELEASE, *([GPU_RELEASE] if WHOLE else []))
        for package in debian_packages(catalogue.manifest(name), [wheels.python(node)])
    ]
    out(node, f"apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -y -q install {' '.join(packages)}")
    out(node, "rm -rf /etc/pip.conf /etc/xdg/pip /etc/uv ~/.config ~/.pip && echo PIP_RETRIES=1 >/etc/environment")
    pem = tmp_path_factory.mktemp("mirror") / "mirror.pem"
    public = certificate(pem, node.network.gateway)
    node.run("cat >/usr/local/share/ca-certificates/mirror.crt", text=public.read_text())
    out(node, "update-ca-certificates")
    with index(folder, address=node.network.gateway, pem=pem) as mirror, closed(node, mirror.port) as tried:
        yield Gap(node, tried, mirror)


@pytest.fixture(scope="module")
def from_wheelhouse(gap: Gap) -> Result:
    gap.tried.forget()
    return gap.deploy(package_wheelhouse=WHEELS)


@pytest.fixture(scope="module")
def from_mirror(gap: Gap, from_wheelhouse: Result) -> Result:
    out(gap.node, f"systemctl disable --now {' '.join(UNITS)}; rm -rf {OURS} {WHEELS}")
    gap.tried.forget()
    return gap.deploy(operations=MIRRORED, package_index=gap.mirror.url)


def test_the_gap_is_one(gap: Gap) -> None:
    assert gap.node.run(f"getent hosts {PyPI.netloc}").returncode != 0
    assert gap.node.run(f"timeout 5 bash -c '</dev/tcp/{DOCUMENTATION}/443'").returncode != 0
    assert gap.node.run(f"timeout 5 bash -c '</dev/tcp/{gap.node.network.gateway}/22'").returncode != 0
    assert gap.tried.names == {PyPI.netloc}
    assert gap.tried.connections == {f"{DOCUMENTATION} tcp 443", f"{gap.node.network.gateway} tcp 22"}


def test_without_a_source_the_public_index_is_what_it_tries(gap: Gap) -> None:
    gap.tried.forget()
    result = gap.deploy(operations=INSTALL)
    assert result.status != 0
    assert gap.tried.names == {PyPI.netloc}
    line = "No matching distribution found for uv=="
    said = [said for said in result.output.splitlines() if line in said]
    assert len(said) == 1 and "the public index" in said[0] and "Traceback" not in result.output, result.output


def test_from_a_wheelhouse_to_verified_answers(gap: Gap, from_wheelhouse: Result) -> None:
    assert from_wheelhouse.status == 0, from_wheelhouse.output
    assert answers(gap.node)
    assert "warning" not in from_wheelhouse.output
    assert gap.mirror.authorizations == [], "nobody asked the mirror"


def test_the_second_run_from_a_wheelhouse_changes_nothing(gap: Gap, from_wheelhouse: Result) -> None:
    again = gap.deploy(package_wheelhouse=WHEELS)
    assert (again.status, again.changed) == (0, []), again.output
    assert gap.outward == set()


def test_from_a_mirror_alone(gap: Gap, from_mirror: Result) -> None:
    assert from_mirror.status == 0, from_mirror.output
    given = {Path(name).name.partition("-")[0] for name in gap.mirror.given}
    assert {"uv", "torch", "sglang", "sglang_router"} <= given
    assert "warning" not in from_mirror.output
    if WHOLE:
        assert answers(gap.node)


def test_the_second_run_from_a_mirror_changes_nothing(gap: Gap, from_mirror: Result) -> None:
    again = gap.deploy(operations=MIRRORED, package_index=gap.mirror.url)
    assert (again.status, again.changed) == (0, []), again.output
    assert gap.outward == set()


@pytest.mark.skipif(not WHOLE, reason="4.4 GB: make test-release")
def test_the_default_gpu_release_from_a_wheelhouse(gap: Gap) -> None:
    wheels.copy(gap.node, wheels.of(gap.node, "sglang-router", name=GPU_RELEASE), f"{WHEELS}-gpu")
    gap.tried.forget()
    settings = {**GPU_HOST, "release": GPU_RELEASE, "package_wheelhouse": f"{WHEELS}-gpu"}
    first = gap.deploy(operations=INSTALL, **settings)
    assert first.status == 0, first.output
    assert out(gap.node, "basename $(readlink /opt/sglang-pd/current)").startswith(f"{GPU_RELEASE}-py3.11-")
    again = gap.deploy(operations=INSTALL, **settings)
    assert (again.status, again.changed) == (0, []), again.output
    assert gap.outward == set()
