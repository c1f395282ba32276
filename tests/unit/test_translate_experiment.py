"""The lab of the translator: its chain of pieces is the model, its runs are as predicted, and other
tools get its metrics."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from bigtrain_lab import train
from bigtrain_lab.core import Impossible, Scalar
from bigtrain_lab.data.batches import padded
from bigtrain_lab.experiments.translate import Translate, spent, starved
from bigtrain_lab.models import Translator
from bigtrain_lab.models.translator_pieces import (
    TranslatorPiece,
    count,
    joined,
    part,
    piece_run,
    terms_of,
)
from bigtrain_lab.train import tracking
from bigtrain_lab.train.forms import by_terms

SMALL = {
    "dtype": "float64",
    "width": 16,
    "heads": 2,
    "pairs": 120,
    "held_out": 7,
    "held_out_rows": 2,
    "batch_tokens": 120,
}
LARGE = {
    "layers": 6,
    "width": 512,
    "heads": 8,
    "vocabulary": 32_000,
    "digits": 8,
    "pairs": 10_000,
    "held_out": 96,
    "held_out_rows": 32,
    "steps": 1,
}


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("rows", [1, 6])
def test_a_shape_is_told_by_dry_runs_of_others(rows, at):
    config, shape = Translate(**SMALL | {"dtype": "float32"}).config, (rows, 9, 12)
    settled = config, at, 0.1, "bf16", train.WHOLE, 2
    own = part(config, at, shape, *settled[2:])
    assert by_terms(piece_run, settled, *terms_of(at, rows == 1))[1] is not None
    assert own == piece_run(*settled, shape)


def test_the_pieces_are_the_model():
    """Bit for bit, and joined they are one again, on the same weights."""
    lab = Translate(**SMALL, layers=2)
    config, sample = lab.config, padded([([5, 6, 7], [8, 9]), ([5], [6, 7, 8])])
    source, (so_far,) = sample.inputs, sample.context
    pieces, whole = (
        {at: TranslatorPiece(config, at, seed=3) for at in range(count(config))},
        Translator(config, seed=3),
    )
    x = source
    for piece in pieces.values():
        x = piece(x, source, so_far)
    assert torch.equal(x, whole(source, so_far)) and torch.equal(
        joined(pieces, config)(source, so_far), x
    )
    weights = {name: p for piece in pieces.values() for name, p in piece.named_parameters()}
    assert {name: p.shape for name, p in weights.items()} == {
        name: p.shape for name, p in whole.named_parameters()
    }
    assert {id(p) for p in joined(pieces, config).parameters()} == set(map(id, weights.values()))
    assert Translate(**LARGE).weights == 93_255_680


def test_what_is_spread_and_what_is_loaded_beside_takes_less():
    lab = Translate(**SMALL | {"replicas": 3, "disk_ms": 5, "held_out_rows": 1})
    trace, itself = lab.predict(), lab.replace(workers=0)
    assert (
        1.5 < spent(lab.replace(spread=False).predict(), "LT") / spent(trace, "LT") < 3
    )  # 7 batches; one rank has 3 of them
    assert (
        starved(itself.predict()) > starved(trace) > starved(lab.replace(workers=4).predict()) > 0
    )
    (ratio, _, beside), (*_, alone) = lab.why(trace), itself.why(itself.predict())
    assert (
        "waits for its loader" in beside
        and "loads data itself" in alone
        and "as fast as one" in ratio
    )


def test_three_cards_are_nearly_three_times_as_fast_with_batches_large_enough():
    """The 93-million-parameter model, by tokens of an update."""
    labs = [Translate(**LARGE, accumulation=4, batch_tokens=tokens) for tokens in (6144, 98_304)]
    small, large = (lab.alone_s / lab.predict().makespan for lab in labs)
    assert small < 2 and 2.5 < large < 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    lab = Translate(**SMALL | {"replicas": 1, "steps": 2, "evaluate_every": 1})
    run = lab.run(directory=tmp_path_factory.mktemp("run") / "run")
    run.wait()
    return run


def test_tensorboard_gets_the_metrics(finished):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    tracking.follow(finished, "tensorboard").join()
    kept = event_accumulator.EventAccumulator(str(finished.directory / "tensorboard")).Reload()
    scores = [event.value for event in finished.trace().where(Scalar, name="BLEU")]
    assert [event.value for event in kept.Scalars("BLEU")] == pytest.approx(scores) and len(
        scores
    ) == 2


def test_wandb_keeps_the_metrics_offline(finished, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # where nobody answers
    tracking.follow(finished, "wandb").join()
    (kept,) = (finished.directory / "wandb").glob("offline-run-*/run-*.wandb")
    assert os.path.getsize(kept) > 0 and b"BLEU" in kept.read_bytes()


def test_a_tool_that_hangs_keeps_no_process(finished):
    hangs = f"""
        import contextlib, threading
        from bigtrain_lab.train import tracking
        from bigtrain_lab.runtime import Run
        @contextlib.contextmanager
        def never(run):
            threading.Event().wait()
            yield
        tracking.SINKS["none"], tracking.TOOLS["none"], tracking.LAST_S = never, "json", 0.1
        tracking.follow(Run.open({str(finished.directory)!r}), "none")
        print("over")
    """
    assert (
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(hangs)], capture_output=True, text=True
        ).stdout
        == "over\n"
    )


def test_a_tool_that_is_absent_is_a_sentence(monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(
        Impossible,
        match=(
            r"^wandb is not installed: pip install 'bigtrain_lab\[track\]', or take track none\.$"
        ),
    ):
        Translate(track="wandb")
    assert tracking.follow(None, "none") is None
