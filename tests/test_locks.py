"""The locks and manifests of files/locks agree with each other and install only what they pin."""

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tasks.plan.errors import PlanError
from tasks.plan.release.manifest import SERVED_SINCE, Manifest
from tasks.support import catalogue
from tools.lock import LOCKS, inputs, moved, pins

EVERY = sorted(path.parent for path in LOCKS.glob("*/manifest.yaml"))
RELEASES = [path for path in EVERY if (path / "server.in").exists()]  # the others serve environment = "existing" only
MADE = [(release, lock, source) for release in RELEASES for lock, source in inputs(release).items()]
ids = [f"{release.name}/{lock}" for release, lock, _ in MADE]


def manifest(release: Path) -> dict:
    return yaml.safe_load((release / "manifest.yaml").read_text())


def router_of(package: str) -> str:
    return "router" if package == "sglang-router" else f"router-{package}"


def requirements(source: Path) -> list[Requirement]:
    """Of an input, with those of the inputs that it includes by -r."""
    found = []
    for line in source.read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("-r "):
            found += requirements(source.parent / line.removeprefix("-r "))
        elif line:
            found.append(Requirement(line))
    return found


def entries(lock: str) -> list[str]:
    """The logical lines of a lock, comments aside."""
    joined = re.sub(r"\\\n\s*", "", lock)
    return [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]


def test_what_moved_is_told_package_by_package():
    old, new = {"torch": "2.11.0", "gone": "1.0", "same": "3"}, {"torch": "2.13.0", "fresh": "0.1", "same": "3"}
    assert moved(old, new) == ["added fresh 0.1", "removed gone 1.0", "torch 2.11.0 -> 2.13.0"]
    assert moved(new, new) == []


def test_there_are_releases():
    assert {"sglang-0.5.23-cu130", "sglang-0.5.20-cpu"} <= {release.name for release in RELEASES}


@pytest.mark.parametrize(("release", "lock", "source"), MADE, ids=ids)
def test_every_line_is_pinned_and_hashed(release: Path, lock: str, source: str):
    lines = entries((release / lock).read_text())
    assert lines
    for line in lines:
        assert re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.+]+( --hash=sha256:[0-9a-f]{64})+", line), line


@pytest.mark.parametrize(("release", "lock", "source"), MADE, ids=ids)
def test_lock_holds_what_its_input_asks_for(release: Path, lock: str, source: str):
    pinned = pins(release / lock)
    for wanted in requirements(release / source):
        assert wanted.specifier.contains(pinned[wanted.name], prereleases=True), f"{wanted} but {pinned[wanted.name]}"


@pytest.mark.parametrize(("release", "lock", "source"), MADE, ids=ids)
def test_lock_holds_nothing_that_is_excluded(release: Path, lock: str, source: str):
    excluded = {wanted.name for wanted in requirements(release / "excluded.txt")}
    assert not excluded & pins(release / lock).keys()


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_manifest_agrees_with_its_locks(release: Path):
    said = manifest(release)
    assert said["name"] == release.name
    wanted = {"sglang": said["sglang"], **said["packages"]}
    for lock in release.glob("python*.txt"):
        pinned = pins(lock)
        assert {name: pinned.get(name) for name in wanted} == wanted, lock.name
        assert Version(pinned["torch"]).public == said["torch"], lock.name
    for package, version in said["routers"].items():
        locks = list(release.glob(f"{router_of(package)}-python*.txt"))
        assert len(locks) == len(said["python"])
        assert all(pins(lock)[package] == version for lock in locks)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_there_is_a_lock_of_both_environments_for_every_python(release: Path):
    for python in manifest(release)["python"]:
        assert (release / f"python{python}.txt").exists()
        for package in manifest(release)["routers"]:
            assert (release / f"{router_of(package)}-python{python}.txt").exists()


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_compiler_is_of_the_cuda_that_torch_brings(release: Path):
    said = manifest(release)
    if said["device"] == "cpu":
        assert said["cuda"] is None
        assert "nvidia-cuda-nvcc" not in pins(release / "python3.11.txt")
        return
    for lock in release.glob("python*.txt"):
        pinned = pins(lock)
        for package in ("nvcc", "crt", "cccl", "nvrtc", "runtime"):
            assert pinned[f"nvidia-cuda-{package}"].startswith(f"{said['cuda']}."), package


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_one_nixl_and_no_flashinfer_that_miscomputes(release: Path):
    for lock in release.glob("python*.txt"):
        pinned = pins(lock)
        assert "nixl-cu12" not in pinned
        assert pinned["nixl"] == pinned["nixl-cu13"]
        assert pinned.get("flashinfer-python") != "0.7.0"


