"""What config.json says of a model's shape: heads, layers, length, and how SGLang lays out its KV cache.

Rules and constants are SGLang's (0.5.23: configs/model_config.py, model_executor/pool_configurator.py), read there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.plan.errors import PlanError
from tasks.plan.model.profile import KvBuffer

Config = Mapping[str, Any]

PAGE = 64  # tokens; what MLA and FlashInfer's kernels ask for, and few enough descriptors for a KV transfer
TEXT_PARTS = ("thinker_config", "llm_config", "language_config", "text_config")  # of models that also see or hear
LENGTHS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
# Layers with a window have a pool of their own for these; all others keep every token.
WINDOW_POOL = frozenset(
    {
        "GptOssForCausalLM", "Llama4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration", "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration", "LagunaForCausalLM", "MellumForCausalLM",
    }
)  # fmt: skip
WINDOW_SHARE = 0.8  # of the tokens that the other layers hold (--swa-full-tokens-ratio, its default)
OTHER_LAYOUTS = ("MiniMaxM3", "Qwen4Exp", "Dots3", "HYV4", "Inkling", "Beam")  # beginnings of architectures
LARGEST, MOST_LAYERS = 1 << 40, 10_000  # no model is beyond; what is, is no number to calculate with
# What config.json may leave out, since transformers fills it in: its defaults, by model_type.
DEFAULTS: Mapping[str, Config] = {
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    architecture: str
    layers: int
    heads: int
    kv_heads: int  # 1: a cache of latents, which every rank keeps whole
    head_dim: int
    attention: str  # for people: "MLA", "8 KV heads of 128", ...
    context: int | None  # tokens; None: config.json does not say
    numbers: str  # for people: what the weights are, such as "fp8" or "bfloat16"
    page_size: int | None  # tokens; None: the server chooses
    buffers: tuple[KvBuffer, ...]
    kv_cache_dtype: str | None
    draft_layers: int


@dataclass(frozen=True)
class Chosen:
    """What a profile decides about the KV cache; None: it says nothing."""

    page_size: tuple[int | None] | None = None  # (None,): the server chooses
    kv_cache_dtype: str | None = None
    dtype: str | None = None

    def page(self, usual: int | None) -> int | None:
        return usual if self.page_size is None else self.page_size[0]

    def element(self, scaled: bool) -> int:
        """Bytes of one number in the KV cache. scaled: the checkpoint carries scales for FP8."""
        if self.kv_cache_dtype:
            return 1 if "8" in self.kv_cache_dtype else 2
        return 1 if scaled else 4 if self.dtype == "float32" else 2


def read(config: Config, modelopt: Config, where: str, chosen: Chosen = Chosen()) -> Shape:
    """The shape of a model. where: names the folder. Raises PlanError, one line, where config.json is no model's, or
    leaves out what SGLang would only know from the code of transformers."""
    try:
        return _read(config, modelopt, chosen)
    except _LeavesOut as gap:
        raise PlanError(f"model {where}: its config.json {gap}") from None


class _LeavesOut(ValueError):
    """What is wrong with config.json."""


def _read(config: Config, modelopt: Config, chosen: Chosen) -> Shape:
    architecture = _architecture(config)
    if architecture.startswith(OTHER_LAYOUTS):
        raise _LeavesOut(
            f"says {architecture}, whose KV cache is laid out in a way that is not known here: write a profile with "
            "kv_buffers (docs/models.md)"
        )
    text = _text(config)
    text = {**DEFAULTS.get(str(text.get("model_type")), {}), **text}
    layers, heads = _number(text, "num_hidden_layers", most=MOST_LAYERS), _number(text, "num_attention_heads")
    kv_heads = _kv_heads(text, heads)
    cache = _Cache(text, layers, chosen, chosen.element(_kv_is_fp8(config, text, modelopt)))
    layout = _layout(architecture, cache, heads, kv_heads)
    return Shape(
        architecture=architecture,
        layers=layers,
        heads=heads,
        kv_heads=layout.kv_heads,
        head_dim=layout.head_dim,
        attention=layout.told,
        context=next((_number(text, name) for name in LENGTHS if text.get(name) is not None), None),
        numbers=_printable(_numbers(config, text, modelopt)),
        page_size=layout.page_size,
        buffers=layout.buffers,
        kv_cache_dtype=layout.kv_cache_dtype,
        draft_layers=_number(text, "num_nextn_predict_layers", least=0, default=0),
    )


@dataclass(frozen=True)
class _Layout:
    kv_heads: int
    head_dim: int
    told: str
    page_size: int | None
    buffers: tuple[KvBuffer, ...]
    kv_cache_dtype: str | None = None


@dataclass(frozen=True)
class _Cache:
    """What every layout is made from."""

    text: Config
    layers: int
    chosen: Chosen
    size: int  # bytes of a number


def _layout(architecture: str, cache: _Cache, heads: int, kv_heads: int) -> _Layout:
    text, layers = cache.text, cache.layers
    if architecture.startswith("DeepseekV4"):
        return _compressed(text, layers)
    if text.get("kv_lora_rank") is not None:
        return _latent(cache)
    head_dim = _number(text, "head_dim", default=0) or _number(text, "hidden_size") // heads
    value_dim = _number(text, "v_head_dim", least=0, default=0) or head_dim
    if architecture in WINDOW_POOL:
        return _windowed(architecture, cache, kv_heads, head_dim, value_dim)
    keeping = _full_layers(text, layers)
    page = cache.chosen.page(PAGE if keeping == layers else None)
    told = f"{kv_heads} KV heads of {head_dim}"
    if keeping < layers:
        told += f" in {keeping} layers, a state of fixed size in the others"
    return _Layout(kv_heads, head_dim, told, page, _pairs("", keeping, kv_heads, (head_dim, value_dim), cache, page))


def _pairs(
    of: str, count: int, heads: int, dims: tuple[int, int], cache: _Cache, page: int | None, share: float = 1.0
) -> tuple[KvBuffer, ...]:
    """Keys and values of `count` layers, with a head's numbers in each of them."""
    return tuple(
        KvBuffer(
            name=f"{name}{of}", count=count, page_bytes=max(4, (page or 1) * heads * dim * cache.size), heads=heads,
            share=share,
        )
        for name, dim in zip(("keys", "values"), dims, strict=True)
        if count
    )  # fmt: skip


