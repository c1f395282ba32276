"""One frame for any experiment: question and Run, controls, answers, three clocks through a choice
of lenses, and a foot that says why.

Moving a control predicts again at once and greys what the last run gave; nothing but Run starts a
process. A move costs one message to the player and one to the table. What is shown can be pinned
beside the next run, and a kept run reopened.
"""

import gc
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path

from .. import runtime
from ..core import CLOCKS, Impossible, Trace, refuse
from ..core.overtaken import WANTED, go_on
from ..experiments import Experiment
from ..view import report, table, words
from . import history, widgets
from .bar import COMMAND, HISTORY, MORE, WHY, Bar, Foot
from .compared import Compared, reopened
from .controls import follow_cells
from .nearest import Prediction, raised, tell
from .picture import PINNED, TABS, Picture
from .settings import Newest, Settings

REPLAY_S = 3.0  # a run shorter than this is played again at its end: nobody saw it
PAUSE_S, RESTS = 0.1, 20  # a hand that has made so many pauses is not about to move
AT_ONCE_S, SWITCH_S = 0.0005, sys.getswitchinterval()
AHEAD, RUNS = Newest(), set()  # of all panels of a kernel one looks ahead, while none runs
LEAST_SHARE = 0.05  # of a run, from which the time left is told
LINE = 165  # letters of the answer below the question
BUSY = 4  # pause at least so many times as long as the reading took
FRAME = Path(__file__).with_name("frame.css").read_text(encoding="utf-8")


