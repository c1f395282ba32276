"""Rivals side by side: the same training by each choice that a lab offers, a row each; a click on a
row takes its settings."""

from collections.abc import Callable

from ..core import Trace
from ..view import table
from .nearest import raised
from .rows import Rows
from .settings import PATIENCE_S, Newest

MEASURED = "All predicted: what the wall clock measured is on the timeline."


class Rivals(Rows):
    """Predicted once a browser shows them; what takes long comes later, in grey until then.
    `choose(settings)` is called for the row that was clicked."""

    def __init__(self, choose: Callable[[dict], None], **traits):
        super().__init__(lambda row, _: choose(self._settings[row]), self._on_seen, **traits)
        self._newest, self._wanted, self._shown = Newest(), None, None
        self._settings, self._found, self._trace = [], [], None
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
            self._newest.ask(lambda: rows(experiment), self._tell, PATIENCE_S)
        elif not self.waiting:
            self._write()

    def _tell(self, told: tuple[list[dict], list[table.Rival]]) -> None:
        self._settings, self._found = told
        self._write()
        self.waiting = False

    def _write(self) -> None:
        made, clock = self._shown, self._trace.clock
        ran = [table.Rival("this run, modelled", True, self._trace)] * (clock == "modelled")
        title = {"modelled": "The last row ran; the others are predicted.", "measured": MEASURED}
        self.html = table.rivals(
            [*self._found, *ran],
            made.capacity_bytes,
            made.rivals_by.replace("_", " "),
            title.get(clock, "All predicted."),
        )


def rows(experiment) -> tuple[list[dict], list[table.Rival]]:
    """The settings of each rival, and what each gives; those of the run, which follows, are the
    settings of now."""
    found, settings = [], []
    for name, changes in experiment.rivals().items():
        settings.append(changes)
        own = all(getattr(experiment, setting) == value for setting, value in changes.items())
        try:
            trace = experiment.replace(fault="none", **changes).predict()
            found.append(table.Rival(name, own, trace))
        except Exception as error:  # a class typed by a student may raise anything
            found.append(table.Rival(name, own, None, raised(error)))
    return [*settings, {}], found