def _latent(cache: _Cache) -> _Layout:
    """MLA: one latent and one rotary key a token and layer, whole in every rank.

    With an indexer (DeepSeek-V3.2, GLM-5), its keys beside them, in FP8 with a scale for each 128.
    """
    text = cache.text
    rank, rope = _number(text, "kv_lora_rank"), _number(text, "qk_rope_head_dim", least=0, default=0)
    if text.get("use_mla_nope"):
        rope = 0
    keeping = _full_layers(text, cache.layers)
    page = cache.chosen.page(PAGE if keeping == cache.layers else None)
    buffers = [KvBuffer(name="latents", count=keeping, page_bytes=(page or 1) * (rank + rope) * cache.size)]
    told = f"MLA, {rank} + {rope} a token and layer"
    if text.get("index_topk") is not None:
        indexed = _number(text, "index_head_dim")
        width = indexed + indexed // 128 * 4
        buffers.append(KvBuffer(name="indexer", count=keeping, page_bytes=(page or 1) * width))
        told += f", an indexer of {indexed}"
    return _Layout(1, rank + rope, told, page, tuple(buffers))


def _windowed(architecture: str, cache: _Cache, kv_heads: int, head_dim: int, value_dim: int) -> _Layout:
    text, layers = cache.text, cache.layers
    windows = sum(_kinds(architecture, text, layers))
    wide = _number(text, "global_head_dim", default=0)  # Gemma 4: of the layers without a window
    full_heads = _number(text, "num_global_key_value_heads", default=0) or kv_heads
    window_heads = _number(text, "swa_num_key_value_heads", default=0) or kv_heads
    key = _number(text, "swa_head_dim", default=0) or head_dim
    value = _number(text, "swa_v_head_dim", default=0) or (value_dim if key == head_dim else key)
    full = (wide, wide) if wide else (head_dim, value_dim)
    page = cache.chosen.page(None)
    buffers = (
        *_pairs("", layers - windows, full_heads, full, cache, page),
        *_pairs(" of the window", windows, window_heads, (key, value), cache, page, WINDOW_SHARE),
    )
    told = f"{full_heads} KV heads of {full[0]} in {layers - windows} layers, a window in {windows}"
    return _Layout(kv_heads, head_dim, told, page, buffers)


def _kinds(architecture: str, text: Config, layers: int) -> list[bool]:
    """For each layer whether it has a window."""
    if architecture.startswith("Llama4"):
        return [(layer + 1) % 4 != 0 for layer in range(layers)]
    pattern, kinds = text.get("hybrid_layer_pattern"), text.get("layer_types")
    if isinstance(pattern, list) and len(pattern) >= layers:
        return [one == 1 for one in pattern[:layers]]
    if isinstance(kinds, list) and len(kinds) >= layers:
        return [one == "sliding_attention" for one in kinds[:layers]]
    raise _LeavesOut("does not say which layers have a window (layer_types): write a profile with kv_buffers")


