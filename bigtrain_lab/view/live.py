"""What a page asks of a lab in a browser, where Python runs without torch: its prediction, in words
and as the player's data.

Known predictions and dry runs come along with the page (runtime/kept.py); what needs others is
refused in a sentence.
"""

import json
from typing import Any

from ..core import Impossible
from ..experiments import Experiment
from ..experiments.known import known
from . import report, table
from .packed import pack

UNKNOWN = (
    "This page has no dry run of these settings together: go back, or install bigtrain_lab,"
    " where torch makes one in a second."
)


def defaults(cls: type[Experiment]) -> dict[str, Any]:
    """Every setting of a lab."""
    return {name: field.default for name, field in cls.model_fields.items()}


def answer(lab: str, changed: dict[str, Any]) -> dict[str, Any]:
    """The prediction of a lab with some settings changed, as JSON; `refused` alone where there is
    none."""
    cls = Experiment.named(lab)
    floats = {name for name, field in cls.model_fields.items() if field.annotation is float}
    settings = defaults(cls) | {
        name: float(to) if name in floats else to  # a browser says 64 of 64.0
        for name, to in changed.items()
    }
    idle = sorted(cls.idle_settings(settings))
    try:
        found = known(cls, settings)
    except Impossible as error:
        return {"refused": str(error), "idle": idle}
    except ModuleNotFoundError:  # of torch, or of numpy
        return {"refused": UNKNOWN, "idle": idle}
    rows = report.rows(found.quantities, found.trace)
    return {
        "data": pack(found.trace).decode(),
        "answers": table.answers(rows, cls.answers, "predicted"),
        "numbers": table.numbers(rows),
        "why": table.why(found.explain(found.trace)),
        "about": found.describe(),
        "idle": idle,
    }


def answered(lab: str, changed: str) -> str:
    """The same, from text to text."""
    return json.dumps(answer(lab, json.loads(changed)))
