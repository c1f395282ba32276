"""Rivals side by side: the same training by each choice that a lab offers, a row each, and what is
pinned; a click on a row takes its settings, or runs them."""

import time
from collections.abc import Callable
from functools import partial

from ..core import Trace
from ..core.overtaken import WANTED, Overtaken, go_on
from ..order import fullest_bytes, not_finite
from ..view import report, table
from .compared import Pinned
from .nearest import raised
from .rows import Rows
from .settings import Newest

MINE = "mine"  # a row that no rival has a name for


class Rivals(Rows):
    """Predicted once a browser shows them: the row of the settings at once, then the others, grey
    until theirs has come; while the settings are `moving` on, nothing. `choose(settings, runs)` is
    called for the row that was clicked."""

    def __init__(self, choose: Callable[[dict, bool], None], moving: Callable[[], bool], **traits):
        super().__init__(
            lambda row, what: choose(self._settings[row], bool(what)),
            self._on_seen,
            html='<p class="btl-soft">Predicting all of them ...</p>',
            **traits,
        )
        self._newest, self._wanted, self._shown, self._moving = Newest(), None, None, moving
        self._settings, self._found, self._trace, self._pinned = [], {}, None, None
        self._seen, self._verdict = False, ""

    def _on_seen(self) -> None:
        self._seen = True
        if self._wanted:
            self.show(self._wanted, self._trace, self._pinned)

    def show(self, experiment, trace: Trace, pinned: Pinned | None) -> None:
        """The rivals of this experiment, itself among them, what is pinned, and its run, where this
        is the modelled trace of one. Equal settings may name a class that was typed anew, so each
        prediction's own instance counts."""
        self._wanted, self._trace, self._pinned = experiment, trace, pinned
        self._known = trace if (trace.clock, experiment.fault) == ("predicted", "none") else None
        if not self._seen:
            if not experiment.tells_late:
                self._list(experiment)
                self._write(experiment)
        elif experiment is not self._shown:
            self._shown, self._verdict, self.waiting = experiment, "", True
            if (
                self._found and self._known is not None and experiment.tells_late
            ):  # to find them is slow
                rows = [row._replace(own=False, stale=True) for row in self._found.values()]
                self._found = {
                    row.name: row for row in (*rows, table.Rival(MINE, True, self._known))
                }
                self._write(experiment)
            self._newest.ask(partial(self._predict, experiment, self._known), self._tell, 0)
        elif not self.waiting:
            self._write(experiment)

    def _list(self, experiment) -> dict[str, dict]:
        """Rows of all rivals, still to be predicted; returns what each one sets."""
        settings, earlier = experiment.rivals(), self._found
        self._found = {
            name: earlier.get(name, table.Rival(name))._replace(
                own=False, stale=True, settings=changes
            )
            for name, changes in settings.items()
        }
        return settings

    def _predict(self, experiment, known: Trace | None) -> None:
        """All rows, unless the settings move on, which is Overtaken; the trace of the first may be
        known."""
        WANTED.set(lambda: experiment is self._shown and not self._moving())
        settings = self._list(experiment)
        now = experiment.model_dump().items()
        try:
            for name in sorted(settings, key=lambda name: not settings[name].items() <= now):
                go_on()
                found = self._found[name] = rival(experiment, name, settings[name], known)
                if found.own:
                    self._write(experiment)
                    time.sleep(0.15)  # who drags a slider moves on
        except Overtaken:
            if experiment is self._shown:  # and may come back
                self._shown, self.waiting = None, False
            raise

    def _tell(self, _) -> None:
        self._write(self._shown)
        self.waiting = False

    def _write(self, made) -> None:
        trace, pinned = self._trace, self._pinned
        broken = "not a number" * bool(not_finite(trace))
        rows = [  # what its dry run tells comes later
            row._replace(trace=self._known or row.trace, broken=broken or row.broken)
            if row.own and row.trace
            else row
            for row in self._found.values()
        ]
        if pinned and pinned.trace.unit == trace.unit:
            rows.append(
                table.Rival(
                    str(pinned),
                    trace=pinned.trace,
                    settings=pinned.experiment.model_dump(),
                    pinned=True,
                    told=told_of(pinned.experiment, pinned.trace),
                    broken="not a number" * bool(not_finite(pinned.trace)),
                )
            )
        title = {
            "measured": "All predicted; the measured run is on the timeline.",
            "modelled": "The blue row ran, as predicted on the modelled clock.",
        }
        if trace.clock == "modelled":
            ran = {"trace": trace, "told": told_of(made, trace)}
            rows = [row._replace(**ran) if as_predicted(row, trace) else row for row in rows]
            if not any(row.trace is trace for row in rows):
                rows.append(table.Rival("this run, modelled", True, broken=broken, **ran))
                title["modelled"] = "The last row ran; the others are predicted."
        self._settings = [row.settings for row in rows]
        html, self._verdict = table.rivals(
            rows,
            made.capacity_bytes,
            made.rivals_by.replace("_", " "),
            title.get(trace.clock, "All predicted."),
            made.rivals_take,
        )
        self.html = html

    def verdict(self, experiment) -> str:
        """Which of their rivals is the fastest, in words; "" while that is not known, under a
        fault, which rivals are without, and of a lab whose own sentences find it."""
        return self._verdict * (
            experiment is self._shown and not experiment.tells_late and experiment.fault == "none"
        )


def as_predicted(row: table.Rival, trace: Trace) -> bool:
    """Whether the run of this trace took the time, and the memory, of the settings' row."""
    return bool(row.own and row.trace and not trace.settings.get("unfinished")) and (
        len({(each.step_time, fullest_bytes(each)) for each in (row.trace, trace)}) == 1
    )


def rival(experiment, name: str, changes: dict, known: Trace | None) -> table.Rival:
    """What these settings give; the trace of those of now may be known."""
    own = all(getattr(experiment, setting) == value for setting, value in changes.items())
    made = table.Rival(name, own, settings=changes)
    try:
        sound = own and experiment.fault == "none"  # then it is this one, with what it has found
        other = experiment if sound else experiment.replace(fault="none", **changes)
        trace = own and known or other.predict()
        return made._replace(
            trace=trace,
            told=told_of(other, trace),
            broken=other.unlike or "breaks" * bool(other.breaks),
        )
    except Exception as error:  # a class typed by a student may raise anything
        return made._replace(why=raised(error))


def told_of(experiment, trace: Trace) -> report.Column:
    """The quantities that are columns of a lab's table, of this trace."""
    try:
        names = (experiment.rivals_take, *experiment.rivals_tell)
        wanted = [each for each in experiment.quantities if each.name in names]
        return report.column(wanted, trace)
    except Exception:  # a class typed by a student may raise anything
        return {}
