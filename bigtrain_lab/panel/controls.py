"""A control for each knob: its type, range and menu say which; one line of help, and the range, is
its tooltip."""

import math
import weakref
from collections.abc import Collection

import traitlets
from IPython import get_ipython

from ..core import Knob
from . import widgets

TYPED_BEYOND = 2000  # a slider with more positions than this cannot be set by hand
# without effect, grey or folded away; the one to change; what a search has found
IDLE, WRONG, FOUND = "btl-idle", "btl-wrong", "btl-found"
CELL = widgets.Layout(width="auto", min_width="0", margin="1px 0")
STYLE = {"description_width": "104px"}
SAID = ("value", "index")  # of a control, what a browser says
POSITIONS = 100  # about, where a knob names no step
AROUND_CELLS = ("pre_run_cell", "post_run_cell")
ROUND = (1, 2, 5, 10)  # times a power of ten: steps that read well
DECADE = (1, 1.5, 2, 3, 5, 7)  # positions of a logarithmic slider, in each power of ten


def control(name: str, knob: Knob, kind: type, value) -> widgets.ValueWidget:
    """The widget of one setting, of Python type `kind`."""
    option = name.replace("_", "-")
    unit = f", {knob.unit}" * (not option.endswith(knob.unit.lower().replace("/", "-")))
    about = {
        "description": option + unit,
        "tooltip": f"{told(knob)} (--{option})",
        "style": STYLE,
        "layout": CELL,
    }
    if kind is bool:
        return widgets.Checkbox(value, indent=True, **about)
    if (menu := knob.menu()) is not None:
        return widgets.Dropdown(options=menu, value=value, **about)
    bounded = kind in (int, float) and None not in (knob.low, knob.high)
    if not bounded or not by_hand(knob, kind):
        # what is out of range is refused in a sentence: a bounded box would take the nearest
        # number, and say nothing
        typed = {int: widgets.IntText, float: widgets.FloatText}.get(kind, widgets.Text)
        return typed(value, continuous_update=False, **about)
    if knob.logarithmic and kind is int:
        return widgets.SelectionSlider(
            options=doublings(int(knob.low), int(knob.high), value), value=value, **about
        )
    if kind is float:
        return Graded(value, knob, **about)
    low, step = int(knob.low), int(knob.step or 1)
    return widgets.IntSlider(
        value, min=low, max=int(knob.high), step=math.gcd(step, value - low), **about
    )


def told(knob: Knob) -> str:
    """The knob's help, its unit and its range."""
    ends = "" if None in (knob.low, knob.high) else f", {knob.low:,.13g} to {knob.high:,.13g}"
    return knob.help + (f" ({knob.unit})" if knob.unit else "") + ends


def by_hand(knob: Knob, kind: type) -> bool:
    """Whether a slider over this range has so few positions that a hand can choose among them."""
    step = knob.step or (1 if kind is int else math.inf)
    return knob.logarithmic or (knob.high - knob.low) / step <= TYPED_BEYOND


def doublings(low: int, high: int, *always: int) -> list[int]:
    """low, 2 low, 4 low, ... high, and the values that must be there."""
    values, value = {low, high, *always}, max(1, low)
    while value < high:
        values.add(value)
        value *= 2
    return sorted(values)


def fixed(width: str, **more) -> widgets.Layout:
    """The layout of a button that keeps its width in a full row."""
    return widgets.Layout(width=width, flex="0 0 auto", **more)


def put(made: widgets.ValueWidget, value) -> None:
    """Set a control; a slider learns a value between its steps, where a browser would move it onto
    one."""
    if isinstance(made, widgets.SelectionSlider) and value not in made.options:
        made.options = sorted([*made.options, value])
    if isinstance(made, widgets.IntSlider):
        made.step = math.gcd(made.step, int(value) - made.min)
    made.value = value


def controls_of(experiment) -> dict[str, widgets.ValueWidget]:
    """Setting -> its control, at this experiment's values."""
    kind = type(experiment)
    return {
        name: control(name, knob, kind.model_fields[name].annotation, getattr(experiment, name))
        for name, knob in kind.knobs().items()
    }


def mark(controls: dict, names: Collection[str], look: str) -> None:
    """These controls have the look, IDLE or WRONG, and no others."""
    for name, made in controls.items():
        (made.add_class if name in names else made.remove_class)(look)


def members(knobs: dict[str, Knob]) -> list:
    """What the open menus hold now, names and classes: differs once a class was typed in or typed
    again."""
    held = [knob.choices() for knob in knobs.values() if callable(knob.choices)]
    return [dict(of) if isinstance(of, dict) else list(of) for of in held]


def refresh(controls: dict, knobs: dict[str, Knob]) -> None:
    """Read the menus of open families again: a class typed in a cell joins them."""
    for name, knob in knobs.items():
        menu = knob.menu()
        if menu is not None and list(controls[name].options) != menu:
            value = controls[name].value
            with controls[name].hold_sync():  # no browser sees the menu before its value
                controls[name].options = menu
                if value in menu:
                    controls[name].value = value


