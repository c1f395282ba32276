"""Predictions that are kept: what a lab said of some settings once, it says again without torch.

What depends on this machine or on a file is said anew.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from ..core import Trace
from ..runtime.calibrate import NAME as MACHINE
from ..runtime.kept import kept
from .experiment import Experiment, Quantity


class Known(NamedTuple):
    """What stands in the place of an experiment where its prediction, `trace`, is shown. `rows`: of
    each quantity name, unit, value, `exact` and what is apart."""

    name: str
    question: str
    trace: Trace
    description: str
    sentences: list[str]
    rows: list[tuple]

    def describe(self) -> str:
        return self.description

    def explain(self, trace: Trace) -> list[str]:
        return self.sentences

    @property
    def quantities(self) -> list[Quantity]:
        return [
            Quantity(name, unit, lambda _, value=value: value, exact, lambda _, apart=apart: apart)
            for name, unit, value, exact, apart in self.rows
        ]


def known(cls: type[Experiment], settings: dict[str, Any]) -> Known:
    """The prediction of all these settings."""
    read = settings.get("text") or settings.get("file")
    measured = {MACHINE, "measured"} & {*settings.values()}
    tell = predicted.__wrapped__ if read or measured else predicted
    return tell(cls, tuple(settings.items()), cls.members(settings))


@kept
def predicted(
    cls: type[Experiment], settings: tuple[tuple[str, Any], ...], members: tuple[type, ...]
) -> Known:
    """`members`: the classes that the settings name."""
    experiment = cls(**dict(settings))
    trace = experiment.predict()
    return Known(
        cls.name,
        cls.question,
        replace(trace),  # without what was found in it
        experiment.describe(),
        experiment.explain(trace),
        [(q.name, q.unit, q.of(trace), q.exact, q.apart(trace)) for q in experiment.quantities],
    )
