"""Not speed but errors: how far each schedule's real run is from prediction and from training in
one process."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.checks.parity import relative_errors
from bigtrain_lab.core import Memory
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.order.schedule import Schedule

from .measure import row

SMALL = {
    "layers": 8,
    "width": 32,
    "heads": 4,
    "sequence": 16,
    "rows": 2,
    "ranks": 4,
    "micro_batches": 8,
}
EXACT = {"dtype": "float64", "optimizer": "sgd", "learning_rate": 0.5}


def finished(asked, **options):
    with tempfile.TemporaryDirectory() as folder:
        run = asked.run(directory=Path(folder) / "run", **options)
        run.wait(timeout=600)
        return run.trace("modelled"), run.trace("measured"), run.result


def boundary_bytes_differ(predicted, measured) -> int:
    """Action boundaries at which a kind's measured bytes are not the predicted ones."""
    told = [
        [
            (e.rank, e.kind, e.name, e.bytes)
            for e in t.events
            if isinstance(e, Memory) and not e.inside
        ]
        for t in (predicted, measured)
    ]
    return len(set(told[0]) ^ set(told[1]))


def rows():
    torch.set_num_threads(1)  # the ranks share the cores
    table = []
    for name, cls in Schedule.all().items():
        for hardware in ("unit", "a100-nvlink"):
            asked = PipelineExperiment(
                schedule=name, hardware=hardware, steps=3, dropout=0.1, **SMALL
            )
            modelled, measured, _ = finished(asked, jitter_s=0.002)
            predicted = asked.predict()
            events = sum(not hasattr(e, "value") for e in predicted.events)
            table.append(
                row(
                    f"{name}, {hardware}: lanes whose modelled events differ from the {events}"
                    " predicted",
                    len(clocks_differ(predicted, modelled)),
                    "",
                    at_most=0,
                )
            )
            table.append(
                row(
                    f"{name}, {hardware}: action boundaries with other bytes than predicted",
                    boundary_bytes_differ(predicted, measured),
                    "",
                    at_most=0,
                )
            )
        if cls.asynchronous:
            continue
        once = PipelineExperiment(
            schedule=name, steps=1, **SMALL, **{**EXACT, "learning_rate": 1.0}
        )
        start = {
            n: p.detach().numpy()
            for s in map(once.recipe.model, range(once.order.stages))
            for n, p in s.named_parameters()
        }
        found, expected = finished(once)[2], once.reference()
        gradients = [{n: start[n] - w[n] for n in start} for w in (found, expected)]
        table.append(
            row(
                f"{name}: worst relative error of a gradient tensor against one process",
                max(relative_errors(*gradients).values()),
                "",
                at_most=1e-12,
            )
        )
        fifty = PipelineExperiment(
            schedule=name, steps=50, **SMALL, dtype="float64", optimizer="adam"
        )
        off = np.abs(finished(fifty)[2]["loss"] - fifty.reference()["loss"]).max()
        table.append(
            row(f"{name}: largest difference of the loss over 50 Adam steps", off, "", at_most=1e-9)
        )
    for name, stashing in (
        ("pipedream", True),
        ("pipedream", False),
        ("pipedream-vertical-sync", True),
        ("pipedream-2bw", True),
    ):
        asked = PipelineExperiment(schedule=name, stashing=stashing, steps=3, **SMALL, **EXACT)
        found, training = finished(asked)[2], asked.recipe.alone()
        expected, label = asked.reference(), name if stashing else f"{name} without stashing"
        table.append(
            row(
                f"{label}: worst relative error against its recurrence",
                max(relative_errors(found, expected).values()),
                "",
                at_most=1e-12,
            )
        )
        table.append(
            row(
                f"{label}: mean relative gradient error",
                float(np.mean(training.gradient_errors[4:])),
                "",
            )
        )
        if stashing:
            size = asked.order.update_size
            prompt = asked.replace(
                schedule="gpipe", micro_batches=size, steps=24 // size
            ).reference()["loss"]
            table.append(
                row(
                    f"{label}: the recurrence without delay is off by, in the loss",
                    float(np.abs(prompt / expected["loss"] - 1).max()),
                    "",
                    at_least=1e-3,
                )
            )
    return table
