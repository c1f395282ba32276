"""From settings to their prediction, or to the nearest settings that can be: one changed, first the one that was moved last."""

import time
from traceback import extract_tb
from typing import NamedTuple

from .. import report
from ..core import Impossible, Trace
from .controls import nearby

PATIENCE_S = 0.25


class Prediction(NamedTuple):
    """All that a panel shows of settings before they run."""

    experiment: object
    trace: Trace
    description: str
    sentences: list[str]
    column: report.Column


def attempt(experiment_class: type, settings: dict) -> Prediction | str:
    """The prediction, or the sentence that says why these settings cannot be."""
    try:
        experiment = experiment_class(**settings)
        trace = experiment.predict()
        return Prediction(experiment, trace, experiment.describe(), experiment.explain(trace), report.column(experiment.quantities, trace))
    except Impossible as error:
        return str(error)
    except Exception as error:  # a class typed by a student may raise anything
        return raised(error)


def raised(error: Exception) -> str:
    """What a class raised, and where."""
    where = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (in {where.name}, line {where.lineno})"


def nearest(experiment_class: type, settings: dict, moved: str | None) -> dict | None:
    """{setting: value} that makes these settings work, or None where no single change found in time does."""
    deadline = time.monotonic() + PATIENCE_S
    knobs = experiment_class.knobs()
    for name in sorted(knobs, key=lambda name: (name != moved, knobs[name].more)):  # the sort is stable: else their own order
        for value in nearby(knobs[name], experiment_class.model_fields[name].annotation, settings[name]):
            if time.monotonic() > deadline:
                return None
            try:
                experiment_class(**{**settings, name: value}).predict()
                return {name: value}
            except Exception:  # a class typed by a student may raise anything
                continue
    return None
