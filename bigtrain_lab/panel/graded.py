"""A bounded number: a slider over round values, and a box that holds the very number.

A slider in a browser moves a number that lies beside its steps onto one of them, as soon as it is drawn: opening a panel would
make a loss scale of 8,192 one of 7,943. So the slider here counts positions; their values stay in Python, and a number that
nobody moved is never touched. What is typed may lie between the positions.
"""

import math
from bisect import bisect

import ipywidgets as widgets
import traitlets

from ..core import Knob

POSITIONS = 100  # about, where a knob names no step
ROUND = (1, 2, 5, 10)  # times a power of ten: steps that read well
DECADE = (1, 1.5, 2, 3, 5, 7)  # positions of a logarithmic slider, in each power of ten


def positions(knob: Knob, *always: float) -> list[float]:
    """The round values from knob.low to knob.high, and those that must be there."""
    low, high = knob.low, knob.high
    if knob.logarithmic and low > 0 and all(math.frexp(end)[0] == 0.5 for end in (low, high)):  # powers of two
        between = [2.0**k for k in range(round(math.log2(low)), round(math.log2(high)) + 1)]
    elif knob.logarithmic:
        first = math.floor(math.log10(low)) if low > 0 else math.floor(math.log10(high)) - 7
        between = [float(f"{mantissa}e{k}") for k in range(first, math.ceil(math.log10(high)) + 1) for mantissa in DECADE]
    else:
        step = knob.step or round_step((high - low) / POSITIONS)
        between = [float(f"{low + i * step:.12g}") for i in range(int((high - low) / step) + 1)]
    return sorted({float(low), float(high), *map(float, always), *(value for value in between if low <= value <= high)})


def round_step(least: float) -> float:
    """The smallest step of 1, 2 or 5 times a power of ten that is not below `least`."""
    power = math.floor(math.log10(least))
    return next(step for step in (float(f"{m}e{power}") for m in ROUND) if step >= least)


class Graded(widgets.HBox):
    """`value` and `description` as of any control."""

    value = traitlets.Float()
    description = traitlets.Unicode().tag(sync=True)  # a view that has a tooltip asks for it

    def __init__(self, value: float, knob: Knob, description: str = "", tooltip: str = "", style=None, **more):
        self._low, self._high, self._fitting = knob.low, knob.high, False
        self.positions = positions(knob, value)
        self.slider = widgets.IntSlider(0, min=0, max=len(self.positions) - 1, readout=False, description=description, tooltip=tooltip,
                                        style=style or {}, layout=widgets.Layout(flex="1 1 auto", width="auto", min_width="0", margin="0"))
        self.box = widgets.BoundedFloatText(value, min=knob.low, max=knob.high, step=None, tooltip=tooltip,
                                            layout=widgets.Layout(flex="0 0 auto", width="92px", margin="0 2px 0 8px"))
        super().__init__([self.slider, self.box], description=description, tooltip=tooltip, **more)
        self.add_class("btl-graded")
        self.slider.observe(self._on_slide, "value")
        self.box.observe(self._on_type, "value")
        self.value = value
        self._fit()

    @traitlets.validate("value")
    def _bounded(self, proposal) -> float:
        return min(max(proposal["value"], self._low), self._high)

    @traitlets.observe("value")
    def _fit(self, _=None) -> None:
        """The box shows the number, the slider the position next to it."""
        after = bisect(self.positions, self.value)
        near = min(self.positions[max(0, after - 1):after + 1], key=lambda position: abs(position - self.value))
        self._fitting = True
        try:
            self.slider.value, self.box.value = self.positions.index(near), self.value
        finally:
            self._fitting = False

    def _on_slide(self, change) -> None:
        if not self._fitting:
            self.value = self.positions[change["new"]]

    def _on_type(self, change) -> None:
        if not self._fitting:
            self.value = change["new"]
