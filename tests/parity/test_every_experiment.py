"""Predicted = modelled = one process, of every experiment there is, also one added since: one run
of each row proves its clock, bytes, memory inside actions, peaks, weights and losses together. A
wrong experiment does not pass. What its panel says of its ranks' time is so.
"""

import json
import re
from collections.abc import Iterator

import numpy as np
import pytest

from bigtrain_lab import Experiment, Impossible, Recompute, Schedule, Trace, show
from bigtrain_lab.checks import TOLERANCE, run_differs
from bigtrain_lab.core import COLLECTIVES, Alive, Memory, Scalar, peak
from bigtrain_lab.experiments.one_device import OneDevice
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.experiments.staleness import Staleness
from bigtrain_lab.runtime.process.end import within
from bigtrain_lab.techniques.mixed_precision import LEVELS
from bigtrain_lab.view.player import pack
from bigtrain_lab.view.report import summary


def over(common: dict, *rows: dict) -> list[dict]:
    return [{**common, **row} for row in rows]


def pipelines(settings: dict, *sizes: tuple[int, int]) -> Iterator[dict]:
    """Every schedule there is, on the first (ranks, micro-batches) that it accepts."""
    for schedule in Schedule.all():
        for ranks, micro_batches in sizes:
            row = {**settings, "schedule": schedule, "ranks": ranks, "micro_batches": micro_batches}
            try:
                PipelineExperiment(**row)
            except Impossible:
                continue
            yield row
            break


TINY = {"width": 16, "heads": 2, "sequence": 8}
STAGES = {**TINY, "layers": 8, "rows": 1, "optimizer": "sgd", "learning_rate": 0.5}
LAYERS = {**TINY, "layers": 2, "vocabulary": 256}
CUBE = {**LAYERS, "heads": 8, "micro_batches": 2}

