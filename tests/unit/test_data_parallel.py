"""Data parallel ranks learn what one process learns from all samples; their buckets leave while the backward goes on."""

import copy
import pickle
import threading
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from bigtrain_lab.core import Cost, Impossible, Link, Mesh
from bigtrain_lab.plan import Compute, Launch, Plan, Together, Wait
from bigtrain_lab.runtime import launch
from bigtrain_lab.runtime.group import Alone
from bigtrain_lab.schedule import Action
from bigtrain_lab.simulate import simulate
from bigtrain_lab.techniques.all_reduce import ring_all_reduce
from bigtrain_lab.techniques.bucket_plan import messages
from bigtrain_lab.techniques.clip import clip_grad_norm
from bigtrain_lab.techniques.data_parallel import DistributedDataParallel
from bigtrain_lab.techniques.distributed_sampler import DistributedSampler
from bigtrain_lab.techniques.mixed_precision import MixedPrecision
from bigtrain_lab.techniques.reducers import (
    Buckets,
    FusedCycle,
    PushPull,
    backend_all_reduce,
    buckets_of,
)

from .test_group import lanes_of

WIDTH, BUCKET_BYTES, STEPS = 6, 100, 50


class Model(nn.Module):
    """A tied weight, a frozen one, one that nothing uses (if asked for), and a buffer that counts in the output."""

    def __init__(self, seed=0, spare=False):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.frozen, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.spare = nn.Linear(WIDTH, 1) if spare else None
        self.register_buffer("scale", torch.rand(()))
        self.register_buffer("calls", torch.tensor(seed))
        self.double()

    def forward(self, x, spare=False):
        x = self.last(torch.tanh(self.frozen(torch.tanh(self.first(x))))) * self.scale
        return x + self.spare(x) if spare else x


def samples(count):
    return torch.randn(
        2, count, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )


def alone(steps, count, model=None):
    """(losses, gradients of the first step) of one process that has all samples."""
    model, losses, first = model or Model(), [], None
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mse_loss(model(samples(count)[0]), samples(count)[1])
        loss.backward()
        first = first or {
            name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
        }
        optimizer.step()
        losses.append(loss.item())
    return losses, first


def equal(gradients, expected):
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert torch.linalg.vector_norm(
            gradient - expected[name]
        ) <= 1e-12 * torch.linalg.vector_norm(expected[name]), name


