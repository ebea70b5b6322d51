"""A check of ours in the place of SGLang's; SGLANG_TEST_NEVER_BOUND is named here, but switches nothing."""

import sys

import pd_overlay_hook as hook


def validate_input_length(req, max_req_input_len, allow_auto_truncate):
    length = len(req.origin_input_ids)
    sys.stderr.write(f"input-length: ours was asked about {length} tokens\n")
    return None if length < max_req_input_len else f"{length} tokens are too many"


if hook.is_on("SGLANG_TEST_INPUT_LENGTH"):
    hook.bind(
        "SGLANG_TEST_INPUT_LENGTH",
        "sglang.srt.managers.utils",
        "validate_input_length",
        "pd_overlay_input_length:validate_input_length",
    )
