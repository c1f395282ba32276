"""What a panel compares: the prediction, the traces of the last run, and what is pinned, each with
its column of the table."""

from fractions import Fraction
from typing import NamedTuple

from ..core import CLOCKS, Impossible, Trace
from ..core.trace import once
from ..experiments.experiment import order_of
from ..runtime import Run, this_machine
from ..runtime.calibrate import NAME as MACHINE
from ..view import report, words
from .nearest import Prediction, raised

EARLIER = (
    "The last run is of an earlier order: its class has changed since, so it is compared with"
    " nothing. Run it again."
)


class Pinned(NamedTuple):
    """A trace that is kept to compare with, what it was made with, and its column of the table."""

    experiment: object
    trace: Trace
    column: report.Column
    scaled: str = ""  # in whose slots its times are told

    def beside(self, experiment, unit: str) -> "Pinned":
        """In this experiment's slots, where that is its unit; each is the work of 1 / `slot` of a
        model: 33 slots of 4 stages last as long as 41.25 of 5. Those of another lab go."""
        factor = Fraction(experiment.slot, self.experiment.slot)
        same = experiment.name == self.experiment.name
        if {self.trace.unit, unit} != {"slot"} or (same and factor == 1):
            return self
        column = {
            name: amount._replace(value=float(amount.value * factor))
            if amount.unit.startswith("slot")
            else amount
            for name, amount in self.column.items()
            if same or not amount.unit.startswith("slot")
        }
        return self._replace(
            trace=slower(self.trace, factor), column=column, scaled="times in slots of now"
        )

    def __str__(self) -> str:
        return (
            f"pinned: {self.trace.clock},"
            f" {report.told_settings(self.experiment) or 'default settings'}"
            f"{', ' * bool(self.scaled)}{self.scaled}"
        )


@once
def slower(trace: Trace, factor: Fraction) -> Trace:
    """The same events, which last so many times as long."""
    return Trace(
        tuple(
            event._replace(
                **{
                    name: round(getattr(event, name) * factor)
                    for name in ("start", "end")
                    if name in event._fields
                }
            )
            for event in trace.events
        ),
        **trace.header(),
    )


