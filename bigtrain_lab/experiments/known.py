"""Predictions that are known: what a lab said of some settings once, it says again without torch.

    lab, settings  ->  trace, quantities, sentences, and a name of what made them

Kept among the user's files that can be made again, a file for each lab and settings. Torch and this
library's sources made it: where either has changed since, it is made again. What depends on this
machine, on a file or on a class of the user's own is not kept.
"""

import json
from contextlib import suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

from ..core import Impossible, Trace
from ..core.family import is_typed
from ..runtime import machine
from .experiment import Experiment, Quantity


def known(cls: type[Experiment], settings: dict) -> SimpleNamespace:
    """What stands in the place of the experiment of all these settings where its prediction,
    `trace`, is shown: name, question, describe(), explain(trace) and quantities."""
    key = sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    path, told = machine.kept_in(f"predictions/{cls.name}-{key}"), {}
    with suppress(Impossible):  # there is none, or it is damaged
        trace = Trace.load(path)
        told = trace.settings.pop("known", {})
    if told.get("made by") != made_by() or has_own(cls, settings):
        experiment = cls(**settings)
        trace = experiment.predict()
        found = {
            "made by": made_by(),
            "describe": experiment.describe(),
            "explain": experiment.explain(trace),
            "rows": [
                (q.name, q.unit, q.of(trace), q.exact, q.apart(trace))
                for q in experiment.quantities
            ],
        }
        told = json.loads(json.dumps(found, default=float))
        if not has_own(cls, settings) and "machine" not in trace.settings.get("facts", {}):
            with suppress(OSError, Impossible):  # there is no room for it
                path.parent.mkdir(parents=True, exist_ok=True)
                replace(trace, settings={**trace.settings, "known": told}).save(path)
    return SimpleNamespace(
        name=cls.name,
        question=cls.question,
        trace=trace,
        describe=lambda: told["describe"],
        explain=lambda trace: told["explain"],
        quantities=[
            Quantity(name, unit, lambda _, value=value: value, exact, lambda _, apart=apart: apart)
            for name, unit, value, exact, apart in told["rows"]
        ],
    )


def has_own(cls: type[Experiment], settings: dict) -> bool:
    """Whether the prediction depends on a file, or on a class that was typed."""
    typed = any(settings[name] in knob.typed() for name, knob in cls.knobs().items())
    return bool(typed or is_typed(cls) or settings.get("text") or settings.get("file"))


@cache
def made_by() -> str:
    """A name of what makes predictions."""
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest() + version("torch")
