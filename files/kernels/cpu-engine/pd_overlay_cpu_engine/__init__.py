"""Lets SGLang's GPU wheel serve on a host without a GPU, for rehearsals and tests.

Loaded by every interpreter of the environment through the .pth file beside it. Unless
SGLANG_USE_CPU_ENGINE=1 it changes nothing. With it:

- `triton`, `sgl_kernel` and `torchvision`, which SGLang imports on every device, can be imported
  where they are not installed. What stands in for them is good for `import`, annotations, base
  classes and decorators; asking it to compute raises RuntimeError.
- NIXL registers as host memory what SGLang calls GPU memory: the KV pool of a CPU server is host
  memory, but SGLang 0.5.20 says "VRAM" for the pool of every device.
- NIXL's progress thread waits for events instead of spinning: one of them a server would take every
  core of a small machine.
- Scheduler and detokenizer are forks of the server, which has imported already what they need: on a
  small machine the imports of three processes are most of a start.
"""

import os


def _install() -> None:
    import sys

    from . import absent, fork, nixl

    sys.meta_path.append(absent.Finder())  # last: an installed package wins over its stand-in
    nixl.install()
    fork.install()


if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    _install()