class Compared:
    """Values only; a column is counted once, when its trace comes, since a long trace takes a
    second to count."""

    def __init__(self, experiment):
        self.experiment, self.ran, self.order = (
            experiment,
            None,
            "",
        )  # now, and of the last run: experiment and order
        self.prediction: Prediction | None = None
        self.traces: dict[str, Trace] = {}
        self.columns: dict[str, report.Column] = {}
        self.pinned: Pinned | None = None
        self.refused = False  # the settings of now cannot be
        self.said: list[str] = []  # of the last run: why it went as it did

    def predict(self, prediction: Prediction) -> bool:
        """Take what the settings of now give; whether they have changed."""
        before = identity(self.experiment), self._order_now
        self.prediction, self.experiment = prediction, prediction.experiment
        self.traces["predicted"], self.columns["predicted"] = prediction.trace, prediction.column
        return (identity(self.experiment), self._order_now) != before

    def begin(self, ran) -> None:
        """A run of this experiment begins; while it goes on its traces are drawn and compare with
        nothing."""
        self.ran, self.order, self.said = ran, self._order_now, []
        for clock in CLOCKS[1:]:
            self.traces.pop(clock, None), self.columns.pop(clock, None)

    def end(self, traces: dict[str, Trace], ran) -> None:
        """A run has ended, or was reopened. What its class raises comes last: the traces are
        taken."""
        self.begin(ran)
        self.traces |= traces
        self.order = next(
            filter(None, (order_of(trace.settings) for trace in traces.values())), self.order
        )
        self.columns |= {
            clock: report.column(ran.quantities, trace) for clock, trace in traces.items()
        }
        # a class that was typed again cannot explain a run of the one before
        if "modelled" in traces and ran.is_of(traces["modelled"].settings):
            self.said = ran.explain(traces["modelled"])

    @property
    def _order_now(self) -> str:
        return order_of(self.prediction.trace.settings) if self.prediction else ""

    @property
    def changed(self) -> str:
        """What has changed since the last run: "settings", "order" (its class was typed again), or
        nothing, ""."""
        if self.ran is None:
            return ""
        if self.refused or identity(self.ran) != identity(self.experiment):
            return "settings"
        return "order" if self.order != self._order_now else ""

    @property
    def note(self) -> str:
        """That, at the traces of the last run."""
        return f"{self.changed} changed since this run" if self.changed else ""

    def rows(self) -> list[report.Row]:
        return report.lined_up(
            self.experiment.quantities,
            self.columns,
            self.beside.column if self.pinned else None,
            report.priced_here(self.experiment),
        )

    def pin(self, tab: str) -> None:
        """Keep what this tab shows; where it shows nothing yet, the run that belongs to the
        settings, else the prediction."""
        own = [] if self.changed else ["modelled", "measured"]
        clock = next(clock for clock in (tab, *own, "predicted") if clock in self.columns)
        self.pinned = Pinned(
            self.experiment if clock == "predicted" else self.ran,
            self.traces[clock],
            self.columns[clock],
        )

    @property
    def beside(self) -> Pinned:
        """What is pinned, as it is told beside the settings of now."""
        return self.pinned.beside(self.experiment, self.traces["predicted"].unit)

    def told_of(self, tab: str) -> str:
        """The clock that the sentences are of, where this tab shows another one; else ""."""
        clock = "modelled" if not self.changed and self.said else "predicted"
        return clock if clock != tab else ""

    @property
    def sentences(self) -> list[str]:
        """Which machine prices all this, where it is not this one; why the last run went as it did,
        where it is of these settings, else why the prediction does; in labels of boxes."""
        why = (not self.changed and self.said) or (
            self.prediction.sentences if self.prediction else []
        )
        return [
            *[EARLIER] * (self.changed == "order"),
            *machine_of_a_run(self.experiment),
            *(words.in_labels(each, next(iter(self.traces.values()))) for each in why),
        ]

    def of(self, tab: str) -> Trace | None:
        """The trace that a tab shows."""
        return (
            (self.pinned.trace if self.pinned else None)
            if tab == "pinned"
            else self.traces.get(tab)
        )

    def not_reached(self, tab: str) -> Trace | None:
        """What the last run was predicted to do, where this tab shows it and it broke off."""
        return (
            self.traces["predicted"]
            if not self.changed and "unfinished" in getattr(self.traces.get(tab), "settings", ())
            else None
        )

    def made(self, tab: str):
        """The experiment whose trace that is."""
        if tab == "pinned" and self.pinned:
            return self.pinned.experiment
        return self.ran if tab in CLOCKS[1:] and self.ran else self.experiment

    def changes(self) -> list[str]:
        """The settings that differ from those of what is pinned, else that it is of an earlier
        order."""
        if not self.pinned:
            return []
        return [
            *(
                report.changes(self.pinned.experiment, self.experiment)
                or ["an earlier order"] * (order_of(self.pinned.trace.settings) != self._order_now)
            ),
            *filter(None, [self.beside.scaled]),
        ]


def identity(experiment) -> tuple:
    """What makes two experiments the same: instances made before and after an edit of a class are
    compared too."""
    return experiment.name, experiment.model_dump()


def machine_of_a_run(experiment) -> list[str]:
    """That this-machine is what a reopened run kept, in a sentence; nothing where it is the one
    that is here, or prices nothing."""
    profile = getattr(experiment, "profile", None)
    if (
        profile is None
        or profile.name != MACHINE
        or "machine" not in experiment.kept
        or profile == this_machine(measure=False)
    ):
        return []
    return [
        f"{MACHINE} is here the machine of the reopened run, as measured"
        f" {profile.sources.get('when', 'then')}; a new panel prices by this one."
    ]


def reopened(directory, own: type) -> tuple[Run, object, dict[str, Trace]]:
    """(run, experiment, traces by clock) of a kept run; Impossible, in a sentence, where it cannot
    be read or taken."""
    run = Run.open(directory)
    traces = run.traces()
    try:
        experiment = own.restored(run.settings["settings"], run.ranks)
        return (
            run,
            experiment,
            {clock: experiment.vouched(trace) for clock, trace in traces.items()},
        )
    except Exception as error:  # a class typed by a student may raise anything
        raise Impossible(raised(error)) from error
