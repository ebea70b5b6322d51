"""hc_pre as a method of SGLang's decoder layer: what it takes from the layer, and what it gives back."""

import torch

from . import mixing


def hc_pre(self, x, hc_fn, hc_scale, hc_base, norm=None, forward_batch=None):
    """(y [rows, hidden], post [rows, 4], comb [rows, 4, 4], False: y is not normed yet). From SGLang 0.5.16."""
    from sglang.srt.models import deepseek_v4 as theirs

    y = None
    if x.shape[0] > 0:  # the experts write into y, and what lies in symmetric memory is summed over the GPUs faster
        with theirs.use_symmetric_memory(theirs.get_tp_group(), disabled=not theirs.is_allocation_symmetric()):
            y = torch.empty((x.shape[0], x.shape[-1]), dtype=x.dtype, device=x.device)
    return *mixing.mix(x, hc_fn, hc_scale, hc_base, self.hc_sinkhorn_iters, self.rms_norm_eps, self.hc_eps, y), False


def hc_pre_without_batch(self, x, hc_fn, hc_scale, hc_base, norm=None):
    """The same in 0.5.13, which knows neither of forward_batch nor of symmetric memory here."""
    return *mixing.mix(x, hc_fn, hc_scale, hc_base, self.hc_sinkhorn_iters, self.rms_norm_eps, self.hc_eps), False
