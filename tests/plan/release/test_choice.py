"""release = "auto": which release a host gets, and what the line says where none fits."""

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.release.choice import Choice, choose
from tasks.plan.release.manifest import Manifest
from tasks.support import catalogue
from tests.plan.builders import TWO_SOCKETS, gpu_line, hardware, manifest, settings, system

NEW = manifest(name="new", sglang="0.5.23", cuda="13.2", driver_minimum=595)
OLD = manifest(name="old", sglang="0.5.13.post1")
CPU = manifest(name="cpu", sglang="0.6", device="cpu", driver_minimum=None, compute_capabilities=[])


def chosen(
    *offered: Manifest, driver: str = "580.95.05", capability: str = "12.0", python: str = "auto", **of_system: str
) -> Choice:
    cards = Answer(0, "\n".join(gpu_line(i, driver, capability) for i in range(len(TWO_SOCKETS))))
    found = hardware(TWO_SOCKETS, driver, gpus=cards)
    return choose(offered, found, system(**of_system), settings(release="auto", python=python))


def refused(*offered: Manifest, **host: str) -> str:
    with pytest.raises(PlanError) as error:
        chosen(*offered, **host)
    (line,) = error.value.lines
    return line


@pytest.mark.parametrize("order", [(OLD, NEW, CPU), (CPU, NEW, OLD)])
def test_the_newest_that_fits(order: tuple[Manifest, ...]) -> None:
    found = chosen(*order, driver="600.1")
    assert found.manifest.name == "new"
    assert found.reason == 'release "auto" is new: driver 600.1 (CUDA 13.2), compute capability 12.0, Python 3.11'


def test_an_older_one_says_what_the_newer_lacks() -> None:
    found = chosen(NEW, OLD)
    assert found.manifest.name == "old"
    assert found.reason.endswith(
        "new is newer, but driver 580.95.05 serves CUDA 13.0, it needs 13.2, so a driver >= 595"
    )


def test_versions_are_numbers() -> None:
    assert chosen(manifest(name="nine", sglang="0.5.9"), manifest(name="ten", sglang="0.5.10")).manifest.name == "ten"


def test_a_release_for_the_cpu_is_never_chosen() -> None:
    assert refused(CPU) == 'release = "auto": files/locks holds no release for GPUs'
    assert "nearest is old" in refused(CPU, OLD, driver="570.172.08")


def test_an_old_driver() -> None:
    assert refused(OLD, NEW, driver="570.172.08") == (
        'release = "auto": no release fits this host; nearest is old, but '
        "driver 570.172.08 serves CUDA 12.8, it needs 13.0, so a driver >= 580: mend that on the host"
    )


def test_the_nearest_lacks_least() -> None:
    line = refused(manifest(name="far", sglang="0.9", driver_minimum=600, python=["3.12"]), OLD, driver="570.172.08")
    assert "nearest is old, but driver 570.172.08 serves CUDA 12.8, it needs 13.0, so a driver >= 580" in line


def test_a_gpu_without_kernels() -> None:
    assert "carries kernels for compute capability 12.0, not for 7.5" in refused(OLD, capability="7.5")


def test_a_python_without_locks() -> None:
    assert "it has locks for Python 3.12, the host has 3.11" in refused(manifest(python=["3.12"]))
    assert chosen(manifest(python=["3.12"]), python="3.12").manifest.python == ["3.12"]


def test_an_old_glibc() -> None:
    assert "its wheels need glibc 2.34, here is 2.31" in refused(OLD, glibc="glibc 2.31")


def test_what_the_checkout_offers() -> None:
    offered = catalogue.offered("auto")
    assert len(offered) > 1
    assert {found.device for found in offered} == {"cuda"}
    assert chosen(*offered).manifest.name == "sglang-0.5.23-cu130"
    assert "nearest is sglang-0.5.23-cu130, but driver 570.172.08 serves CUDA 12.8, it needs 13.0" in refused(
        *offered, driver="570.172.08"
    )


def test_a_named_release_stands_for_itself() -> None:
    (found,) = catalogue.offered("sglang-0.5.20-cpu")
    assert found.name == "sglang-0.5.20-cpu"
