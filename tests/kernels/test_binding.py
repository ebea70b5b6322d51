"""Our functions take the place of SGLang's when its modules are imported, or the server does not start."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pd_overlay_hook
import pytest
import torch
import yaml
from pd_overlay_sm120_decode import binding, indexer, sparse_mla
from pd_overlay_sm120_hc_pre import VARIABLE, method

from tests.kernels import reference
from tests.kernels.conftest import HC_PRE, HOOK, PACKAGE

MANIFEST = yaml.safe_load((PACKAGE / "manifest.yaml").read_text())
DECODE = "q, k_cache, indices, topk_length, attn_sink, head_dim_v, softmax_scale, extra_k_cache=None, extra_indices=None, extra_topk_length=None"
LOGITS = "q_fp8, kvcache_fp8, weight, seq_lens, page_table, deep_gemm_metadata, max_seq_len, clean_logits=True"
LAYER = "sglang.srt.models.deepseek_v4"
MIXING = {"<0.5.16": "self, x, hc_fn, hc_scale, hc_base, norm=None"}
MIXING[">=0.5.16"] = MIXING["<0.5.16"] + ", forward_batch=None"
MLA, INDEXER = "SGLANG_SM120_MMA_FLASHMLA", "SGLANG_SM120_TRITON_INDEXER"


def stand_in(folder: Path, module: str, function: str, parameters: str) -> None:
    """A module of that name with one function, or one class with one method, that takes these parameters."""
    path = folder / (module.replace(".", "/") + ".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    *outer, name = function.split(".")
    path.write_text("".join(f"class {one}:\n    " for one in outer) + f"def {name}({parameters}): return 'theirs'\n")


def imported(folder: Path, module: str, function: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """An interpreter that loads the overlays as their .pth files do, and then imports the module."""
    code = (
        "import pd_overlay_sm120_decode, pd_overlay_sm120_hc_pre, importlib, json, operator, os;"
        f"found = operator.attrgetter({function!r})(importlib.import_module({module!r}));"
        "print(json.dumps([found.__module__, os.environ.get('SGLANG_SM120_FLASHMLA_BACKEND'), found.__name__]))"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=clean | environment | {"PYTHONPATH": f"{PACKAGE}:{HC_PRE}:{HOOK}:{folder}"},
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
    (theirs, backend, _), (ours, asked, _) = (
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


def test_hc_pre_is_ours_with_the_parameters_that_the_version_has(tmp_path: Path) -> None:
    """So that the layer calls it as its own, and pd-patch compares what is installed before anything is placed."""
    (targets,) = yaml.safe_load((HC_PRE / "manifest.yaml").read_text())["targets"].values()
    assert {target["sglang"] for target in targets} == MIXING.keys()
    for target in targets:
        function, parameters = target["function"], MIXING[target["sglang"]]
        assert target["parameters"] == parameters.replace("=None", "").split(", ")
        stand_in(tmp_path, LAYER, function, parameters)
        assert json.loads(imported(tmp_path, LAYER, function).stdout)[0] == LAYER == target["module"]
        ran = imported(tmp_path, LAYER, function, **{VARIABLE: "1"})
        module, _, name = json.loads(ran.stdout)
        assert module == method.__name__
        assert pd_overlay_hook.parameters(getattr(method, name)) == target["parameters"]
        assert ran.stderr == f"active: {VARIABLE}: {LAYER}.{function} is ours\n"


def test_hc_pre_with_other_parameters_is_an_error_with_all_sides(tmp_path: Path) -> None:
    function = "DeepseekV4DecoderLayer.hc_pre"
    stand_in(tmp_path, LAYER, function, "self, x")
    ran = imported(tmp_path, LAYER, function, **{VARIABLE: "1"})
    assert ran.returncode != 0
    assert "takes self, x; ours was written for self, x, hc_fn, hc_scale, hc_base, norm, forward_batch" in ran.stderr
    assert "or for self, x, hc_fn, hc_scale, hc_base, norm\n" in ran.stderr


def test_fusing_that_hardly_calls_hc_pre_is_an_error(tmp_path: Path) -> None:
    ran = imported(tmp_path, "json", "dumps", **{VARIABLE: "1", "SGLANG_OPT_FUSE_MHC_POST_PRE": "true"})
    assert ran.returncode != 0
    assert "SGLANG_OPT_FUSE_MHC_POST_PRE=true: with that, hc_pre is hardly called" in ran.stderr


@pytest.mark.parametrize("with_batch", [True, False])
def test_hc_pre_gives_what_the_layer_expects(with_batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers come from the layer; from 0.5.16 on, y lies where the layer's module allocates what GPUs add up."""
    allocated = []

    @contextlib.contextmanager
    def use_symmetric_memory(group: str, disabled: bool) -> Iterator[None]:
        allocated.append((group, disabled))
        yield

    upstream = ModuleType(LAYER)
    upstream.use_symmetric_memory = use_symmetric_memory
    upstream.get_tp_group = lambda: "group"
    upstream.is_allocation_symmetric = lambda: False
    names = LAYER.split(".")
    for n in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:n]), ModuleType(".".join(names[:n])))
    monkeypatch.setitem(sys.modules, LAYER, upstream)
    monkeypatch.setattr(sys.modules[LAYER.rpartition(".")[0]], "deepseek_v4", upstream, raising=False)

    given = reference.mixing_input(2, 128, torch.Generator().manual_seed(1))
    layer = SimpleNamespace(hc_sinkhorn_iters=reference.SINKHORN, rms_norm_eps=reference.RMS_EPS, hc_eps=reference.EPS)
    call = method.hc_pre if with_batch else method.hc_pre_without_batch
    y, post, comb, normed = call(layer, given.x, given.weight, given.scale, given.base, norm=object())
    wanted = reference.mixing(given)
    assert normed is False
    assert reference.relative_error(y, wanted[0]) < 2**-8
    assert reference.relative_error(post, wanted[1]) < 1e-6 > reference.relative_error(comb, wanted[2])
    assert allocated == ([("group", True)] if with_batch else [])
    y, *_ = call(layer, given.x[:0], given.weight, given.scale, given.base)
    assert y.shape == (0, 128) and len(allocated) == with_batch, "as upstream, nothing for no rows"
