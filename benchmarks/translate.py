"""A translator that learns: BLEU on held-out numbers and dates, what training and BLEU take, and
that 1, 2 and 3 ranks are one training.

The training is translation.py's own small model on 20,000 pairs, on two ranks of this machine; its
times are measured. The losses are of 50 updates in float64. The speed-up is that of the
93-million-parameter model on RTX 3090, predicted; two updates of it also run, on one rank and on
three, as predicted.
"""

import tempfile
from pathlib import Path

import numpy as np

from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.core import Scalar
from bigtrain_lab.data.parallel import generated
from bigtrain_lab.experiments.translate import Translate
from bigtrain_lab.experiments.translation import Translation
from bigtrain_lab.techniques.learning_rates import noam

from .measure import row

TRAINED = Translation(
    pairs=generated(pairs=20_000),
    learning_rate=noam(64, 200, 0.25),
    replicas=2,
    epochs=8,
    patience=3,
)
LARGE = {
    "layers": 6,
    "width": 512,
    "heads": 8,
    "vocabulary": 32_000,
    "pairs": 8000,
    "digits": 8,
    "held_out": 768,
    "held_out_rows": 32,
    "steps": 4,
    "evaluate_every": 0,
    "workers": 2,
}


def rows():
    return [*learnt(), *one_training(), *sped_up()]


def learnt():
    """A run on two ranks, until three evaluations were no better or four epochs are over."""
    with tempfile.TemporaryDirectory() as folder:
        run = TRAINED.run(directory=Path(folder) / "run")
        trace = run.wait() and run.trace("measured")
        scores = [event.value for event in trace.where(Scalar, name="BLEU", rank=0)]
        best = scores.index(max(scores))
        spans = trace.spans(0)
        spent = {
            name: trace.units(sum(s.end - s.start for s in spans if s.kind in kinds))
            for name, kinds in (("training", "FBU"), ("held-out loss", "L"), ("BLEU", "T"))
        }
        ends = [event.start for event in trace.where(Scalar, name="BLEU", rank=0)]
        return [
            row("BLEU on held-out numbers and dates, best", max(scores), "", at_least=90),
            row("evaluations until then", best + 1, ""),
            row(
                "until then, on two ranks",
                trace.units(ends[best] - spans[0].start),
                "s",
                at_most=300,
            ),
            row("the whole run", trace.makespan, "s"),
            *(row(f"of it {name}, rank 0", seconds, "s") for name, seconds in spent.items()),
        ]


def one_training():
    """Loss of each update: the mean over its words."""
    curves = {}
    for ranks in (1, 2, 3):
        lab = Translate(replicas=ranks, dtype="float64", steps=50, evaluate_every=50, disk_ms=0)
        with tempfile.TemporaryDirectory() as folder:
            run = lab.run(directory=Path(folder) / "run")
            run.wait()
            batches = lab.training.batches
            losses = [
                run.result["loss" if ranks == 1 else f"loss of replica {rank}"]
                for rank in range(ranks)
            ]
            words = np.array(
                [[batches.words(n) for n in lab.training.own(rank)] for rank in range(ranks)]
            )
            curves[ranks] = (np.array(losses) * words).sum(0) / words.sum(0)
    for ranks in (2, 3):
        off = np.abs(curves[ranks] / curves[1] - 1).max()
        yield row(f"losses of 50 updates on {ranks} ranks, off by at most", off, "", at_most=1e-9)


def sped_up():
    for tokens in (6144, 12288, 24576, 49152):
        lab = Translate(batch_tokens=tokens, **LARGE)
        trace = lab.predict()
        yield row(
            f"93 M on three RTX 3090, {tokens:,} tokens of an update: the run", trace.makespan, "s"
        )
        yield row(
            f"93 M on three RTX 3090, {tokens:,} tokens of an update: speed-up",
            lab.alone_s / trace.makespan,
            "times",
        )
    for ranks in (1, 3):
        lab = Translate(
            **LARGE
            | {
                "replicas": ranks,
                "batch_tokens": 256,
                "steps": 2,
                "held_out": 3,
                "held_out_rows": 1,
            }
        )
        with tempfile.TemporaryDirectory() as folder:
            run = lab.run(directory=Path(folder) / "run", stall_s=300)
            run.wait()
            yield row(
                f"93 M, two updates run on {ranks} ranks: lanes that are not as predicted",
                len(clocks_differ(lab.predict(), run.trace("modelled"))),
                "",
                at_most=0,
            )
