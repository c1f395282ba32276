"""Data parallel ranks learn what one process learns from all samples; their buckets leave while the
backward goes on. In one process outputs and gradients are those of the module alone."""

import copy
from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from bigtrain_lab.checks import ranks_differ
from bigtrain_lab.core import Impossible
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques import (
    DistributedDataParallel,
    FullyShardedDataParallel,
    MixedPrecision,
    ring_all_reduce,
)
from bigtrain_lab.techniques.clip import clip_grad_norm
from bigtrain_lab.techniques.data_parallel import NaiveDataParallel
from bigtrain_lab.techniques.distributed_sampler import DistributedSampler
from bigtrain_lab.techniques.reducers import Buckets, FusedCycle, PushPull, backend_all_reduce
from bigtrain_lab.techniques.single_process import SingleProcessDataParallel

from .threads import WIDTH, Model, backward, on_processes, on_threads


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_outputs_and_gradients_are_those_of_one_device(rows):
    plain, recorded = Model(spare=True), []
    plain.first.register_forward_hook(lambda *_: recorded.append(torch.is_grad_enabled()))
    model = SingleProcessDataParallel(plain, ["cpu"] * 3)
    x = torch.randn(rows, WIDTH, dtype=torch.float64)
    weights = [p for p in model.parameters() if p.requires_grad]
    expected = plain(x, 2.0)
    gradients = torch.autograd.grad(expected.square().mean(), weights)
    found = model(x, 2.0)
    found.square().mean().backward()
    assert torch.allclose(found, expected, rtol=1e-12, atol=0)
    for weight, gradient in zip(weights, gradients):
        assert (weight.grad - gradient).norm() <= 1e-12 * gradient.norm()
    recorded.clear()
    with torch.no_grad():
        assert not model(x).requires_grad
    assert recorded == [False] * min(3, rows)


