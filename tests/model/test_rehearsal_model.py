"""The bundled model is what its profile says."""

import json
import struct
from pathlib import Path

import pytest
import yaml

MODELS = Path(__file__).resolve().parents[2] / "files" / "models"


@pytest.fixture(scope="module")
def profile() -> dict:
    return yaml.safe_load((MODELS / "rehearsal-qwen2.yaml").read_text())


@pytest.fixture(scope="module")
def folder(profile: dict) -> Path:
    return MODELS / profile["source"]["bundled"]


def test_shape_is_that_of_the_profile(profile: dict, folder: Path):
    config = json.loads((folder / "config.json").read_text())
    assert config["num_attention_heads"] == profile["heads"]
    assert config["num_key_value_heads"] == profile["kv_heads"]
    assert config["max_position_embeddings"] == profile["maximum_context"]


def test_weights_are_float32_so_that_answers_do_not_depend_on_the_cpu(profile: dict, folder: Path):
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    assert {tensor["dtype"] for tensor in header.values()} == {"F32"}
    assert profile["dtype"] == "float32"


def test_it_is_small_enough_to_travel_with_the_playbook(profile: dict, folder: Path):
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size < 2e6
    assert size <= profile["size_gb"] * 1e9


def test_every_byte_has_a_token(folder: Path):
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == 256 + 3
    assert sorted(vocabulary.values()) == list(range(259))