# Lab -> settings of a run each, two steps long and in float64 where these are knobs and a row says
# nothing else. A lab that is not here runs as its panel opens.
SETTINGS: dict[str, list[dict]] = {
    "accumulate": over(
        {**TINY, "layers": 1, "sequence": 16},
        {"clip": 0.1, "optimizer": "sgd", "micro_batches": 8, "hardware": "a100-nvlink"},
        {"micro_batches": 5, "optimizer": "momentum"},  # a last window of one
        {"accumulation": 1, "micro_batches": 2, "sequences": 3},
        {"rule": "mean of means", "spread": 4.0},
        {"accumulation": 32, "micro_batches": 3, "compare": False, "dtype": "float32"},
    ),
    "all-reduce": over(
        {"megabytes": 0.1, "seed": 3},
        {"collective": "halving-doubling", "ranks": 5},
        {"collective": "ring"},
        {"collective": "star"},
        {"collective": "all-gather", "ranks": 3},
    ),
    "checkpoint": over(
        {**TINY, "layers": 6, "rows": 2, "budget": 45},
        *({"plan": plan} for plan in Recompute.all()),
        {"plan": "optimal", "dtype": "float32", "steps": 3, "optimizer": "adam-fused"}
        | {"budget": 30, "hardware": "a100-nvlink"},  # another plan than by textbook times
        {"plan": "optimal", "model": "mlp", "budget": 60, "hardware": "rtx3090-pcie"},
        {"plan": "revolve", "model": "mlp", "budget": 80, "dtype": "float32"},
        {"plan": "every-k", "k": 4, "model": "mlp", "dropout": 0.0, "optimizer": "momentum"},
        {"plan": "keep-none", "model": "mlp", "dropout": 0.0},
        {"plan": "selective", "fused_attention": True, "dropout": 0.0},
    ),
    "combined": [
        {**CUBE, "replicas": 2, "pipeline": 1, "slices": 1, "micro_batches": 12}
        | {"schedule": "gpipe", "zero": 2},
        *(
            {
                **CUBE,
                "replicas": replicas,
                "pipeline": pipeline,
                "slices": slices,
                "micro_batches": max(2, replicas),
                "layers": max(2, pipeline),
                "schedule": ("gpipe", "1f1b")[number % 2],
                "recompute": number % 3 == 1,
                "fused_attention": number % 3 == 0,
                "sequence_parallel": slices > 1 and number % 2 == 0,
                "zero": (replicas > 1) * (number % 4),
            }
            for number, (replicas, pipeline, slices) in {  # one axis alone is each other lab's
                1: (1, 2, 2),
                2: (1, 4, 2),
                4: (2, 1, 2),
                5: (2, 2, 2),
                6: (2, 2, 1),
                7: (4, 1, 2),
            }.items()
        ),
        *(  # replicas of pipelines whose ranks have two stages, or halve their backwards
            {**CUBE, "replicas": 2, "pipeline": 2, "slices": 1, "micro_batches": 4, "layers": 4}
            | {"schedule": schedule, "zero": zero}
            for schedule in ("interleaved", "zb-h1")
            for zero in range(4)
        ),
    ],
    "compile": over(
        {"rows": 70, "columns": 96, "backward": True},
        {"compiler": "ours", "function": "softmax", "block": 256},
        {"compiler": "eager", "function": "product"},
    ),
    "data-parallel": over(
        {**LAYERS, "bucket_mb": 0.02},
        {
            "replicas": 2,
            "pipeline": 2,
            "micro_batches": 3,
            "ranks_per_node": 2,
            "split_parameters": True,
            "ring": True,
        },
        {"strategy": "fused-cycle", "replicas": 4, "cycle_ms": 0.1},
        {"strategy": "fused-cycle", "replicas": 2, "cycle_ms": 0.05, "fault": "straggler"},
        {"strategy": "push-pull", "replicas": 3, "bucket_mb": 0.01},
    ),
    "faults": [{}, {"fault": "straggler", "fault_factor": 2.5, "fault_at": 4}],
    "large-batch": [
        {
            "batch": 64,
            "samples": 1024,
            "layers": 2,
            "width": 16,
            "replicas": 2,
            "at_once": 4,
            "norm": "batch",
        }
    ],
    "layouts": over(
        {"n": 24, "d": 16, "f": 8, "seed": 3},
        {"layout": "split-d-f", "ranks": 4, "node_size": 2},
        {"layout": "split-n-d", "ranks": 6, "rows": 3, "swapped": True},
    ),
    "memory": over(
        {**TINY, "layers": 2, "rows": 2, "sequence": 24, "vocabulary": 256},
        {"steps": 3, "optimizer": "adam-fused", "hardware": "a100-nvlink"},
        {"optimizer": "momentum", "tied": True, "dropout": 0.1, "dtype": "float32"},
        {"rows": 1, "optimizer": "sgd", "hardware": "a100-nvlink", "fused_attention": True},
    ),
    "parameter-server": over(
        {"rows": 4, "width": 8, "workers": 3, "steps": 4},
        {"servers": 2, "hiccups": 0.3, "slow": 3, "hardware": "rtx3090-pcie"},
        {"mode": "bounded", "bound": 1, "servers": 3, "hiccups": 0.4, "hiccup": 20, "slow": 1.5},
        {"mode": "synchronous", "slow": 2, "fault": "straggler", "fault_rank": 0},
    ),
    "partition": over(
        STAGES,
        {"partition": "balanced", "optimizer": "momentum", "hardware": "a100-nvlink"},
        {"partition": "equal", "schedule": "pipedream"},
        {"partition": "worst", "schedule": "zb-h1", "hardware": "rtx3090-pcie"},
        {"partition": "mine", "schedule": "interleaved", "cut": "1 1 2 1 1 1 2 1"},
    ),
    "pipeline": [
        {**STAGES, "schedule": "1f1b", "ranks": 4, "micro_batches": 2},
        *pipelines(
            {**STAGES, "rows": 2, "dropout": 0.2, "optimizer": "adam", "learning_rate": 1e-3}
            | {"hardware": "rtx3090-pcie"},
            (3, 5),
            (4, 4),
        ),
        *over(
            {**STAGES, "ranks": 2, "micro_batches": 4, "tied": True, "hardware": "a100-nvlink"},
            {"schedule": "1f1b", "steps": 3},
            {"schedule": "interleaved", "optimizer": "adam-fused", "learning_rate": 1e-3},
            {"schedule": "zb-v"},
        ),
        {**STAGES, "schedule": "interleaved", "ranks": 1, "micro_batches": 2},  # sends to itself
        {**STAGES, "dropout": 0.1, "optimizer": "momentum", "dtype": "float32"},
        {**STAGES, "schedule": "pipedream", "stashing": False, "steps": 3},
    ],
    "plan": [{**LAYERS, "heads": 8, "devices": 4, "pipeline": 2, "batch": 8, "rows": 2, "zero": 2}],
    "precision": over(
        {"layers": 1, "width": 32, "rows": 4, "train_size": 32, "dev_size": 64, "steps": 3},
        {"level": "fp16", "every": 2, "optimizer": "adam-fused"},
        *({"level": level} for level in LEVELS if level not in ("fp16", "fp16-no-masters")),
    ),
    "staleness": [{"schedule": "pipedream-2bw"}, {"schedule": "zb-h2"}],
    "tensor-slicing": over(
        {"width": 32, "heads": 8, "sequence": 8, "rows": 1, "vocabulary": 256},
        {"slices": 2, "cut": "row-column"},
        {"slices": 4, "sequence_parallel": True, "sequence": 32, "rows": 2}
        | {"fused_attention": True},
    ),
    "translate": over(
        {
            "width": 16,
            "heads": 2,
            "pairs": 120,
            "held_out": 7,
            "held_out_rows": 2,
            "batch_tokens": 120,
        },
        {"replicas": 2, "workers": 0, "evaluate_every": 1, "hardware": "unit"},
        {
            "replicas": 3,
            "workers": 2,
            "accumulation": 2,
            "spread": False,
            "beam": 2,
            "steps": 3,
            "bucket_mb": 0.01,
        },
        {
            "replicas": 1,
            "pinned": False,
            "steps": 3,
            "evaluate_every": 0,
            "batch_tokens": 500,
            "watched": "loss",
            "smoothing": 0.0,
            "clip": 0.0,
        },
    ),
    "zero": over(
        {**LAYERS, "bucket_mb": 0.02},
        {"stage": 3, "replicas": 4, "micro_batches": 6, "clip": 0.5, "optimizer": "adam-fused"},
        {"stage": 1, "replicas": 2, "micro_batches": 2, "recompute": True}
        | {"fused_attention": True},
        {"stage": 2, "replicas": 3, "micro_batches": 5, "clip": 0.5},
        {"stage": 3, "replicas": 2, "optimizer": "lamb", "steps": 1},
    ),
}
# Of precision not fp16-no-masters, which skips steps: no prediction knows when.


