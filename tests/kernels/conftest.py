"""The kernels run under Triton's interpreter here: on the CPU, as written. Set before they are imported."""

import os
import sys
from pathlib import Path

import torch

os.environ["TRITON_INTERPRET"] = "1"
PACKAGE = Path(__file__).resolve().parents[2] / "files/kernels/sm120-decode"
HC_PRE = PACKAGE.with_name("sm120-hc-pre")
HOOK = PACKAGE.with_name("hook")
sys.path[:0] = [str(PACKAGE), str(HC_PRE), str(HOOK)]
torch.set_num_threads(1)  # the arrays are small: threads cost more than they bring
