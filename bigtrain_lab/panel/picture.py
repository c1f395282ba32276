"""What a panel draws: a tab a clock, what is wrong, the player, the other figures, and of a long
run a choice of the steps drawn."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import replace
from html import escape

import ipywidgets as widgets
import plotly.io

from ..core import CLOCKS, Impossible, Memory, Trace
from ..core.trace import IN_TIME
from ..view import figures
from ..view.player import Player
from .controls import fixed

PLAYED = {"timeline", "memory", "versions"}  # figures that the player draws
PINNED = "pinned"
TABS = {
    "predicted": "simulated from the plan; redrawn at every move",
    "modelled": "the real ranks, on the hardware profile's clock",
    "measured": "the real ranks, on this machine's wall clock",
    PINNED: "what you pinned, to compare with",
}
WIDE = {"width": "auto", "overflow": "hidden"}
DRAWN = 8_000  # events: a move of a control stays below a third of a second
WIDTH = 900  # of a figure: a panel's cell on a laptop, with the list of files beside it


class Picture(widgets.VBox):
    """`chosen()` is called when another tab is pressed, to `show` what it stands for; `mend()` when
    the offer is taken."""

    def __init__(self, chosen: Callable[[], None], mend: Callable[[], None]):
        self._trace, self._note, self._live, self._fitting = None, "", False, False
        self.tabs = widgets.ToggleButtons(
            options=list(CLOCKS),
            tooltips=[TABS[clock] for clock in CLOCKS],
            style={"button_width": "92px"},
            layout=widgets.Layout(margin="4px 2px 0", flex="0 0 auto"),
        )
        self.tabs.observe(lambda _: None if self._fitting else chosen(), "value")
        self._about = widgets.HTML(layout=widgets.Layout(flex="1 1 0", min_width="0")).add_class(
            "btl-about"
        )
        self._trouble = widgets.HTML(layout=widgets.Layout(display="none", margin="2px"))
        self._mend = widgets.Button(
            layout=fixed("auto", display="none", align_self="flex-start"), button_style="info"
        )
        self._mend.on_click(lambda _: mend())
        self.first = widgets.IntSlider(
            1,
            min=1,
            max=1,
            description="first step drawn",
            style={"description_width": "104px"},
            tooltip="which training steps the picture shows",
            layout=fixed("320px"),
        )
        self.first.observe(lambda _: None if self._fitting else self._draw(), "value")
        self._told = widgets.HTML(layout=widgets.Layout(flex="1 1 auto", min_width="0"))
        self._steps = widgets.HBox(
            [self.first, self._told], layout=widgets.Layout(display="none", **WIDE)
        )
        self.player = Player(layout=widgets.Layout(width="auto"))
        self._others = widgets.VBox([], layout=widgets.Layout(width="auto"))
        self.body = widgets.VBox(
            [self._steps, self.player, self._others], layout=widgets.Layout(width="auto")
        )
        super().__init__(
            [
                widgets.HBox([self.tabs, self._about], layout=widgets.Layout(**WIDE)),
                self._trouble,
                self._mend,
                self.body,
            ],
            layout=widgets.Layout(width="auto"),
        )

    def offer(self, pinned: bool) -> None:
        """The tabs: the clocks, and what is pinned where something is."""
        names, tab = [*CLOCKS, *[PINNED] * pinned], self.tabs.value
        if names == list(self.tabs.options):
            return
        self._fitting = True  # options choose their first by themselves
        try:
            self.tabs.tooltips = [TABS[name] for name in names]
            self.tabs.options = names
            self.tabs.value = tab if tab in names else names[0]
        finally:
            self._fitting = False

    def go_to(self, tab: str) -> None:
        """Choose this tab, without a call of `chosen`."""
        self._fitting, self.tabs.value, self._fitting = True, tab, False

    def tell_trouble(self, html: str, mend: dict, whole: bool) -> None:
        """What is wrong and what mends it; `whole`: nothing can be drawn meanwhile."""
        for part, shown in ((self._trouble, html), (self._mend, mend), (self.body, not whole)):
            part.layout.display = None if shown else "none"
        if html:
            self._trouble.value = html
        if whole:
            self._describe("")
        if mend:
            self._mend.description = "Use " + ", ".join(
                f"{name.replace('_', ' ')} = {value}" for name, value in mend.items()
            )

    def show(
        self,
        trace: Trace | None,
        note: str = "",
        about: str = "",
        live: bool = False,
        names: tuple[str, ...] = (),
        shown: Callable[[str, Trace], object] = lambda name, trace: trace,
    ) -> None:
        """The trace, with a line about it; a `note` greys it and says why, or stands alone.
        `names`: the figures beside the player; `shown`: what each of them draws."""
        self._trace, self._note, self._live = trace, note, live
        self._describe(about)
        self._draw()
        others = [name for name in names if name not in PLAYED] if trace is not None else []
        if (
            others or self._others.children
        ) and not live:  # a figure of plotly is too slow to be made ten times a second
            drawings = [drawn(name, lambda name=name: shown(name, trace)) for name in others]
            said = [
                each.value if isinstance(each, widgets.HTML) else None for each in drawings
            ]  # what several lack is told once
            before, self._others.children = (
                self._others.children,
                [
                    each
                    for at, each in enumerate(drawings)
                    if said[at] is None or said[at] not in said[:at]
                ],
            )
            for each in before:
                each.close()

    def _describe(self, about: str) -> None:
        """The line beside the tabs; what is too long is cut, and whole under the pointer."""
        self._about.value = (
            f'<div class="btl-describe" title="{escape(about)}">{escape(about)}</div>'
            if about
            else ""
        )

    def _draw(self) -> None:
        """All of a short trace; of a long one the steps that were chosen, while it still grows the
        last ones."""
        trace = self._trace
        count = steps_drawn(trace) if trace is not None else 0
        whole = trace is None or count == trace.steps
        self._steps.layout.display = "none" if whole or self._live else None
        if trace is not None and not trace.spans():
            self.player.show(
                None,
                (
                    self._note
                    if self._live
                    else "No action was done before the run ended: there is nothing to draw."
                ),
            )
        elif whole:
            self.player.show(trace, self._note, self._live)
        if whole:
            return
        last = trace.steps - count + 1
        first = last if self._live else min(self.first.value, last)
        if not self._live:
            self._fitting, self.first.max, self._fitting = True, last, False
            self._told.value = (
                f'<div class="btl-describe">steps {first} to {first + count - 1} of {trace.steps}'
                " are drawn, their time from 0; the table tells of all</div>"
            )
        ends = trace.step_ends[first - 1 : first - 1 + count]
        self.player.show(window(trace, first - 1, count), self._note, self._live, ends, trace)


def drawn(name: str, shown: Callable[[], object]) -> widgets.DOMWidget:
    """A figure by name, or why there is none of this trace.

    An output as a cell has it: plotly's own widget carries 5 MB of program each time, and where the
    browser is slower than the kernel it stays empty for ever.
    """
    try:
        figure = figures.figure(name, shown()).update_layout(width=WIDTH)
    except Impossible as error:
        return widgets.HTML(f'<div class="btl-describe">{escape(str(error))}</div>')
    output = {
        "output_type": "display_data",
        "data": plotly.io.renderers["plotly_mimetype"].to_mimebundle(figure.to_dict()),
        "metadata": {},
    }
    return widgets.Output(
        outputs=(output,), layout=widgets.Layout(min_height=f"{figure.layout.height}px")
    )  # the page stays while it is drawn


def steps_drawn(trace: Trace) -> int:
    """How many steps are drawn at once: all, or as many as make DRAWN events from the first on, of
    which most is told."""
    return (
        trace.steps
        if len(trace) <= DRAWN
        else max(1, bisect_left(trace.step_ends, trace.events[DRAWN].start))
    )


def window(trace: Trace, first: int, steps: int) -> Trace:
    """The part of a trace from step `first` (the first is 0) on, that many steps.

    It is cut where steps end. Ranks that never wait for a batch's end are in the next step by then,
    so boxes of a neighbouring step may reach into it; it begins with what its ranks held then.
    """
    if first <= 0 and steps >= trace.steps:
        return trace
    start = trace.step_ends[first - 1] if first > 0 else trace.events[0].start
    end = trace.step_ends[first + steps - 1]
    events = trace.events
    if (
        first + steps < trace.steps
    ):  # what ends with the step is its own, an update that takes no time too
        events = [
            e
            for e in events[: bisect_right(events, end, key=lambda e: e.start)]
            if e.start < end or e.end == end
        ]
    if first > 0:
        held, kept = {}, []
        for event in events:
            if event.end > start:
                kept.append(event)
            elif isinstance(event, Memory) and not event.inside:
                held[event.rank, event.kind] = event
        opens = min((event.start for event in kept), default=start)
        events = sorted(
            [*(e._replace(name="start", start=opens) for e in held.values()), *kept], key=IN_TIME
        )
    return replace(trace, events=tuple(events), steps=steps)
