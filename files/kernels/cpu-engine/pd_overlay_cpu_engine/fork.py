"""SGLang's processes forked instead of started anew: each would import torch and SGLang again, 9 s of CPU.

On a GPU that is what it takes, since a process that has used CUDA cannot be forked. A CPU server has nothing of the
kind, and with OMP_NUM_THREADS=1 no threads of OpenMP when it forks.
"""

import functools
import multiprocessing

import pd_overlay_hook as hook


def _fit(module):
    theirs = module._set_envs_and_config

    @functools.wraps(theirs)
    def ours(*args, **kwargs):
        theirs(*args, **kwargs)  # sets "spawn"
        multiprocessing.set_start_method("fork", force=True)

    module._set_envs_and_config = ours


def install():
    hook.after("sglang.srt.entrypoints.engine", _fit)
