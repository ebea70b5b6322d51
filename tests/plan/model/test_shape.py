"""config.json of public models: shape, KV cache and length, as SGLang reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.errors import PlanError
from tasks.plan.model import memory, shape
from tasks.plan.model.shape import Chosen, Shape
from tasks.support import catalogue
from tests.plan.builders import profile

# ORGANISATION--MODEL.json: what these models' config.json (and hf_quant_config.json) held in 2026, the fields that matter
MODELS = Path(__file__).parents[1] / "fixtures" / "models"


NOTHING = Chosen()


def read(name: str, chosen: Chosen = NOTHING) -> Shape:
    (path,) = MODELS.glob(f"*--{name}.json")
    found = json.loads(path.read_text())
    return shape.read(found["config"], found.get("modelopt", {}), name, chosen)


# layers, heads, KV heads, longest context, numbers, bytes of KV cache a token on one card, page size
PUBLIC: dict[str, tuple[int, int, int, int, str, int, int | None]] = {
    "DeepSeek-V3": (61, 128, 1, 163840, "fp8", 61 * 576 * 2, 64),
    "DeepSeek-V3.1-NVFP4": (61, 128, 1, 163840, "nvfp4", 61 * 576, 64),
    "DeepSeek-V3.2": (61, 128, 1, 163840, "fp8", 61 * (576 * 2 + 132), 64),
    "Qwen3-32B": (64, 64, 8, 40960, "bfloat16", 262144, 64),
    "Qwen3-235B-A22B-FP8": (94, 64, 4, 40960, "fp8", 192512, 64),
    "GLM-4.7": (92, 96, 8, 202752, "bfloat16", 376832, 64),
    "GLM-5-FP8": (78, 64, 1, 202752, "fp8", 78 * (576 * 2 + 132), 64),
    "Kimi-K2.5": (61, 64, 1, 262144, "compressed-tensors (pack-quantized)", 61 * 576 * 2, 64),
    "Meta-Llama-3.1-70B": (80, 64, 8, 131072, "bfloat16", 327680, 64),
    "Llama-3.1-70B-Instruct-FP8": (80, 64, 8, 131072, "fp8", 163840, 64),
    "gemma-3-4b-it": (34, 8, 4, 131072, "bfloat16", 34 * 2 * 4 * 256 * 2, 64),
    "gemma-3-27b-it": (62, 32, 16, 131072, "bfloat16", 507904, 64),
    "Mistral-Small-3.1-24B-Instruct-2503": (40, 32, 8, 131072, "bfloat16", 163840, 64),
    "Mixtral-8x22B-v0.1": (56, 48, 8, 65536, "bfloat16", 229376, 64),
    "MiniMax-M2.5": (62, 48, 8, 196608, "fp8", 253952, 64),
    # layers with a window hold 0.8 of the tokens
    "gpt-oss-120b": (36, 64, 8, 131072, "mxfp4", 66355, None),
    "gemma-4-26B-A4B": (30, 16, 8, 262144, "bfloat16", 5 * 2 * 2 * 512 * 2 + 163840, None),
    "Llama-4-Scout-17B-16E-Instruct": (48, 40, 8, 10485760, "bfloat16", 167116, None),
    "MiMo-V2-Flash": (48, 64, 4, 262144, "fp8", 182784, None),
    "Qwen3.5-27B": (64, 24, 4, 262144, "bfloat16", 16 * 2 * 4 * 256 * 2, None),
    "DeepSeek-V4-Flash": (43, 64, 1, 1048576, "fp8", 3899, 256),
    "DeepSeek-V4-Flash-NVFP4": (43, 64, 1, 1048576, "nvfp4", 3899, 256),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_model(name: str) -> None:
    found = read(name)
    layers, heads, kv_heads, context, numbers, token, page = PUBLIC[name]
    assert (found.layers, found.heads, found.kv_heads) == (layers, heads, kv_heads)
    assert (found.context, found.numbers, found.page_size) == (context, numbers, page)
    whole = profile(kv_heads=kv_heads, kv_buffers=list(found.buffers), page_size=page)
    assert int(memory.bytes_per_token(whole, 1)) == token


def test_every_record_is_one_of_them() -> None:
    assert {path.stem.partition("--")[2] for path in MODELS.glob("*.json")} == PUBLIC.keys()


@pytest.mark.parametrize("name", ["deepseek-v4-flash-nvfp4", "deepseek-v4-flash-mxfp4"])
def test_the_profiles_of_this_checkout_say_the_same(name: str) -> None:
    said = catalogue.stated(name).fields
    found = read("DeepSeek-V4-Flash")
    assert list(found.buffers) == said["kv_buffers"]
    assert (found.heads, found.kv_heads, found.context) == (said["heads"], said["kv_heads"], said["maximum_context"])
    assert (found.page_size, found.kv_cache_dtype) == (said["page_size"], said["kv_cache_dtype"])


def test_heads_are_split_over_ranks_as_far_as_they_go() -> None:
    found = read("gemma-4-26B-A4B")
    whole = profile(kv_heads=found.kv_heads, kv_buffers=list(found.buffers), page_size=None)
    full, windows = 5 * 2 * 2 * 512 * 2, 25 * 2 * 8 * 256 * 2 * 0.8
    assert memory.bytes_per_token(whole, 2) == full / 2 + windows / 2
    assert memory.bytes_per_token(whole, 8) == full / 2 + windows / 8, "two KV heads go to two ranks at most"
    latents = read("DeepSeek-V3")
    whole = profile(kv_heads=1, kv_buffers=list(latents.buffers), page_size=64)
    assert memory.bytes_per_token(whole, 8) == 61 * 576 * 2, "each rank keeps the latents whole"


@pytest.mark.parametrize(
    ("chosen", "page", "token"),
    [
        (Chosen(), 64, 262144),
        (Chosen(page_size=(16,)), 16, 262144),
        (Chosen(page_size=(None,)), None, 262144),
        (Chosen(kv_cache_dtype="fp8_e4m3"), 64, 131072),
        (Chosen(kv_cache_dtype="bfloat16"), 64, 262144),
        (Chosen(dtype="float32"), 64, 524288),
    ],
)
def test_what_a_profile_decides_counts(chosen: Chosen, page: int | None, token: int) -> None:
    found = read("Qwen3-32B", chosen)
    assert found.page_size == page
    whole = profile(kv_heads=8, kv_buffers=list(found.buffers), page_size=page)
    assert memory.bytes_per_token(whole, 1) == token


def test_a_draft_in_the_checkpoint_is_seen() -> None:
    assert (read("DeepSeek-V3").draft_layers, read("Kimi-K2.5").draft_layers) == (1, 0)


# ---- config.json that is none, or half


WHOLE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 64,
    "max_position_embeddings": 4096,
}  # fmt: skip


def line(config: dict[str, Any]) -> str:
    with pytest.raises(PlanError) as error:
        shape.read(config, {}, "/data/x")
    (only,) = error.value.lines
    assert "\n" not in only and only.startswith("model /data/x: its config.json ")
    return only


def test_what_may_be_left_out() -> None:
    found = shape.read(WHOLE, {}, "x")
    assert (found.kv_heads, found.head_dim, found.numbers) == (8, 8, "unknown type")
    assert shape.read(WHOLE | {"max_position_embeddings": None}, {}, "x").context is None


@pytest.mark.parametrize("name", ["architectures", "num_hidden_layers", "num_attention_heads", "hidden_size"])
def test_half_a_config(name: str) -> None:
    assert name in line({key: value for key, value in WHOLE.items() if key != name})


@pytest.mark.parametrize("value", ["eight", True, 0, -3, 1.5, [8], 10**30, float("nan")])
def test_a_number_that_is_none(value: object) -> None:
    assert "num_attention_heads, a number of 1 or more belongs there" in line(WHOLE | {"num_attention_heads": value})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": "LlamaForCausalLM"}, "names no architecture"),
        ({"architectures": [{"x": 1}]}, "names no architecture"),
        ({"architectures": ["rm -rf /"]}, "names no architecture"),
        ({"architectures": ["MiniMaxM3SparseForCausalLM"]}, "write a profile with kv_buffers (docs/models.md)"),
        ({"architectures": ["GptOssForCausalLM"]}, "does not say which layers have a window (layer_types)"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "leaves out compress_ratios"),
        ({"layer_types": ["linear_attention"] * 2}, "no layer keeps keys and values"),
        ({"kv_lora_rank": 512, "index_topk": 2048}, "leaves out index_head_dim"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(config: dict[str, Any], words: str) -> None:
    assert words in line(WHOLE | config)


@pytest.mark.parametrize("name", ["torch_dtype", "dtype"])
@pytest.mark.parametrize("word", ["\x1b[2Jfp8", "fp8\nx", "\ud800"])
def test_its_words_move_no_cursor_and_can_be_written(name: str, word: str) -> None:
    numbers = shape.read(WHOLE | {name: word}, {}, "/data/x").numbers
    assert numbers.isprintable() and numbers.encode() and "?" in numbers


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WHOLE, "text_config"]), inner),
    max_leaves=8,
)
KEYS = [
    *WHOLE, "text_config", "quantization_config", "kv_lora_rank", "head_dim", "layer_types", "linear_attn_config",
    "full_attention_interval", "compress_ratios", "index_topk", "index_head_dim", "qk_rope_head_dim",
]  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(KEYS), JSON),
    st.sampled_from(
        ["LlamaForCausalLM", "GptOssForCausalLM", "DeepseekV4ForCausalLM", "Llama4ForConditionalGeneration"]
    ),
)
def test_whatever_it_holds_is_a_shape_or_one_line(changes: dict[str, Any], architecture: str) -> None:
    try:
        found = shape.read(WHOLE | changes | {"architectures": [architecture]}, changes, "x")
    except PlanError as error:
        assert len(error.lines) == 1
    else:
        assert found.buffers
