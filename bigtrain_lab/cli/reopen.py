"""A run directory or a saved trace, opened again; what cannot be read is one sentence, and what is whole is shown."""

import os
from pathlib import Path
from typing import NamedTuple

from .. import report
from ..core import Impossible, Trace
from ..experiments import Experiment
from ..runtime import Run


class Reopened(NamedTuple):
    """`run` is None for a trace file; `experiment` where this library does not have it, or not with these settings. `notes`
    say what was lost, and why there is no experiment; `settings` and `ranks` are what it keeps of itself."""

    run: Run | None
    experiment: Experiment | None
    traces: dict[str, Trace]
    notes: tuple[str, ...]
    settings: dict
    ranks: int


def reopen(path: Path | None) -> Reopened:
    """Impossible where there is no run and no trace, or one that holds nothing whole, or one of another version."""
    if path is None:
        raise Impossible(f"Name a run directory, or a file that predict --save wrote{newest()}.")
    if not os.path.lexists(path):
        raise Impossible(f"There is no {path}: name a run directory, or a file that predict --save wrote.")
    notes = []
    if os.path.isdir(path):
        run = Run.open(path)
        traces, settings, ranks = [*run.traces().values()], run.settings["settings"], run.ranks
        notes += [run.damage] if run.damage else []
    else:
        run, traces = None, [Trace.load(path)]
        settings, ranks = traces[0].settings, traces[0].ranks
    try:
        experiment = Experiment.restored(settings, ranks)
        same = experiment.is_of(settings)
        traces = answering(experiment, [*map(experiment.vouched, traces)], predict=bool(run) and same)
        if run and not same:
            notes.append("This run is of an earlier order, so there is no prediction of it: run it again to compare.")
    except Impossible as error:
        experiment = None
        notes.append(f"There is no table: {error}")
    return Reopened(run, experiment, {trace.clock: trace for trace in traces}, tuple(notes), settings, ranks)


def answering(experiment: Experiment, traces: list[Trace], predict: bool) -> list[Trace]:
    """The traces, after the prediction if that is asked for too; Impossible where they do not answer the experiment's questions."""
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
        raise Impossible(f"its events are not those of its settings ({type(error).__name__}): run it again.") from error


def newest() -> str:
    """How to go on where no run was named: the newest one that is kept here."""
    kept = sorted(path for path in Path("runs").glob("*") if path.is_dir())
    return f", such as the newest one here, {kept[-1]}" if kept else ""