@pytest.mark.parametrize("release", EVERY, ids=lambda release: release.name)
def test_no_file_names_a_package_source_or_a_path(release: Path):
    source_or_path = re.compile(
        r"\S+://\S+|--(?:extra-)?index\S*|--find-links.*|(?<![\w-])/(?:opt|work|tmp|root|home)/\S*"
    )
    for path in release.iterdir():
        if path.name != "arguments.txt":
            assert not source_or_path.findall(path.read_text()), path.name


@pytest.mark.parametrize("release", EVERY, ids=lambda release: release.name)
def test_arguments_are_sorted_options_that_hold_the_spelling(release: Path):
    lines = (release / "arguments.txt").read_text().splitlines()
    assert lines == sorted(set(lines))
    assert all(re.fullmatch(r"--[a-z0-9][a-z0-9-]*", line) for line in lines)
    said = manifest(release)
    for spelled in said["spelling"].values():
        assert not spelled or spelled[0] in lines
    assert not set(said["removed"]) & set(lines)
    for old, new in said["renamed"].items():
        assert old not in lines
        assert new in lines


@pytest.mark.parametrize("release", EVERY, ids=lambda release: release.name)
def test_the_options_of_every_router_are_known(release: Path):
    for package, version in manifest(release)["routers"].items():
        lines = (release.parent / "routers" / f"{package}-{version}.txt").read_text().splitlines()
        assert lines == sorted(set(lines))
        assert {"--host", "--pd-disaggregation", "--prefill", "--cb-timeout-duration-secs"} <= set(lines)


def test_what_a_release_lost_of_those_before_it_is_named():
    known: set[str] = set()
    for release in sorted(
        (path for path in EVERY if manifest(path)["device"] == "cuda"), key=lambda p: Version(manifest(p)["sglang"])
    ):
        said, options = manifest(release), set((release / "arguments.txt").read_text().split())
        assert known - options == {*said["removed"], *said["renamed"]}
        known |= options


@pytest.mark.parametrize("release", EVERY, ids=lambda release: release.name)
def test_a_release_serves_what_its_sglang_can(release: Path):
    said = manifest(release)
    for setting, since in SERVED_SINCE.items():
        can = said["device"] == "cuda" and Version(said["sglang"]) >= Version(since)
        assert (setting in said["serves"]) == can


@pytest.mark.parametrize("release", EVERY, ids=lambda release: release.name)
@pytest.mark.parametrize("field", sorted(name for name, one in Manifest.model_fields.items() if one.is_required()))
def test_a_manifest_with_a_missing_field_is_one_line(
    release: Path, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said = manifest(release)
    del said[field]
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    monkeypatch.setattr(catalogue, "LOCKS", tmp_path / "files" / "locks")
    folder = tmp_path / "files" / "locks" / release.name
    folder.mkdir(parents=True)
    (folder / "manifest.yaml").write_text(yaml.safe_dump(said))
    with pytest.raises(PlanError) as error:
        catalogue.manifest(release.name)
    assert error.value.lines == (f"files/locks/{release.name}/manifest.yaml: {field}: Field required",)
