"""Rivals side by side: the same training by each choice that a lab offers, a row each; a click on a
row takes its settings."""

import time
from collections.abc import Callable

from ..core import Trace
from ..view import table
from .nearest import raised
from .rows import Rows
from .settings import Newest


class Rivals(Rows):
    """Predicted once a browser shows them: the row of the settings at once, then the others, grey
    until theirs has come. `choose(settings)` is called for the row that was clicked."""

    def __init__(self, choose: Callable[[dict], None], **traits):
        super().__init__(lambda row, _: choose(self._settings[row]), self._on_seen, **traits)
        self._newest, self._wanted, self._shown = Newest(), None, None
        self._settings, self._found, self._trace = [], {}, None
        self._seen = False

    def _on_seen(self) -> None:
        self._seen = True
        self.show(self._wanted, self._trace)

    def show(self, experiment, trace: Trace) -> None:
        """The rivals of this experiment, itself among them, and its run, where this is the modelled
        trace of one. Equal settings may name a class that was typed anew, so each prediction's own
        instance counts."""
        self._wanted, self._trace = experiment, trace
        if not self._seen:
            return
        if experiment is not self._shown:
            self._shown, self.waiting = experiment, True
            self.html = self.html or '<p class="btl-soft">Predicting all of them ...</p>'
            known = trace if (trace.clock, experiment.fault) == ("predicted", "none") else None
            self._newest.ask(lambda: self._predict(experiment, known), self._tell, 0)
        elif not self.waiting:
            self._write()

    def _predict(self, experiment, known: Trace | None) -> None:
        """All rows, unless the settings move on; the trace of the first may be known."""
        settings, earlier = experiment.rivals(), self._found
        self._settings = [*settings.values(), {}]  # a run, which follows, has those of now
        self._found = {
            name: earlier.get(name, table.Rival(name, False))._replace(own=False, stale=True)
            for name in settings
        }
        now = experiment.model_dump().items()
        for name in sorted(settings, key=lambda name: not settings[name].items() <= now):
            if experiment is not self._shown:
                return
            found = self._found[name] = rival(experiment, name, settings[name], known)
            if found.own:
                self._write()
                time.sleep(0.15)  # who drags a slider moves on

    def _tell(self, _) -> None:
        self._write()
        self.waiting = False

    def _write(self) -> None:
        made, clock = self._shown, self._trace.clock
        ran = [table.Rival("this run, modelled", True, self._trace)] * (clock == "modelled")
        title = {
            "modelled": "The last row ran; the others are predicted.",
            "measured": "All predicted: what the wall clock measured is on the timeline.",
        }
        self.html = table.rivals(
            [*self._found.values(), *ran],
            made.capacity_bytes,
            made.rivals_by.replace("_", " "),
            title.get(clock, "All predicted."),
        )


def rival(experiment, name: str, changes: dict, known: Trace | None) -> table.Rival:
    """What these settings give; the trace of those of now may be known."""
    own = all(getattr(experiment, setting) == value for setting, value in changes.items())
    try:
        trace = own and known or experiment.replace(fault="none", **changes).predict()
        return table.Rival(name, own, trace)
    except Exception as error:  # a class typed by a student may raise anything
        return table.Rival(name, own, None, raised(error))