def rows() -> list:
    """The first of each lab answers within minutes."""
    return [
        pytest.param(
            name, settings, id=f"{name}-{number}", marks=[pytest.mark.slow] if number else []
        )
        for name in Experiment.all()
        for number, settings in enumerate(SETTINGS.get(name, [{}]))
    ]


@pytest.mark.parametrize("name, settings", rows())
def test_a_run_is_as_predicted_and_as_one_process(name, settings, tmp_path):
    lab, exact = Experiment.named(name), {"steps": 2, "dtype": "float64"}
    asked = lab(**{knob: exact[knob] for knob in exact if knob in lab.knobs()} | settings)
    run = asked.run(directory=tmp_path / "run", jitter_s=0.002)
    tolerance = 1e-5 if settings.get("dtype") == "float32" else TOLERANCE
    to_the_bit = name in ("checkpoint", "precision")  # one process computes in the same order there
    findings = run_differs(asked, run, 0.0 if to_the_bit else tolerance)
    assert run.result and not run.replicas and not findings, "\n".join(findings)
    predicted, modelled = asked.predict(), run.trace("modelled")
    assert predicted.where(Memory).events == modelled.where(Memory).events  # inside actions too
    if isinstance(asked, OneDevice):
        assert (
            {*predicted.where(Alive)} == {*modelled.where(Alive)} != set()
        )  # at the peak, by name
    assert {*predicted.where(Scalar)} <= {*modelled.where(Scalar)}
    assert [peak(predicted, rank) for rank in range(asked.ranks)] == [
        peak(modelled, rank) for rank in range(asked.ranks)
    ]
    told = {each.name: (each.of(predicted), each.of(modelled)) for each in asked.quantities}
    exactly = [told[each.name] for each in asked.quantities if each.exact]
    assert [a for a, b in exactly if b is not None] == [b for a, b in exactly if b is not None]
    for trace in run.traces().values():
        assert trace.shares() == pytest.approx(recomputed(trace), abs=1e-12)
    assert "compute {:.1%}, waits {:.1%}, idle {:.1%}".format(*recomputed(modelled)) in summary(
        run.summary()
    )


@pytest.mark.parametrize("name", Experiment.all())
def test_a_panel_says_for_which_share_of_the_time_ranks_compute_wait_and_idle(name):
    """In its answers, in rows of its table and in its picture; a rank alone waits for nobody. And
    for which share devices wait for the launches of kernels."""
    panel, names = show(name), ["compute share", "waits share", "idle share"]
    told = [] if panel.experiment.ranks == 1 else [f">{name}</td>" for name in names]
    assert within(60, lambda: all(each in panel.foot.numbers.value for each in ["<td", *told]))
    shares, rows = (
        recomputed(panel.traces["predicted"]),
        [row for row in panel.rows if row.quantity in names],
    )
    if panel.experiment.ranks == 1:
        assert shares == (1, 0, 0) and not rows
    else:
        assert [row.quantity for row in rows] == names
        assert all(
            f"{what} {share:.1%}" in panel.answers.value
            for what, share in zip(("compute", "waits", "idle"), shares)
        )
        drawn = json.loads(pack(trace := panel.traces["predicted"]))
        waits = sum(end - start for own in drawn["waits"] for start, end in own)
        assert waits / (trace.ranks * drawn["end"]) == pytest.approx(shares[1], abs=1e-9)
        assert [row.predicted.value / 100 for row in rows] == pytest.approx(shares, abs=1e-12)
        free = panel.experiment.replace()
        if own := getattr(free, "profile", None):  # whose kernels start at once
            vars(free)["profile"] = type(own)(**vars(own) | {"launch_s": 0.0})
            left = recomputed(free.simulated())[0] * free.simulated().makespan / trace.makespan
            part = {row.quantity: row.predicted.value for row in panel.rows if row.predicted}
            assert part.get("of it launches", 0) / 100 == pytest.approx(shares[0] - left, abs=0.01)


