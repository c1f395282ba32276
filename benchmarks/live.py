"""How soon the notebook sees what a rank did: from the rank's event to Run.events()."""

import statistics
import tempfile
import time
from pathlib import Path

from bigtrain_lab.core import Scalar
from bigtrain_lab.runtime import launch, warm

from .measure import row


def program(rank):
    for _ in range(100):
        rank.log("told at", time.monotonic())
        time.sleep(0.02)


def rows():
    warm()
    with tempfile.TemporaryDirectory() as folder:
        run = launch(program, ranks=4, directory=Path(folder) / "run")
        delays = [time.monotonic() - e.value for e in run.events() if isinstance(e, Scalar)]
        run.wait()
    delays = sorted(delays)
    return [
        row("event to notebook, median", 1000 * statistics.median(delays), "ms"),
        row(
            "event to notebook, 95th percentile",
            1000 * delays[int(0.95 * len(delays))],
            "ms",
            at_most=200,
        ),
        row("events seen of 400", len(delays), "", at_least=400),
    ]