def test_a_changed_buffer_stays_on_the_first_device_and_modes_are_passed_on():
    torch.manual_seed(0)
    model = SingleProcessDataParallel(nn.BatchNorm1d(4), ["cpu", "cpu"])
    x = torch.randn(8, 4)
    model(x)
    assert model.module.num_batches_tracked == 1
    assert torch.allclose(model.module.running_mean, 0.1 * x[:4].mean(0), atol=1e-6)
    model.module.eval()
    model.module.eps = 2.0
    assert torch.allclose(model(x), model.module(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert SingleProcessDataParallel(nn.Linear(4, 4), ["cpu"])(x).dtype is torch.bfloat16


class Averaged(nn.Module):
    """Its average is another tensor after each forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x, more, *, pair=None):
        self.average = 0.9 * self.average + 0.1
        return x + more["y"] * self.average + (0 if pair is None else pair[0])


def test_tensors_inside_of_inputs_are_split_and_a_buffer_that_is_replaced_is_kept():
    x, plain = torch.arange(12.0).view(3, 4), Averaged()
    model = SingleProcessDataParallel(Averaged(), ["cpu"] * 2)
    for _ in range(2):
        found, expected = (each(x, {"y": x.cos()}, pair=(x.sin(), 1)) for each in (model, plain))
        assert torch.equal(found, expected)
    assert torch.equal(model.module.average, plain.average)


@pytest.mark.parametrize(
    "ask, told",
    [
        (lambda: SingleProcessDataParallel(nn.Linear(4, 4), [])(), "no device"),
        (lambda: SingleProcessDataParallel(nn.Linear(4, 4), ["cpu"])(3), "No input is a tensor"),
        (
            lambda: SingleProcessDataParallel(nn.Bilinear(4, 4, 4), ["cpu"] * 2)(
                torch.ones(2, 4), torch.ones(3, 4)
            ),
            "2 and 3 rows",
        ),
        (  # one row of all
            lambda: SingleProcessDataParallel(nn.Unflatten(0, (1, -1)), ["cpu"] * 2)(
                torch.ones(4, 4)
            ),
            "no tensor of as many rows",
        ),
        (partial(DistributedSampler, 4, 2, 2), "There is no rank 2 of 2: take 0 to 1."),
        (
            partial(DistributedSampler, 4, 0, 2, last="cut"),
            "last is 'cut': choose pad, drop or uneven.",
        ),
        (partial(DistributedSampler, 0, 0, 2), "0 samples leave nothing for 2 ranks"),
        (partial(DistributedSampler, 1, 0, 2, last="drop"), "1 samples leave nothing for 2 ranks"),
    ],
)
def test_what_cannot_be_split_or_shared_is_refused(ask, told):
    with pytest.raises(Impossible, match=told):
        ask()


# -- ranks -----------------------------------------------------------------------------------------

BUCKET_BYTES, STEPS, COUNT = 100, 8, 7


def samples(count):
    return torch.randn(
        2, count, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )


def learnt(group, make, backwards=1, accumulates=False, keeps=False):
    """What a rank ends with. `backwards` of a step; `accumulates`: under no_sync but for the last;
    `keeps`: zero_grad fills gradients with zeros."""
    model = make(Model(seed=group.rank), group)
    x, y = (part.tensor_split(group.size)[group.rank] for part in samples(COUNT))
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], 1e-2, fused=True
    )
    first = {}
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=not keeps)
        for part in range(backwards):
            with model.no_sync() if accumulates and part == 0 else nullcontext():
                a, b = x[part::backwards], y[part::backwards]
                (mse_loss(model(a), b) * len(a) * group.size / COUNT).backward()
        model.finish_gradient_synchronization()
        first = first or {
            f"gradient {name}": p.grad.clone()
            for name, p in model.module.named_parameters()
            if p.requires_grad
        }
        optimizer.step()
    return model.module.state_dict() | first


def ours(bucket_bytes=BUCKET_BYTES, **options):
    return partial(DistributedDataParallel, bucket_bytes=bucket_bytes, **options)


WAYS = {  # how the ranks run, how many, what makes the model, and what is asked of the loop
    "naive": (on_threads, 3, NaiveDataParallel, {}),
    "alone": (on_threads, 1, ours(), {}),
    "plain, kept gradients": (on_threads, 2, ours(all_reduce=ring_all_reduce), {"keeps": True}),
    "ring, split": (
        on_threads,
        4,
        ours(all_reduce=ring_all_reduce, strategy=Buckets(split=True)),
        {},
    ),
    "fused cycle": (on_threads, 2, ours(400, strategy=FusedCycle(700)), {}),
    "fused cycle, at the end": (on_threads, 3, ours(strategy=FusedCycle(), overlap=False), {}),
    "push-pull": (on_threads, 4, ours(strategy=PushPull()), {}),
    "one bucket of two backwards": (
        on_threads,
        2,
        ours(2**20),
        {"backwards": 2, "accumulates": True},
    ),
    "accumulated, at the end": (
        on_threads,
        2,
        ours(all_reduce=backend_all_reduce, overlap=False),
        {"backwards": 2, "accumulates": True},
    ),
    "processes": (on_processes, 2, ours(strategy=PushPull()), {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_learn_what_one_process_learns(way):
    """Tied, frozen weights, buffers, uneven shares of a batch. One process: the naive one, alone."""
    over, ranks, make, loop = WAYS[way]
    expected = learnt(Alone(), NaiveDataParallel)
    results = over(partial(learnt, make=make, **loop), ranks)
    assert ranks_differ(results, expected) == []
    assert all(torch.equal(found[name], results[0][name]) for found in results for name in found)


def test_ranks_that_begin_with_different_masters_learn_from_those_of_rank_0():
    def program(group):
        torch.manual_seed(group.rank)
        mp, x = MixedPrecision("bf16"), torch.ones(2, 3)
        model = DistributedDataParallel(mp.prepare(nn.Linear(3, 2)), group)
        optimizer = torch.optim.SGD(mp.parameters(), lr=0.1)
        with mp:
            loss = model(x).square().sum()
        mp.backward(loss)
        model.finish_gradient_synchronization()
        mp.step(optimizer)
        return [p.detach().clone() for p in mp.parameters()]

    first, second = on_threads(program, 2)
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("skips", [False, True])
def test_a_gradient_that_somebody_dropped_counts_no_more(skips):
    """Nor do gradients for somebody's own eyes."""
    model, x = DistributedDataParallel(nn.Linear(2, 1), Alone()), torch.ones(1, 2)
    if skips:
        with model.no_sync():
            model(9 * x).sum().backward()
        model.zero_grad()
    model(x).sum().backward()
    torch.autograd.grad(model(x).sum(), model.parameters())
    model.finish_gradient_synchronization()
    assert model.module.weight.grad.tolist() == [[1, 1]]


def test_unused_parameters_are_named_on_every_rank():
    """Rank 1 uses the spare layer; in the last step nobody does. Nothing hangs, whatever a rank
    lacks."""

    def program(group):
        told, x = [], torch.ones(1, WIDTH, dtype=torch.float64)
        model = DistributedDataParallel(Model(spare=True), group, BUCKET_BYTES)
        for use in (group.rank == 1, False):
            model(x, use).sum().backward()
            with pytest.raises(Impossible) as refused:
                model.finish_gradient_synchronization()
            told.append(str(refused.value))
        return told

    for told in on_threads(program, 3):
        for sentence, who in zip(told, ("ranks 0 and 2", "ranks 0, 1 and 2"), strict=True):
            assert f"{who}: spare.bias, spare.weight" in sentence and "allow_unused" in sentence


def test_unused_parameters_may_be_allowed():
    x, one = torch.ones(1, WIDTH, dtype=torch.float64), Model(spare=True)
    one(x, True).sum().backward()

    def program(group):
        model = DistributedDataParallel(
            Model(spare=True), group, BUCKET_BYTES, allow_unused=True, all_reduce=ring_all_reduce
        )
        found = []
        for use, own in (
            (group.rank == 1, None),
            (False, None),
            (False, torch.full((1, WIDTH), 3.0 * group.rank).double()),  # such as clipped ones
        ):
            model.module.spare.weight.grad = own
            model(x, use).sum().backward()
            model.finish_gradient_synchronization()
            grads = model.module.spare.weight.grad, model.module.first.weight.grad
            found.append([grad if grad is None else grad.clone() for grad in grads])
            with pytest.raises(Impossible, match="would count on each"):
                clip_grad_norm(model.parameters(), 1.0, group)
            model.zero_grad()
        return found

    for (spare, _), (nothing, first), (own, _) in on_threads(program, 3):
        assert torch.allclose(own, torch.tensor(3.0).double(), rtol=1e-12)
        assert torch.allclose(spare, one.spare.weight.grad / 3, rtol=1e-12)
        assert nothing is None and first is not None


@pytest.mark.parametrize(
    "make, odd_bytes, most, other",
    [  # what rank 1 has, what the others have; bytes of a bucket; and what is told of them
        (
            lambda odd: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2 + odd)),
            1024,
            "1.weight, float32 of shape (2, 3)",
            "1.weight, float32 of shape (3, 3)",
        ),
        (lambda odd: nn.Linear(3, 3, bias=not odd), 1024, "bias, float32 of shape (3,)", "nothing"),
        (
            lambda odd: nn.ParameterDict(
                {"weight": nn.Parameter(torch.ones(3, 3), not odd), "bias": torch.ones(3)}
            ),
            1024,
            "weight, float32 of shape (3, 3)",
            "weight, float32 of shape (3, 3), frozen",
        ),
        (lambda odd: nn.Linear(2, 2), 1025, "buckets of 1024 bytes", "buckets of 1025 bytes"),
        (
            lambda odd: nn.Linear(2, 2 + odd),
            None,  # FullyShardedDataParallel has no buckets
            "weight, float32 of shape (2, 2)",
            "weight, float32 of shape (3, 2)",
        ),
    ],
)
def test_modules_that_differ_are_told_to_every_rank(make, odd_bytes, most, other):
    def program(group):
        odd = group.rank == 1
        buckets = {"bucket_bytes": odd_bytes if odd else 1024} if odd_bytes else {}
        wrap = DistributedDataParallel if buckets else FullyShardedDataParallel
        with pytest.raises(Impossible) as refused:
            wrap(make(odd), group, **buckets)
        return str(refused.value)

    for told in on_threads(program, 3):
        others, mine = told.removeprefix("The ranks' modules or settings differ: ").split("; ")[:2]
        assert others.startswith("ranks 0 and 2: ") and most in others
        assert mine.startswith("rank 1: ") and other in mine


