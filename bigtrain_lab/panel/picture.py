"""What a panel draws: a tab a clock, what is wrong, the player, the other figures, and of a long
run a choice of the steps drawn."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from html import escape

import plotly.io

from ..core import CLOCKS, Impossible, Memory, Trace
from ..core.trace import IN_TIME, once
from ..view import figures
from ..view.curves import curves, reported
from ..view.packed import comparable, pack
from ..view.player import Player
from ..view.spoken import all_said, in_html
from . import widgets
from .compared import Pinned
from .controls import fixed
from .nearest import raised
from .rivals import Rivals

PLAYER, RIVALS, CURVES = "timeline", "rivals", "curves"
PLAYED = {PLAYER, "memory", "versions"}  # figures that the player draws
HEIGHT, STEPS = 260, 34  # of the player's picture, and of the choice of steps, in pixels
LENS, SQUEEZED = 336, 1.4  # a lens's height, and by how much a figure may be higher to be fitted
FEW, ROW, ROWS_BESIDE = 4, 18, 3  # rivals that leave room below; a row's height; rows beside them
PINNED, OWED = "pinned", "btl-owed"
TABS = {
    "predicted": "simulated from the plan; redrawn at every move",
    "modelled": "the real ranks, on the hardware profile's clock",
    "measured": "the real ranks, on this machine's wall clock",
    PINNED: "what you pinned, to compare with",
}
BESIDE = "Another run beside it: press run in a row of side by side."
WIDE = {"width": "auto", "overflow": "hidden"}
DRAWN = 8_000  # events: a move of a control stays below a third of a second


class Picture(widgets.VBox):
    """`status` stands beside the tabs. `chosen()` is called when another tab is pressed, to `show`
    what it stands for; `mend()` when the offer is taken, `take(settings, runs)` when a rival is.
    `moving()`: whether settings are still to be predicted. `lock`: held by who draws."""

    def __init__(
        self,
        status: widgets.Widget,
        chosen: Callable[[], None],
        mend: Callable[[], None],
        take: Callable[[dict, bool], None],
        moving: Callable[[], bool],
        lock,
    ):
        self._trace, self._note, self._live, self._fitting = None, "", False, False
        self._made = None  # the experiment whose trace is shown
        self._silent = False  # a run goes on whose curves are still to come
        self._taken = 0  # of the player's height, by a short table above it
        self._name = None  # of the figure that is drawn
        self.tabs = widgets.ToggleButtons(
            options=list(CLOCKS),
            tooltips=[TABS[clock] for clock in CLOCKS],
            style={"button_width": "auto"},
            layout=widgets.Layout(margin="0 2px", flex="0 0 auto"),
        ).add_class("btl-tabs")
        self.tabs.observe(lambda _: None if self._fitting else chosen(), "value")
        self._about = widgets.HTML(layout=widgets.Layout(flex="1 1 0", min_width="0")).add_class(
            "btl-about"
        )
        self.lenses = widgets.ToggleButtons(
            options=[],
            style={"button_width": "auto"},
            layout=widgets.Layout(flex="0 0 auto"),
        ).add_class("btl-tabs")
        self.lenses.observe(lambda _: None if self._fitting else self._on_lens(lock), "value")
        self._trouble = widgets.HTML()
        self._mend = widgets.Button(
            layout=fixed("auto", display="none", align_self="flex-start"), button_style="primary"
        )
        self._mend.on_click(lambda _: mend())
        self._over = widgets.VBox(
            [self._trouble, self._mend], layout=widgets.Layout(display="none")
        ).add_class("btl-over")
        self.first = widgets.IntSlider(
            1,
            min=1,
            max=1,
            description="first step drawn",
            style={"description_width": "104px"},
            tooltip="which training steps the picture shows",
            layout=fixed("320px"),
        )
        self.first.observe(lambda _: None if self._fitting else self._play(self._trace), "value")
        self._told = widgets.HTML(layout=widgets.Layout(flex="1 1 auto", min_width="0"))
        self._steps = widgets.HBox(
            [self.first, self._told], layout=widgets.Layout(display="none", **WIDE)
        )
        self.player = Player(layout=widgets.Layout(width="auto"), height=HEIGHT)
        self._played = widgets.VBox([self._steps, self.player], layout=widgets.Layout(width="auto"))
        self.player.observe(  # a browser says how wide it is when the first picture is drawn
            lambda _: chosen() if self._name or self.lenses.value == CURVES else None, "room"
        )
        self._figure = widgets.VBox([], layout=widgets.Layout(width="auto"))
        self.rivals = Rivals(take, moving, layout=widgets.Layout(width="auto"))
        self.curves = widgets.HTML(layout=widgets.Layout(width="auto"))
        self.body = widgets.VBox([self.rivals, self._played, self._figure, self.curves]).add_class(
            "btl-lens"
        )
        super().__init__(
            [
                widgets.HBox(
                    [self.tabs, status, self._about, self.lenses], layout=widgets.Layout(**WIDE)
                ).add_class("btl-choice"),
                widgets.VBox([self.body, self._over]).add_class("btl-frame"),
            ],
            layout=widgets.Layout(width="auto"),
        )

    def offer(self, pinned: bool) -> None:
        """The tabs: the clocks, and what is pinned where something is."""
        names, tab = [*CLOCKS, *[PINNED] * pinned], self.tabs.value
        self._set(
            self.tabs,
            tooltips=[TABS[name] for name in names],
            options=names,
            value=tab if tab in names else names[0],
        )

    def go_to(self, tab: str) -> None:
        """Choose this tab, without a call of `chosen`."""
        self._set(self.tabs, value=tab)

    def _set(self, made: widgets.Widget, **values) -> None:
        """Set this widget, as if nobody had moved it."""
        self._fitting = True
        try:
            for name, value in values.items():  # options choose their first by themselves
                setattr(made, name, value)
        finally:
            self._fitting = False

    def refuse(self, html: str, mend: dict) -> None:
        """Why the settings cannot be, over the picture of those before, and what mends them; "":
        they can."""
        self._over.layout.display = None if html else "none"
        self._mend.layout.display = None if mend else "none"
        (self.body.add_class if html else self.body.remove_class)("btl-refused")
        if html:
            self._trouble.value = html
            self._describe("")
        if mend:
            self._mend.description = "Nearest that works: " + ", ".join(
                f"{name.replace('_', ' ')} = {value}" for name, value in mend.items()
            )

    def show(
        self,
        trace: Trace | None,
        note: str = "",
        about: str = "",
        live: bool = False,
        made=None,
        pinned: Pinned | None = None,
        plan: Trace | None = None,
        later: bool = False,
    ) -> None:
        """The trace, with a line about it; a `note` greys it and says why, or stands alone. `made`:
        the experiment that it is of, which names the lenses; `pinned`: what curves are compared
        with; `plan`: what a run that goes on, or broke off, was predicted to do; `later`: a figure
        below a table may be owed."""
        self._trace, self._note, self._live = trace, note, live
        self._plan = plan if plan is not None and comparable(trace, plan) else None
        if made is not None:
            self._made = made
            self._offer_lenses((*made.figures, *[CURVES] * bool(made.curves)))
        self._kept = (
            pinned.beside(self._made, trace.unit)
            if pinned and trace and pinned.experiment.name == self._made.name
            else None  # of a lab that was reopened before
        )
        self._pinned = self._kept and self._kept.trace
        known = pinned is not None or trace is None or trace.clock != "predicted"
        if self.lenses.value == CURVES and not (known or reported(trace, self._made.curves)):
            first = self.lenses.options[0][1]  # no loss is known
            self._set(self.lenses, value=first if first == RIVALS else PLAYER)
        self._draw(later)
        self._describe(about)

    def watch(self, goes_on: bool, failed: bool = False) -> None:
        """A run begins: its timeline, until it tells what the lab's curves show. At its end its
        curves, where they are one of the lab's figures, else what was shown before; one that
        `failed` is looked into on its timeline."""
        if goes_on:
            self._silent = bool(self._made.curves)
            self._ends = CURVES if CURVES in self._made.figures else self.lenses.value
        if goes_on or failed or self.lenses.value in (PLAYER, CURVES):  # none chosen meanwhile
            self._set(self.lenses, value=PLAYER if goes_on or failed else self._ends)
        self._silent &= goes_on

    def _offer_lenses(self, figures: tuple[str, ...]) -> None:
        """A lens a figure, in the lab's order, and one for the player."""
        lenses = [*dict.fromkeys(PLAYER if name in PLAYED else name for name in (*figures, PLAYER))]
        if lenses != [lens for _, lens in self.lenses.options]:
            self._set(
                self.lenses,
                options=[(lens.replace(RIVALS, "side by side"), lens) for lens in lenses],
                value=lenses[0],
            )
        self.lenses.layout.display = None if len(lenses) > 1 else "none"

    def _describe(self, about: str) -> None:
        """The line beside the tabs; what is too long is cut, and whole under the pointer."""
        self._about.value = (
            f'<div class="btl-describe" title="{escape(about)}">{escape(about)}</div>'
            if about
            else ""
        )

    def _on_lens(self, lock) -> None:
        with lock:  # another thread may draw what is owed
            self._draw()

    def _draw(self, later: bool = False) -> None:
        """Through the chosen lens; a run that goes on, and what is not there yet, by the player."""
        trace = self._trace
        if self._live and self._silent and reported(trace, self._made.curves):
            self._silent = False
            self._set(self.lenses, value=CURVES)
        name = self.lenses.value
        if trace is None or name is None or (self._live and (name != CURVES or self._silent)):
            name = PLAYER
        shown = {PLAYER: [self._played], RIVALS: [self.rivals], CURVES: [self.curves]}.get(
            name, [self._figure]
        )
        self._taken = 0
        self._name = None if name in (PLAYER, RIVALS, CURVES) else name
        (_, first), (_, second), *_ = [*self.lenses.options, *[("", PLAYER)] * 2]
        if (
            name == RIVALS
            and second != CURVES  # which take all the room
            and not self._made.tells_late
            and (rows := len(self._made.rivals())) <= FEW
        ):
            self._taken = ROW * (rows + ROWS_BESIDE + bool(self._kept))
            self._name = None if PLAYER in (first, second) or first != RIVALS else second
            shown = [self.rivals, self._figure if self._name else self._played]
        (self._played.add_class if self._taken else self._played.remove_class)("btl-below")
        for part in self.body.children:
            part.layout.display = None if part in shown else "none"
        if self._played in shown:
            self._play(trace)  # before other threads take its time
        if name == RIVALS:
            self.rivals.show(self._made, trace, self._kept)
        elif name == CURVES:
            beside = (
                self._pinned,
                ", ".join(filter(None, ("what is pinned", self._kept and self._kept.scaled))),
            )
            if self._plan and not self._pinned:
                beside = self._plan, "as predicted"
            elif not (self._pinned or self._live or trace.clock == "predicted"):
                beside = self._made.beside(trace)
            self.curves.value = curves(
                self._made.curves,
                trace,
                *beside,
                self.player.room,
                BESIDE * (RIVALS in self._made.figures and not self._live),
            )
        if later and self._taken and self._name:
            self._figure.add_class(OWED)
        else:
            self.draw_figure()

    @property
    def owed(self) -> bool:
        """Whether the figure is still to be drawn."""
        return OWED in self._figure._dom_classes

    def draw_figure(self) -> None:
        """The figure of the chosen lens, where that is one. Plotly holds a browser for longer than
        a move may take, so one below a table can be `owed`, while a slider moves."""
        before, room = self._figure.children, (self.player.room, LENS - self._taken)
        self._figure.children = (
            [drawn(self._trace, self._name, self._made, room, self._pinned)] if self._name else []
        )
        self._figure.remove_class(OWED)
        for each in before:
            each.close()

    def _play(self, trace: Trace | None) -> None:
        """All of a short trace; of a long one the steps that were chosen, while it still grows the
        last ones."""
        count = steps_drawn(trace) if trace is not None else 0
        pinned = None if self._live or self._taken else self._pinned  # a table above has it too
        plan = self._plan if not pinned and 0 < len(self._plan or ()) <= DRAWN else None
        whole = trace is None or count == trace.steps
        told = not whole and not self._live
        self._steps.layout.display = None if told else "none"
        self.player.height = HEIGHT - STEPS * told - self._taken
        if trace is not None and not trace.spans() and not (plan and self._live):
            self.player.show(
                None,
                (
                    self._note or "The ranks start."
                    if self._live
                    else "No action was done before the run ended: there is nothing to draw."
                ),
            )
        elif whole:
            self.player.show(
                trace,
                self._note,
                self._live,
                pinned=pinned,
                plan=plan,
            )
        if whole:
            return
        last = trace.steps - count + 1
        first = last if self._live else min(self.first.value, last)
        if not self._live:
            self._set(self.first, max=last)
            self._told.value = (
                f'<div class="btl-describe">steps {first} to {first + count - 1} of {trace.steps}'
                " are drawn, their time from 0; the table tells of all</div>"
            )
        fits = pinned and pinned.steps >= first - 1 + count
        beside = window(pinned, first - 1, count) if fits else None
        part, *of_whole = parted(trace, first, count)
        self.player.show(part, self._note, self._live, *of_whole, beside)

    def prepare(self, made, trace: Trace) -> None:
        """Make what the chosen lens will show of a prediction."""
        count = steps_drawn(trace)
        if self._name:
            with suppress(Impossible):
                once(specified)(trace, self._name, made, (self.player.room, LENS - self._taken))
        elif count == trace.steps:
            pack(trace)
        else:
            pack(*parted(trace, min(self.first.value, trace.steps - count + 1), count))