def recomputed(trace: Trace) -> tuple[float, float, float]:
    """Compute, waits and idle of all ranks, each stretch between two ends of events looked at
    alone."""
    events = [*trace.spans(), *trace.transfers()]
    begin, end = min(e.start for e in events), max(e.end for e in events)
    spent = np.zeros(3)
    for rank in range(trace.ranks):
        spans, free = trace.spans(rank), {}
        messages = sorted(
            (e for e in trace.transfers() if e.rank == rank and e.kind not in COLLECTIVES),
            key=lambda e: (e.end, -e.start),
        )
        edges = np.unique(
            [begin, end, *(at for e in (*spans, *messages) for at in (e.start, e.end))]
        )
        works, stands, going = np.zeros((3, len(edges) - 1), bool)
        for span in spans:
            inside = slice(*np.searchsorted(edges, (span.start, span.end)))
            inside_one = span.lane == "compute" or re.match(r"[\dA-Z+]+\.\d", span.name)
            collective = span.kind in COLLECTIVES and inside_one
            (stands if collective else works if span.lane == "compute" else going)[inside] = True
        for message in messages:  # behind the one before at its port
            going[
                slice(
                    *np.searchsorted(
                        edges, (max(message.start, free.get(message.lane, 0)), message.end)
                    )
                )
            ] = True
            free[message.lane] = message.end
        long, computes, waits = np.diff(edges), works & ~stands, stands | going & ~works
        spent += (long * computes).sum(), (long * waits).sum(), (long * ~(computes | waits)).sum()
    return tuple(spent / ((end - begin) * trace.ranks))


# -- wrong ones; they inherit their name, so they are on no menu -----------------------------------


class Replicated(Staleness):
    """A right one, in which every rank returns `all` too."""

    def program(self, rank):
        return super().program(rank) | {"all": self.replica(rank)}

    def replica(self, rank) -> float:
        return 1.0

    def reference(self):
        return super().reference() | {"all": np.ones(())}


class WrongReplica(Replicated):
    """Only the highest of two ranks is off, and `run.result` tells the lowest's."""

    def replica(self, rank) -> float:
        return 1 + 1e-9 * rank.index


class WrongReference(Replicated):
    def reference(self):
        right = super().reference()
        return right | {"layers.1.weight": right["layers.1.weight"] * (1 + 1e-11)}


class MissingResult(Replicated):
    def reference(self):
        return super().reference() | {"accuracy": np.ones(1)}


class WrongPrediction(Replicated):
    def predict(self):
        return self.replace(micro_batches=self.micro_batches + 1).simulated()


class WrongBytes(Replicated):
    def stage_run(self, number, rehearsal):
        part = super().stage_run(number, rehearsal)
        return part._replace(
            acted={
                like: acted._replace(
                    after={kind: n + 8 * (kind == "activations") for kind, n in acted.after.items()}
                )
                for like, acted in part.acted.items()
            }
        )


SMALL = {"schedule": "1f1b", "ranks": 2, "micro_batches": 4, "steps": 2, "width": 8, "rows": 4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the right program, and of that whose replicas differ."""
    runs = {
        cls: cls(**SMALL).run(directory=tmp_path_factory.mktemp("run") / "run")
        for cls in (Replicated, WrongReplica)
    }
    for run in runs.values():
        run.wait()
    return runs


@pytest.mark.parametrize(
    "wrong, told",
    [
        (WrongReference, ["rank 1: layers.1.weight is off by 1.00e-11, allowed 1e-12"]),
        (MissingResult, ["accuracy is missing on every rank"]),
        (WrongReplica, ["rank 1: all is off by 1.00e-09, allowed 1e-12"]),
        (Replicated, []),
    ],
)
def test_wrong_numbers_are_told_by_rank_and_name(finished, wrong, told):
    assert run_differs(wrong(**SMALL), finished.get(wrong, finished[Replicated])) == told


@pytest.mark.parametrize(
    "wrong, where",
    [(WrongPrediction, "lane compute, event"), (WrongBytes, "activations: predicted")],
)
def test_a_wrong_prediction_is_told(finished, wrong, where):
    assert {
        f"rank {rank}, {where}" in "\n".join(run_differs(wrong(**SMALL), finished[Replicated]))
        for rank in (0, 1)
    } == {True}
