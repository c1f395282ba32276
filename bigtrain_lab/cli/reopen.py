"""A run directory or a saved trace, opened again; what cannot be read is one sentence."""

from pathlib import Path
from typing import NamedTuple

from ..core import Impossible, Trace
from ..experiments import Experiment
from ..runtime import Run
from .labs import traces_of


class Reopened(NamedTuple):
    """`run` is None for a trace file; `experiment` where this library does not have it, or not with these settings."""

    run: Run | None
    experiment: Experiment | None
    traces: dict[str, Trace]


def reopen(path: Path) -> Reopened:
    """Impossible where there is no run and no trace, or a damaged one, or one of another version."""
    if not path.exists():
        raise Impossible(f"There is no {path}: name a run directory, or a file that predict --save wrote.")
    try:
        if path.is_dir():
            run = Run.open(path)
            traces, settings = traces_of(run), run.settings["settings"]
            _ = run.state, run.settings["name"], run.settings["started"]  # read now, to find damage here
        else:
            run, traces = None, [Trace.load(path)]
            settings = traces[0].settings
    except Impossible:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OSError) as error:
        raise Impossible(f"{path} is damaged ({type(error).__name__}: {error}): run it again, or save it again.") from error
    experiment = experiment_of(settings)
    if run and experiment:
        traces.insert(0, experiment.predict())
    return Reopened(run, experiment, {trace.clock: trace for trace in traces})


def experiment_of(settings: dict) -> Experiment | None:
    """The experiment with the settings of a run, or None: it may be from a notebook, or from another version."""
    try:
        return Experiment.named(settings["experiment"])(**{name: v for name, v in settings.items() if name != "experiment"})
    except (Impossible, KeyError):
        return None