def clipped(model, clip=nn.utils.clip_grad_norm_):
    clip(backward(model).parameters(), 0.1)
    model.finish_gradient_synchronization()


def stepped_early(model, inside=nullcontext):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.step()  # nothing is there yet
    with inside(model):
        backward(model)
        optimizer.step()


@pytest.mark.parametrize(
    "module, options, loss, told",
    [
        (
            nn.Linear(2, 3),
            {},
            clipped,
            "The gradient of parameter weight on rank 0 was used on its way to the ranks' mean",
        ),
        (
            nn.Linear(2, 3),
            {},
            partial(clipped, clip=partial(clip_grad_norm, group=Alone())),
            "The gradient of parameter weight on rank 0 was used on its way to the ranks' mean",
        ),
        (
            nn.Linear(2, 3),
            {},
            lambda model: (
                setattr(backward(model).module.bias, "grad", torch.ones(3)),
                model.finish_gradient_synchronization(),
            ),
            "The gradient of bias on rank 0 was replaced or dropped on its way",
        ),
        (
            nn.Linear(2, 3),
            {},
            stepped_early,
            "The gradient of parameter weight on rank 0 was used on its way to the ranks' mean",
        ),
        (
            nn.Linear(2, 3),
            {},
            partial(stepped_early, inside=DistributedDataParallel.no_sync),
            "The gradient of parameter weight on rank 0 was used on its way to the ranks' mean",
        ),
        (nn.Linear(2, 3), {}, copy.deepcopy, "A DistributedDataParallel cannot be copied"),
        (
            nn.Linear(2, 3),
            {},
            lambda model: DistributedDataParallel(model.module, Alone()),
            "Ranks average parameters of the module already: wrap a module once",
        ),
        (
            nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)),
            {},
            lambda model: backward(model.requires_grad_()).finish_gradient_synchronization(),
            "Parameter 0.weight on rank 0 was float32 of shape (2, 2) on cpu, frozen when",
        ),
        (
            nn.Embedding(4, 2, sparse=True),
            {},
            lambda model: model(torch.tensor([1])).sum(),
            "Parameter weight on rank 0 has a gradient that is torch.sparse_coo",
        ),
        (
            nn.Linear(2, 3),
            {},
            lambda model: backward(backward(model)),
            (
                "Parameter bias on rank 0 got a gradient after its bucket had left: call"
                " finish_gradient_synchronization() before"
            ),
        ),
        (nn.EmbeddingBag(4, 2, max_norm=1.0), {}, None, "An embedding has a max_norm"),
        (
            nn.Linear(2, 3),
            {"bucket_bytes": 0},
            None,
            "bucket_bytes is 0: give a whole number of bytes, at least 1.",
        ),
        (
            nn.LazyLinear(3),
            {},
            None,
            "weight, bias have no shape yet: run one forward before you wrap the module.",
        ),
        (
            nn.Tanh(),
            {},
            None,
            "No parameter of the module needs a gradient: there is nothing to average.",
        ),
    ],
)
def test_what_cannot_be_averaged_is_refused(module, options, loss, told):
    with pytest.raises(Impossible) as refused:
        model = DistributedDataParallel(module, Alone(), **options)
        loss(model).backward()
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("last", ["pad", "drop", "uneven"])
def test_a_rank_takes_every_nth_of_the_order_of_an_epoch(last, shuffle):
    for samples, ranks in product((1, 2, 3, 4, 5, 11, 12), (1, 2, 3, 4)):
        order = [*range(samples)]
        if shuffle:
            order = torch.randperm(samples, generator=torch.Generator().manual_seed(3 + 1)).tolist()
        even = samples // ranks * ranks
        stop = {"pad": -(-samples // ranks) * ranks, "drop": even, "uneven": samples}[last]
        for rank in range(ranks if stop else 0):
            shard = DistributedSampler(samples, rank, ranks, shuffle, seed=3, last=last)
            shard.set_epoch(1)
            assert [*shard] == (order * ranks)[:stop][rank::ranks] and len(shard) == len([*shard])
