"""From settings to their prediction, or to the nearest settings that can be: one changed, first the
number that was moved last."""

import re
import threading
import time
from dataclasses import dataclass
from traceback import extract_tb

from ..core import Impossible, Trace
from ..order.plan import collector_paused
from ..view import report, table
from .controls import nearby

PATIENCE_S = 0.25
ONCE = threading.RLock()


@dataclass(eq=False)
class Prediction:
    """All that a panel shows of settings before they run. At first the column has the answers above
    the picture alone, and the trace of a lab that looks late what is held where actions end. `tell`
    fills in all others and the sentences, and sets `told`."""

    experiment: object
    trace: Trace
    description: str
    sentences: list[str]
    column: report.Column
    only_predicted: str
    told: threading.Event


@collector_paused()
def attempt(first, settings: dict, whole: bool = True) -> Prediction | str:
    """The prediction of `first` with these settings, or the sentence that says why they cannot
    be. `whole`: with all that its lab says of it."""
    try:
        experiment = first.replace(**settings)
        trace = experiment.predict(inside=False) if experiment.looks_late else experiment.predict()
        shown = [] if experiment.tells_late else table.above(experiment)
        found = Prediction(
            experiment,
            trace,
            experiment.describe(),
            [],
            report.column(shown, trace),
            experiment.only_predicted,
            threading.Event(),
        )
        if whole and not experiment.tells_late:
            tell(found)
        return found
    except Exception as error:  # a class typed by a student may raise anything
        return raised(error)


def tell(found: Prediction) -> None:
    """Fill in what its lab says of a prediction, once."""
    with ONCE:
        if not found.told.is_set():
            experiment, trace = found.experiment, found.trace
            if experiment.looks_late:
                trace = experiment.memory.looked_into(trace)
            found.column.update(report.column(experiment.quantities, trace))
            found.sentences, found.trace = experiment.explain(trace), trace
            found.told.set()


def raised(error: Exception) -> str:
    """What a class raised, and where; an Impossible is a sentence already."""
    if isinstance(error, Impossible):
        return str(error)
    where = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (in {where.name}, line {where.lineno})"


def nearest(first, settings: dict, moved: str | None, sentence: str = "") -> dict | None:
    """{setting: value} that makes `first` with these settings work, or None where no single change
    found in time does.

    The number that was moved last comes first, then what the sentence that refuses them names: who
    has just chosen a plan does not want another one.
    """
    deadline = time.monotonic() + PATIENCE_S
    knobs, fields, said = (
        first.knobs(),
        type(first).model_fields,
        sentence.lower().replace("-", " "),
    )
    named = {
        name: found.start()
        for name in knobs
        if (found := re.search(rf"\b{name.replace('_', ' ')}\b", said))
    }
    chosen = {name for name in knobs if knobs[name].choices is not None}

    def turn(name):
        return (
            name != moved or (bool(named) and name in chosen),
            named.get(name, len(said)),
            name != moved,
            knobs[name].more,
        )

    for name in sorted(knobs, key=turn):  # the sort is stable: else their own order
        if fields[name].annotation is float and name != moved and name not in named:
            continue  # it has many values, and nobody speaks of it
        for value in nearby(knobs[name], fields[name].annotation, settings[name]):
            if time.monotonic() > deadline:
                return None
            try:
                first.replace(**{**settings, name: value}).predict()
                return {name: value}
            except Exception:  # a class typed by a student may raise anything
                continue
    return None
