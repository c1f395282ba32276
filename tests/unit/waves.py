"""For the tests of panels: an experiment whose runs last as long as a test wants, and what a reader
of a panel sees."""

import os
import re
import time
from collections.abc import Iterator
from typing import ClassVar

import ipywidgets as widgets
import numpy as np

from bigtrain_lab import Action, Cost, Experiment, Impossible, simulate
from bigtrain_lab.core import knob
from bigtrain_lab.experiments import Quantity
from bigtrain_lab.order.schedules.gpipe import GPipe


class Title:
    """A name that is inherited makes no member of the family: other tests go through all
    experiments."""

    name = "test-waves"
    question = "How long is a <wave>?"


class Waves(Title, Experiment):
    """Ranks that run GPipe's forwards and wait in the second one for a gate, so that a run lasts as
    long as a test wants."""

    quantities: ClassVar[tuple] = (
        Quantity("step time", "slot", lambda t: t.step_time),
        Quantity("spans", "", lambda t: len(t.spans())),
    )

    ranks: int = knob(2, "processes", low=1, high=4)
    micro_batches: int = knob(2, "pieces", low=1, high=8)
    steps: int = knob(1, "steps", low=1, high=4, more=True)
    gate: str = knob("", "file that lets the second forward end, once it exists", more=True)
    trouble: str = knob(
        "none", "what goes wrong", choices=("none", "raise", "nan", "nan once"), more=True
    )

    def cost(self):
        return Cost({"F": 1, "B": 2})

    def predict(self):
        if self.micro_batches < self.ranks:
            raise Impossible(f"{self.ranks} ranks need at least {self.ranks} micro-batches.")
        return simulate(GPipe(self.ranks, self.micro_batches), self.cost(), self.steps)

    def program(self, rank):
        for m in range(self.micro_batches):
            with rank.span(Action("F", rank.index, m)):
                while m == 1 and self.gate and not os.path.exists(self.gate):
                    time.sleep(0.01)
        if self.trouble == "raise" and rank.index == 1:
            raise ValueError("the wave broke")
        if self.trouble.startswith("nan"):
            rank.log("loss", float("nan"))
        if self.trouble == "nan once":
            rank.log("loss", 1.0)
        return {"done": np.ones(1)}

    def reference(self):
        return {"done": np.ones(1)}

    def explain(self, trace):
        return ["Rank 0 waits.", "In all, waves overlap."]


def parts(widget, hidden: bool = False) -> Iterator:
    """A widget and all that is in it, in any tab of its foot; with `hidden` also what is out of
    view."""
    if hidden or widget.layout.display != "none":
        yield widget
        for child in getattr(widget, "children", ()):
            yield from parts(child, hidden or "btl-pane" in widget._dom_classes)


def said(widget) -> str:
    """The HTML that a reader finds."""
    whole = "\n".join(part.value for part in parts(widget) if isinstance(part, widgets.HTML))
    return re.sub("<style>.*?</style>", "", whole, flags=re.DOTALL)


def button(widget, words: str):
    """What is in view and bears these words."""
    return next(part for part in parts(widget) if words in getattr(part, "description", ""))
