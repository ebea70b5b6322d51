"""What files/ offers: every release and model can be read, an unknown one is refused by name."""

from pathlib import Path

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.model import derive
from tasks.support import catalogue

RELEASES = sorted(path.parent.name for path in catalogue.LOCKS.glob("*/server.in"))
MODELS = sorted(path.stem for path in catalogue.MODELS.glob("*.yaml"))


def line_of(error: pytest.ExceptionInfo[PlanError]) -> str:
    (line,) = error.value.lines
    assert "\n" not in line
    return line


def test_what_is_needed_is_there() -> None:
    assert {"sglang-0.5.13.post1-cu130", "sglang-0.5.20-cpu", "sglang-0.5.23-cu130"} <= set(RELEASES)
    assert {"deepseek-v4-flash-mxfp4", "deepseek-v4-flash-nvfp4", "rehearsal-qwen2"} <= set(MODELS)


@pytest.mark.parametrize("torch_wheel", ["cpu", "ordinary"])
@pytest.mark.parametrize("name", RELEASES)
def test_every_release_can_be_read_for_each_of_its_pythons(name: str, torch_wheel: str) -> None:
    found = catalogue.manifest(name)
    made = [catalogue.release(found, python, torch_wheel, name) for python in found.python for name in found.routers]
    assert all(f"\ntorch=={found.torch}" in release.lock for release in made)
    assert all(f"\n{one.router}=={found.routers[one.router]}" in f"\n{one.router_lock}" for one in made)
    assert len({release.id for release in made}) == len(found.python) * len(found.routers)
    assert all(len(catalogue.accepted_arguments(release.manifest)) > 100 for release in made)


def test_the_wheel_of_torch_makes_another_release_where_there_are_two() -> None:
    found = catalogue.manifest("sglang-0.5.20-cpu")
    cpu, ordinary = (catalogue.release(found, "3.11", wheel) for wheel in ("cpu", "ordinary"))
    assert "torch==2.13.0+cpu" in cpu.lock
    assert "+cpu" not in ordinary.lock
    assert cpu.id != ordinary.id


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_read(name: str) -> None:
    found = catalogue.stated(name)
    assert found.missing == []
    whole, derived = derive.settled(found, None, None)
    assert (whole.name, derived) == (name, ())
    assert whole.golden
    assert whole.heads % whole.kv_heads == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_bundled_model_is_whole(name: str) -> None:
    source = catalogue.stated(name).source
    bundled = source and source.bundled
    if bundled is not None:
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(catalogue.bundled_model(bundled))


def test_an_unknown_release_names_the_nearest() -> None:
    with pytest.raises(PlanError) as error:
        catalogue.manifest("sglang-0.5.23-cu131")
    assert line_of(error).startswith(
        "unknown release 'sglang-0.5.23-cu131': files/locks holds sglang-0.5.13.post1-cu130"
    )
    assert line_of(error).endswith("Did you mean sglang-0.5.23-cu130?")


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(PlanError) as error:
        catalogue.stated("deepseek-v4-flash-nvfp8")
    assert 'For a model of your own set model = "auto" and model_dir (docs/models.md).' in line_of(error)
    assert line_of(error).endswith("Did you mean deepseek-v4-flash-nvfp4?")


def test_auto_is_the_profile_that_is_called_as_the_folder_else_the_folder() -> None:
    assert catalogue.stated("auto").name == catalogue.DEFAULT_MODEL
    assert catalogue.stated("auto", "/data/models/DeepSeek-V4-Flash-NVFP4").name == "deepseek-v4-flash-nvfp4"
    found = catalogue.stated("auto", "/data/models/Qwen3-32B")
    assert (found.name, found.source and found.source.directory, found.fields) == (
        "Qwen3-32B",
        "/data/models/Qwen3-32B",
        {},
    )
    snapshot = "/hub/models--Qwen--Qwen3-32B/snapshots/" + "0" * 40
    assert catalogue.stated("auto", snapshot).name == "Qwen3-32B"


def test_a_users_own_profiles_lie_beside_ours(tmp_path: Path) -> None:
    (tmp_path / "qwen3-32b.yaml").write_text("name: qwen3-32b\nreasoning_parser: qwen3\n")
    found = catalogue.stated("qwen3-32b", "/data/q", str(tmp_path))
    assert found.fields == {"reasoning_parser": "qwen3"}
    assert found.missing == ["size_gb", "heads", "kv_heads", "maximum_context", "page_size", "kv_buffers"]
    assert catalogue.stated("auto", "/data/models/Qwen3-32B", str(tmp_path)).fields == {"reasoning_parser": "qwen3"}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("x", "name: x\nheads: many\n", "x.yaml: heads: Input should be a valid integer"),
        ("x", "name: x\nhead: 8\n", "x.yaml: head: Extra inputs are not permitted"),
        ("x", "name: y\n", "calls itself 'y': name and file must agree"),
        ("x", "name: [\n", "x.yaml is not YAML"),
        ("x", "- 1\n", "x.yaml: name: Input should be a valid string"),
        ("x", "name: x\ngolden: [{name: a, prompt: b}]\n", "expect is missing"),
        (
            "rehearsal-qwen2",
            "name: rehearsal-qwen2\n",
            "files/models has a rehearsal-qwen2 too, give yours another name",
        ),
    ],
)
def test_a_profile_with_a_fault_is_one_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(PlanError) as error:
        catalogue.stated(name, "/data/x", str(tmp_path))
    assert line in line_of(error)


def test_a_folder_of_profiles_that_is_not_there() -> None:
    with pytest.raises(PlanError) as error:
        catalogue.stated("x", None, "/no/such")
    assert line_of(error) == "setting model_profiles = '/no/such': no such folder on this machine"


@pytest.mark.parametrize("name", ["", "..", "../models", "uv.txt", "sglang-0.5.23-cu130/"])
def test_a_path_is_no_release(name: str) -> None:
    with pytest.raises(PlanError, match="unknown release"):
        catalogue.manifest(name)


def test_a_release_without_a_lock_for_a_python() -> None:
    with pytest.raises(PlanError) as error:
        catalogue.release(catalogue.manifest("sglang-0.5.23-cu130"), "3.13", "cpu")
    assert "has no lock python3.13.txt" in line_of(error)


def test_a_release_without_a_lock_is_built_nowhere() -> None:
    found = catalogue.manifest("sglang-0.5.16-cu130")
    with pytest.raises(PlanError, match='has no lock, it serves environment = "existing" only'):
        catalogue.release(found, "3.12", "cpu")
    assert found.name not in {one.name for one in catalogue.offered("auto")}
