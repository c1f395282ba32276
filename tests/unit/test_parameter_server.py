"""Parameter servers: what their plan promises, and that a training by them is one process's."""

import random
from functools import partial
from itertools import product
from statistics import mean

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from bigtrain_lab import Cost, Group, Impossible, launch, simulate
from bigtrain_lab.core import Link
from bigtrain_lab.order.plan import Message
from bigtrain_lab.order.rates import applied
from bigtrain_lab.techniques import LAMB, MixedPrecision
from bigtrain_lab.techniques.delayed_descent import found_stable_rate, largest_stable_rate
from bigtrain_lab.techniques.one_process import Sample, delayed
from bigtrain_lab.techniques.parameter_server import ParameterServer, Worker, order
from tests.unit.threads import on_threads

WORKERS, RATE = 3, 0.05


def test_no_update_under_a_bound_is_staler_than_its_limit():
    """(2 s + 1)(W - 1), over random stragglers, hiccups and links; some runs reach it."""
    draw, tight = random.Random(0), 0
    for trial in range(60):
        workers, bound, shards = draw.randint(1, 5), draw.randint(0, 4), draw.randint(1, 3)
        requests = [draw.randint(6, 14) for _ in range(workers)]
        hiccups = {
            (w, n): {"F": draw.choice([1, 30]), "B": 1}
            for w in range(workers)
            for n in range(14)
            if draw.random() < 0.3
        }
        slowdown = {w: draw.choice([1, 1, "1.1", 7]) for w in range(workers)}
        links = {(a, b): Link(draw.randint(0, 900), 3, 1) for a in range(8) for b in range(8)}
        cost = Cost(
            {"F": 1, "B": 2, "S": "0.01"},
            slowdown=slowdown,
            of_batch=hiccups,
            links={} if trial % 2 else links,
        )
        found = applied(simulate(order(requests, [40] * shards, bound), cost), requests, bound)
        assert len(found) == shards * sum(requests)
        for server in range(workers, workers + shards):
            stale = [each.staleness for each in found if each.server == server]
            assert max(stale) <= (2 * bound + 1) * (workers - 1)
            tight += bound > 0 and workers > 1 and max(stale) == (2 * bound + 1) * (workers - 1)
    assert tight


