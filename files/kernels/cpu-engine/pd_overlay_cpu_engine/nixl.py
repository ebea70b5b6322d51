"""NIXL's agent, fitted to a CPU server: its memory is host memory, and it shares few cores."""

import functools

import pd_overlay_hook as hook

MODULE = "nixl_cu13._api"
METHODS = ("register_memory", "get_reg_descs", "get_xfer_descs", "prep_xfer_dlist")
PROGRESS_DELAY = 10_000  # us that the progress thread waits for an event before it looks by itself


def _host(value):
    return "DRAM" if isinstance(value, str) and value == "VRAM" else value


def _on_host(method):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return method(self, *map(_host, args), **{key: _host(value) for key, value in kwargs.items()})

    return call


def _patient(config_class):
    """The agent's configuration, whose delay NIXL sets to 0: a thread that takes a whole core."""

    class Patient(config_class):
        @property
        def pthrDelay(self):
            return config_class.pthrDelay.__get__(self)

        @pthrDelay.setter
        def pthrDelay(self, _):
            config_class.pthrDelay.__set__(self, PROGRESS_DELAY)

    return Patient


def _fit(module):
    for name in METHODS:
        setattr(module.nixl_agent, name, _on_host(getattr(module.nixl_agent, name)))
    module.nixlBind.nixlAgentConfig = _patient(module.nixlBind.nixlAgentConfig)
    hook.report("SGLANG_USE_CPU_ENGINE", MODULE, "nixl_agent")


def install():
    hook.after(MODULE, _fit)
