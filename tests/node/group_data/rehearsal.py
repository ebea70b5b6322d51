"""The simulated host: SGLang on the CPU, one recorded GPU a role."""

import os

from tests.node.package_sources import wheel_is_at_hand

release = "sglang-0.5.20-cpu"
torch_wheel = "cpu" if "TORCH_INDEX" in os.environ or wheel_is_at_hand("torch-*+cpu-*.whl") else "ordinary"
package_extra_indexes = [os.environ["TORCH_INDEX"]] if "TORCH_INDEX" in os.environ else []  # one with CPU wheels

model = "rehearsal-qwen2"
context_length = 1024
prefill_tensor_parallel = 1
decode_tensor_parallel = 1
server_tensor_parallel = 1
server_chunked_prefill = 1024
prefill_chunked_prefill = 1024
worker_ready_limit = 600  # seconds; two cores start both servers at once
stop_limit = 45
