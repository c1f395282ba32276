"""The lab of ZeRO: the paper's bytes, those of the dry run and of a run's ledger, and what one
process learns."""

import re
from itertools import pairwise

import pytest

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Impossible, Memory, Span, Transfer
from bigtrain_lab.core.peak import over_step, peak, readings
from bigtrain_lab.core.words import size
from bigtrain_lab.experiments import sharded
from bigtrain_lab.experiments.zero import Zero
from bigtrain_lab.models.theory import FLOAT32, zero_bytes, zero_sent_bytes
from bigtrain_lab.runtime import RankFailed
from bigtrain_lab.techniques.shards import Flat
from bigtrain_lab.techniques.zero import shards_of
from bigtrain_lab.view import figures

SMALL = {
    "layers": 2,
    "width": 16,
    "heads": 2,
    "vocabulary": 256,
    "sequence": 8,
    "steps": 2,
    "bucket_mb": 0.02,
}


def padded(asked: Zero) -> int:
    """Weights, with the padding of each bucket or unit."""
    stages, N = asked.stages.values(), asked.replicas
    if asked.stage == 3:
        return sum(Flat([*stage.parameters()], N, 0).length for stage in stages)
    every = [p for stage in stages for p in stage.parameters()][::-1]
    return sum(shard.layout.length for shard in shards_of(every, asked.bucket_bytes, N, 0))


