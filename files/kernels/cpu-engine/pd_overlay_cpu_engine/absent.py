"""Stand-ins for GPU packages that are imported everywhere and used only on a GPU."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType

PACKAGES = frozenset({"triton", "sgl_kernel", "torchvision"})


def _same(decorated):
    return decorated


class _Name(type):
    """Metaclass of every name in an absent package.

    A name is a class, so that it serves in annotations (`tl.tensor | None`), as a base class, in
    isinstance() and, having more names below it, as a namespace (`tl.math.exp`).
    """

    def __new__(cls, path, bases=(), body=None):
        return super().__new__(cls, path, bases, body or {})

    def __init__(cls, path, bases=(), body=None):
        super().__init__(path, bases, body or {})

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        child = _Name(f"{cls.__name__}.{name}")
        setattr(cls, name, child)
        return child

    def __call__(cls, *args, **kwargs):
        if cls.__name__.startswith("triton."):
            # @triton.jit gets the function; @triton.autotune(...), triton.Config(...) only describe.
            bare = len(args) == 1 and not kwargs and isinstance(args[0], (FunctionType, type))
            return args[0] if bare else _same
        raise RuntimeError(f"{cls.__name__} was called, but this environment has no GPU packages")


class _Module(ModuleType):
    __version__ = "3.0.0"  # callers compare it; any version that parses will do

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        value = sys.modules.get(path) or _Name(path)
        setattr(self, name, value)
        return value


class Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        return ModuleSpec(fullname, self, origin="pd_overlay_cpu_engine", is_package=True)

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__file__ = __file__  # inspect and torch want every module to have one
        return module

    def exec_module(self, module):
        if module.__name__ == "triton":  # plain arithmetic that CPU code uses too
            module.cdiv = lambda x, y: -(-x // y)
            module.next_power_of_2 = lambda n: 1 << (n - 1).bit_length() if n > 0 else 1
