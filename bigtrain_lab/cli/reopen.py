"""Run directories and saved traces, opened again and compared.

What cannot be read is one sentence, and what is whole is shown. All are compared with the first run
that is named; checks/differences.py compares events and arrays. Nothing here prints.
"""

import os
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

from ..core import Impossible, Trace, refuse
from ..core.later import later
from ..experiments import Experiment
from ..experiments.experiment import asked, order_of
from ..view import report

with later():
    from .. import runtime
    from ..checks import differences

PREFERRED = ("modelled", "predicted", "measured")


class Reopened(NamedTuple):
    """`run` is None for a trace file; `experiment` where this library does not have it, or not with
    these settings. `notes` say what was lost, and why there is no experiment."""

    path: Path
    run: "runtime.Run | None"
    experiment: Experiment | None
    traces: dict[str, Trace]
    notes: tuple[str, ...]
    settings: dict

    @property
    def name(self) -> str:
        """The experiment's."""
        return self.run.settings["name"] if self.run else str(self.settings.get("experiment", "?"))

    @property
    def about(self) -> str:
        """Which run it is, in a line, and a line for each of its notes."""
        trace = next(iter(self.traces.values()))
        return "\n".join([f"{self.path}: {report.about(self.name, trace, self.run)}", *self.notes])


def reopen(path: Path | None) -> Reopened:
    """Impossible where there is no run and no trace, or one that holds nothing whole, or one of
    another version."""
    if path is None:
        raise Impossible(f"Name a run directory, or a file that predict --save wrote{newest()}.")
    refuse(
        (
            not os.path.lexists(path),
            f"There is no {path}: name a run directory, or a file that predict --save wrote.",
        )
    )
    notes = []
    if os.path.isdir(path):
        run = runtime.Run.open(path)
        traces, settings, ranks = [*run.traces().values()], run.settings["settings"], run.ranks
        notes += [run.damage] if run.damage else []
    else:
        run, traces = None, [Trace.load(path)]
        settings, ranks = traces[0].settings, traces[0].ranks
    try:
        experiment = Experiment.restored(settings, ranks)
        same = experiment.is_of(settings)
        traces = answering(
            experiment, [*map(experiment.vouched, traces)], predict=bool(run) and same
        )
        if run and not same:
            notes.append(
                "This run is of an earlier order, so there is no prediction of it: run it again to"
                " compare."
            )
    except Impossible as error:
        experiment = None
        notes.append(f"There is no table: {error}")
    return Reopened(
        path, run, experiment, {trace.clock: trace for trace in traces}, tuple(notes), settings
    )


def answering(experiment: Experiment, traces: list[Trace], predict: bool) -> list[Trace]:
    """The traces, after the prediction if that is asked for too; Impossible where they do not
    answer the experiment's questions."""
    try:
        found = [*([experiment.predict()] if predict else []), *traces]
        for trace in found:
            report.column(experiment.quantities, trace)
            if trace.clock != "measured" and not trace.settings.get("unfinished"):
                experiment.explain(trace)
        return found
    except Impossible:
        raise
    except Exception as error:  # of events that no run wrote anything may come
        raise Impossible(
            f"its events are not those of its settings ({type(error).__name__}): run it again."
        ) from error


def newest() -> str:
    """How to go on where no run was named: the newest one that is kept here."""
    kept = sorted(path for path in Path("runs").glob("*") if path.is_dir())
    return f", such as the newest one here, {kept[-1]}" if kept else ""


# -- side by side ----------------------------------------------------------------------------------


def sides(paths: tuple[Path, ...]) -> list[Reopened]:
    """The runs, opened; Impossible for fewer than two, or where they answer different questions."""
    refuse(
        (
            not 2 <= len(paths) <= len(ascii_uppercase),
            f"{len(paths)} run{'' if len(paths) == 1 else 's'} cannot be compared: name 2 or more,"
            f" up to {len(ascii_uppercase)}.",
        )
    )
    found = [*map(reopen, paths)]
    refuse(
        *(
            (
                other.name != found[0].name,
                f"{found[0].path} is of the experiment {found[0].name} and {other.path} of"
                f" {other.name}: compare runs of one experiment.",
            )
            for other in found[1:]
        )
    )
    return found


def on_one_clock(found: list[Reopened], clock: str | None) -> list[Trace]:
    """Their traces on this clock, by default the first of PREFERRED that all have; Impossible where
    they have none in common."""
    common = [name for name in PREFERRED if all(name in side.traces for side in found)]
    if clock not in (None, *common) or not common:
        lacking = next(side for side in found if clock not in side.traces) if clock else found[-1]
        raise Impossible(
            f"{lacking.path} has no {clock or PREFERRED[0]} times: "
            + (
                f"choose {' or '.join(common)}."
                if common
                else "these have no clock in common, so compare runs with runs."
            )
        )
    traces = [side.traces[clock or common[0]] for side in found]
    refuse(
        *(
            (
                trace.unit != traces[0].unit,
                f"{found[0].path} counts {traces[0].clock} time in {units(traces[0])} and"
                f" {side.path} in {units(trace)}: compare runs on profiles of one"
                f" kind{', or say --clock measured' if 'measured' in common else ''}.",
            )
            for side, trace in zip(found, traces, strict=True)
        )
    )
    return traces


def units(trace: Trace) -> str:
    return {"s": "seconds", "slot": "slots"}.get(trace.unit, trace.unit)


def beside(columns: list[dict]) -> dict[str, list]:
    """Name -> its value in each; None where there is none."""
    return {
        name: [column.get(name) for column in columns]
        for name in dict.fromkeys(name for column in columns for name in column)
    }


def settings_that_differ(found: list[Reopened]) -> list[tuple[str, list]]:
    """(name, its value in each) of every setting that is not the same in all; None where there is
    no such setting."""
    return [
        (name.replace("_", "-"), each)
        for name, each in beside([asked(side.settings) for side in found]).items()
        if any(value != each[0] for value in each)
    ]


def orders_differ(found: list[Reopened]) -> bool:
    """Whether they followed different orders, as far as they tell; of equal settings that is a
    class that was changed."""
    return len({order for side in found if (order := order_of(side.settings))}) > 1


def lines(found: list[Reopened], traces: list[Trace]) -> list[tuple[str, list, list[str]]]:
    """(quantity, its amount in each, how each of the others differs from the first) of every
    quantity that any of the experiments has."""
    columns = [
        report.column(side.experiment.quantities, trace) if side.experiment else {}
        for side, trace in zip(found, traces, strict=True)
    ]
    return [
        (
            name,
            each,
            [report.gap(each[0], other) if each[0] and other else "" for other in each[1:]],
        )
        for name, each in beside(columns).items()
    ]


def results_differ(pair: dict[str, Reopened]) -> str | None:
    """What the ranks of two runs, by their letters, returned (weights, losses), in a sentence; None
    where a prediction is among the two, since it returns nothing."""
    runs = {letter: side.run for letter, side in pair.items()}
    if None in runs.values():
        return None
    for letter, run in runs.items():
        if run.state != "done":
            return f"not compared, since {letter} is {run.state}."
    return differences.arrays_apart(*(run.result for run in runs.values()), tuple(runs))