@pytest.mark.parametrize(
    "slowest, how, requests, rate",
    [
        (4, {"synchronous": True}, [100] * 4, 1.0),
        (4, {}, [400, 400, 400, 100], 3.25),
        (4, {"bound": 3}, [103, 103, 103, 100], 1.0225),
    ],
)
def test_a_slow_worker_s_pace(slowest, how, requests, rate):
    """Workers that take 1, 1, 1 and 4: gradients applied in a unit of time."""
    trace = simulate(order(requests, **how), Cost({"F": 1, "B": 2}, slowdown={3: slowest}))
    assert sum(requests) / (trace.makespan / 3) == pytest.approx(rate)
    late = [each for each in applied(trace, requests, **how) if each.batch > 8]
    stale = {w: mean(each.staleness for each in late if each.worker == w) for w in range(4)}
    if not how:
        assert stale[3] == 12 and stale[0] == stale[1] == stale[2] == pytest.approx(2.25, abs=0.01)
    if "synchronous" in how:
        assert set(stale.values()) == {0}
    if "bound" in how:  # all read when the slow one's gradient is in, and meet only one another's
        assert stale == {0: 0, 1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize("delay", range(4))
def test_the_largest_stable_rate_is_that_of_the_formula(delay):
    assert found_stable_rate(delay) == pytest.approx(largest_stable_rate(delay), rel=0.02)


# -- under torch's own process group ---------------------------------------------------------------


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def batch(worker, number):
    draw = torch.Generator().manual_seed(1000 * worker + number)
    return [torch.randn(6, size, generator=draw, dtype=torch.float64) for size in (4, 2)]


def one_process(rounds: int) -> dict:
    """The workers' batches in turn, each on the weights that its worker read after its last one."""
    learner, turns = model(), product(range(rounds), range(WORKERS))
    samples = [Sample(*batch(worker, number)) for number, worker in turns]
    sgd = partial(torch.optim.SGD, lr=RATE, momentum=0.5)
    return delayed(
        [learner[:2], learner[2:]],  # two stages: so many past weights are kept
        samples,
        mse_loss,
        sgd,
        versions=lambda stage, update: (max(0, update + 1 - WORKERS),) * 2,
    ).weights


def trains(rank):
    """The weights of this rank, whose module began with weights of its own unless it is rank 0; the
    staleness of its updates; how it is refused."""
    own, group, refused = model(seed=rank.index), Group.of(None), []

    def loss(number):
        x, y = batch(rank.index, number)
        return mse_loss(own(x), y)

    optimizer = partial(torch.optim.SGD, lr=RATE, momentum=0.5)
    updates = ParameterServer(own, optimizer, 8, 2, group=group).run(loss)
    for wrong in WRONG:
        try:
            ParameterServer(*wrong(rank, group))
        except Impossible as told:
            refused.append(str(told))
    found = {name: p.detach() for name, p in own.named_parameters()}
    found |= {"refused": "\n".join(refused), "stale": [each.staleness for each in updates]}
    return {f"{name} {rank.index}": value for name, value in found.items()}


def test_workers_and_servers_learn_what_one_process_does_without_a_modelled_clock(tmp_path):
    """In turns; in rounds, and under a bound, the lab proves it."""
    result = launch(trains, WORKERS + 2, record=False, directory=tmp_path / "run").result
    for (path, weight), rank in product(one_process(8).items(), range(WORKERS + 2)):
        off = torch.from_numpy(result[f"{path} {rank}"]) - weight
        assert off.norm() <= 1e-12 * weight.norm(), (rank, path)
        assert str(result[f"refused {rank}"]).split("\n") == TOLD
    for rank in (WORKERS, WORKERS + 1):
        assert result[f"stale {rank}"].tolist() == [0, 1, 2] + [2] * 21


SCALED = MixedPrecision("fp16-operators")
SGD, TWO = partial(torch.optim.SGD, lr=RATE), [nn.Linear(2, 2), nn.Linear(2, 2).double()]
WRONG = [
    lambda rank, group: (model(), SGD, 8, 5, None, False, group),
    lambda rank, group: (nn.Linear(2, 2, bias=False), SGD, 8, 2, None, False, group),
    lambda rank, group: (nn.Sequential(*TWO), SGD, 8, 1, None, False, group),
    lambda rank, group: (model().requires_grad_(False), SGD, 8, 1, None, False, group),
    lambda rank, group: (SCALED.prepare(model().float()), SGD, 8, 2, None, False, group),
    lambda rank, group: (model(), SGD, [8, 8], 2, None, False, group),
    lambda rank, group: (model(), SGD, 8, 2, 1 + (rank.index == 3), False, group),
]
TOLD = [
    "5 of 5 ranks are servers and none is a worker: take fewer servers, or more ranks.",
    "2 servers share 1 parameters, and each keeps whole ones: take at most 1 servers.",
    (
        "The parameters are float32 on cpu and float64 on cpu: a message holds one format, so give"
        " the module one dtype on one device."
    ),
    "No parameter of the module needs a gradient: there is nothing to serve.",
    (
        "The module's precision has a loss scale or masters, of which servers know nothing: prepare"
        " it at a level without, such as bf16-no-masters."
    ),
    "requests names 2 workers and there are 3: give a number for each.",
    (
        "The ranks' modules or settings differ: ranks 0, 1, 2 and 4: [8, 8, 8], 2 servers, bound 1,"
        " synchronous False; rank 3: [8, 8, 8], 2 servers, bound 2, synchronous False; give every"
        " rank the same."
    ),
]


@pytest.mark.parametrize(
    "call, told",
    [
        *(
            (partial(order, **asked), told)
            for told, asked in {
                "There are no workers": {"requests": []},
                "The workers have 3, 0 batches": {"requests": [3, 0]},
                "There are no servers": {"requests": [3], "shard_bytes": []},
                "bound is -1: give how many batches": {"requests": [3], "bound": -1},
                "synchronous and bound=1: .*; leave one out": {
                    "requests": [3],
                    "bound": 1,
                    "synchronous": True,
                },
                "needs one from each in every round": {"requests": [3, 2], "synchronous": True},
            }.items()
        ),
        (
            lambda: Worker(None, [[*model().parameters()]]).send(Message("server 0 asked 1.2", "")),
            "4 of 4 parameters got no gradient before server 0 asked",
        ),
        (lambda: found_stable_rate(-1), "delay is -1"),
        (
            lambda: on_threads(
                lambda group: ParameterServer(
                    model(), partial(LAMB, max_grad_norm=1.0), 2, 2, group=group
                ),
                3,
            ),
            "each of the 2 servers has an optimizer",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(call, told):
    with pytest.raises(Impossible, match=told):
        call()
