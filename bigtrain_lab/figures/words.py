"""The words on pictures: short labels of boxes, and the unit of a time axis."""

from functools import lru_cache
from itertools import pairwise

from ..core import Trace
from ..core.trace import ACTION


def labels(trace: Trace) -> dict[str, str]:
    """Span name -> label. "2F0" is F0 where each rank has one stage; "2F0+2F1+2F2" is F0-2."""
    names = {span.name: span.rank for span in trace.spans()}
    homes = {(rank, stage) for name, rank in names.items() for stage in stages_of(name)}
    many = len(homes) > len({rank for rank, _ in homes})
    return {name: label(name, many) for name in names}


@lru_cache(maxsize=1 << 16)
def stages_of(name: str) -> tuple[str, ...]:
    return tuple(stage for stage, _, _ in ACTION.findall(name))


@lru_cache(maxsize=1 << 16)
def label(name: str, with_stage: bool = False) -> str:
    """The label of one name; a name that is not made of actions stays as it is."""
    parts = name.split("+")
    actions = [ACTION.fullmatch(part) for part in parts]
    if not all(actions):
        return name
    heads = [(a[1] if with_stage else "") + a[2] for a in actions]
    numbers = [int(a[3]) for a in actions]
    if len(actions) > 1 and len(set(heads)) == 1 and all(b - a == 1 for a, b in pairwise(numbers)):
        return f"{heads[0]}{numbers[0]}–{numbers[-1]}"
    return "+".join(f"{head}{number}" for head, number in zip(heads, numbers, strict=True))


def axis_unit(trace: Trace) -> tuple[str, float]:
    """(unit for a time axis, its units per trace unit), so that the last number on it is between 1 and 1,000."""
    if trace.unit != "s":
        return trace.unit + "s", 1.0
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if trace.makespan * factor >= 1:
            return name, factor
    return "ns", 1e9
