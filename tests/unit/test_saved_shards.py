"""A checkpoint is whole or not there, on a full disk, of another model; in shards: read by any number
of ranks, whole when a rank is killed while it is saved, and one sentence for what it cannot be read
as."""

import os
import random
import shutil
from errno import EIO, ENOSPC
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from bigtrain_lab import Impossible, Rank, Recipe, Schedule, launch
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques import MixedPrecision, saved, saved_shards
from bigtrain_lab.techniques.flat import Flat
from bigtrain_lab.techniques.fully_sharded import FullyShardedDataParallel
from bigtrain_lab.techniques.saved_shards import load, save, whole
from bigtrain_lab.techniques.shards import Home
from bigtrain_lab.train.recipe import Lens, train

from .threads import Absent, Model as Tied, on_threads


def complains(number, file):
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "state, fsync, told",
    [
        (
            {"number": 2},
            partial(complains, ENOSPC),
            "No space left on device.*: free some space",
        ),
        (
            {"number": 2},
            partial(complains, EIO),
            "Input/output error.*: free some space, or choose another place",
        ),
        ({"rate": np.float64(0.1)}, os.fsync, "reading it would execute code"),
        ({"rate": lambda: 0.1}, os.fsync, "was not saved"),
    ],
    ids=["full", "broken", "code", "a function"],
)
def test_what_cannot_be_saved_leaves_the_last_good_one(state, fsync, told, tmp_path, monkeypatch):
    """On a disk that complains late; and where it could not be read again."""
    path = tmp_path / "last.pt"
    saved.save(path, {"number": 1})
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(Impossible, match=told):
        saved.save(path, state)
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


# -- in shards -------------------------------------------------------------------------------------

ADAM, WIDTH, ROWS, STEPS = partial(torch.optim.Adam, lr=1e-2), 5, 12, 10


class Model(Tied):
    """One number more, and a buffer that no state_dict has."""

    def __init__(self, width=WIDTH):
        super().__init__(width=width)
        self.rate = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.register_buffer("mask", torch.ones(width), persistent=False)

    def forward(self, x):
        self.calls += self.training
        return self.rate * super().forward(x)


class Sharded:
    """The least that a sharded module shows; `seed` draws the values of its pieces and of their
    moments."""

    under_way = False
    follow_weights = refresh = staticmethod(lambda: None)

    def __init__(self, rank, size, seed=0, width=WIDTH, make=ADAM):
        self.module, self.group = Model(width), Absent(rank, size)
        learnt = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        draw = torch.Generator().manual_seed(seed)
        self.flat = Flat([*learnt.values()], size, rank)
        values = [torch.zeros(self.flat.length, dtype=torch.float64) for _ in range(2)]
        for view in (view for value in values for view in self.flat.views(value)):
            view.copy_(torch.rand(view.shape, generator=draw, dtype=torch.float64))
        pieces = [nn.Parameter(piece) for piece in self.flat.pieces(self.flat.mine(values[0]))]
        self.homes = [
            Home(name, p, piece, *own)
            for (name, p), own, piece in zip(learnt.items(), self.flat.own, pieces)
        ]
        self.optimizer = make([{"params": pieces[2:], "weight_decay": 0.1}, {"params": pieces[:2]}])
        for piece, gradient in zip(pieces, self.flat.pieces(self.flat.mine(values[1]))):
            piece.grad = gradient.clone()
        self.optimizer.step()
        self.module.calls.fill_(seed)


def saved_on(ranks, path, seed=1, **further):
    told = []
    for rank in reversed(range(ranks)):  # rank 0 last: it has nobody to wait for
        sharded = Sharded(rank, ranks, seed)
        sharded.group.broadcast = lambda number: told.append(number) or told[0]
        save(path, sharded, sharded.optimizer, **further)


@pytest.mark.parametrize("ranks", [1, 3, 40])
def test_any_number_of_ranks_reads_what_any_number_wrote(ranks, tmp_path):
    """More ranks than elements too; and one process, with the plain model and optimizer."""
    saved_on(ranks, tmp_path / "last", update=7)
    for size in (1, 2, 5, 40):
        for rank in {*range(min(size, 5)), size - 1}:
            found, expected = Sharded(rank, size, seed=2), Sharded(rank, size, seed=1)
            assert load(tmp_path / "last", found, found.optimizer) == {"update": 7}
            assert found.module.calls == 1
            for a, b in zip(found.homes, expected.homes):
                assert torch.equal(a.stepped, b.stepped)
                states = [
                    each.optimizer.state[own.stepped] for each, own in ((found, a), (expected, b))
                ]
                assert states[0].keys() == states[1].keys() and all(
                    map(torch.equal, *(state.values() for state in states))
                )
    one, model = whole(tmp_path / "last"), Model()
    assert one["update"] == 7 and model.load_state_dict(one["weights"])
    alone = Sharded(0, 1, seed=1)
    assert all(
        torch.equal(dict(model.named_parameters())[own.name], own.stepped.view(own.weight.shape))
        for own in alone.homes
    )
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = ADAM([{"params": parameters[2:]}, {"params": parameters[:2]}])
    optimizer.load_state_dict(one["optimizers"][0])
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    assert all(
        torch.equal(
            optimizer.state[p]["exp_avg"],
            alone.optimizer.state[own.stepped]["exp_avg"].view(own.weight.shape),
        )
        for p, own in zip(parameters, alone.homes)
    )