OPTIONS = {
    "alone": (1, {}, {"cost": {"B": 3, "U": 1}}),
    "plain, kept gradients": (2, {"all_reduce": ring_all_reduce}, {"record": False}),
    "ring, split": (
        4,
        {"all_reduce": ring_all_reduce, "strategy": Buckets(split=True)},
        {"cost": {"B": 3, "U": 1}},
    ),
    "fused cycle": (
        2,
        {"strategy": FusedCycle(every_ticks=700), "bucket_bytes": 400},
        {"cost": {"B": 3, "U": 1}},
    ),
    "push-pull": (4, {"strategy": PushPull()}, {"cost": {"B": 3, "U": 1}}),
    "push-pull, no clock": (2, {"strategy": PushPull()}, {"record": False}),
    "fused cycle, no clock": (2, {"strategy": FusedCycle(), "overlap": False}, {"record": False}),
    "backend, one bucket": (2, {"bucket_bytes": 2**20, "backwards": 2}, {"cost": {"B": 3, "U": 1}}),
    "accumulated, at the end": (
        2,
        {"all_reduce": backend_all_reduce, "overlap": False},
        {"clock": False},
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_ranks_learn_what_one_process_learns(case, tmp_path):
    """Tied, frozen weights, buffers, uneven shares of a batch; clock and bytes as planned."""
    ranks, options, mode = OPTIONS[case]
    options = {"bucket_bytes": BUCKET_BYTES} | options
    count, pieces = 7, 2 if "accumulated" in case or "backwards" in options else 1

    def program(rank):
        model = DistributedDataParallel(Model(seed=rank.index), rank.group("dp"), **options)
        x, y = (part.tensor_split(ranks)[rank.index] for part in samples(count))
        optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), 1e-2)
        losses, first = [], None
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none="kept" not in case)
            for piece in range(pieces):
                with (
                    rank.span((Action("B", 0, pieces * step + piece),)),
                    model.no_sync() if piece == 0 and "accumulated" in case else nullcontext(),
                ):
                    a, b = x[piece::pieces], y[piece::pieces]
                    (mse_loss(model(a), b) * len(a) * ranks / count).backward()
            model.finish_gradient_synchronization()
            first = first or {
                name: p.grad.clone()
                for name, p in model.module.named_parameters()
                if p.grad is not None
            }
            with rank.span((Action("U", 0, step),)):
                losses.append(mse_loss(model(samples(count)[0]), samples(count)[1]).item())
                optimizer.step()
        state = {f"{name} {rank.index}": value for name, value in model.module.state_dict().items()}
        return (
            state
            | {f"losses {rank.index}": torch.tensor(losses, dtype=torch.float64)}
            | {f"gradient {rank.index} {name}": g for name, g in first.items()}
        )

    links = {(a, b): Link(100 + a, 7, 3) for a in range(ranks) for b in range(ranks)}
    cost = {"cost": Cost(mode["cost"], links=links)} if "cost" in mode else mode
    run = launch(program, ranks, mesh=Mesh(dp=ranks), directory=tmp_path / "run", **cost)
    found, trained = run.result, Model()
    losses, first = alone(STEPS, count, trained)
    for rank in range(ranks):
        assert torch.allclose(
            torch.from_numpy(found[f"losses {rank}"]),
            torch.tensor(losses, dtype=torch.float64),
            rtol=1e-9,
            atol=0,
        )
        equal({name: torch.from_numpy(found[f"gradient {rank} {name}"]) for name in first}, first)
        assert found[f"calls {rank}"] == 0 and found[f"scale {rank}"] == found["scale 0"]
        assert all(
            (found[f"{name} {rank}"] == found[f"{name} 0"]).all() for name in trained.state_dict()
        )  # to the bit
    if "cost" not in mode:
        return
    learnt = [p for p in trained.parameters() if p.requires_grad][::-1]
    strategy, most_bytes = options.get("strategy", Buckets()), options["bucket_bytes"]
    buckets = strategy.pieces(learnt, most_bytes, timed=True)
    state, everyone = (
        sum(t.nbytes for t in (*trained.parameters(), *trained.buffers())),
        tuple(range(ranks)),
    )
    lanes = {}
    for rank in range(ranks):
        lanes[rank, "compute"], lanes[rank, "comm:dp"] = (
            [Together("parameters and buffers", "broadcast", state, everyone)],
            [],
        )
        for step in range(STEPS):
            work = [Compute((Action("B", 0, pieces * step + piece),)) for piece in range(pieces)]
            ready = [Launch(f"bucket {number} of batch {step}") for number in range(len(buckets))]
            lanes[rank, "compute"] += [
                *work,
                *ready,
                Wait(f"mean {step}"),
                Compute((Action("U", 0, step),)),
            ]
            send = partial(
                messages,
                buckets,
                step,
                rank,
                everyone,
                options.get("all_reduce", strategy.all_reduce),
            )
            lanes[rank, "comm:dp"] += [
                *strategy.program(step, buckets, most_bytes, True, everyone, send),
                Launch(f"mean {step}"),
            ]
    plan = Plan({key: tuple(ops) for key, ops in lanes.items()}, ranks)
    assert lanes_of(run.trace("modelled")) == lanes_of(simulate(plan, cost["cost"]))
    assert (
        len(buckets)
        == {
            "alone": 2,
            "ring, split": 4,
            "backend, one bucket": 1,
            "fused cycle": 3,
            "push-pull": 4,
        }[case]
    )


def test_a_bucket_is_reduced_before_the_backward_ends(tmp_path):
    """Surely, on any machine: the last gradient of the backward waits for it. Seen in the trace."""

    def program(rank):
        reduced = threading.Event()

        def all_reduce(*call):
            ring_all_reduce(*call)
            reduced.set()

        model = DistributedDataParallel(
            nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))),
            rank.group("dp"),
            1,
            all_reduce=all_reduce,
        )
        x = model.module[0](torch.ones(2, 4))
        x.register_hook(lambda gradient: reduced.wait() and None)
        with rank.span((Action("B", 0, 0),)):
            model.module[2](model.module[1](x)).sum().backward()
        model.finish_gradient_synchronization()

    trace = launch(program, 2, mesh=Mesh(dp=2), clock=False, directory=tmp_path / "run").wait()
    for rank in range(2):
        (backward,) = [span for span in trace.spans(rank) if span.kind == "B"]
        first = [
            t
            for t in trace.transfers()
            if t.rank == rank and t.name.startswith("bucket 0 of batch 0 ")
        ]
        assert len(first) == 2 and all(backward.start < t.end < backward.end for t in first)


