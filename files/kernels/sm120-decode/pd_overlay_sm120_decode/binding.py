"""Functions of ours in the place of SGLang's, by the variable that asks for them."""

import os

import pd_overlay_hook as hook

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


def install(variables):
    """Bind what these variables ask for. Raises MisfitError where another variable contradicts them."""
    if "SGLANG_SM120_MMA_FLASHMLA" in variables:
        backend = os.environ.setdefault(BACKEND, "triton")
        if backend != "triton":
            raise hook.MisfitError(
                f"SGLANG_SM120_MMA_FLASHMLA=1 and {BACKEND}={backend}: with that backend it is never called"
            )
    for variable in variables:
        for module, (theirs, ours, name) in TARGETS[variable].items():
            hook.bind(variable, module, theirs, f"{__package__}.{ours}:{name}")
