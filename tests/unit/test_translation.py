"""A translator's training: one to three ranks are one training, its evaluation is one, and a killed
run goes on to the bit."""

import os
import signal
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import sacrebleu
import torch

from bigtrain_lab import Impossible, Mesh, Rank, RankFailed, launch
from bigtrain_lab.data.batches import padded
from bigtrain_lab.data.parallel import generated
from bigtrain_lab.experiments.translation import Evaluation, Translation
from bigtrain_lab.models import TranslatorConfig
from bigtrain_lab.techniques import saved
from bigtrain_lab.train import train

TINY = TranslatorConfig(
    layers=1, width=16, heads=2, inner=24, longest=20, embedding_scale=4.0, dtype=torch.float64
)


PLAIN = Translation(
    pairs=generated(pairs=250, held_out=30, digits=3),
    config=TINY,
    learning_rate=lambda update: 0.02 / max(1, update / 10),
    batch_tokens=160,
    epochs=20,
    rows=8,
    evaluate_every=25,
    patience=50,
)


def here(asked):
    return asked.program(Rank(0, Mesh(world=1), torch.device("cpu")))


def curve(asked, found):
    """The loss of each update: a mean over its words."""
    R, k = asked.replicas, asked.accumulation
    names = ["loss"] if R == 1 else [f"loss of replica {d}" for d in range(R)]
    losses = np.stack([found[name].reshape(-1, k) for name in names], -1).reshape(
        len(found[names[0]]) // k, -1
    )
    words = np.array([asked.batches.words(n) for n in range(losses.size)]).reshape(losses.shape)
    return (losses * words).sum(1) / words.sum(1)


def test_one_two_and_three_ranks_are_one_training(tmp_path):
    """And one with six micro-batches: losses of 24 updates, and BLEU of two evaluations to the last
    digit."""
    asked = replace(PLAIN, updates=24, evaluate_every=12)
    expected = here(asked)
    found = [(each, here(each)) for each in [replace(asked, accumulation=6)]]
    for ranks in (2, 3):
        run = (each := replace(asked, replicas=ranks)).run(directory=tmp_path / f"{ranks}")
        assert run.replicas == []
        found.append((each, run.result))
    assert (
        expected["evaluations"][:, 0].tolist() == [12, 24]
        and len({len(asked.batches.sentences(n)) % 3 for n in range(20)}) > 1
    )
    assert (
        expected["evaluations"][1, 2] < expected["evaluations"][0, 2]
        and expected["evaluations"][1, 3] > 0
    )
    for each, result in found:
        assert (
            np.abs(curve(each, result) / curve(asked, expected) - 1).max() < 1e-9
            and len(curve(each, result)) == 24
        )
        assert result["evaluations"][:, 3].tolist() == expected["evaluations"][:, 3].tolist()
        assert np.allclose(result["evaluations"], expected["evaluations"], rtol=1e-9)


def test_what_is_evaluated_is_the_corpus():
    """Of all held-out pairs once: the loss a mean over words, BLEU sacrebleu's own."""
    asked = replace(PLAIN, epochs=6)
    rank = Rank(0, Mesh(world=1), torch.device("cpu"))
    lens = Evaluation(asked, rank)
    train(asked.recipe, rank, lens)
    sample = padded(asked.pairs.encoded(held_out=True))
    targets = sample.targets
    with torch.no_grad():
        said = [
            asked.pairs.vocabulary.decode(ids) for ids in lens.translated(sample.inputs).tolist()
        ]
        chances = lens.model(sample.inputs, sample.context[0]).log_softmax(-1)
    smooth = torch.full_like(chances, 0.1 / (chances.shape[-1] - 1)).scatter_add(
        -1, targets[..., None], torch.full_like(chances[..., :1], 0.9)
    )
    smooth[..., 0] = 0
    loss = -(smooth * chances).sum(-1)[targets != 0].mean()
    *_, own_loss, own_bleu, _ = lens.rows[-1]
    assert (
        own_bleu
        == sacrebleu.corpus_bleu(
            said, [[pair[1] for pair in asked.pairs.held_out]], tokenize="zh"
        ).score
        > 0
    )
    assert own_loss == pytest.approx(float(loss), rel=1e-12)


