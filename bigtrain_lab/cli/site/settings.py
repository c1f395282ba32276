"""Which settings a lab's page offers, and which of them are made beforehand."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

from ...core import Knob
from ...core.later import later
from ...experiments import Experiment
from ...view import live

with later():
    from ...panel import controls

HERE = {"this-machine", "measured"}  # another machine in a browser
MOST, PAIRED = 8, 2  # positions of a slider, about; controls whose values are kept in pairs


def offered(cls: type[Experiment]) -> list[dict[str, Any]]:
    """The controls of a page: the settings that the lab is about, at a few values each."""
    first = live.defaults(cls)
    rows = [
        {
            "name": name,
            "label": name.replace("_", "-"),
            "help": controls.told(knob),
            "kind": "yes"
            if isinstance(first[name], bool)
            else "choice"
            if knob.menu()
            else "range",
            "values": values(knob, cls.model_fields[name].annotation, first[name]),
            "value": first[name],
        }
        for name, knob in cls.knobs().items()
        if not knob.more
    ]
    return [row for row in rows if len(row["values"]) > 1]


def values(knob: Knob, kind: type, value) -> list:
    """Of a menu all; of whole numbers few or doublings; of others some."""
    if menu := knob.menu():
        return [each for each in menu if each not in HERE]
    if kind is int and knob.high - knob.low > MOST:
        return controls.doublings(int(knob.low), int(knob.high), value)
    found = sorted({value, *controls.nearby(knob, kind, value)})
    return sorted({value, *found[-1:], *found[:: -(-len(found) // MOST)]})


def settings(cls: type[Experiment]) -> Iterator[dict[str, Any]]:
    """The defaults, each other value of a control, and the first controls' values in pairs."""
    rows = offered(cls)
    yield {}
    yield from ({row["name"]: to} for row in rows for to in row["values"] if to != row["value"])
    for one, other in combinations(rows[:PAIRED], 2):
        pairs = product(one["values"], other["values"])
        yield from ({one["name"]: first, other["name"]: second} for first, second in pairs)
