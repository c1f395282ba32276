"""The words on pictures: names of rows, short labels of boxes, and the unit of a time axis."""

import re
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise

from ..core import Trace, refuse
from ..core.trace import ACTION

NAMES = re.compile(r"\b\d+[A-Z]\d+(?:\+\d+[A-Z]\d+)*\b")  # of actions in a sentence
PIPELINE = {"micro_batch": "micro-batch", "stage": "stage"}


def facts(trace: Trace) -> dict:
    """What a trace keeps beside its settings."""
    found = trace.settings.get("facts")
    return found if isinstance(found, dict) else {}


def facts_of(trace: Trace, name: str, lacks: str, lab: str) -> dict:
    """What a trace keeps beside its settings, this name among it; a trace of another lab than
    `lab` lacks it, which is said in words."""
    found = facts(trace)
    refuse((name not in found, f"This trace {lacks}: take one of the experiment {lab}."))
    return found


def terms(trace: Trace) -> dict[str, str]:
    """What the numbers of an action's name count, the telling one first: {"stage": "layer",
    "micro_batch": "pass"} where layers are run one by one."""
    told = facts(trace).get("terms")
    return told if isinstance(told, dict) and told and told.keys() <= PIPELINE.keys() else PIPELINE


def rank_names(trace: Trace) -> list[str]:
    """Of each rank, such as "rank 0", and what it is where a lab tells it: "rank 4 (server)"."""
    roles = facts(trace).get("roles")
    told = roles if isinstance(roles, list) and len(roles) == trace.ranks else [None] * trace.ranks
    return [f"rank {rank}{f' ({role})' if role else ''}" for rank, role in enumerate(told)]


def rows_of(trace: Trace) -> list[tuple[int, str]]:
    """(rank, lane) of each row, a rank's compute lane first; a lane may have messages alone."""
    lanes = {(rank, "compute") for rank in range(trace.ranks)} | {
        (e.rank, e.lane) for e in (*trace.spans(), *trace.transfers())
    }
    return sorted(lanes, key=lambda row: (row[0], row[1] != "compute", row[1]))


def row_name(row: tuple[int, str]) -> str:
    rank, lane = row
    return f"rank {rank}" if lane == "compute" else f"{rank} {lane}"


def labels(trace: Trace) -> dict[str, str]:
    """Name of a box or of a message -> label."""
    label_of = labelling(trace)
    names = dict.fromkeys(event.name for event in (*trace.spans(), *trace.transfers()))
    return {name: label_of(name) for name in names}


def labelling(trace: Trace) -> Callable[[str], str]:
    """Name -> label: "2F0" is F0 where each rank has one stage; "2F0+2F1+2F2" is F0-2. It is F2
    where the first number tells. Steps are counted from 1, as everywhere in a panel."""
    told = terms(trace)
    first = int(told.get("micro_batch") == "step")
    if next(iter(told)) == "stage":
        return partial(
            ACTION.sub,
            lambda action: (
                f"{action[2]}{int(action[3]) + first if action[2] in 'ULRC' else action[1]}"
            ),
        )
    homes = {(span.rank, stage) for span in trace.spans() for stage in stages_of(span.name)}
    return partial(label, with_stage=len(homes) > len({rank for rank, _ in homes}), first=first)


def in_labels(text: str, trace: Trace) -> str:
    """A sentence, with labels of boxes in place of the names of actions."""
    label_of = labelling(trace)
    return NAMES.sub(lambda name: label_of(name[0]), text)


@lru_cache(maxsize=1 << 16)
def stages_of(name: str) -> tuple[str, ...]:
    return tuple(stage for stage, _, _ in ACTION.findall(name))


@lru_cache(maxsize=1 << 16)
def label(name: str, with_stage: bool = False, first: int = 0) -> str:
    """The label of one name; a name that is not made of actions stays as it is."""
    actions = [ACTION.fullmatch(part) for part in name.split("+")]
    if not all(actions):
        return name
    heads = [(a[1] if with_stage else "") + a[2] for a in actions]
    numbers = [int(a[3]) + first for a in actions]
    if len(actions) > 1 and len(set(heads)) == 1 and all(b - a == 1 for a, b in pairwise(numbers)):
        return f"{heads[0]}{numbers[0]}–{numbers[-1]}"
    return "+".join(f"{head}{number}" for head, number in zip(heads, numbers, strict=True))


def axis_unit(trace: Trace) -> tuple[str, float]:
    """(unit for a time axis, its units per trace unit), so that the last number on it is between 1
    and 1,000."""
    if trace.unit != "s":
        return trace.unit + "s", 1.0
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if trace.makespan * factor >= 1:
            return name, factor
    return "ns", 1e9
