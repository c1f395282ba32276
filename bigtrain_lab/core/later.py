"""Imports that wait, so that what predicts starts without torch.

    with later():
        import torch

        from .. import models

A module that is named in such a block is imported when something is first asked of it, as
`models.GPT` asks: linters and readers see plain imports. `np` and `torch` wait too.
"""

import builtins
import sys
from collections.abc import Callable
from contextlib import contextmanager
from importlib import import_module
from importlib.util import resolve_name
from types import ModuleType, SimpleNamespace


class Later(ModuleType):
    """A module that is not imported yet."""

    def __getattr__(self, name: str):
        return getattr(import_module(self.__name__), name)

    def __reduce__(self):
        return Later, (self.__name__,)


@contextmanager
def later():
    """Name modules by `import a` and `from package import a, b`. Other threads, and modules, import
    as always meanwhile."""
    plain, own = builtins.__import__, sys._getframe(2).f_globals  # 1 is contextlib's

    def wait(name, scope=None, places=None, names=(), level=0):
        if scope is not own:
            return plain(name, scope, places, names, level)
        whole = resolve_name("." * level + name, own["__package__"])
        found = {each: Later(f"{whole}.{each}") for each in names or ()}
        return SimpleNamespace(**found) if names else Later(whole)

    builtins.__import__ = wait
    try:
        yield
    finally:
        builtins.__import__ = plain


np, torch = Later("numpy"), Later("torch")


def put_compiler_to_sleep() -> Callable[[], None]:
    """Keep torch from importing its compiler, which takes two seconds and 70 MB, only to hide
    functions from it. Whoever asks for more of the compiler gets the real one. Returns what ends
    this. Then, and for the real one, torch hides these functions anew."""
    if "torch._dynamo" in sys.modules:
        return lambda: None
    torch, hidden, stand_in = import_module("torch"), [], ModuleType("torch._dynamo")

    def end() -> None:
        if vars(torch).get("_dynamo") is stand_in:
            del sys.modules[stand_in.__name__], torch._dynamo
        for function in hidden:
            vars(function).pop("__dynamo_disable", None)

    def awake(name: str):
        if name == "__file__":  # who walks through all modules looks for it
            raise AttributeError(name)
        end()
        return getattr(import_module(stand_in.__name__), name)

    def disable(function, *_, **__):
        hidden.append(function)
        return function

    stand_in.disable, stand_in.graph_break, stand_in.__getattr__ = disable, lambda: None, awake
    # what torch clears when ranks meet
    stand_in.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
    sys.modules[stand_in.__name__] = torch._dynamo = stand_in
    return end


@contextmanager
def compiler_asleep():
    """The same meanwhile."""
    end = put_compiler_to_sleep()
    try:
        yield
    finally:
        end()


def compiler_awake() -> bool:
    """Whether torch's compiler has been imported: its stand-in has no spec."""
    return getattr(sys.modules.get("torch._dynamo"), "__spec__", None) is not None