class Panel(widgets.VBox):
    """`experiment`: a class, an instance (its values are the first ones shown) or a name.

    For programs: `.set(ranks=8)`, `.start()`, `.pause()`, `.resume()`, `.wait()`, `.stop()`,
    `.pin()`, `.unpin()`, `.reopen(directory)`; `.experiment`, `.traces` by clock, `.run`, `.rows`,
    `.pinned`.
    """

    def __init__(self, experiment, **settings):
        if isinstance(experiment, str):
            experiment = Experiment.named(experiment)
        first = (
            experiment(**settings)
            if isinstance(experiment, type)
            else experiment.replace(**settings)
        )
        self._compared, self.run, self._thread, self._lock = (
            Compared(first),
            None,
            None,
            threading.RLock(),
        )
        # why settings cannot be, with the mend; why the run failed, or that it ended in no number
        self._refusal, self._offer, self._pressed = "", {}, []
        self._failure, self._failed, self._broken, self._cost = "", None, "", ""
        # whether a page has shown or touched it since a cell ran, and whether one runs
        self._later, self._near, self._in_cell = Newest(), False, False
        super().__init__(self._build(first))
        self.add_class("btl-panel")
        with suppress(Impossible):  # Run says why no rank can start; a prediction needs none
            runtime.warm()
        self.settings.predict()
        follow_cells(self)

    def _build(self, first: Experiment) -> list[widgets.Widget]:
        self._heading = widgets.HTML(
            heading(first.question), layout=widgets.Layout(flex="1 1 0", min_width="0")
        )
        self.settings = Settings(first, self._on_prediction, self._on_waiting, self._lock)
        self.bar = bar = Bar()
        self.run_button, self.stop_button, self.status = bar.run, bar.stop, bar.status
        self.lead = widgets.HTML(layout=widgets.Layout(width="auto")).add_class("btl-lead")
        self.answers = widgets.HTML(layout=widgets.Layout(width="auto"))
        self.picture = Picture(
            bar.status,
            chosen=self._draw,
            mend=lambda: self.set(**self._offer),
            take=self._take,
            moving=lambda: self.settings.predicting,
            lock=self._lock,
        )
        self.player, self.tabs = self.picture.player, self.picture.tabs
        self.picture.rivals.observe(self._on_rivals, "html")
        self.foot = Foot(
            self.settings.more,
            opened=self._on_foot,
            choose=self._choose,
            copy=lambda text: self.player.send({"do": "copy", "text": text}),
        )
        self.player.on_msg(lambda _, told, buffers: self._on_page(told))
        for button, act in (
            (bar.run, self.start),
            (bar.pin, self.pin),
            (bar.stop, self.stop),
            (bar.pause, lambda: self.resume() if self.run.paused else self.pause()),
            (bar.unpin, self.unpin),
        ):
            button.on_click(lambda _, act=act: act())
        return [
            widgets.HBox([self._heading, bar], layout=widgets.Layout(width="auto")).add_class(
                "btl-top"
            ),
            self.lead,
            self.settings,
            self.answers,
            self.picture,
            self.foot,
        ]

    # -- settings and prediction -------------------------------------------------------------------

    @property
    def controls(self) -> dict[str, widgets.ValueWidget]:
        return self.settings.controls

    def set(self, **settings) -> None:
        """Move controls, as a hand would, and predict once."""
        self.settings.set(**settings)

    def _take(self, settings: dict, runs: bool) -> None:
        """Take a rival's settings; where it `runs`, keep what is shown beside its run."""
        if runs:
            self.pin()
        self.set(**settings)
        if runs:
            self.start()

    def _on_page(self, told: dict) -> None:
        """Take the moves that a page has made and the kernel has not heard, then press Run or Pin,
        or answer that the move of this number is heard.

        A browser sends the moves of a slider one at a time, and a kernel hears controls and buttons
        in several threads: a press by itself would take settings of before, or of after it. No
        other move is taken until it has acted.
        """
        with self._lock:
            comes = not self._near or Settings.looked is not self.settings
            self._near = True
            self.settings.take(told["moves"])
            if "heard" in told:
                self.player.send({"do": "heard", "text": told["heard"]})
                if comes and not self.settings.predicting:
                    self._look()
            else:
                self._pressed.append({"run": self.start, "pin": self.pin}[told["press"]])
                self.settings.settle()
                self._act()

    def _act(self) -> None:
        """Do what was pressed, once its settings are predicted."""
        while self._pressed and not self.settings.predicting:
            self._pressed.pop(0)()

    def read_menus(self, begins: bool = False) -> None:
        """Offer what the families now hold, as a cell `begins` or has ended: it may have typed or
        changed a class. While it runs, nothing is predicted ahead, and the collector looks at all
        that is garbage."""
        self._in_cell = begins
        self._near &= not begins
        gc.unfreeze()
        self.settings.read_menus()
        if self._near:  # a page has shown it meanwhile
            self._look()

    def _on_waiting(self) -> None:
        """The prediction takes long: what is shown is that of other settings."""
        self._enable()
        self.add_class("btl-waiting")

    def _on_prediction(self, tried: Prediction | str, offer: dict) -> None:
        self.remove_class("btl-waiting")
        self.player.controls = [*self.settings.leaves]
        self._refusal, self._offer, self._compared.refused = (
            (tried, offer, True) if isinstance(tried, str) else ("", offer, False)
        )
        changed = False
        if self._refusal:
            self.run_button.description = "Run"
            if {self.controls[name] for name in offer} & {*self.settings.more.children}:
                self.foot.tabs.value = MORE
                self.player.send({"do": "mend"})
        else:
            changed = self._compared.predict(tried)
            if changed:
                self._failure = self._broken = ""
            self.player.limit_bytes = tried.experiment.capacity_bytes
            self.run_button.description = f"Run on {report.counted(tried.experiment.ranks, 'rank')}"
        self._enable()
        self._show_problem()
        self._write_commands()
        self.bar.date(self._compared.changed, self._only_predicted)
        if self._compared.prediction and not (self._refusal and self._running):
            self._draw("predicted" if changed else None, later=True)
        self._look()
        self._act()

    def _look(self) -> None:
        """Tell and look ahead, in a thread, from what is predicted now."""
        if made := self._compared.prediction:  # none where the first settings could not be
            self._later.ask(lambda: self._rest(made), lambda _: None, 0)

    def _rest(self, made: Prediction) -> None:
        """While the hand rests: add sentences and numbers, then look ahead. A hand that moves on
        ends it."""
        WANTED.set(lambda: made is self._compared.prediction and not self.settings.predicting)
        time.sleep(PAUSE_S)
        go_on()
        with self._lock:
            if self.picture.owed:
                self.picture.draw_figure()
        if not made.told.is_set():
            self._tell(made)
        while self.picture.rivals.waiting:
            time.sleep(PAUSE_S)
            go_on()
        if self._near:
            wanted = WANTED.get()
            AHEAD.ask(lambda: self._look_ahead(wanted), lambda _: None, 0)

    def _look_ahead(self, wanted: Callable[[], bool]) -> None:
        """Predict what a hand may ask for next. A cell, a run and another panel end it."""
        newest = WANTED.get()
        WANTED.set(lambda: newest() and wanted() and self._near and not (RUNS or self._in_cell))
        sys.setswitchinterval(AT_ONCE_S)  # each message of a page waits for this thread so long
        try:
            for ahead in self.settings.look_ahead():
                self.picture.prepare(ahead.experiment, ahead.trace)
                gc.freeze()  # a collector that looks at all that is kept takes longer than a move
        finally:
            sys.setswitchinterval(SWITCH_S)
        for _ in range(RESTS):
            time.sleep(PAUSE_S)
            go_on()
        gc.unfreeze()
        gc.collect()

    def _tell(self, made: Prediction) -> None:
        """Add sentences and numbers."""
        try:
            tell(made)
            told = (
                partial(self._on_prediction, made, {})
                if made.experiment.looks_late
                else self._tabulate
            )
        except Exception as error:  # a class typed by a student may raise anything
            told = partial(self._on_prediction, raised(error), {})
        with self._lock:
            if made is self._compared.prediction:
                (self._tabulate if self._refusal else told)()

    @property
    def problem(self) -> str:
        """Why the settings cannot be, else why the last run failed; the latter stays until settings
        change or a run starts."""
        return self._refusal or self._failure

    @property
    def _only_predicted(self) -> str:
        """Why the settings of now do not run, where they can be predicted."""
        return (
            self._compared.prediction.only_predicted
            if self._compared.prediction and not self._refusal
            else ""
        )

    def _show_problem(self) -> None:
        """Why the settings cannot be, over the picture; why the last run failed, first of all that
        is said."""
        self.picture.refuse(table.trouble(self._refusal) if self._refusal else "", self._offer)
        for part in (self.lead, self.answers, self.foot.why):
            (part.add_class if self._refusal else part.remove_class)("btl-refused")

    def _enable(self) -> None:
        self.bar.enable(
            impossible=bool(self._refusal),
            runs=not self._only_predicted,
            predicting=self.settings.predicting,
            running=self._running,
            paused=self._running and self.run.paused,
        )
        self.foot.past.waiting = self._running

    # -- drawing -----------------------------------------------------------------------------------

    @property
    def experiment(self) -> Experiment:
        return self._compared.experiment

    @property
    def _running(self) -> bool:
        return self.run in RUNS

    @property
    def traces(self) -> dict[str, Trace]:
        """By clock: the prediction, and those of the last run."""
        return self._compared.traces

    @property
    def pinned(self):
        """What is pinned: its `.experiment` and `.trace`; None where nothing is."""
        return self._compared.pinned

    @property
    def stale(self) -> bool:
        """Whether settings, or the order that they stand for, have changed since the last run."""
        return bool(self._compared.changed)

    @property
    def rows(self) -> list[report.Row]:
        """The table: quantity, unit, and amounts predicted, modelled, measured, pinned. Waits for
        what a lab tells late."""
        if self._compared.prediction:
            tell(self._compared.prediction)
        return self._compared.rows()

    def _draw(self, tab: str | None = None, later: bool = False) -> None:
        """The trace of this tab, or of the chosen one, into the picture."""
        with self._lock:
            self.picture.go_to(tab or self.tabs.value)
            tab, trace, now = (
                self.tabs.value,
                self._compared.of(self.tabs.value),
                None if self._refusal else self._compared.prediction,
            )
            note = self._compared.note if tab in CLOCKS[1:] else ""
            if trace is None and tab in CLOCKS[1:]:
                runs = (
                    f"Press Run: {report.counted(self.experiment.ranks, 'real rank')} will fill"
                    f" this. It shows {TABS[tab]}."
                )
                note = "The ranks start." if self._running else self._only_predicted or runs
            self.picture.show(
                trace,
                note,
                str(self.pinned) if tab == PINNED else now.description if now else "",
                made=self._compared.made(tab),
                pinned=self.pinned if tab != PINNED else None,
                plan=self._compared.not_reached(tab),
                later=later,
            )
            self._tabulate()  # a browser draws what it is sent first
            if self._running and self.run.paused and tab in CLOCKS[1:]:
                self._on_progress()  # which nothing else calls meanwhile

    def _tabulate(self) -> None:
        if (made := self._compared.prediction) is None:
            return
        rows = self._compared.rows()
        pinned = self.pinned.trace.clock if self.pinned else ""
        self.answers.value = table.answers(
            rows,
            self.experiment.answers,
            self.tabs.value,
            self._failure.partition("\n")[0],
            self._broken,
            pinned,
            self._compared.changed if self.tabs.value in CLOCKS[1:] else "",
            self.pinned.column if self.pinned else {},
        )
        (self.remove_class if made.told.is_set() else self.add_class)("btl-untold")
        if not made.told.is_set() and not self._failure:
            return  # what stands there is of the settings before, and grey
        trouble, verdict = "", self.picture.rivals.verdict(made.experiment)
        first, *others = report.whole_first(self._compared.sentences) or [""]
        if self._failure:
            trouble = table.trouble(self._failure, self._failed, self.traces["predicted"])
            verdict, others = "", [first, *others]
            first = words.in_labels(self._failure.partition("\n")[0], self.traces["predicted"])
        elif len(first) + len(verdict) > LINE:
            first, others = re.split("[.:] ", first)[0].rstrip(".") + ".", [first, *others]
        self.lead.value = table.why([f"{first} {verdict}".strip()])
        self.foot.why.value = trouble + table.why(
            others, self._compared.told_of(self.tabs.value), made.description
        )
        told = table.numbers(rows, self._compared.changed, pinned, self._compared.changes())
        self.foot.numbers.value = (
            f'<div class="btl-results">{told}<p class="btl-soft">{escape(self._cost)}</p></div>'
        )

    def _on_rivals(self, _) -> None:
        """Their verdict has come, in a thread of its own."""
        with self._lock:
            self._tabulate()

    def pin(self) -> None:
        """Press Pin: keep what is shown beside what comes; what was pinned before goes. Settings
        that cannot be show nothing."""
        with self._lock:
            if not self._refusal:
                tell(made := self._compared.prediction)
                self._compared.predict(made)
                self._compared.pin(self.tabs.value)
                self._fit_pinned()

    def unpin(self) -> None:
        with self._lock:
            self._compared.pinned = None
            self._fit_pinned()

    def _fit_pinned(self) -> None:
        """A tab and a column for what is pinned."""
        self.picture.offer(pinned=bool(self.pinned))
        self.bar.unpin.layout.display = None if self.pinned else "none"
        self._draw()

    def _write_commands(self) -> None:
        """The commands of these settings, where they are looked at; none for settings that cannot
        be."""
        if self.foot.tabs.value == COMMAND:
            self.foot.write({} if self._refusal else report.commands(self.experiment))

    # -- the run -----------------------------------------------------------------------------------

    def start(self, **options):
        """Press Run; options as for Experiment.run. Returns the Run, or None where it could not
        start."""
        with self._lock:
            self.settings.settle()
            if self._running or self._refusal or self._only_predicted or self.settings.predicting:
                return None
            self._fail("")
            self._broken = ""
            self.bar.tell("starting")
            try:
                self.run = self.experiment.run(**options)
            except Exception as error:  # a class typed by a student may raise anything
                self.bar.tell("")
                self._fail(raised(error))
                return None
            self._plan = self.traces["predicted"]
            self._compared.begin(self.experiment)
            RUNS.add(self.run)
            self._thread = follow(self.run, self._on_progress, self._on_end)
            self._enable()
            self.picture.watch(goes_on=True)
            self._draw(self.run.clock)
            return self.run

    def pause(self) -> None:
        """Press Pause: the ranks stand still until `resume`, and so do their clocks."""
        if self.run is not None:
            self.run.pause()

    def resume(self) -> None:
        """Press Resume: the ranks go on, and so do their clocks."""
        if self.run is not None:
            self.run.resume()

    def stop(self) -> None:
        """Press Stop: the ranks end, what they did stays."""
        if self.run is not None:
            self.run.stop()

    def wait(self, timeout: float | None = None) -> Trace:
        """Wait for the run and for the panel to show its end; returns the run's trace. RankFailed
        where it failed."""
        refuse((self.run is None, "Nothing runs yet: press Run, or call start()."))
        try:
            return self.run.wait(timeout)
        finally:
            if self._thread and self.run.state != "running":
                self._thread.join()

    def _fail(self, sentence: str, run=None) -> None:
        self._failure, self._failed = sentence, run
        if sentence:
            self.foot.tabs.value = WHY
        self._show_problem()
        self._tabulate()

    def _on_progress(self) -> None:
        run, clock = self.run, self.tabs.value if self.tabs.value in CLOCKS[1:] else self.run.clock
        trace = run.trace(clock)
        steps = getattr(self._compared.ran, "steps", trace.steps)
        text, share = progress(run, trace, len(self._plan.spans()), steps)
        self.bar.tell(text, share=share)
        with self._lock:
            self._enable()
            self.traces[clock] = trace
            if self.tabs.value == clock and not self._refusal:
                self.picture.show(
                    trace,
                    self._compared.note,
                    self._compared.prediction.description,
                    live=True,
                    pinned=self.pinned,
                    plan=self._plan,
                )

    def _on_end(self) -> None:
        run, took = self.run, self.run.spent_s
        with self._lock:
            RUNS.discard(run)
            try:
                when, replayed = f"after {took:.1f} s", took < REPLAY_S
                self.picture.watch(goes_on=False)
                self._show_end(run, self._compared.ran, run.traces(), when, replayed)
                if run.state == "done":
                    history.note(run.directory, table.chosen(self.rows, self._compared.ran.answers))
            except Exception as error:  # a class typed by a student may raise anything
                self._fail(raised(error))
            if self.foot.tabs.value == HISTORY:
                self._on_foot(HISTORY)
            if self._near:
                self._look()

    def _show_end(
        self,
        run,
        ran: Experiment,
        traces: dict[str, Trace],
        when: str,
        replayed: bool,
        damage: str = "",
    ) -> None:
        """All that a run gave, once it has ended or was reopened."""
        self._enable()
        outcome = report.outcome(run)
        self._broken = f"The run {outcome}." if outcome.startswith("ended") else ""
        self._cost = report.summary(run.summary()) if run.state == "done" else ""
        self.bar.tell(f"{outcome} {when}", f"{self._cost} Kept in {run.directory}", ended=True)
        failure, broken = run.diagnosis if run.state == "failed" else "", ""
        for trace in traces.values():  # of whatever clock: the boxes are the same
            failure = words.in_labels(failure, trace)
        try:
            self._compared.end(traces, ran)
        except Exception as error:  # a class typed by a student may raise anything
            broken = raised(error)
        if told := "\n".join(filter(None, (failure, damage, broken))):
            self._fail(told, run if failure else None)
        if failure:
            self.picture.watch(goes_on=False, failed=True)
        self.bar.date(self._compared.changed, self._only_predicted)
        self._draw()
        if not self._refusal and run.state == "done" and replayed and self.tabs.value in CLOCKS[1:]:
            self.player.play()

    # -- runs that are kept ------------------------------------------------------------------------

    def reopen(self, directory) -> None:
        """Show a kept run: its settings, its traces, its failure; nothing starts. Impossible where
        that cannot be."""
        with self._lock:
            refuse(
                (
                    self._running,
                    "A run goes on in this panel: stop it, or wait for its end, and choose again.",
                )
            )
            own = self.settings.experiment_class
            run, experiment, traces = reopened(directory, own)
            if type(experiment) is not own:
                self.settings.fit(experiment)
            self.settings.experiment, self._heading.value = (
                experiment,
                heading(experiment.question),
            )  # with what its run kept
        self.set(**experiment.model_dump())
        with self._lock:
            self.run, self._thread = run, None
            self._fail("")
            self.picture.go_to(run.clock)
            self._show_end(
                run,
                experiment,
                traces,
                f"on {history.when(run.settings['started'])}, reopened",
                True,
                run.damage or "",
            )

    def _on_foot(self, tab: str) -> None:
        if tab == HISTORY:
            self.foot.runs, older = history.listed(self.settings.experiment_class)
            self.foot.past.html = history.table_of(self.foot.runs, older)
        elif tab == COMMAND:
            self._write_commands()
            self.foot.copy()

    def _choose(self, past: history.Past, what: str) -> None:
        try:
            if what:
                {"star": past.star, "delete": past.delete}[what]()
                self._on_foot(HISTORY)
            else:
                self.reopen(past.directory)
        except Exception as error:  # a class typed by a student may raise anything
            self._fail(raised(error))

    def __repr__(self) -> str:
        return (
            f"<Panel {self.experiment.name}: predicted"
            f" {', '.join(f'{row.quantity} {row.predicted}' for row in self.rows[:2])}>"
        )


