"""Functions of ours in the place of SGLang's, bound when the module that holds theirs is imported."""

import importlib
import inspect
import logging
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader

logger = logging.getLogger("pd_overlay_sm120_decode")

DECODE = ("flash_mla_sparse_decode_triton", "sparse_mla", "flash_mla_sparse_decode")
# variable -> module of SGLang -> (its function, our module, our function)
TARGETS = {
    "SGLANG_SM120_MMA_FLASHMLA": {
        "sglang.srt.layers.attention.flash_mla_sm120_triton": DECODE,
        "sglang.kernels.ops.attention.flash_mla_sm120_triton": DECODE,
    },
    "SGLANG_SM120_TRITON_INDEXER": {
        "sglang.srt.layers.attention.dsv4.indexer": (
            "fp8_paged_mqa_logits_torch_sm120",
            "indexer",
            "fp8_paged_mqa_logits",
        ),
        # From 0.5.16 on SGLang sends sm_120 to TileLang by itself, in 0.5.16 and 0.5.17 whatever the environment says.
        "sglang.kernels.ops.attention.dsa.tilelang_kernel": (
            "tilelang_fp8_paged_mqa_logits",
            "indexer",
            "fp8_paged_mqa_logits",
        ),
    },
}
BACKEND = "SGLANG_SM120_FLASHMLA_BACKEND"  # since 0.5.14; its default, flashinfer, never calls what we replace


class Misfit(ImportError):
    """What is installed is not what a kernel was written for."""


def parameters(function):
    """The names of a function's parameters, without `options`, which only ours has."""
    return [name for name in inspect.signature(function).parameters if name != "options"]


def bind(module, variable, target):
    """Put our function in the place of the module's. Raises Misfit, with both sides, where it does not fit."""
    theirs, ours, name = target
    replaced = getattr(module, theirs, None)
    if replaced is None:
        raise Misfit(f"{variable}=1, but {module.__name__} has no {theirs}: this SGLang is none that the kernel fits")
    ours = getattr(importlib.import_module(f"{__package__}.{ours}"), name)
    if parameters(replaced) != parameters(ours):
        raise Misfit(
            f"{variable}=1, but {module.__name__}.{theirs} takes {', '.join(parameters(replaced))}; "
            f"the kernel was written for {', '.join(parameters(ours))}"
        )
    setattr(module, theirs, ours)
    logger.warning("active: %s: %s.%s is ours", variable, module.__name__, theirs)


class _Loader(SourceFileLoader):
    def __init__(self, loader, bindings):
        super().__init__(loader.name, loader.path)
        self.bindings = bindings

    def exec_module(self, module):
        super().exec_module(module)
        for variable, target in self.bindings:
            bind(module, variable, target)


class Finder(MetaPathFinder):
    """Sees the import of a target first and binds right after it."""

    def __init__(self, variables):
        self.bindings = {}
        for variable in variables:
            for module, target in TARGETS[variable].items():
                self.bindings.setdefault(module, []).append((variable, target))

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.bindings:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader, self.bindings[fullname])
        return spec


def install(variables):
    """Watch for the modules of these variables. Raises Misfit where another variable contradicts them."""
    if "SGLANG_SM120_MMA_FLASHMLA" in variables:
        backend = os.environ.setdefault(BACKEND, "triton")
        if backend != "triton":
            raise Misfit(f"SGLANG_SM120_MMA_FLASHMLA=1 and {BACKEND}={backend}: with that backend it is never called")
    sys.meta_path.insert(0, Finder(variables))  # first: it has to see the import before the usual finder
