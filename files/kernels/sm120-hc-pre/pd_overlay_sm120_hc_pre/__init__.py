"""DeepSeek-V4's hc_pre for GPUs without an SM100 path, on tensor cores.

Loaded by every interpreter of the environment through the .pth file beside it. With
SGLANG_SM120_MMA_HC_PRE=1 the method of SGLang's decoder layer is replaced when its module is imported
(method.py, kernels in mixing.py), and the log says so. Without, nothing changes.

A module without the method, or a method with other parameters, is an error at import: a server that was
asked for it does not run without it.
"""

import os

VARIABLE = "SGLANG_SM120_MMA_HC_PRE"
FUSED = "SGLANG_OPT_FUSE_MHC_POST_PRE"  # where it works, only the first layer's first mixing still calls hc_pre

if os.environ.get(VARIABLE) == "1":
    import pd_overlay_hook as hook

    if hook.is_on(FUSED):
        raise hook.MisfitError(f"{VARIABLE}=1 and {FUSED}={os.environ[FUSED]}: with that, hc_pre is hardly called")
    hook.bind(
        VARIABLE,
        "sglang.srt.models.deepseek_v4",
        "DeepseekV4DecoderLayer.hc_pre",
        (f"{__name__}.method:hc_pre", f"{__name__}.method:hc_pre_without_batch"),
    )