def _full_layers(text: Config, layers: int) -> int:
    """Layers that keep keys and values of each token; the others, of hybrids, keep a state of fixed size."""
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(linear.get("full_attn_layers"), list):
        return _some(len(linear["full_attn_layers"]))
    if isinstance(text.get("hybrid_override_pattern"), str):  # Nemotron-H: M, *, -, E
        return _some(text["hybrid_override_pattern"].count("*"))
    for name in ("layer_types", "layers_block_type"):
        kinds = text.get(name)
        if isinstance(kinds, list) and any("linear" in str(kind) or "mamba" in str(kind) for kind in kinds):
            return _some(sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds[:layers]))
    every = _number(text, "full_attention_interval", default=0)
    return _some(layers // every) if every else layers


def _some(keeping: int) -> int:
    if not keeping:
        raise _LeavesOut("says that no layer keeps keys and values: there is no KV cache to move, it cannot be served")
    return keeping


def _compressed(text: Config, layers: int) -> _Layout:
    """DeepSeek-V4: layers keep every 4th or 128th token, those with 4 an indexer beside it.

    A kept token takes 584 bytes (448 FP8, 64 BF16, 8 of scales), a page a multiple of 576. The window is left out: it
    is sent once a prompt.
    """
    tokens = 256
    ratios = text.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < layers:
        raise _LeavesOut("leaves out compress_ratios")
    head_dim, rope = _number(text, "head_dim"), _number(text, "qk_rope_head_dim")
    token = (head_dim - rope) + 2 * rope + 8
    indexed = _number(text, "index_head_dim")
    buffers = []
    for ratio, nth in ((4, "4th"), (128, "128th")):
        if count := ratios[:layers].count(ratio):
            kept = -(-tokens // ratio * token // 576) * 576
            buffers.append(KvBuffer(name=f"KV of every {nth} token", count=count, page_bytes=kept))
            if ratio == 4:
                width = indexed + indexed // 128 * 4
                buffers.append(KvBuffer(name="indexer", count=count, page_bytes=tokens // ratio * width))
    if not buffers:
        raise _LeavesOut("names no layer that keeps tokens (compress_ratios)")
    return _Layout(1, head_dim, "compressed KV, every 4th and 128th token", tokens, tuple(buffers), "fp8_e4m3")


# ---- single values


def _architecture(config: Config) -> str:
    named = config.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str) and named[0].isidentifier():
        return named[0]
    raise _LeavesOut("names no architecture (architectures), so it is no model that SGLang serves")


def _text(config: Config) -> Config:
    """The part about the language model."""
    for name in TEXT_PARTS:
        part = config.get(name)
        if isinstance(part, Mapping):
            return _text(part) if name == "thinker_config" else part
    return config


def _number(text: Config, name: str, least: int = 1, default: int | None = None, most: int = LARGEST) -> int:
    value = text.get(name)
    if value is None:
        if default is not None:
            return default
        raise _LeavesOut(f"leaves out {name}: it is half a file, or write a profile (docs/models.md)")
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most or value % 1:
        raise _LeavesOut(f"gives {str(value)[:40]!r} for {name}, a number of {least} or more belongs there")
    return int(value)


def _kv_heads(text: Config, heads: int) -> int:
    if text.get("multi_query") is True:
        return 1
    return next((_number(text, name) for name in KV_HEADS if text.get(name) is not None), heads)


def _quantization(config: Config, text: Config) -> Config:
    for part in (config, text):
        found = part.get("quantization_config")
        if isinstance(found, Mapping):
            return found
    return {}


def _modelopt(modelopt: Config) -> Config:
    inner = modelopt.get("quantization")
    return inner if isinstance(inner, Mapping) else modelopt


def _kv_is_fp8(config: Config, text: Config, modelopt: Config) -> bool:
    """Whether the checkpoint carries scales for a KV cache in FP8, which SGLang then takes by itself."""
    said = (_quantization(config, text).get("kv_cache_quant_algo"), _modelopt(modelopt).get("kv_cache_quant_algo"))
    return any(isinstance(one, str) and one.upper() == "FP8" for one in said)


def _printable(text: str) -> str:
    """Words of config.json are shown on a terminal and written into pages."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _numbers(config: Config, text: Config, modelopt: Config) -> str:
    quantized, of_modelopt = _quantization(config, text), _modelopt(modelopt)
    for algorithm in (quantized.get("moe_quant_algo"), of_modelopt.get("quant_algo"), quantized.get("quant_algo")):
        if isinstance(algorithm, str):
            return algorithm.lower()[:40]
    method, form = quantized.get("quant_method"), quantized.get("format")
    if isinstance(method, str):
        return (f"{method} ({form})" if isinstance(form, str) else method)[:60]
    named = (part.get(name) for part in (text, config) for name in ("torch_dtype", "dtype"))
    return next((one for one in named if isinstance(one, str)), "unknown type")[:40]