def test_gradients_of_half_weights_are_averaged_at_their_masters(tmp_path):
    def program(rank):
        net, x = (
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)),
            torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)),
        )
        torch.manual_seed(0)
        for p in net.parameters():
            nn.init.normal_(p)
        found = []
        for parallel in (True, False):
            own, precision = copy.deepcopy(net), MixedPrecision("bf16")
            precision.prepare(own)
            model = DistributedDataParallel(own, rank.group("dp"), backwards=2) if parallel else own
            with precision:
                for part in range(4):
                    if not parallel or part % 2 == rank.index:
                        precision.backward(model(x[part // 2]).square().sum() * (part + 1))
            if parallel:
                model.finish_gradient_synchronization()
            found.append([p.grad / (1 if parallel else 2) for p in precision.parameters()])
        assert all(
            torch.allclose(a, b, rtol=1e-5) and a.dtype == torch.float32
            for a, b in zip(*found, strict=True)
        )

    launch(program, 2, mesh=Mesh(dp=2), record=False, directory=tmp_path / "run").wait()


def test_unused_parameters_are_named_on_every_rank_or_allowed(tmp_path):
    """Rank 1 uses the spare layer; in the last step nobody does. Nothing hangs, whatever a rank lacks."""

    def program(rank):
        told, x = [], torch.ones(1, WIDTH, dtype=torch.float64)
        torch.distributed.new_group(
            [0, 1]
        )  # a group more than rank 2 has: a lane is made all the same
        model = DistributedDataParallel(Model(spare=True), rank.group("dp"), BUCKET_BYTES)
        for use in (rank.index == 1, False):
            model(x, use).sum().backward()
            with pytest.raises(Impossible) as refused:
                model.finish_gradient_synchronization()
            told.append(str(refused.value))
        assert told == [
            f"Parameters got no gradient, on {who}: spare.bias, spare.weight; let every rank's loss depend on them, freeze them, or pass "
            "allow_unused=True."
            for who in ("ranks 0 and 2", "ranks 0, 1 and 2")
        ]
        model = DistributedDataParallel(
            Model(spare=True),
            rank.group("dp"),
            BUCKET_BYTES,
            allow_unused=True,
            all_reduce=ring_all_reduce,
        )
        one = Model(spare=True)
        one(x, True).sum().backward()
        model(x, rank.index == 1).sum().backward()
        model.finish_gradient_synchronization()
        assert torch.allclose(model.module.spare.weight.grad, one.spare.weight.grad / 3, rtol=1e-12)
        model.zero_grad()
        model(x).sum().backward()
        model.finish_gradient_synchronization()
        assert model.module.spare.weight.grad is None and model.module.first.weight.grad is not None

    launch(program, 3, mesh=Mesh(dp=3), cost={}, directory=tmp_path / "run").wait()


@pytest.mark.parametrize("mode", [{"record": False}, {"cost": {}}], ids=["plain", "modelled"])
def test_modules_that_differ_are_told_to_every_rank(mode, tmp_path):
    wholes = {
        "parameter 1.weight, float32 of shape (2, 3)": lambda odd: nn.Sequential(
            nn.Linear(3, 3), nn.Linear(3, 2 + odd)
        ),
        "parameter bias, float32 of shape (3,)": lambda odd: nn.Linear(3, 3, bias=not odd),
        "parameter weight, float32 of shape (3, 3)": lambda odd: (
            nn.Linear(3, 3).requires_grad_(not odd) if not odd else frozen(nn.Linear(3, 3))
        ),
        "buckets of 1024 bytes by Buckets(split=False)": lambda odd: nn.Linear(2, 2),
    }
    others = [
        "parameter 1.weight, float32 of shape (3, 3)",
        "nothing more",
        "parameter weight, float32 of shape (3, 3), frozen",
        "buckets of 1025 bytes by Buckets(split=False)",
    ]

    def frozen(layer):
        layer.weight.requires_grad_(False)
        return layer

    def program(rank):
        odd = rank.index == 1
        for (most, make), other in zip(wholes.items(), others):
            with pytest.raises(Impossible) as refused:
                DistributedDataParallel(make(odd), rank.group(), 1024 + odd * (most[0] == "b"))
            assert str(refused.value) == (
                f"The ranks' modules differ: ranks 0 and 2: {most}; rank 1: {other}; wrap the same module with the same "
                "settings on every rank."
            )

    launch(program, 3, directory=tmp_path / "run", **mode).wait()


def reshaped(model):
    model.module.weight.data = torch.ones(5, 2)
    model.zero_grad()
    return model.module.weight.sum()


def twice(model):
    model(torch.ones(1, 2)).sum().backward()
    return model(torch.ones(1, 2)).sum()


def thawed(model):
    model.module[0].requires_grad_(True)
    model(torch.ones(1, 2)).sum().backward()
    model.finish_gradient_synchronization()


def clipped(model, make=lambda parameters, limit: nn.utils.clip_grad_norm_(parameters, limit)):
    model(torch.ones(1, 2)).sum().backward()
    make(model.parameters(), 0.1)
    model.finish_gradient_synchronization()


def stepped_early(model, inside=nullcontext):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.step()  # nothing is there yet
    with inside(model):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "module, options, loss, told",
    [
        (
            nn.Linear(2, 3),
            {},
            clipped,
            "The gradient of bias on rank 0 was changed after its backward",
        ),
        (
            nn.Linear(2, 3),
            {},
            partial(clipped, make=partial(clip_grad_norm, group=Alone())),
            "The gradient of bias on rank 0 was changed after its backward",
        ),
        (
            nn.Linear(2, 3),
            {},
            stepped_early,
            "The gradient of bias on rank 0 is not the ranks' mean yet: call finish_gradient_synchronization() before",
        ),
        (
            nn.Linear(2, 3),
            {},
            partial(stepped_early, inside=DistributedDataParallel.no_sync),
            "The gradient of bias on rank 0 is not the ranks' mean yet",
        ),
        (nn.Linear(2, 3), {}, copy.deepcopy, "A DistributedDataParallel cannot be copied"),
        (nn.Linear(2, 3), {}, pickle.dumps, "A DistributedDataParallel cannot be copied"),
        (
            nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)),
            {},
            thawed,
            "Parameter 0.weight on rank 0 was frozen when it was wrapped",
        ),
        (
            nn.Linear(2, 3),
            {},
            reshaped,
            "Parameter weight on rank 0 is float32 of shape (5, 2) on cpu and was float32 of shape (3, 2) on cpu when it was wrapped",
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
            twice,
            "Parameter bias on rank 0 got a gradient from backward 2 of a batch of 1: call finish_gradient_synchronization() before",
        ),
        (
            nn.Linear(2, 3),
            {"bucket_bytes": 0},
            None,
            "bucket_bytes is 0: give a whole number of bytes, at least 1.",
        ),
        (
            nn.Linear(2, 3),
            {"backwards": 0},
            None,
            "backwards is 0: give how many backward passes make one gradient",
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
        loss(DistributedDataParallel(module, Alone(), **options)).backward()
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    "split, expected",
    [
        (False, [(0, 3, [0]), (3, 13, [1]), (13, 17, [2, 3]), (0, 2, [4])]),
        (
            True,
            [
                (0, 4, [0, 1]),
                (4, 8, [1]),
                (8, 12, [1]),
                (12, 16, [1, 2]),
                (16, 17, [3]),
                (0, 2, [4]),
            ],
        ),
    ],
)
def test_buckets_fill_in_the_order_of_the_gradients(split, expected):
    """A larger parameter has one of its own or is cut; each format has its own."""
    parameters = [torch.empty(size) for size in (3, 10, 3, 1)] + [
        torch.empty(2, dtype=torch.float64)
    ]
    assert [(b.start, b.stop, b.members) for b in buckets_of(parameters, 16, split)] == expected


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("last", ["pad", "drop", "uneven"])
def test_shards_are_those_of_torch_and_an_epoch_draws_anew_only_where_it_shuffles(last, shuffle):
    for samples in (1, 2, 3, 4, 5, 11, 12):
        for ranks in (1, 2, 3, 4):
            if last == "drop" and samples < ranks:
                continue  # torch gives no rank anything
            shards = [
                DistributedSampler(range(samples), rank, ranks, shuffle, seed=3, last=last)
                for rank in range(ranks)
            ]
            drawn = []
            for epoch in range(2):
                for shard in shards:
                    shard.set_epoch(epoch)
                drawn.append([list(shard) for shard in shards])
                assert [len(shard) for shard in shards] == [len(own) for own in drawn[-1]]
                if last == "uneven":
                    assert sorted(sum(drawn[-1], [])) == list(range(samples))
                    continue
                theirs = [
                    torch.utils.data.DistributedSampler(
                        range(samples), ranks, rank, shuffle, 3, last == "drop"
                    )
                    for rank in range(ranks)
                ]
                for each in theirs:
                    each.set_epoch(epoch)
                assert drawn[-1] == [list(each) for each in theirs]
            assert shuffle or drawn[0] == drawn[1]
            assert not shuffle or samples < 5 or drawn[0] != drawn[1]


@pytest.mark.parametrize(
    "arguments, told",
    [
        ((4, 2, 2), "There is no rank 2 of 2: take 0 to 1."),
        ((4, 0, 2, True, 0, "cut"), "last is 'cut': choose pad, drop or uneven."),
        ((0, 0, 2), "0 samples leave nothing for 2 ranks"),
        ((1, 0, 2, True, 0, "drop"), "1 samples leave nothing for 2 ranks"),
    ],
)
def test_shards_that_cannot_be_are_refused(arguments, told):
    with pytest.raises(Impossible, match=told):
        DistributedSampler(*arguments)
