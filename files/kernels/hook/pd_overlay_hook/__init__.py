"""The import hook that all patches share: it binds, and it reports what is in place.

Loaded by every interpreter of the environment through the .pth file beside it, where it only watches for one import.
An overlay says from its own __init__ what it binds:

    import pd_overlay_hook as hook
    hook.bind("SGLANG_X", "sglang.some.module", "function", "pd_overlay_mine.kernel:function")

The function of ours takes the place of SGLang's as soon as that module is imported. SGLang imports many modules at the
first request only. So in the processes that the server starts (schedulers, detokenizer), the modules that are watched
are imported once the scheduler's own is (in a fork, which has it already, at once): a server says before it loads
weights whether it has what it was asked for.
Then whole files and diffs that pd-patch placed are compared with what it noted in placed.json, and reported alike.

Lines on stderr: "active: ..." in the form of the manifest's log, "not active: ..." with the reason.
"""

import importlib
import inspect
import os
import sys
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

ANCHOR = "sglang.srt.managers.scheduler"  # imported by every process that serves; what it needs is there by then
LOG = "active: {variable}: {module}.{function} is ours"
OFF = ("", "0", "false", "no", "off")


class MisfitError(ImportError):
    """What is installed is not what a patch was written for."""


_watched = {}  # module -> what to call with it, in this order


def after(module, action):
    """Call action(module) right after this module was imported, or now if it was."""
    _watched.setdefault(module, []).append(action)
    if module in sys.modules:
        action(sys.modules[module])


def bind(variable, module, function, ours, log=LOG):
    """Put `ours` ("package.module:function") in the place of a module's function or Class.method.

    variable: what asks for it, for the log. ours: or several, of which the first with upstream's parameters is taken:
    what changes between versions. Raises MisfitError, at the import, where none fits.
    """
    ours = (ours,) if isinstance(ours, str) else ours
    after(module, partial(_bind, variable=variable, function=function, ours=ours, log=log))


def report(variable, module, function, log=LOG):
    """The line of a manifest's log: something of ours is in place."""
    _say(log.format(variable=variable, module=module, function=function))


def parameters(function):
    """The names of a function's parameters, without `options`, which only ours may have."""
    return [name for name in inspect.signature(function).parameters if name != "options"]


def _bind(module, variable, function, ours, log):
    *outer, name = function.split(".")
    holder = module
    for part in outer:
        holder = getattr(holder, part, None)
    theirs = getattr(holder, name, None)
    if theirs is None:
        raise MisfitError(
            f"{variable} asks for it, but {module.__name__} has no {function}: this SGLang is none that it fits"
        )
    ready = [getattr(importlib.import_module(where), what) for where, _, what in (one.partition(":") for one in ours)]
    fitting = [one for one in ready if parameters(one) == parameters(theirs)]
    if not fitting:
        raise MisfitError(
            f"{variable} asks for it, but {module.__name__}.{function} takes {', '.join(parameters(theirs))}; "
            f"ours was written for {', or for '.join(', '.join(parameters(one)) for one in ready)}"
        )
    setattr(holder, name, fitting[0])
    report(variable, module.__name__, function, log)


class _Finder(MetaPathFinder):
    """Sees the import of a watched module first."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in _watched:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                for action in _watched[fullname]:
                    action(module)

            spec.loader.exec_module = exec_module
        return spec


def _settle(_):
    """In a process of the server: bind what is left, compare placed files."""
    import multiprocessing.util

    if multiprocessing.current_process().name == "MainProcess":
        multiprocessing.util.register_after_fork(_settle_fork, _settle_fork)
        return
    for module in list(_watched):
        if module in sys.modules:
            continue
        try:
            importlib.import_module(module)
        except MisfitError:
            raise
        except Exception as error:
            _say(f"not active: {module} cannot be imported: {type(error).__name__}: {error}")
    _placed_files()


def _settle_fork(_):
    """In a fork of a process that has the scheduler's module."""
    try:
        _settle(_)
    except MisfitError as error:  # multiprocessing passes over errors here, not over this
        raise SystemExit(f"{__name__}.{type(error).__name__}: {error}") from error


def _placed_files():
    """Whole files and diffs: active when they lie there as they were placed and, with variables, one is on."""
    import hashlib
    import json
    from pathlib import Path

    here = Path(__file__).resolve().parent
    try:
        placed = json.loads((here / "placed.json").read_bytes())
    except (OSError, ValueError) as error:
        _say(f"not active: placed.json beside {__name__}: {error}")
        return
    for demand in placed["demands"]:
        path, variables = demand["path"], demand["variables"]
        if path is None or (variables and not any(map(is_on, variables))):
            continue
        try:
            found = hashlib.sha256((here.parent / path).read_bytes()).hexdigest()
        except OSError as error:
            found = error.strerror
        if found == placed["files"][path]["sha256"]:
            _say(demand["line"])
        else:
            _say(f"not active: {demand['patch']}: {path} is not as it was placed ({found})")


def is_on(variable):
    """Whether a variable asks for what it switches."""
    return os.environ.get(variable, "").strip().lower() not in OFF


def _say(line):
    """One line, in one piece: several processes write to the same journal."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


after(ANCHOR, _settle)
sys.meta_path.insert(0, _Finder())  # first: it has to see the import before the usual finder