def test_the_numbers_of_the_paper():
    assert [round(zero_bytes(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)] == [
        120,
        31.4,
        16.6,
        1.9,
    ]
    assert [zero_bytes(1, 4, stage) for stage in range(4)] == [16, 7, 5.5, 4]
    assert [zero_bytes(1, 4, stage, FLOAT32) for stage in range(4)] == [16, 10, 7, 4]
    assert [zero_sent_bytes(1, 4, stage) for stage in range(4)] == [1.5, 1.5, 1.5, 2.25]


def test_peaks_are_of_steps_and_set_up_is_told_apart():
    """While the optimizer is made a rank holds more than in any step."""
    asked = Zero(stage=1)
    trace, row = (
        asked.predict(),
        next(q for q in asked.quantities if q.name == "peak memory, most on a rank"),
    )
    tops = [
        max(over_step(trace, rank, step, 10**6), key=lambda read: read.bytes)
        for rank in range(4)
        for step in range(2)
    ]
    assert (
        row.of(trace) == max(top.bytes for top in tops) < asked.dry(0).set_up_bytes
        and peak(trace, 0).action == "5B1"
    )
    assert (
        f"Before the first step rank 0 holds up to {size(asked.dry(0).set_up_bytes)}"
        in " ".join(asked.explain(trace))
    )


@pytest.mark.parametrize("ranks, stage", [(2, 1), (3, 2), (3, 3), (4, 1), (4, 3)])
def test_each_rank_holds_the_bytes_of_the_paper_and_the_padding(ranks, stage):
    """When the second update begins. Adam counts the steps of each tensor in 4 bytes more; its
    moments have no padding."""
    asked = Zero(stage=stage, replicas=ranks, micro_batches=2, **SMALL)
    P, tensors = padded(asked), sum(len([*module.parameters()]) for module in asked.stages.values())
    assert (
        asked.weights <= P < asked.weights + ranks * (tensors if stage < 3 else asked.config.pieces)
    )
    update, states = str(asked.first["U", asked.config.pieces - 1]), 0
    for rank in range(ranks):
        held = dict(asked.dry(rank).actions[update].before)
        states += held.pop("optimizer")
        own = zero_bytes(P, ranks, stage, (4, 4, 0))
        assert held == {
            "weights": 4 * P // (ranks if stage == 3 else 1),
            "gradients": 4 * P // (ranks if stage > 1 else 1),
        }
        assert sum(held.values()) == own
    assert states == 8 * asked.weights + 4 * tensors * ranks
    assert asked.predict().bytes_sent(0) == asked.steps * zero_sent_bytes(4 * P, ranks, stage, 2)


def test_in_mixed_precision_masters_are_shared_too_and_stage_3_gathers_half_weights():
    asked = Zero(stage=3, replicas=3, precision="bf16", **SMALL)
    P, dry = padded(asked), asked.dry(1)
    held = dry.actions[str(asked.first["U", 3])].before
    assert held["master"] == held["gradients"] == 4 * P // 3 and "weights" not in held
    assert asked.predict().bytes_sent(1) == 2 * zero_sent_bytes(2 * P, 3, 3)
    units = [2 * Flat([*stage.parameters()], 3, 0).length for stage in asked.stages.values()]
    most = max(acted.after.get("weights", 0) for acted in dry.actions.values())
    assert most == max(map(sum, pairwise(units)))


@pytest.mark.parametrize(
    "settings",
    [
        {"stage": 1, "replicas": 2, "micro_batches": 2, "recompute": True},
        {"stage": 2, "replicas": 3, "micro_batches": 2, "clip": 0.5, "bucket_mb": 1.0},
        {"stage": 3, "replicas": 2, "optimizer": "lamb", "steps": 1},
    ],
    ids=["stage 1", "stage 2", "norms of layers"],
)
def test_a_run_is_as_predicted_and_as_one_process(settings, tmp_path):
    """Clock, bytes, memory inside actions, weights and losses of all ranks; one bucket or several.
    Adam at stage 3 is the next one."""
    as_predicted(Zero(**{"dtype": "float64"} | SMALL | settings), tmp_path)


def as_predicted(asked: Zero, directory) -> None:
    run = asked.run(directory=directory / "run", jitter_s=0.001)
    modelled, predicted = run.wait(), asked.predict()
    assert run.replicas == [] and (asked.dtype != "float64" or run_differs(asked, run) == [])
    assert [e for e in predicted if isinstance(e, (Span, Transfer))] == [
        e for e in modelled if isinstance(e, (Span, Transfer))
    ]
    assert predicted.where(Memory).events == modelled.where(Memory).events
    for rank in range(asked.replicas):
        assert (most := peak(predicted, rank)) == peak(modelled, rank)
        assert most.start == 0 or most.bytes == max(
            read.bytes for read in readings(predicted, rank)
        )  # at 0 the model was made
    exact = [each for each in asked.quantities if each.exact]
    assert [each.of(predicted) for each in exact] == [each.of(modelled) for each in exact]


def test_a_model_that_no_device_holds_trains_on_four_at_stage_3(tmp_path):
    """With the loss of one process; at stage 0 the same ranks run out of memory, and a rank alone
    would too."""
    asked = Zero(stage=3, replicas=4, micro_batches=3, clip=0.5, dtype="float64", **SMALL)
    most = max(peak(asked.predict(), rank).bytes for rank in range(4))
    tight = asked.replace(memory_mb=most / 1e6)
    as_predicted(tight, tmp_path)
    for less in ({"stage": 0}, {"stage": 1}, {"stage": 2}, {"replicas": 1}):
        (said,) = [
            each
            for each in tight.replace(**less).explain(tight.replace(**less).predict())
            if each.startswith("It does not fit")
        ]
    run = tight.replace(stage=0).run(directory=tmp_path / "copies")
    with pytest.raises(RankFailed, match=re.escape("runs out of memory at ")):
        run.wait()
    assert "A higher stage (1) or more ranks (replicas)" in run.diagnosis


def test_what_no_machine_holds_is_refused_without_a_dry_run(monkeypatch, tmp_path):
    """By the activations of one layer of each kind; a rank's dry run takes seconds."""
    monkeypatch.setattr(sharded, "dry_run", lambda *_, **__: pytest.fail("a dry run"))
    ends = {
        name: knob.high
        for name, knob in Zero.knobs().items()
        if name
        in (
            "stage",
            "replicas",
            "micro_batches",
            "layers",
            "width",
            "heads",
            "vocabulary",
            "sequence",
            "rows",
        )
    }
    with pytest.raises(
        Impossible,
        match=(
            r"^The 8 ranks would hold at least 2.495 TB of memory at the peak, .*: take fewer or"
            r" narrower layers"
        ),
    ):
        Zero(**ends).run(directory=tmp_path / "run")


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [{}, {"precision": "bf16", "steps": 1}, {"recompute": True}, {"micro_batches": 2, "clip": 0.5}],
)
def test_what_is_refused_early_is_no_more_than_the_peak(stage, settings):
    asked = Zero(stage=stage, replicas=2, **SMALL | settings)
    least, needed = asked.least_bytes(), asked.needed_bytes()
    assert all(0 < less <= most for less, most in zip(least, needed, strict=True))


def test_what_it_says_and_shows():
    asked = Zero(stage=2, replicas=3, micro_batches=2, **SMALL)
    trace = asked.predict()
    said = " ".join(asked.explain(trace))
    assert (
        "8 bytes a weight on each rank at stage 2" in said
        and "16, 238.6 kB" in said
        and "1.5" in said
    )
    shown = asked.shown("microscope", trace)
    assert [*shown] == ["data parallel", "stage 1", "stage 2", "stage 3"] and shown[
        "stage 2"
    ] is trace
    assert asked.shown("memory", trace) is trace
    for name in asked.figures:
        assert figures.figure(name, asked.shown(name, trace)).data
    made = Zero(stage=3, replicas=4, optimizer="sgd", recompute=True, **SMALL)
    room = (
        max(read.bytes for read in readings(made.predict(), 0)) / 1e6
    )  # for the training, but not for the model at its start
    assert "makes the whole model" in made.replace(memory_mb=room).explain(made.predict())[0]
    alone = Zero(stage=3, replicas=1, **SMALL)
    assert alone.predict().bytes_sent(0) == 0 and "nobody" in alone.describe()
    with pytest.raises(Impossible, match="heads"):
        Zero(heads=3)
