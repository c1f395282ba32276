"""Pictures of traces: each file is one pure function Trace -> plotly Figure of the file's name. Add
a file, gain one.

They draw what a Trace answers and compute nothing themselves; experiments name them: figures =
("timeline", "memory").
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from html import escape
from importlib import import_module
from pkgutil import iter_modules

from ...core import Trace
from ...core.impossible import refuse_unknown

MARKUP = re.compile("[<>&]")


def literal(value):
    """The same trace, event or setting with each text as plotly shows it: plotly reads tags and
    entities."""
    match value:
        case str():
            return escape(value, quote=False) if MARKUP.search(value) else value
        case Trace():
            texts = {text for event in value.events for text in event if type(text) is str}
            events = (
                tuple(map(literal, value.events))
                if any(map(MARKUP.search, texts))
                else value.events
            )
            return replace(
                value, events=events, unit=literal(value.unit), settings=literal(value.settings)
            )
        case dict():
            return {literal(key): literal(each) for key, each in value.items()}
        case Iterator():
            return [*map(literal, value)]
        case list() | tuple():  # a named tuple is made of its fields
            return getattr(value, "_make", type(value))(map(literal, value))
    return value


def literally(draw):
    """The same figure, of traces whose texts are shown as they are."""

    @wraps(draw)
    def drawn(given, *args, **options):
        return draw(literal(given), *args, **options)

    return drawn


FIGURES = {}
for _module in iter_modules(__path__):
    _draw = getattr(import_module(f"{__name__}.{_module.name}"), _module.name, None)
    if callable(_draw):
        FIGURES[_module.name] = globals()[_module.name] = literally(_draw)


def figure(name: str, trace):
    """The figure of this name of a trace (of several, for `compare`; of several by name, for
    `microscope`)."""
    refuse_unknown("figure called", name, FIGURES)
    return FIGURES[name](trace)
