"""DeepSeek-V4's decode kernels for GPUs without an SM100 path, on tensor cores.

Loaded by every interpreter of the environment through the .pth file beside it. Without one of the two
variables it changes nothing. With one, a function of ours is bound in place of the one of SGLang when
its module is imported, and the log says so:

- SGLANG_SM120_MMA_FLASHMLA=1: the sparse MLA decode (sparse_mla.py). It also asks SGLang for its Triton
  backend, which is where that function is called.
- SGLANG_SM120_TRITON_INDEXER=1: the indexer's logits (indexer.py), for the torch and the TileLang path.

A module without the function, or a function with other parameters, is an error at import: a server
that was asked for a kernel does not run without it.
"""

import os

ASKED = [name for name in ("SGLANG_SM120_MMA_FLASHMLA", "SGLANG_SM120_TRITON_INDEXER") if os.environ.get(name) == "1"]

if ASKED:
    from . import binding

    binding.install(ASKED)
