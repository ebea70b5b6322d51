"""A Qwen2 of real size with random weights, written where it is served: python -m tests.gpu.random_model FOLDER.

For machines that cannot fetch a model. Compute and KV traffic are those of a real one, and answers depend on the
prompt; `--load-format dummy` would leave weights near zero. The same options give the same bytes. Standard library
only: a block of normally distributed values is drawn once, and each tensor is a run of it from a place of its own.
The block's length is a prime, so no two rows of a matrix are alike.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import struct
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import BinaryIO

BLOCK, SMALL_BLOCK = 16_777_213, 65_521  # values; the largest primes below 2^24 and 2^16
SHARD = 4 << 30  # bytes of a file, about
BYTES = 2  # of a bfloat16
QUANTILES = 1 << 16
SHARPNESS = 1.5  # of q and k: attention that looks at some tens of a thousand tokens, not at the mean of all
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}" + START + "{{ message['role'] }}\n{{ message['content'] }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """The defaults are those of Qwen2.5-7B."""

    layers: int = 28
    hidden: int = 3584
    heads: int = 28
    kv_heads: int = 4
    intermediate: int = 18944
    vocabulary: int = 152_064
    context: int = 32_768

    @property
    def head(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    spread: float  # standard deviation; 0: all ones

    @property
    def values(self) -> int:
        return math.prod(self.shape)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.random_model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    for name, default in vars(Shape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N", help=f"{default}")
    given = vars(parser.parse_args(words))
    folder, seed = given.pop("folder"), given.pop("seed")
    shape = Shape(**given)
    if fault := wrong(shape):
        print(f"random_model: {fault}", file=sys.stderr)
        return 2
    started = time.monotonic()
    try:
        size = write(folder, shape, seed)
    except OSError as error:
        print(f"random_model: cannot write {error.filename or folder}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{folder}: {size / 1e9:.2f} GB in {time.monotonic() - started:.0f} s")
    return 0


def wrong(shape: Shape) -> str:
    """One line, "" for a shape that a Qwen2 can have."""
    small = [name for name, value in vars(shape).items() if value < 1]
    if small:
        return f"--{small[0].replace('_', '-')} must be 1 or more"
    if shape.hidden % shape.heads or shape.head % 2:
        return f"--hidden {shape.hidden} must be an even multiple of --heads {shape.heads}"
    if shape.heads % shape.kv_heads:
        return f"--kv-heads {shape.kv_heads} must divide --heads {shape.heads}"
    if shape.vocabulary < len(alphabet()) + 3:
        return f"--vocabulary {shape.vocabulary} has no room for every byte: {len(alphabet()) + 3} or more"
    return ""


def write(folder: Path, shape: Shape, seed: int) -> int:
    """All files of the model; bytes of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    shards = list(sharded(tensors(shape)))
    values = sum(tensor.values for shard in shards for tensor in shard)
    block = Block(seed, SMALL_BLOCK if values < BLOCK else BLOCK)
    where: dict[str, str] = {}
    for number, shard in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        with (folder / name).open("wb") as file:
            write_shard(file, shard, block)
        where.update({tensor.name: name for tensor in shard})
    size = values * BYTES
    index = {"metadata": {"total_size": size}, "weight_map": where}
    put(folder / "model.safetensors.index.json", index)
    put(folder / "config.json", config(shape))
    put(folder / "tokenizer.json", tokenizer(shape.vocabulary))
    put(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "eos_token": END,
            "model_max_length": shape.context,
            "chat_template": TEMPLATE,
        },
    )
    return size


def put(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# ---- weights


def tensors(shape: Shape) -> Iterator[Tensor]:
    """Every tensor of a Qwen2 with an untied head. Spread: 1/sqrt(inputs), so that sums keep the size of what goes in."""
    hidden, kv = shape.hidden, shape.kv_heads * shape.head
    of_hidden, of_inner = hidden**-0.5, shape.intermediate**-0.5
    yield Tensor("model.embed_tokens.weight", (shape.vocabulary, hidden), 1.0)
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        yield Tensor(f"{layer}.input_layernorm.weight", (hidden,), 0)
        for name, rows, sharpness in (("q", hidden, SHARPNESS), ("k", kv, SHARPNESS), ("v", kv, 1.0)):
            yield Tensor(f"{layer}.self_attn.{name}_proj.weight", (rows, hidden), sharpness * of_hidden)
            yield Tensor(f"{layer}.self_attn.{name}_proj.bias", (rows,), 0.02)
        yield Tensor(f"{layer}.self_attn.o_proj.weight", (hidden, hidden), of_hidden)
        yield Tensor(f"{layer}.post_attention_layernorm.weight", (hidden,), 0)
        for name in ("gate", "up"):
            yield Tensor(f"{layer}.mlp.{name}_proj.weight", (shape.intermediate, hidden), of_hidden)
        yield Tensor(f"{layer}.mlp.down_proj.weight", (hidden, shape.intermediate), of_inner)
    yield Tensor("model.norm.weight", (hidden,), 0)
    yield Tensor("lm_head.weight", (shape.vocabulary, hidden), of_hidden)


def sharded(every: Iterator[Tensor]) -> Iterator[list[Tensor]]:
    """In files of about SHARD bytes."""
    shard: list[Tensor] = []
    size = 0
    for tensor in every:
        if shard and size + tensor.values * BYTES > SHARD:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.values * BYTES
    yield shard


class Block:
    """Normally distributed values, as bfloat16 of any spread."""

    def __init__(self, seed: int, length: int) -> None:
        self.seed = seed
        self.length = length
        self.numbers = array("H", random.Random(seed).randbytes(length * 2))
        normal = NormalDist()
        self.quantiles = [normal.inv_cdf((number + 0.5) / QUANTILES) for number in range(QUANTILES)]
        self.spreads: dict[float, bytes] = {}

    def of(self, spread: float) -> bytes:
        if spread not in self.spreads:
            table = [bfloat16(spread * value) for value in self.quantiles]
            values = array("H", map(table.__getitem__, self.numbers))
            if sys.byteorder == "big":
                values.byteswap()
            self.spreads[spread] = values.tobytes()
        return self.spreads[spread]

    def write(self, file: BinaryIO, tensor: Tensor) -> None:
        if not tensor.spread:
            file.write(struct.pack("<H", bfloat16(1.0)) * tensor.values)
            return
        block = memoryview(self.of(tensor.spread))
        digest = hashlib.sha256(f"{self.seed} {tensor.name}".encode()).digest()
        place = int.from_bytes(digest[:8], "big") % self.length
        left = tensor.values
        while left:
            count = min(left, self.length - place)
            file.write(block[place * BYTES : (place + count) * BYTES])
            left, place = left - count, 0


def bfloat16(value: float) -> int:
    """The nearest bfloat16 as its 16 bits."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def write_shard(file: BinaryIO, shard: list[Tensor], block: Block) -> None:
    """A safetensors file: length and text of the header, then the tensors one after the other."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in shard:
        start, end = end, end + tensor.values * BYTES
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in shard:
        block.write(file, tensor)


# ---- configuration and tokenizer


def config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "max_window_layers": shape.layers,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it can be printed."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printed]
    return sorted([*map(chr, printed), *(chr(256 + number) for number in range(len(rest)))])


def tokenizer(size: int) -> dict[str, object]:
    """A token for every byte; those beyond are words that a text never becomes, so that what is answered can be read."""
    tokens = [PAD, START, END, *alphabet()]
    tokens += [f"\u0120w{number:x}" for number in range(size - len(tokens))]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": tokens[number], **special} for number in range(3)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": {**level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [],
        },
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
