"""From settings that cannot be to the nearest that can: one setting changed, first the one that was moved last."""

import time

from ..core import Impossible
from .controls import nearby

PATIENCE_S = 0.25


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
            except Impossible:
                continue
    return None
