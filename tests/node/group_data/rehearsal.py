"""The simulated node: SGLang on the CPU, one recorded GPU a role."""

release = "sglang-0.5.20-cpu"
model = "rehearsal-qwen2"
context_length = 1024
prefill_tensor_parallel = 1
decode_tensor_parallel = 1
prefill_chunked_prefill = 1024
worker_ready_limit = 300
stop_limit = 45
