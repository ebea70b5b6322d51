"""The random model is a whole one: files that agree with each other, weights of the spread that was asked for."""

from __future__ import annotations

import hashlib
import json
import statistics
import struct
from pathlib import Path
from typing import Any

import pytest

from tasks.plan.model import derive
from tasks.support import catalogue
from tests.gpu import random_model
from tests.gpu.random_model import SMALL_BLOCK, Block, Shape, bfloat16, sharded, tensors, tokenizer

SMALL = Shape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=128, vocabulary=1024, context=512)
OPTIONS = [
    "--layers",
    "2",
    "--hidden",
    "64",
    "--heads",
    "4",
    "--kv-heads",
    "2",
    "--intermediate",
    "128",
    "--vocabulary",
    "1024",
    "--context",
    "512",
]


def written(folder: Path, *words: str) -> Path:
    assert random_model.main([str(folder), *OPTIONS, *words]) == 0
    return folder


def read(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Name -> shape and values of every tensor, read as the format's description says."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header: dict[str, Any] = json.loads(content[8 : 8 + length])
        assert header.pop("__metadata__") == {"format": "pt"}
        data = content[8 + length :]
        end = 0
        for name, told in header.items():
            start, stop = told["data_offsets"]
            assert (told["dtype"], start) == ("BF16", end)
            end = stop
            numbers = struct.unpack(f"<{(stop - start) // 2}H", data[start:stop])
            values = struct.unpack(f"<{len(numbers)}f", b"".join(struct.pack("<I", number << 16) for number in numbers))
            found[name] = (told["shape"], list(values))
        assert end == len(data)
    return found


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("model"))


def test_every_tensor_of_the_shape_is_there(folder: Path) -> None:
    found = read(folder)
    assert {name: tuple(shape) for name, (shape, _) in found.items()} == {t.name: t.shape for t in tensors(SMALL)}
    assert found["model.layers.1.self_attn.k_proj.weight"][0] == [32, 64]
    assert found["lm_head.weight"][0] == [1024, 64]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == found.keys()
    assert index["metadata"]["total_size"] == 2 * sum(len(values) for _, values in found.values())


def test_weights_have_the_spread_that_was_asked_for(folder: Path) -> None:
    found = read(folder)
    for tensor in tensors(SMALL):
        values = found[tensor.name][1]
        if not tensor.spread:
            assert set(values) == {1.0}
        elif len(values) >= 2000:
            assert statistics.pstdev(values) == pytest.approx(tensor.spread, rel=0.06)
            assert abs(statistics.fmean(values)) < 0.1 * tensor.spread


def test_no_two_rows_of_a_matrix_are_alike(folder: Path) -> None:
    matrices = [(shape, values) for shape, values in read(folder).values() if len(shape) == 2]
    assert len(matrices) == 2 * 7 + 2
    for (count, width), values in matrices:
        assert len({tuple(values[n : n + width]) for n in range(0, len(values), width)}) == count
    assert len({tuple(values[:64]) for _, values in matrices}) == len(matrices)


def test_the_same_options_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    assert hashes(written(tmp_path / "again")) == hashes(folder)
    other = hashes(written(tmp_path / "other", "--seed", "2"))
    assert {name for name, value in hashes(folder).items() if other[name] != value} == {
        "model-00001-of-00001.safetensors"
    }


def test_a_smaller_model_leaves_nothing_of_a_larger_one(tmp_path: Path) -> None:
    (tmp_path / "model-00002-of-00002.safetensors").write_text("old")
    assert len(list(written(tmp_path).glob("*.safetensors"))) == 1


def test_shards_hold_every_tensor_once_and_stay_near_their_size() -> None:
    shards = list(sharded(tensors(Shape())))
    assert [t.name for shard in shards for t in shard] == [t.name for t in tensors(Shape())]
    sizes = [sum(t.values for t in shard) * 2 for shard in shards]
    assert max(sizes) <= random_model.SHARD
    assert 15.2e9 < sum(sizes) < 15.3e9, "the size of Qwen2.5-7B"


@pytest.mark.parametrize(
    ("value", "bits"), [(0.0, 0), (1.0, 0x3F80), (-2.0, 0xC000), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82)]
)
def test_bfloat16_rounds_to_the_nearest_even(value: float, bits: int) -> None:
    assert bfloat16(value) == bits


def test_a_run_longer_than_the_block_begins_it_again(tmp_path: Path) -> None:
    block = Block(1, SMALL_BLOCK)
    with (tmp_path / "x").open("wb") as file:
        block.write(file, random_model.Tensor("x", (SMALL_BLOCK + 10,), 1.0))
    content = (tmp_path / "x").read_bytes()
    assert len(content) == 2 * (SMALL_BLOCK + 10)
    assert content[:20] == content[2 * SMALL_BLOCK :]


# ---- configuration and tokenizer


def test_configuration_and_profile_are_of_one_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (64, 2, 1024)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert not config["tie_word_embeddings"]


def test_the_tokenizer_is_that_of_the_bundled_model_with_more_words() -> None:
    bundled = json.loads((Path(random_model.__file__).parents[2] / "files/models/rehearsal-qwen2/tokenizer.json").read_text())  # fmt: skip
    made = tokenizer(152_064)
    vocabulary = made["model"].pop("vocab")  # type: ignore[attr-defined]
    assert dict(list(vocabulary.items())[:259]) == bundled["model"].pop("vocab")
    assert made == bundled
    assert sorted(vocabulary.values()) == list(range(152_064))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--hidden", "66"], "--hidden 66 must be an even multiple of --heads 4"),
        (["--kv-heads", "3"], "--kv-heads 3 must divide --heads 4"),
        (["--vocabulary", "100"], "--vocabulary 100 has no room for every byte: 259 or more"),
        (["--layers", "0"], "--layers must be 1 or more"),
    ],
)
def test_a_shape_that_cannot_be(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert random_model.main([str(tmp_path / "m"), *OPTIONS, *words]) == 2
    assert capsys.readouterr().err == f"random_model: {line}\n"
    assert not (tmp_path / "m").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert random_model.main([str(tmp_path / "file" / "m"), *OPTIONS]) == 1
    assert "random_model: cannot write" in capsys.readouterr().err


def test_the_profile_describes_what_the_defaults_write() -> None:
    shape = Shape()
    profile, _ = derive.settled(catalogue.stated("random-qwen2-7b"), None, None)
    assert (profile.heads, profile.kv_heads) == (shape.heads, shape.kv_heads)
    assert profile.maximum_context == shape.context
    assert profile.size_gb * 1e9 > sum(tensor.values for tensor in tensors(shape)) * 2
    assert profile.page_size
    page = profile.page_size * shape.kv_heads * shape.head * 2
    assert {(one.name, one.count, one.page_bytes) for one in profile.kv_buffers} == {
        ("keys", shape.layers, page), ("values", shape.layers, page),
    }  # fmt: skip
