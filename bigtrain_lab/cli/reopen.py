"""A run directory or a saved trace, opened again; what cannot be read is one sentence, and what is whole is shown."""

from pathlib import Path
from typing import NamedTuple

from ..core import Impossible, Trace
from ..experiments import Experiment
from ..runtime import Run
from .labs import traces_of


class Reopened(NamedTuple):
    """`run` is None for a trace file; `experiment` where this library does not have it, or not with these settings. `notes`
    say what was lost, and why there is no experiment."""

    run: Run | None
    experiment: Experiment | None
    traces: dict[str, Trace]
    notes: tuple[str, ...] = ()


def reopen(path: Path | None) -> Reopened:
    """Impossible where there is no run and no trace, or one that holds nothing whole, or one of another version."""
    if path is None:
        raise Impossible(f"Name a run directory, or a file that predict --save wrote{newest()}.")
    if not path.exists():
        raise Impossible(f"There is no {path}: name a run directory, or a file that predict --save wrote.")
    notes = []
    try:
        if path.is_dir():
            run = Run.open(path)
            traces, settings = traces_of(run), run.settings["settings"]
            _ = run.settings["name"], run.settings["started"]  # read now, to find damage here
            notes += [run.damage] if run.damage else []
        else:
            run, traces = None, [Trace.load(path)]
            settings = traces[0].settings
    except Impossible:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OSError) as error:
        raise Impossible(f"{path} is damaged ({type(error).__name__}: {error}): run it again, or save it again.") from error
    try:
        experiment = Experiment.restored(settings)
        if run:
            if experiment.is_of(settings):
                traces.insert(0, experiment.predict())
            else:
                notes.append("This run is of an earlier order, so there is no prediction of it: "
                             "run it again to compare.")
    except Impossible as error:
        experiment = None
        notes.append(f"There is no table: {error}")
    return Reopened(run, experiment, {trace.clock: trace for trace in traces}, tuple(notes))


def newest() -> str:
    """How to go on where no run was named: the newest one that is kept here."""
    kept = sorted(path for path in Path("runs").glob("*") if path.is_dir())
    return f", such as the newest one here, {kept[-1]}" if kept else ""