def show(experiment, **settings) -> Panel:
    """The panel of an experiment, as the value of a cell: show("pipeline", ranks=8)."""
    return Panel(experiment, **settings)


def heading(question: str) -> str:
    """The question, and the style of the whole panel."""
    return f"<style>{FRAME}</style>{table.heading(question)}"


def progress(run, trace, expected: int, steps: int) -> tuple[str, float]:
    """How far a run is, by the boxes that it has drawn of those `expected`, and what its ranks are
    at now: in words, and as a share."""
    share, spent_s = min(1.0, len(trace.spans()) / max(1, expected)), run.spent_s
    at = f"step {min(steps, 1 + int(share * steps))} of {steps}" if trace.spans() else "starting"
    left = f", about {spent_s * (1 / share - 1):.0f} s left" if share > LEAST_SHARE else ""
    left += f"; {run.now}" if run.now else ""
    running = f"running, {at}; {spent_s:.1f} s{left}"
    return f"paused, {at}; {spent_s:.1f} s{left}" if run.paused else running, share


def follow(run, changed: Callable[[], None], ended: Callable[[], None]) -> threading.Thread:
    """The thread that calls `changed()`, at most ten times a second, and `ended()` after the run.

    A thread, since a blocking cell stops the kernel's own callbacks but no thread. The browser
    cannot say that it is behind, so a reading that took long is followed by a longer pause.
    """

    def watch():
        paused = False
        while run.state == "running":
            began = time.monotonic()
            # A class typed by a student may raise anything; the end of the run tells.
            with suppress(Exception):
                if not (paused and run.paused):
                    paused = run.paused
                    changed()
            spent = time.monotonic() - began
            until = time.monotonic() + max(PAUSE_S - spent, BUSY * spent)
            while run.state == "running" and time.monotonic() < until:
                time.sleep(0.02)
        ended()

    thread = threading.Thread(target=watch, daemon=True, name="bigtrain_lab panel")
    thread.start()
    return thread
