"""Our functions take the place of SGLang's when its modules are imported, or the server does not start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pd_overlay_hook
import pytest
import yaml
from pd_overlay_sm120_decode import binding, indexer, sparse_mla

from tests.kernels.conftest import HOOK, PACKAGE

MANIFEST = yaml.safe_load((PACKAGE / "manifest.yaml").read_text())
DECODE = "q, k_cache, indices, topk_length, attn_sink, head_dim_v, softmax_scale, extra_k_cache=None, extra_indices=None, extra_topk_length=None"
LOGITS = "q_fp8, kvcache_fp8, weight, seq_lens, page_table, deep_gemm_metadata, max_seq_len, clean_logits=True"
MLA, INDEXER = "SGLANG_SM120_MMA_FLASHMLA", "SGLANG_SM120_TRITON_INDEXER"


def stand_in(folder: Path, module: str, function: str, parameters: str) -> None:
    """A module of that name with one function that takes these parameters."""
    path = folder / (module.replace(".", "/") + ".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"def {function}({parameters}): return 'theirs'\n")


def imported(folder: Path, module: str, function: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """An interpreter that loads the overlay as the .pth file does, and then imports the module."""
    code = (
        f"import pd_overlay_sm120_decode, importlib, json, os; m = importlib.import_module({module!r});"
        f"print(json.dumps([getattr(m, {function!r}).__module__, os.environ.get('SGLANG_SM120_FLASHMLA_BACKEND')]))"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=clean | environment | {"PYTHONPATH": f"{PACKAGE}:{HOOK}:{folder}"},
        capture_output=True,
        text=True,
    )


def test_the_manifest_names_what_is_bound() -> None:
    named = {
        variable: {target["module"]: target["function"] for target in targets}
        for variable, targets in MANIFEST["targets"].items()
    }
    bound = {
        variable: {module: target[0] for module, target in targets.items()}
        for variable, targets in binding.TARGETS.items()
    }
    assert named == bound
    assert MANIFEST["environment"] == list(bound)


def test_the_manifest_names_every_file() -> None:
    there = {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*") if p.is_file() and p.suffix in {".py", ".pth"}}
    assert set(MANIFEST["files"]) == there


def test_the_manifest_names_the_parameters() -> None:
    """So that pd-patch compares the installed function with ours before anything is placed."""
    for variable, function in ((MLA, sparse_mla.flash_mla_sparse_decode), (INDEXER, indexer.fp8_paged_mqa_logits)):
        for target in MANIFEST["targets"][variable]:
            assert target["parameters"] == pd_overlay_hook.parameters(function)


def test_parameters_are_those_of_upstream() -> None:
    assert ", ".join(pd_overlay_hook.parameters(sparse_mla.flash_mla_sparse_decode)) == DECODE.replace("=None", "")
    assert ", ".join(pd_overlay_hook.parameters(indexer.fp8_paged_mqa_logits)) == LOGITS.replace("=True", "")


@pytest.mark.parametrize(
    ("variable", "module", "function"),
    [
        (variable, module, target[0])
        for variable, targets in binding.TARGETS.items()
        for module, target in targets.items()
    ],
)
def test_ours_is_bound_only_where_it_is_asked_for(tmp_path: Path, variable: str, module: str, function: str) -> None:
    stand_in(tmp_path, module, function, DECODE if variable == MLA else LOGITS)
    (theirs, backend), (ours, asked) = (
        json.loads(imported(tmp_path, module, function, **chosen).stdout) for chosen in ({}, {variable: "1"})
    )
    assert (theirs, backend) == (module, None)
    assert ours.startswith("pd_overlay_sm120_decode.")
    assert asked == ("triton" if variable == MLA else None)
    log = imported(tmp_path, module, function, **{variable: "1"}).stderr
    assert MANIFEST["log"].format(variable=variable, module=module, function=function) in log


def test_a_module_without_the_function_is_an_error(tmp_path: Path) -> None:
    module = "sglang.srt.layers.attention.dsv4.indexer"
    stand_in(tmp_path, module, "something_else", LOGITS)
    ran = imported(tmp_path, module, "something_else", **{INDEXER: "1"})
    assert ran.returncode != 0
    assert f"{INDEXER} asks for it, but {module} has no fp8_paged_mqa_logits_torch_sm120" in ran.stderr


def test_other_parameters_are_an_error_with_both_sides(tmp_path: Path) -> None:
    module = "sglang.kernels.ops.attention.flash_mla_sm120_triton"
    stand_in(tmp_path, module, "flash_mla_sparse_decode_triton", "q, k_cache, new_one")
    ran = imported(tmp_path, module, "flash_mla_sparse_decode_triton", **{MLA: "1"})
    assert ran.returncode != 0
    assert "takes q, k_cache, new_one; ours was written for q, k_cache, indices" in ran.stderr


def test_a_backend_that_never_calls_the_kernel_is_an_error(tmp_path: Path) -> None:
    environment = {MLA: "1", "SGLANG_SM120_FLASHMLA_BACKEND": "flashinfer"}
    ran = imported(tmp_path, "json", "dumps", **environment)
    assert ran.returncode != 0
    assert "SGLANG_SM120_FLASHMLA_BACKEND=flashinfer" in ran.stderr
