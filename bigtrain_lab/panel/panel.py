"""Controls, a run bar, three clocks over one player, the table and its sentences, for any experiment.

Moving a control predicts again at once and greys what the last run gave; nothing but Run starts a process. A move costs
one message to the player and one to the table.
"""

import threading
import time
from html import escape

import ipywidgets as widgets
import plotly.graph_objects as go

from .. import figures, report, runtime
from ..core import CLOCKS, Impossible, Trace
from ..experiments import Experiment
from ..player import Player
from . import table
from .controls import controls_of, fixed, follow_cells, grey, members, refresh
from .live import follow
from .nearest import attempt, nearest
from .trouble import trouble

PLAYED = {"timeline", "memory", "versions"}  # figures that the player draws
REPLAY_S = 3.0  # a run shorter than this is played again at its end: nobody saw it
STALE = "settings changed since this run"
TABS = {"predicted": "simulated from the plan; redrawn at every move", "modelled": "the real ranks, on the hardware profile's clock",
        "measured": "the real ranks, on this machine's wall clock"}


class Panel(widgets.VBox):
    """`experiment`: a class, an instance (its values are the first ones shown) or a name.

    For programs: `.set(ranks=8)`, `.start()`, `.wait()`, `.stop()`; `.experiment`, `.traces` by clock, `.run`, `.rows`.
    """

    def __init__(self, experiment, **settings):
        if isinstance(experiment, str):
            experiment = Experiment.named(experiment)
        first = experiment(**settings) if isinstance(experiment, type) else experiment.replace(**settings)
        self.experiment, self._class, self._ran, self.run = first, type(first), None, None
        self.traces: dict[str, Trace] = {}
        self._refusal, self._failure, self._offer = "", "", {}  # why the settings cannot be, why the last run failed, what mends
        self._sentences: list[str] = []
        self._lock, self._moved, self._quiet, self._running = threading.RLock(), None, False, False
        self._members = members(self._class.knobs())
        self._build()
        super().__init__(self._parts)
        runtime.warm()
        self._predict()
        follow_cells(self)

    def _build(self) -> None:
        knobs = self._class.knobs()
        self.controls = controls_of(self.experiment)
        grid = dict(grid_template_columns="repeat(auto-fit, minmax(286px, 1fr))", grid_gap="0 14px", width="auto", overflow="hidden")
        for name, made in self.controls.items():
            made.observe(self._on_move(name), "value")
        shown, more = ([self.controls[n] for n, k in knobs.items() if k.more == folded] for folded in (False, True))
        main = widgets.GridBox(shown, layout=widgets.Layout(**grid)).add_class("btl-controls")
        self._more = widgets.GridBox(more, layout=widgets.Layout(display="none", **grid)).add_class("btl-controls")
        self.run_button = widgets.Button(description="Run", icon="play", button_style="success", tooltip="start the real processes",
                                         layout=fixed("140px"))
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True, tooltip="end the processes now",
                                          layout=fixed("84px"))
        self.command_button = widgets.Button(description="Copy command", icon="copy", tooltip="the same run for a shell",
                                             layout=fixed("140px"))
        self.more_button = widgets.ToggleButton(description="more settings", icon="sliders", tooltip="show the other settings",
                                                layout=fixed("140px", display=None if more else "none"))
        self.status = widgets.HTML(layout=widgets.Layout(flex="1 1 auto", min_width="0", margin="2px 0 0 10px"))
        bar = widgets.HBox([self.run_button, self.stop_button, self.command_button, self.more_button, self.status],
                           layout=widgets.Layout(width="auto", overflow="hidden", margin="2px 0"))
        self._command = widgets.HTML(layout=widgets.Layout(display="none", margin="0 2px"))
        self.tabs = widgets.ToggleButtons(options=list(CLOCKS), tooltips=list(TABS.values()), style={"button_width": "104px"},
                                          layout=widgets.Layout(margin="4px 2px 0"))
        self._describe = widgets.HTML(layout=widgets.Layout(flex="1 1 auto", min_width="0"))
        self._trouble = widgets.HTML(layout=widgets.Layout(display="none", margin="2px"))
        self._mend = widgets.Button(layout=fixed("auto", display="none", align_self="flex-start"), button_style="info")
        self.player = Player(layout=widgets.Layout(width="auto"))
        self._pictures = widgets.VBox([], layout=widgets.Layout(width="auto"))
        self._results = widgets.HTML(layout=widgets.Layout(width="auto", margin="2px"))
        self.run_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        self.command_button.on_click(lambda _: self._show_command())
        self._mend.on_click(lambda _: self.set(**self._offer))
        self.more_button.observe(lambda change: setattr(self._more.layout, "display", None if change["new"] else "none"), "value")
        self.tabs.observe(lambda _: self._draw(), "value")
        heading = widgets.HTML(f'{table.STYLE}<div class="btl-question">{escape(self.experiment.question)}</div>')
        self._parts = [heading, main, self._more, bar, self._command,
                       widgets.HBox([self.tabs, self._describe], layout=widgets.Layout(width="auto", overflow="hidden")),
                       self._trouble, self._mend, self.player, self._pictures, self._results]

    # -- settings and prediction ----------------------------------------------------------------------------------------

    def set(self, **settings) -> None:
        """Move controls, as a hand would, and predict once."""
        self._quiet = True
        try:
            for name, value in settings.items():
                self.controls[name].value = value
                self._moved = name
        finally:
            self._quiet = False
        self._predict()

    def read_menus(self) -> None:
        """Offer what the families now hold; predict again only where a class has been typed or changed."""
        now = members(self._class.knobs())
        if now == self._members:
            return
        self._members, self._quiet = now, True
        try:
            refresh(self.controls, self._class.knobs())
        finally:
            self._quiet = False
        self._predict()

    def _on_move(self, name: str):
        def move(_):
            if not self._quiet:
                self._moved = name
                self._predict()
        return move

    def _predict(self) -> None:
        with self._lock:
            settings = {name: made.value for name, made in self.controls.items()}
            grey(self.controls, self._class.idle_settings(settings))
            tried = attempt(self._class, settings)
            if isinstance(tried, str):
                self._refuse(tried, settings)
                return
            experiment, trace, described, sentences = tried
            changed = experiment.model_dump() != self.experiment.model_dump()
            self.experiment, self.traces["predicted"], self._sentences = experiment, trace, sentences
            self._refusal, self._offer = "", {}
            if changed:
                self._failure = ""
            self._show_problem()
            self.player.limit_bytes = getattr(getattr(experiment, "profile", None), "memory_bytes", None)
            self._describe.value = f'<div class="btl-describe">{escape(described)}</div>'
            self.run_button.description = f"Run on {experiment.ranks} rank{'s' if experiment.ranks > 1 else ''}"
            self.run_button.disabled = self._running
            if self._command.layout.display is None:
                self._write_command()
            if changed and self.tabs.value != "predicted":
                self.tabs.value = "predicted"  # draws
            else:
                self._draw()
            self._tabulate()

    def _refuse(self, sentence: str, settings: dict) -> None:
        """The sentence where the figure was, and the nearest settings that work."""
        self._refusal, self._offer = sentence, nearest(self._class, settings, self._moved) or {}
        self._mend.description = "Use " + ", ".join(f"{name.replace('_', ' ')} = {value}" for name, value in self._offer.items())
        self.run_button.disabled = True
        self._show_problem()

    @property
    def problem(self) -> str:
        """Why the settings cannot be, else why the last run failed; the latter stays until settings change or a run starts."""
        return self._refusal or self._failure

    def _show_problem(self) -> None:
        """The problem, if there is one; what a failed run did stays in view below it."""
        figure = "none" if self._refusal else None
        for part, display in ((self._trouble, None if self.problem else "none"), (self._mend, None if self._offer else "none"),
                              (self.player, figure), (self._results, figure), (self._pictures, figure)):
            part.layout.display = display
        if self.problem:
            self._trouble.value = trouble(self.problem, None if self._refusal else self.run)

    @property
    def stale(self) -> bool:
        """Whether the settings have changed since the last run."""
        return self._ran is not None and self._ran.model_dump() != self.experiment.model_dump()

    # -- drawing ----------------------------------------------------------------------------------------------------------

    @property
    def shown(self) -> dict[str, Trace]:
        """The traces that the table compares: the prediction, and a run's once it has ended."""
        return {clock: trace for clock, trace in self.traces.items() if clock == "predicted" or not self._running}

    @property
    def rows(self) -> list[report.Row]:
        """The table: quantity, unit, and amounts predicted, modelled, measured."""
        return report.rows(self.experiment.quantities, *self.shown.values())

    def _draw(self) -> None:
        """The chosen clock's trace into the player and the other figures."""
        with self._lock:
            clock = self.tabs.value
            trace = self.traces.get(clock)
            if trace is not None:
                self.player.show(trace, STALE if clock != "predicted" and self.stale else "")
                extra = [name for name in self.experiment.figures if name not in PLAYED]
                if extra or self._pictures.children:
                    self._pictures.children = [go.FigureWidget(figures.figure(name, trace)) for name in extra]
            else:
                self.player.show(None, "" if clock == "predicted" else f"Press Run: {self.experiment.ranks} real processes will fill this. "
                                 f"It shows {TABS[clock]}.")

    def _tabulate(self) -> None:
        self._results.value = table.results(self.experiment.quantities, self.shown, self._sentences, self.stale)

    def _show_command(self) -> None:
        self._command.layout.display = "none" if self._command.layout.display is None else None
        self._write_command()
        self.player.send({"do": "copy", "text": report.command(self.experiment)})

    def _write_command(self) -> None:
        self._command.value = f'<div class="btl-command"><code>{escape(report.command(self.experiment))}</code></div>'

    # -- the run ------------------------------------------------------------------------------------------------------------

    def start(self, **options):
        """Press Run; options as for Experiment.run. Returns the Run, or None where it could not start."""
        with self._lock:
            if self._running or self._refusal or self.run_button.disabled:
                return None
            self._failure = ""
            self._show_problem()
            self._status("starting")
            try:
                self.run = self.experiment.run(**options)
            except Impossible as error:
                self._status("")
                self._failure = str(error)
                self._show_problem()
                return None
            self._ran, self._began, self._running = self.experiment, time.monotonic(), True
            self._expected = len(self.traces["predicted"].spans())
            for clock in ("modelled", "measured"):
                self.traces.pop(clock, None)
            self.run_button.disabled, self.stop_button.disabled = True, False
            self.tabs.value = self.run.clock
            self._draw()
            self._tabulate()
            self._thread = follow(self.run, self._on_progress, self._on_end)
            return self.run

    def stop(self) -> None:
        """Press Stop: the ranks end, what they did stays."""
        if self.run is not None:
            self.run.stop()

    def wait(self, timeout: float | None = None) -> Trace:
        """Wait for the run and for the panel to show its end; returns the run's trace. RankFailed where it failed."""
        if self.run is None:
            raise Impossible("Nothing runs yet: press Run, or call start().")
        try:
            return self.run.wait(timeout)
        finally:
            if self.run.state != "running":
                self._thread.join()

    def _on_progress(self) -> None:
        run, clock = self.run, self.tabs.value if self.tabs.value != "predicted" else self.run.clock
        trace = run.trace(clock)
        share = min(1.0, len(trace.spans()) / max(1, self._expected))
        steps = self._ran.steps if hasattr(self._ran, "steps") else trace.steps
        at = f"step {min(steps, 1 + int(share * steps))} of {steps}" if trace.spans() else "starting"
        self._status(f'<progress value="{share:.3f}" max="1"></progress>running, {at}; {time.monotonic() - self._began:.1f} s')
        with self._lock:
            self.traces[clock] = trace
            if self.tabs.value == clock and len(trace) and not self._refusal:
                self.player.show(trace, STALE if self.stale else "", live=True)

    def _on_end(self) -> None:
        with self._lock:
            self._running = False
            run, took = self.run, time.monotonic() - self._began
            for clock in ("modelled", "measured")[run.clock == "measured":]:
                self.traces[clock] = run.trace(clock)
            self.run_button.disabled, self.stop_button.disabled = bool(self._refusal), True
            cost = f"; {report.summary(run.summary())}" if run.state == "done" else ""
            self._status(f"{run.state} after {took:.1f} s{escape(cost)}", f"{cost[2:]} Kept in {run.directory}")
            if run.state == "failed":
                self._failure = run.diagnosis or ""
                self._show_problem()
            if self._refusal:
                return
            self._draw()
            self._tabulate()
            if run.state == "done" and took < REPLAY_S and self.tabs.value != "predicted":
                self.player.play()

    def _status(self, html: str, title: str = "") -> None:
        self.status.value = f'<div class="btl-status" role="status" title="{escape(title)}">{html}</div>' if html else ""

    def __repr__(self) -> str:
        told = ", ".join(f"{row.quantity} {row.predicted}" for row in self.rows[:2])
        return f"<Panel {self.experiment.name}: predicted {told}>"


def show(experiment, **settings) -> Panel:
    """The panel of an experiment, as the value of a cell: show("pipeline", ranks=8)."""
    return Panel(experiment, **settings)