def drawn(trace: Trace, name: str, made, room: tuple, pinned: Trace | None) -> widgets.DOMWidget:
    """A figure of this experiment by name, in this room, or why there is none of this trace.

    An output as a cell has it: plotly's own widget carries 5 MB of program each time, and where the
    browser is slower than the kernel it stays empty for ever.
    """
    try:
        data, height = (
            once(specified)(trace, name, made, room)
            if pinned is None
            else specified(trace, name, made, room, pinned)
        )
    except Exception as error:  # a class typed by a student may raise anything
        return widgets.HTML(f'<div class="btl-describe">{escape(raised(error))}</div>')
    return widgets.Output(
        outputs=({"output_type": "display_data", "data": data, "metadata": {}},),
        layout=widgets.Layout(min_height=f"{height}px"),  # the page stays while it is drawn
    ).add_class("btl-drawn")


def specified(
    trace: Trace, name: str, made, room: tuple[int, int], pinned: Trace | None = None
) -> tuple[dict, int]:
    """The figure as plotly's JSON, and its height. It is as wide as the room, and as high where it
    can be read so; what is higher scrolls."""
    figure = figures.figure(name, made.shown(name, trace, pinned))
    figure.update_layout(width=room[0], title_font_size=13)
    if figure.layout.height < SQUEEZED * room[1]:
        figure.update_layout(height=min(room[1], figure.layout.height))
    said = {"text", "title", "name", "hovertemplate", "hovertext", "ticktext", "x", "y"}
    told = all_said(figure.to_dict(), in_html, said)
    return plotly.io.renderers["plotly_mimetype"].to_mimebundle(told), figure.layout.height


def steps_drawn(trace: Trace) -> int:
    """How many steps are drawn at once: all, or as many as make DRAWN events from the first on, of
    which most is told."""
    return (
        trace.steps
        if len(trace) <= DRAWN
        else max(1, bisect_left(trace.step_ends, trace.events[DRAWN].start))
    )


def parted(trace: Trace, first: int, steps: int) -> tuple[Trace, tuple[int, ...], Trace]:
    """The part of a trace from step `first` (1, 2, ...) on, where its steps end, and the trace."""
    return (
        once(window)(trace, first - 1, steps),
        trace.step_ends[first - 1 : first - 1 + steps],
        trace,
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
