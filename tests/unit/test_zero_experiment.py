"""The lab of ZeRO: the paper's bytes, those of the dry run and of a run's ledger, and what one
process learns."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Impossible, peak, readings
from bigtrain_lab.experiments import layered
from bigtrain_lab.experiments.zero import Zero
from bigtrain_lab.models.theory import FLOAT32, zero_bytes, zero_sent_bytes
from bigtrain_lab.runtime import RankFailed, kept
from bigtrain_lab.techniques.flat import Flat
from bigtrain_lab.techniques.replica_plan import parts_of, weights_of

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
    weights, units = weights_of(asked.stages, asked.order, 0)
    parts = parts_of(weights, units, asked.stage, asked.replicas, asked.bucket_bytes)
    return sum(part.bytes for part in parts) // 4


def test_predictions_of_two_threads_do_not_tell_each_other_s_memory(tmp_path, monkeypatch):
    """A panel predicts in threads, and so do the rivals beside it."""
    asked = [Zero(**SMALL, stage=stage, rows=rows) for rows in (1, 2) for stage in (3, 1, 2)]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = [*pool.map(Zero.predict, asked)]
    monkeypatch.setattr(kept, "kept_in", tmp_path.joinpath)
    layered.dried.cache_clear()
    assert [each.events for each in together] == [each.predict().events for each in asked]


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


@pytest.mark.parametrize("ranks, stage", [(2, 0), (2, 1), (3, 2), (3, 3), (4, 1), (4, 3)])
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
        held["weights"] -= 4 * (stage == 3)  # one nan, as which all reads what is elsewhere
        own = zero_bytes(P, ranks, stage, (4, 4, 0))
        assert held == {
            "weights": 4 * P // (ranks if stage == 3 else 1),
            "gradients": 4 * P // (ranks if stage > 1 else 1),
        }
        assert sum(held.values()) == own
    assert states == 8 * asked.weights * (1 if stage else ranks) + 4 * tensors * ranks
    assert asked.predict().bytes_sent(0) == asked.steps * zero_sent_bytes(4 * P, ranks, stage, 2)


def test_in_mixed_precision_masters_are_shared_too_and_stage_3_gathers_half_weights():
    asked = Zero(stage=3, replicas=3, precision="bf16", **SMALL)
    P, dry = padded(asked), asked.dry(1)
    held = dry.actions[str(asked.first["U", 3])].before
    assert held["master"] == held["gradients"] == 4 * P // 3 and held["weights"] == 2  # a nan
    assert asked.predict().bytes_sent(1) == 2 * zero_sent_bytes(2 * P, 3, 3)
    units = [2 * Flat([*stage.parameters()], 3, 0).length for stage in asked.stages.values()]
    assert (
        max(acted.after.get("weights", 0) for acted in dry.actions.values())
        == max(map(sum, pairwise(units))) + 2
    )


def test_a_model_that_no_device_holds_trains_on_four_at_stage_3(tmp_path):
    """With the loss of one process; at stage 0 the same ranks run out of memory, and a rank alone
    would too."""
    asked = Zero(stage=3, replicas=4, dtype="float64", **SMALL)
    tight = asked.replace(
        memory_mb=max(peak(asked.predict(), rank).bytes for rank in range(4)) / 1e6
    )
    run = tight.run(directory=tmp_path / "shards")
    assert run_differs(tight, run) == []
    for less in ({"stage": 0}, {"stage": 1}, {"stage": 2}, {"replicas": 1}):
        short = tight.replace(**less)
        assert [
            said[:24]
            for said in short.explain(short.predict())
            if said.endswith(f". {short.relief}")
        ] == ["It does not fit: rank 0 "]
    run = tight.replace(stage=0).run(directory=tmp_path / "copies")
    with pytest.raises(RankFailed, match="runs out of memory"):
        run.wait()
    assert "A higher stage (1) or more ranks (replicas)" in run.diagnosis


def test_what_no_machine_holds_is_refused_without_a_dry_run(monkeypatch, tmp_path):
    """By the activations of one layer of each kind; a rank's dry run takes seconds."""
    monkeypatch.setattr(layered, "dry_run", lambda *_, **__: pytest.fail("a dry run"))
    names = "stage replicas micro_batches layers width heads vocabulary sequence rows".split()
    most = {name: Zero.knobs()[name].high for name in names}
    with pytest.raises(Impossible, match="The 8 ranks would hold at least 2.495 TB .* fewer or"):
        Zero(**most).run(directory=tmp_path / "run")


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [{}, {"precision": "bf16", "steps": 1}, {"recompute": True}, {"micro_batches": 2, "clip": 0.5}],
)
def test_what_is_refused_early_is_no_more_than_the_peak(stage, settings):
    asked = Zero(stage=stage, replicas=2, **SMALL | settings)
    least, needed = asked.least_bytes(), asked.needed_bytes()
    assert all(0 < less <= most for less, most in zip(least, needed, strict=True))


def test_a_model_that_fits_in_parts_and_not_at_its_start_is_told():
    asked = Zero(stage=3, replicas=4, optimizer="sgd", recompute=True, **SMALL)
    short = asked.replace(memory_mb=max(read.bytes for read in readings(asked.predict(), 0)) / 1e6)
    assert "makes the whole model" in short.explain(short.predict())[0]
