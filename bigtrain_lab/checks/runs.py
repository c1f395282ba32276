"""A run of an experiment is right: its clock and its bytes are those predicted, its numbers those
of one process, on every rank."""

from ..experiments import Experiment
from ..runtime import Run
from .clocks import bytes_differ, clocks_differ
from .parity import TOLERANCE, ranks_differ


def run_differs(experiment: Experiment, run: Run, tolerance: float = TOLERANCE) -> list[str]:
    """Sentences on where a run, once it is done, differs from `predict()`, event for event and byte
    for byte, and each rank's results from `reference()`, in every name."""
    predicted = experiment.predict()
    return [
        *clocks_differ(predicted, run.wait()),
        *bytes_differ(predicted, run.trace("measured")),
        *ranks_differ(run.results, experiment.reference(), tolerance),
    ]
