"""A checkpoint is whole or not there: on a full disk, of another model. Killed while it is saved, and
damaged: see test_saved_shards.py, whose files are made by the same function."""

import os
import random
from errno import EIO, ENOSPC
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bigtrain_lab import Impossible, Rank, Recipe
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques import MixedPrecision, saved
from bigtrain_lab.train.recipe import train


@pytest.mark.parametrize(
    "number, told",
    [
        (ENOSPC, "No space left on device.*: free some space"),
        (EIO, "Input/output error.*: free some space, or choose another place"),
    ],
)
def test_a_disk_that_complains_late_leaves_the_last_good_one(number, told, tmp_path, monkeypatch):
    path = tmp_path / "last.pt"
    saved.save(path, {"number": 1})

    def fsync(file):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(Impossible, match=told):
        saved.save(path, {"number": 2})
    assert saved.load(path) == {"number": 1} and os.listdir(tmp_path) == ["last.pt"]


def training(width=4, adam=True, level=None, extra=False, slices=None):
    model = nn.Sequential(
        nn.Linear(3, width), nn.LayerNorm(width), nn.Linear(width, 1), *[nn.Linear(1, 1)] * extra
    )
    precision = MixedPrecision(level)
    model = precision.prepare(model)
    optimizer = (
        torch.optim.Adam(precision.parameters())
        if adam
        else torch.optim.SGD([{"params": p} for p in precision.parameters()], 0.1)
    )
    return SimpleNamespace(
        stages={0: model},
        precision=precision,
        optimizers=[optimizer],
        replica=0,
        rank=None,
        slices=slices,
    )


def step(at, seed):
    with at.precision:
        loss = (
            at.stages[0](torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)))
            .float()
            .square()
            .mean()
        )
    at.precision.backward(loss)
    at.precision.step(*at.optimizers)
    at.precision.update()
    at.optimizers[0].zero_grad()


def drawn():
    return (
        torch.rand(3).tolist(),
        random.random(),
        random.gauss(0, 1),
        np.random.rand(3).tolist(),
        np.random.standard_normal(),
    )


@pytest.mark.parametrize("level", [None, "fp16", "bf16"])
def test_all_that_the_next_update_depends_on_is_kept(level, tmp_path):
    """Weights, masters, moments, the loss scale, and generators with half a pair of normals in
    hand."""
    one = training(level=level)
    for seed in range(3):
        step(one, seed)
    random.gauss(0, 1), np.random.standard_normal()
    saved.save(tmp_path / "a.pt", saved.state_of(one, Alone(), 3, note="kept"))
    expected = drawn()
    step(one, 3)
    other = training(level=level)
    assert (
        saved.restore(saved.load(tmp_path / "a.pt"), other, 0) == 3
        and saved.load(tmp_path / "a.pt")["note"] == "kept"
    )
    assert drawn() == expected
    step(other, 3)
    for a, b in zip(one.precision.parameters(), other.precision.parameters()):
        assert torch.equal(a, b)
    if level == "fp16":
        assert one.precision.scaler.state_dict() == other.precision.scaler.state_dict()


@pytest.mark.parametrize(
    "other, told",
    [
        (
            {"width": 5},
            (
                r"^a.pt is of another training, 0.weight of stage 0 is \(4, 3\) there and"
                r" \(5, 3\) here: train with what it had, or name another.$"
            ),
        ),
        (
            {"extra": True},
            r"^a.pt is of another training, 3.weight of stage 0 is missing there and \(1, 1\) here",
        ),
        (
            {"slices": SimpleNamespace(rank=1, size=2)},
            "a.pt is of another training, slice is missing there and 1 of 2 here",
        ),
        (
            {"adam": False},
            "a.pt is of another training, optimizer 0 is .* there and .* here: train",
        ),
    ],
    ids=lambda each: str(each)[:12],
)
def test_a_checkpoint_of_another_training_is_refused(other, told, tmp_path):
    saved.save(tmp_path / "a.pt", saved.state_of(training(), Alone(), 3))
    changed = training(**other)
    before = [weight.clone() for weight in changed.stages[0].parameters()]
    with pytest.raises(Impossible, match=told):
        saved.restore(saved.load(tmp_path / "a.pt"), changed, 0, "a.pt")
    assert all(map(torch.equal, before, changed.stages[0].parameters()))


@pytest.mark.parametrize(
    "change",
    [{"weights": 3}, {"precision": [4]}, {"optimizers": [5]}, {"update": "6"}, {"random": 7}],
)
def test_a_crafted_state_is_one_sentence(change):
    with pytest.raises(Impossible, match="^a.pt is no checkpoint, or is damaged"):
        saved.restore(saved.state_of(training(), Alone(), 3) | change, training(), 0, "a.pt")


@pytest.mark.parametrize(
    "state, told",
    [
        ({"rate": np.float64(0.1)}, "reading it would execute code"),
        ({"rate": lambda: 0.1}, "was not saved"),
    ],
)
def test_what_could_not_be_read_again_is_not_saved(state, told, tmp_path):
    saved.save(tmp_path / "last.pt", {"number": 3})
    with pytest.raises(Impossible, match=told):
        saved.save(tmp_path / "last.pt", state)
    assert saved.load(tmp_path / "last.pt") == {"number": 3} and os.listdir(tmp_path) == ["last.pt"]


def test_an_asynchronous_training_is_not_saved_without_its_optimizers():
    """Its pipeline has them, and older weights; a training that went on without would be
    another."""
    recipe = Recipe(
        model=lambda stage: nn.Linear(3, 3),
        data=lambda number: (torch.ones(2, 3), torch.ones(2, 3)),
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.Adam,
        steps=3,
        schedule="pipedream",
    )
    rank = Rank(0, recipe.mesh, torch.device("cpu"))
    trained = train(recipe, rank)
    with pytest.raises(Impossible, match="synchronous schedule"):
        saved.state_of(trained, Alone(), 3)
    rank.finish()
