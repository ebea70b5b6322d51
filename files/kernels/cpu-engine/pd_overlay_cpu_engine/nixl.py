"""NIXL's agent, taught that the memory of a CPU server is host memory."""

import functools
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader

MODULE = "nixl_cu13._api"
METHODS = ("register_memory", "get_reg_descs", "get_xfer_descs", "prep_xfer_dlist")


def _host(value):
    return "DRAM" if isinstance(value, str) and value == "VRAM" else value


def _on_host(method):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return method(self, *map(_host, args), **{key: _host(value) for key, value in kwargs.items()})

    return call


class _Loader(SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        for name in METHODS:
            setattr(module.nixl_agent, name, _on_host(getattr(module.nixl_agent, name)))


class Finder(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
