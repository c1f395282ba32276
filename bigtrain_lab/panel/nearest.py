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


def attempt(first, settings: dict) -> Prediction | str:
    """The prediction of `first` with these settings, or the sentence that says why they cannot be."""
    try:
        experiment = first.replace(**settings)
        trace = experiment.predict()
        return Prediction(experiment, trace, experiment.describe(), experiment.explain(trace), report.column(experiment.quantities, trace))
    except Exception as error:  # a class typed by a student may raise anything
        return raised(error)


def raised(error: Exception) -> str:
    """What a class raised, and where; an Impossible is a sentence already."""
    if isinstance(error, Impossible):
        return str(error)
    where = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (in {where.name}, line {where.lineno})"


def nearest(first, settings: dict, moved: str | None) -> dict | None:
    """{setting: value} that makes `first` with these settings work, or None where no single change found in time does."""
    deadline = time.monotonic() + PATIENCE_S
    knobs = first.knobs()
    for name in sorted(knobs, key=lambda name: (name != moved, knobs[name].more)):  # the sort is stable: else their own order
        for value in nearby(knobs[name], type(first).model_fields[name].annotation, settings[name]):
            if time.monotonic() > deadline:
                return None
            try:
                first.replace(**{**settings, name: value}).predict()
                return {name: value}
            except Exception:  # a class typed by a student may raise anything
                continue
    return None