def test_a_killed_run_goes_on_to_the_bit(tmp_path):
    """On as many ranks, with dropout, in the middle of an epoch."""
    asked = replace(
        PLAIN,
        config=replace(TINY, dropout=0.1),
        replicas=2,
        epochs=3,
        save_every=3,
        directory=tmp_path / "whole",
        evaluate_every=None,
    )
    whole = asked.run(directory=tmp_path / "run")
    whole.wait()
    killed, last = replace(asked, directory=tmp_path / "killed"), Random().randrange(4, asked.steps)

    class Ends(Evaluation):
        """Rank 0 kills itself, as it can be while it saves, once so many updates are done."""

        def ended(self, number, training, losses):
            if number + 1 == last and self.rank.index == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().ended(number, training, losses)

    with pytest.raises(RankFailed):
        launch(
            lambda rank: train(killed.recipe, rank, Ends(killed, rank)),
            ranks=2,
            mesh=asked.recipe.mesh,
            directory=tmp_path / "ended",
        ).wait()
    again = replace(asked, directory=tmp_path / "killed", resume=True).run(
        directory=tmp_path / "again"
    )
    assert again.replicas == []
    for name, values in whole.result.items():
        assert np.array_equal(again.result[name], values[-len(again.result[name]) :]), (
            name,
            last,
        )
    assert len(again.result["loss of replica 0"]) <= asked.steps - 3
    best, end = (
        torch.load(tmp_path / "killed" / f"{name}.pt", weights_only=True)
        for name in ("best", "last")
    )
    assert (
        best["rows"][-1, -1] == 1
        and end["epoch"] == 3
        and end["place"] == 0
        and len(end["random"]) == 2
    )
    assert not any(name.startswith("module.") for name in end["weights"][0])


class Disagree(Translation):
    """Nothing is learned; rank 1 sees a better score each time."""

    def program(self, rank):
        class Sees(Evaluation):
            def evaluated(self, done, training):
                *row, score = super().evaluated(done, training)
                return [*row, score + done * rank.index]

        train(self.recipe, rank, lens := Sees(self, rank))
        return {f"updates of rank {rank.index}": np.array(lens.rows)[:, 0]}


def test_one_decision_ends_the_run_on_all_ranks(tmp_path):
    asked = Disagree(
        pairs=PLAIN.pairs,
        config=TINY,
        learning_rate=lambda update: 0.0,
        replicas=2,
        batch_tokens=400,
        patience=2,
        epochs=6,
    )
    run = asked.run(directory=tmp_path / "run")
    ends = [len(asked.batches) * epoch for epoch in (1, 2, 3)]
    assert [run.result[f"updates of rank {r}"].tolist() for r in (0, 1)] == [ends, ends]


def test_what_cannot_be_is_one_sentence():
    for told, change in {
        "^watched is 'f1': choose bleu or loss.$": {"watched": "f1"},
        "holds no pair out": {"pairs": replace(PLAIN.pairs, held_out=[])},
        "No held-out pair .* has at most 20 tokens": {
            "pairs": replace(PLAIN.pairs, held_out=[("one " * 50, "一")])
        },
        "^patience": {"patience": 0},
        "^rows": {"rows": 0},
        "^beam": {"beam": 0},
        "^evaluators": {"evaluators": -1},
        "^evaluate_every": {"evaluate_every": -1},
        "^save_every": {"save_every": 0},
        "^smoothing": {"smoothing": 1.5},
        "^resume goes on from a directory's last.pt": {"resume": True},
    }.items():
        with pytest.raises(Impossible, match=told):
            here(replace(PLAIN, **change))


def test_only_the_same_batches_go_on(tmp_path):
    """What is given to other ranks, or for more epochs, goes on."""
    small = replace(PLAIN, epochs=1, directory=tmp_path)
    first = here(small)["evaluations"]
    few, others = (
        replace(PLAIN.pairs, train=each)
        for each in (PLAIN.pairs.train[:200], PLAIN.pairs.train[::-1])
    )
    for other, told in {
        "seed is 0 there and 1 here": {"seed": 1},
        "batch_tokens is 160 there and 200 here": {"batch_tokens": 200},
        "pairs is 250 there and 200 here": {"pairs": few},
        "digest of the pairs is [0-9a-f]{16} there": {"pairs": others},
    }.items():
        with pytest.raises(
            Impossible,
            match=(
                f"^[^\n]*last.pt is of another training, {other}.*: train with what it had, or"
                " name another.$"
            ),
        ):
            here(replace(small, resume=True, **told))
    assert (
        here(replace(small, resume=True, accumulation=2))["evaluations"].tolist() == first.tolist()
    )
    for change in (
        {"rows": torch.zeros(3)},
        {"sums": "none"},
        {"update": "1"},
        {"random": torch.zeros(1, 10**4, dtype=torch.uint8)},
        {"data": [3]},
        {"weights": {0: 0}},
        {"optimizers": 3},
        {"precision": 4},
        [1],
    ):
        state = saved.load(tmp_path / "best.pt")
        saved.save(tmp_path / "last.pt", state | change if isinstance(change, dict) else change)
        with pytest.raises(Impossible, match="^[^\n]*(damaged|stages|of another|random states)"):
            here(replace(small, resume=True))
