"""Predictions that are kept: what a lab said of some settings once, it says again without torch.

What depends on this machine or on a file is said anew.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ..core import Trace
from ..runtime.calibrate import NAME as MACHINE
from ..runtime.kept import kept
from .experiment import Experiment, Quantity


def known(cls: type[Experiment], settings: dict[str, Any]) -> SimpleNamespace:
    """What stands in the place of the experiment of all these settings where its prediction,
    `trace`, is shown: name, question, describe(), explain(trace) and quantities."""
    own = (
        settings.get("text") or settings.get("file") or {MACHINE, "measured"} & {*settings.values()}
    )
    tell = predicted.__wrapped__ if own else predicted
    trace, described, explained, rows = tell(cls, tuple(settings.items()), cls.members(settings))
    return SimpleNamespace(
        name=cls.name,
        question=cls.question,
        trace=trace,
        describe=lambda: described,
        explain=lambda _: explained,
        quantities=[
            Quantity(name, unit, lambda _, value=value: value, exact, lambda _, apart=apart: apart)
            for name, unit, value, exact, apart in rows
        ],
    )


@kept
def predicted(
    cls: type[Experiment], settings: tuple[tuple[str, Any], ...], members: tuple[type, ...]
) -> tuple[Trace, str, list[str], list[tuple]]:
    """The trace, what the lab says of it, and of each quantity name, unit, value, `exact` and what
    is apart. `members`: the classes that the settings name."""
    experiment = cls(**dict(settings))
    trace = experiment.predict()
    return (
        replace(trace),  # without what was found in it
        experiment.describe(),
        experiment.explain(trace),
        [(q.name, q.unit, q.of(trace), q.exact, q.apart(trace)) for q in experiment.quantities],
    )