def nearby(knob: Knob, kind: type, value) -> list:
    """Other values of a setting, the nearest first; of a number out of range the end of it. A class
    typed in a cell is somebody's exercise, and none of them."""
    if kind is bool:
        return [not value]
    menu = knob.menu()
    if menu is None and (kind not in (int, float) or None in (knob.low, knob.high)):
        return []
    if menu is None and not knob.low <= value <= knob.high:
        return [kind(min(max(value, knob.low), knob.high))]
    if menu is None and kind is float:
        menu = positions(knob, value) if by_hand(knob, kind) else []
    if menu is None:
        low, step = int(knob.low), int(knob.step or 1)
        first = max(low, low + ((value - low) // step - 64) * step)
        menu = [*range(first, min(int(knob.high), value + 64 * step) + 1, step)]
    at, left_out = menu.index(value) if value in menu else 0, {value, *knob.typed()}
    return [
        v
        for i, v in sorted(enumerate(menu), key=lambda pair: abs(pair[0] - at))
        if v not in left_out
    ]


def follow_cells(panel) -> None:
    """Before and after each cell, let the panel read its menus again: a cell may have typed or
    changed a member of a family."""
    shell = get_ipython()
    if shell is None:
        return
    alive = weakref.ref(panel)

    def reader(event):
        def at_cell(*_):
            panel = alive()
            if panel is None or panel.comm is None:
                shell.events.unregister(event, at_cell)
            else:
                panel.read_menus(event == AROUND_CELLS[0])

        return at_cell

    for event in AROUND_CELLS:
        shell.events.register(event, reader(event))


def places(made: widgets.ValueWidget) -> list:
    """The values that a slider can be moved to; of another control none."""
    match made:
        case Graded():
            return made.positions
        case widgets.SelectionSlider():
            return [*made.options]
        case widgets.IntSlider():
            return [*range(made.min, made.max + 1, made.step)]
    return []


def positions(knob: Knob, *always: float) -> list[float]:
    """The round values from knob.low to knob.high, and those that must be there."""
    low, high = knob.low, knob.high
    if (
        knob.logarithmic and low > 0 and all(math.frexp(end)[0] == 0.5 for end in (low, high))
    ):  # powers of two
        between = [2.0**k for k in range(round(math.log2(low)), round(math.log2(high)) + 1)]
    elif knob.logarithmic:
        first = math.floor(math.log10(low)) if low > 0 else math.floor(math.log10(high)) - 7
        between = [
            float(f"{mantissa}e{k}")
            for k in range(first, math.ceil(math.log10(high)) + 1)
            for mantissa in DECADE
        ]
    else:
        step = knob.step or round_step((high - low) / POSITIONS)
        between = [float(f"{low + i * step:.12g}") for i in range(int((high - low) / step) + 1)]
    return sorted(
        {
            float(low),
            float(high),
            *map(float, always),
            *(value for value in between if low <= value <= high),
        }
    )


def round_step(least: float) -> float:
    """The smallest step of 1, 2 or 5 times a power of ten that is not below `least`."""
    power = math.floor(math.log10(least))
    return next(step for step in (float(f"{m}e{power}") for m in ROUND) if step >= least)


class Graded(widgets.HBox):
    """A bounded number: a slider over round values, and a box that holds the very number.

    A slider in a browser moves a number that lies beside its steps onto one of them when it is
    drawn: opening a panel would make a loss scale of 8,192 one of 7,943. So the slider here chooses
    among positions. What is typed may lie between them.
    """

    value = traitlets.Float()
    description = traitlets.Unicode().tag(sync=True)  # a view that has a tooltip asks for it

    def __init__(
        self, value: float, knob: Knob, description: str = "", tooltip: str = "", style=None, **more
    ):
        self._low, self._high = knob.low, knob.high
        self.positions = positions(knob, value)
        self.slider = widgets.SelectionSlider(
            options=[(f"{position:,.13g}", position) for position in self.positions],
            value=value,
            readout=False,
            description=description,
            tooltip=tooltip,
            style=style or {},
            layout=widgets.Layout(flex="1 1 auto", width="auto", min_width="0", margin="0"),
        )
        self.box = widgets.BoundedFloatText(
            value,
            min=knob.low,
            max=knob.high,
            step=None,
            tooltip=tooltip,
            layout=widgets.Layout(flex="0 0 auto", width="92px", margin="0 2px 0 8px"),
        )
        super().__init__([self.slider, self.box], description=description, tooltip=tooltip, **more)
        self.add_class("btl-graded")
        self.value = value
        traitlets.link((self, "value"), (self.box, "value"))
        self.slider.observe(self._on_slide, "index")

    @traitlets.validate("value")
    def _bounded(self, proposal) -> float:
        return min(max(proposal["value"], self._low), self._high)

    @property
    def _near(self) -> int:
        """The position next to the number."""
        return min(range(len(self.positions)), key=lambda at: abs(self.positions[at] - self.value))

    @traitlets.observe("value")
    def _fit(self, _=None) -> None:
        self.slider.index = self._near

    def _on_slide(self, change) -> None:
        if change["new"] != self._near:  # else it only follows the number
            self.value = self.positions[change["new"]]


def leaves(control: widgets.Widget) -> list[widgets.Widget]:
    """The widgets that a hand can move."""
    inner = [leaf for each in getattr(control, "children", ()) for leaf in leaves(each)]
    return inner or [control] * any(key in control.keys for key in SAID)