def turned(path, share):
    """One bit of the file is another."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1 << int(997 * share) % 8
    path.write_bytes(content)


def rows(step, rank, size):
    draw = torch.Generator().manual_seed(step)
    return torch.randn(2, ROWS, WIDTH, generator=draw, dtype=torch.float64)[:, rank::size]


def with_nadam(model):
    """(model, optimizer); NAdam keeps numbers beside a parameter, which may have no dimension."""
    return model, torch.optim.NAdam([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def losses(model, optimizer, group, first):
    found = []
    for step in range(first, first + STEPS):
        x, y = rows(step, group.rank, group.size)
        loss = mse_loss(model(x), y)
        loss.backward()
        if isinstance(model, FullyShardedDataParallel):
            model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()
        found.append(group.unrecorded().all_reduce(loss.detach()).item() / group.size)
    return np.array(found)


def saving(folder, rank):
    group = rank.group().unrecorded()
    training = with_nadam(FullyShardedDataParallel(Model(), group))
    losses(*training, group, 0)
    for number in (1, STEPS):  # two in a row: no rank waits for another between them
        save(folder / "shards", *training, update=number)
    full = saved_shards.full_optimizer_state(*training)
    if rank.index == 0:
        saved.save(folder / "whole optimizer.pt", full)
    return {f"{rank.index}": losses(*training, group, STEPS)} | resumed(folder, rank)


class Kept(Lens):
    """Saves after the second of four windows, or goes on from there."""

    def __init__(self, path, again):
        self.path, self.again = path, again

    def begin(self, training):
        return load(self.path, training.parts, training.optimizers)["update"] if self.again else 0

    def ended(self, number, training, losses):
        if number == 1:
            with pytest.raises(Impossible, match="let all ranks save it together"):
                saved.state_of(training, Alone(), 2)
            save(self.path, training.parts, training.optimizers, update=2)


def resumed(folder, rank):
    """How far off the weights of recipes are that were taken up again: of two stages on a rank,
    with masters and without."""
    found = {}
    for stage, precision in ((1, "bf16"), (3, None)):
        recipe = Recipe(
            model=stage_of,
            data=lambda number: (rows(number, 0, 1)[0].float(), rows(number, 0, 1)[1].float()),
            loss=lambda output, targets: mse_loss(output.float(), targets),
            optimizer=partial(torch.optim.Adam, lr=1e-2),
            learning_rate=lambda update: 0.05 / update,
            steps=4,
            schedule=Schedule.named("interleaved")(1, 2),
            replicas=rank.size,
            zero=stage,
            precision=precision,
        )
        weights = []
        for again in (False, True):
            own = Rank(rank.index, recipe.mesh, rank.device)
            trained = train(recipe, own, Kept(folder / f"recipe {stage}", again)).weights
            weights.append(
                torch.cat([each.flatten() for stage in trained.values() for each in stage.values()])
            )
            own.finish()
        found[f"recipe {stage}, {rank.index}"] = (weights[0] - weights[1]).abs().max().numpy()
    return found


def stage_of(number):
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def loading(folder, group):
    """Losses after a load from shards, and from what one process has. A damaged file, which one
    rank compares, is refused on all and changes nothing."""
    ours, theirs = (with_nadam(FullyShardedDataParallel(Model(), group)) for _ in range(2))
    before = [own.stepped.detach().clone() for own in ours[0].replicas.homes]
    damaged = r"^Rank \d: .*rank-1.of-4.pt is no checkpoint, or is damaged"
    with pytest.raises(Impossible, match=damaged):
        load(folder / "damaged", *ours)
    assert all(torch.equal(own.stepped, old) for own, old in zip(ours[0].replicas.homes, before))
    assert load(folder / "shards", *ours) == {"update": STEPS}
    theirs[0].load_full_state_dict(whole(folder / "shards")["weights"])
    saved_shards.load_full_optimizer_state(*theirs, saved.load(folder / "whole optimizer.pt"))
    return [losses(*training, group, STEPS) for training in (ours, theirs)]


def test_saved_on_4_ranks_and_loaded_on_1_2_3_the_next_losses_are_the_same(tmp_path):
    result = launch(partial(saving, tmp_path), 4, directory=tmp_path / "run").result
    shutil.copytree(tmp_path / "shards", tmp_path / "damaged")
    turned(next((tmp_path / "damaged").glob("*/rank-1.of-4.pt")), 0.5)
    loaded = [each for ranks in (1, 2, 3) for each in on_threads(partial(loading, tmp_path), ranks)]
    training = with_nadam(Model())
    losses(*training, Alone(), 0)
    expected = losses(*training, Alone(), STEPS)
    off = [each for name, each in result.items() if "recipe" in name]
    assert len(off) == 8 and not any(off)
    for found in [*(result[f"{rank}"] for rank in range(4)), *(e for pair in loaded for e in pair)]:
        assert np.allclose(found, expected, rtol=1e-9, atol=0)


def dies(path, moment):
    """A process that saves a second checkpoint ends itself: before its shard is whole, before
    whole.pt is, when that is written but not yet in its place, or before what is older goes."""
    sharded, replaced = Sharded(0, 1, seed=2), saved.Path.replace
    if not (child := os.fork()):

        def replace(partial, target):
            if (moment, target.name) in {("shard", "rank-0.of-1.pt"), ("whole", "whole.pt")}:
                os._exit(9)
            replaced(partial, target)

        def differing(text, name="", calls=iter(range(2))):
            if moment == f"after file {next(calls)}":
                os._exit(9)
            return []

        saved.Path.replace, sharded.group.differing = replace, differing
        save(path, sharded, sharded.optimizer, number=2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize(
    "moment, number", [("shard", 1), ("after file 0", 1), ("whole", 1), ("after file 1", 2)]
)
def test_killed_while_saving_the_last_good_one_is_whole(moment, number, tmp_path):
    saved_on(1, tmp_path, seed=1, number=1)
    dies(tmp_path, moment)
    found, expected = Sharded(0, 2, seed=3), Sharded(0, 2, seed=number)
    assert load(tmp_path, found, found.optimizer) == {"number": number}
    assert all(torch.equal(a.stepped, b.stepped) for a, b in zip(found.homes, expected.homes))
    for again in (4, 5):  # what was begun goes with the next
        saved_on(2, tmp_path, seed=4, number=again)
    assert whole(tmp_path)["number"] == 5
    assert [len([*tmp_path.glob(each)]) for each in ("*", "shards-*", "shards-*/*")] == [2, 1, 2]


def test_a_rank_that_cannot_write_is_told_on_all(tmp_path):
    saved_on(1, tmp_path, number=1)
    sharded = Sharded(0, 2)
    sharded.group.differing = lambda text, name="": [
        text,
        "Rank 1: The checkpoint was not saved (No space left on device): free some space.",
    ]
    with pytest.raises(Impossible, match=r"^Rank 1: The checkpoint was not saved \(No space"):
        save(tmp_path, sharded, sharded.optimizer, number=2)
    assert whole(tmp_path)["number"] == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: turned(path, 0.3),
        lambda path: path.write_bytes(b""),
        lambda path: saved.save(path, {"folder": 3}),
    ],
)
def test_a_damaged_whole_does_not_forbid_the_next_save(damage, tmp_path):
    saved_on(2, tmp_path, number=1)
    damage(tmp_path / "whole.pt")
    saved_on(1, tmp_path, number=2)
    assert whole(tmp_path)["number"] == 2
    assert [each.name for each in tmp_path.glob("shards-*")] == ["shards-000002"]


DAMAGES = {
    **{f"a bit at {n / 26:.2f}": partial(turned, share=n / 26) for n in range(26)},
    **{
        f"cut at {n}/8": lambda path, n=n: os.truncate(path, path.stat().st_size * n // 8)
        for n in range(8)
    },
    **{
        f"without its last {n}": lambda path, n=n: os.truncate(path, path.stat().st_size - n)
        for n in (1, 64, 72, 200)
    },
    "other bytes": lambda path: path.write_bytes(b"abc" * 99),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"0"),
    "twice": lambda path: path.write_bytes(2 * path.read_bytes()),
    "halves swapped": lambda path: path.write_bytes(
        path.read_bytes()[1000:] + path.read_bytes()[:1000]
    ),
    "zeros": lambda path: path.write_bytes(
        path.read_bytes()[:600] + bytes(300) + path.read_bytes()[900:]
    ),
}


@pytest.mark.parametrize("name", ["shards-000001/rank-1.of-2.pt", "whole.pt"])
def test_no_damage_is_loaded(name, tmp_path):
    saved_on(2, tmp_path)
    good, sharded = (tmp_path / name).read_bytes(), Sharded(0, 1, seed=2)
    before = [own.stepped.detach().clone() for own in sharded.homes]
    reads = [lambda: whole(tmp_path), lambda: load(tmp_path, sharded, sharded.optimizer)]
    for damage, spoil in DAMAGES.items():
        (tmp_path / name).write_bytes(good)
        spoil(tmp_path / name)
        for read in reads:
            with pytest.raises(Impossible, match="damaged.*: ") as refused:
                read()
                pytest.fail(damage)
            assert "\n" not in str(refused.value)
    assert all(torch.equal(own.stepped, old) for own, old in zip(sharded.homes, before))


def mixed(path):
    """A file of another save, of fewer elements."""
    saved_on(4, path / "other")
    shutil.copy(
        path / "other" / "shards-000001" / "rank-1.of-4.pt",
        path / "shards-000001" / "rank-1.of-3.pt",
    )


def crafted(change, path):
    """A file with a digest of its own, in the place of whole.pt, or of a part with what whole.pt
    says of it."""
    state = saved.load(path / "whole.pt")
    part = path / state["folder"] / "rank-1.of-3.pt"
    content = saved.load(part)
    change(state, content)
    saved.save(part, content)
    if isinstance(state["digests"], list) and len(state["digests"]) == 3:
        state["digests"][1] = saved.guard.stated_digest(part)
    saved.save(path / "whole.pt", state)


def short(state, content):
    shape, start, stop, piece = content["parts"]["first.weight"]
    content["parts"]["first.weight"] = shape, start, stop, piece[:1]


CRAFTED = {
    "a folder of no text": lambda state, content: state.update(folder=3),
    "a number of files": lambda state, content: state.update(digests=10**12),
    "many files": lambda state, content: state.update(digests=[b"0" * 64] * 300_000),
    "no texts": lambda state, content: state.update(digests=[3, 4, 5]),
    "facts": lambda state, content: state.update(facts=3),
    "buffers": lambda state, content: state.update(apart=[1]),
    "other buffers": lambda state, content: state["apart"].update(calls=torch.zeros(4)),
    "short": short,
    "a short moment": lambda state, content: (own := content["optimizers"][0]["state"][3]).update(
        exp_avg=own["exp_avg"][:1]
    ),
    "parts": lambda state, content: content.update(parts=4),
    "a hole": lambda state, content: content["parts"].pop("first.weight"),
    "optimizers": lambda state, content: content.update(optimizers=[{"state": {}}]),
    "no tensor": lambda state, content: content["parts"].update(rate=((), 0, 1, 2)),
}


@pytest.mark.parametrize(
    "spoil, other, told",
    [
        (
            lambda path: (path / "shards-000001" / "rank-1.of-3.pt").unlink(),
            {},
            "There is no checkpoint .*rank-1.of-3.pt: .* copy the files of all ranks",
        ),
        (mixed, {}, "rank-1.of-3.pt is of another save, or is damaged: copy the files of one save"),
        (
            lambda path: (path / "whole.pt").unlink(),
            {},
            "There is no checkpoint .*whole.pt: train from the start",
        ),
        (
            lambda path: saved.save(path / "whole.pt", {"number": 1}),
            {},
            "is no checkpoint, or is damaged",
        ),
        (shutil.rmtree, {}, "There is no checkpoint .*: train from the start"),
        (
            None,
            {"width": 6},
            r"is of another training, frozen.weight is \(5, 5\) there and \(6, 6\) here",
        ),
        (
            None,
            {"make": partial(torch.optim.SGD, lr=1)},
            "is of another training, optimizer 0 is .* there and .* here: train with what it had",
        ),
        *((partial(crafted, change), {}, "damaged|lacks|another") for change in CRAFTED.values()),
        (
            lambda path: torch.save(nn.Linear(2, 2), path / "whole.pt"),
            {},
            "whole.pt is no checkpoint, or is damaged, or of a version without digests",
        ),
        (
            lambda path: setattr(Sharded, "under_way", True),
            {},
            "Rank 0 saves or loads a checkpoint while a step is under way",
        ),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_what_cannot_be_loaded_is_one_sentence_and_changes_nothing(
    spoil, other, told, tmp_path, monkeypatch
):
    monkeypatch.setattr(Sharded, "under_way", False)
    path = tmp_path / "last"
    saved_on(3, path)
    if spoil:
        spoil(path)
    sharded = Sharded(0, 2, seed=2, **other)
    before = [own.stepped.detach().clone() for own in sharded.homes]
    with pytest.raises(Impossible, match=told) as refused:
        load(path, sharded, sharded.optimizer)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    assert all(torch.equal(own.stepped, old) for own, old in zip(sharded.homes, before))
