"""Every product of data, pipeline and tensor parallel on 8 ranks, by two schedules: equal to one
process, and as predicted."""

import sys
import tempfile
from pathlib import Path

from bigtrain_lab.checks import run_differs
from bigtrain_lab.checks.parity import relative_errors
from bigtrain_lab.core import Memory
from bigtrain_lab.experiments.combined import Combined

from .measure import row

SIZES = {
    "layers": 8,
    "width": 16,
    "heads": 8,
    "vocabulary": 256,
    "sequence": 8,
    "dtype": "float64",
    "steps": 2,
}


def rows():
    worst, lines = 0.0, []
    for schedule in ("gpipe", "1f1b"):
        for asked in Combined(schedule=schedule, **SIZES).products():
            product = f"dp {asked.replicas} x pp {asked.pipeline} x tp {asked.slices}, {schedule}"
            with tempfile.TemporaryDirectory() as folder:
                run = asked.run(directory=Path(folder) / "run")
                modelled, predicted = run.wait(), asked.predict()
                off = max(relative_errors(run.result, asked.reference()).values())
                wrong = run_differs(asked, run) + run.replicas
            if (
                wrong
                or predicted.step_time != modelled.step_time
                or predicted.where(Memory).events != modelled.where(Memory).events
            ):
                sys.exit(f"{product}: {wrong or 'not as predicted'}")
            worst = max(worst, off)
            print(
                f"{product}: {modelled.step_time * 1e3:.3f} ms as predicted, off by {off:.1e}",
                flush=True,
            )
            lines.append(
                row(f"{product}: step, predicted = modelled", modelled.step_time * 1e3, "ms")
            )
    return [
        row(
            "products and schedules that are as predicted, event for event",
            len(lines),
            "runs",
            at_least=20,
        ),
        row("weights and losses, furthest from one process", worst, "relative", at_most=1e-9),
        *lines,
    ]
