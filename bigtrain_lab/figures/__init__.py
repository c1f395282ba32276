"""Pictures of traces: each file is one pure function Trace -> plotly Figure of the file's name. Add a file, gain one.

They draw what a Trace answers and compute nothing themselves; experiments name them: figures = ("timeline", "memory").
"""

from importlib import import_module
from pkgutil import iter_modules

from ..core import Impossible

FIGURES = {}
for _module in iter_modules(__path__):
    _draw = getattr(import_module(f"{__name__}.{_module.name}"), _module.name, None)
    if callable(_draw):
        FIGURES[_module.name] = globals()[_module.name] = _draw


def figure(name: str, trace):
    """The figure of this name of a trace (of several, for `compare`)."""
    if name not in FIGURES:
        raise Impossible(f"There is no figure called {name!r}: choose one of {', '.join(FIGURES)}.")
    return FIGURES[name](trace)
