"""A profile whose gaps the folder fills; one that contradicts it."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.model import derive
from tasks.plan.model.folder import THERE, Folder
from tasks.plan.model.profile import ModelProfile, Source, Stated
from tests.plan.model.test_shape import WHOLE

FOLDER = Folder("/data/models/Tiny", THERE, WHOLE, sizes={"model.safetensors": 3_000_000_000, "README.md": 1})
BARE = Stated("Tiny", Source(directory="/data/models/Tiny"))


def settled(**fields: Any) -> ModelProfile:
    return derive.settled(Stated.of({"name": "tiny", **fields}), FOLDER, None)[0]


def refused(stated: Stated, folder: Folder | None = FOLDER) -> list[str]:
    with pytest.raises(PlanError) as error:
        derive.settled(stated, folder, None)
    return list(error.value.lines)


def test_the_folder_alone_will_do() -> None:
    found, derived = derive.settled(BARE, FOLDER, None)
    assert (found.name, found.served_name, found.size_gb) == ("Tiny", "Tiny", 3.0)
    assert (found.heads, found.kv_heads, found.maximum_context, found.page_size) == (8, 8, 4096, 64)
    assert [(one.name, one.count, one.page_bytes) for one in found.kv_buffers] == [
        ("keys", 2, 64 * 8 * 8 * 2), ("values", 2, 64 * 8 * 8 * 2),
    ]  # fmt: skip
    assert found.source.directory == "/data/models/Tiny"
    assert {"heads", "kv_heads", "kv_buffers", "size_gb", "maximum_context", "golden"} <= set(derived)
    assert derive.settled(BARE, FOLDER, "mine")[0].served_name == "mine"


def test_a_profile_says_what_cannot_be_read_and_the_rest_is_read() -> None:
    found = settled(reasoning_parser="qwen3", moe_runner_backend={"9.9": "triton"}, served_name="tiny-chat")
    assert (found.reasoning_parser, found.moe_runner_backend, found.served_name) == (
        "qwen3",
        {"9.9": "triton"},
        "tiny-chat",
    )
    assert found.heads == 8


def test_what_a_profile_says_is_kept() -> None:
    assert settled(page_size=16).kv_buffers[0].page_bytes == 16 * 8 * 8 * 2
    assert settled(page_size=None).page_size is None
    on_cpu, _ = derive.settled(BARE, FOLDER, None, page_size=1)
    assert (on_cpu.page_size, on_cpu.kv_buffers[0].page_bytes) == (1, 8 * 8 * 2), "the release serves no other page"
    assert settled(kv_cache_dtype="fp8_e4m3").kv_buffers[0].page_bytes == 64 * 8 * 8
    assert settled(maximum_context=2048).maximum_context == 2048


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 16}, "it says 16 attention heads (heads), not 8:"),
        ({"kv_heads": 2}, "it says 2 KV heads (kv_heads), not 8:"),
        ({"maximum_context": 8192}, "it says 8192 tokens of context (maximum_context), not 4096:"),
        ({"kv_buffers": [{"name": "keys", "count": 3, "page_bytes": 8}]}, "it says 3 buffers of keys (kv_buffers), not 2:"),
    ],
)  # fmt: skip
def test_a_profile_that_contradicts_the_folder(fields: dict[str, Any], words: str) -> None:
    (line,) = refused(Stated.of({"name": "tiny", **fields}))
    assert line.startswith("profile tiny contradicts config.json of /data/models/Tiny: ") and words in line


def test_every_contradiction_is_told() -> None:
    (line,) = refused(Stated.of({"name": "tiny", "heads": 16, "kv_heads": 2}))
    assert "it says 16 attention heads (heads), not 8; 2 KV heads (kv_heads), not 8:" in line


def test_a_profile_may_stretch_the_context_by_an_argument() -> None:
    stretched = settled(maximum_context=8192, arguments=["--json-model-override-args", "{}"])
    assert stretched.maximum_context == 8192


def test_a_profile_with_gaps_needs_a_folder() -> None:
    (line,) = refused(Stated.of({"name": "tiny", "heads": 8, "source": {"hub": "a/b"}}), None)
    assert line.startswith("profile tiny leaves out size_gb, kv_heads, maximum_context, page_size, kv_buffers: name")


def test_a_profile_that_says_all_needs_no_config_that_can_be_read() -> None:
    odd = Folder("/data/odd", THERE, {"architectures": ["MiniMaxM3SparseForCausalLM"]}, sizes={"m.safetensors": 10**9})
    assert "kv_buffers (docs/models.md)" in refused(BARE, odd)[0]
    said = {
        "name": "odd", "heads": 8, "kv_heads": 8, "maximum_context": None, "page_size": 128,
        "kv_buffers": [{"name": "KV", "count": 2, "page_bytes": 64}],
    }  # fmt: skip
    found, derived = derive.settled(Stated.of(said), odd, None)
    assert (found.size_gb, derived) == (1.0, ("size_gb",))


@pytest.mark.parametrize(
    ("words", "kwargs", "tokens"),
    [
        (set(), {}, 64),
        ({"enable_thinking", "<think>"}, {"enable_thinking": False}, 64),
        ({"thinking is defined"}, {"thinking": False}, 64),
        ({"reasoning_effort"}, {"reasoning_effort": "low"}, 1024),
        ({"<think>"}, {}, 1024),
    ],
)
def test_thinking_is_switched_off_or_has_room(words: set[str], kwargs: dict[str, Any], tokens: int) -> None:
    folder = Folder("/data/x", THERE, WHOLE, sizes={"m.safetensors": 1}, words=frozenset(words))
    found, _ = derive.settled(BARE, folder, None)
    assert found.chat_template_kwargs == kwargs
    assert {one.max_tokens for one in found.golden} == {tokens}
