"""Our ring beside gloo's all_reduce, and a training step of our DistributedDataParallel beside
torch's, in turns.

The ring runs as in a script of one's own: no clock, and what ranks must agree on is compared in
each call. A step is forward, backward, averaging and SGD, on buckets of one size. Times are of the
slowest rank; medians.
"""

import statistics
import tempfile
import time
from functools import partial
from itertools import zip_longest
from pathlib import Path

import torch
import torch.distributed as dist

from bigtrain_lab.models import GPT, GPTConfig, cross_entropy
from bigtrain_lab.runtime import launch, warm
from bigtrain_lab.runtime.talk.group import Group
from bigtrain_lab.techniques.all_reduce import ring_all_reduce
from bigtrain_lab.techniques.data_parallel import DistributedDataParallel
from bigtrain_lab.techniques.reducers import backend_all_reduce

from .measure import row

SIZES_MB = {1: (10, 25, 1.0), 16: (1, 25, 0.8), 64: (1, 15, 0.9)}  # calls a turn, turns, the target
CONFIG, ROWS, BUCKET_MB, TURNS, WARM_UP = (
    GPTConfig(layers=4, width=256, heads=4, sequence=64),
    4,
    4,
    25,
    3,
)
SMALLEST = {"SIZES_MB": {1: (1, 1, 1.0)}, "TURNS": 1, "WARM_UP": 0}


def in_turns(rank, turns: int, contenders: dict, calls: int = 1) -> dict[str, float]:
    """Median seconds a call of the slowest rank."""
    took, order = {who: [] for who in contenders}, list(contenders)
    for turn in range(WARM_UP + turns):
        for who in (
            order[turn % len(order) :] + order[: turn % len(order)]
        ):  # each goes first in turn
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                contenders[who]()
            slowest = torch.tensor((time.perf_counter() - begin) / calls)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if turn >= WARM_UP:
                took[who].append(slowest.item())
    return {who: statistics.median(each) for who, each in took.items()} if rank.index == 0 else {}


def reductions(rank):
    ours, theirs, found = Group.of(dist.new_group()), dist.new_group(), {}
    for size, (calls, turns, _) in SIZES_MB.items():
        tensor = torch.zeros(size * 2**20 // 4)
        took = in_turns(
            rank,
            turns,
            {
                "ours": partial(ring_all_reduce, tensor, ours),
                "gloo": partial(dist.all_reduce, tensor, group=theirs),
            },
            calls,
        )
        found |= {f"{who} {size}": seconds for who, seconds in took.items()}
    return found


def steps(rank):
    ids = torch.randint(
        256, (ROWS, CONFIG.sequence + 1), generator=torch.Generator().manual_seed(rank.index)
    )
    models = {
        "ring": DistributedDataParallel(
            GPT(CONFIG), dist.new_group(), BUCKET_MB * 2**20, all_reduce=ring_all_reduce
        ),
        "backend": DistributedDataParallel(
            GPT(CONFIG), dist.new_group(), BUCKET_MB * 2**20, all_reduce=backend_all_reduce
        ),
        "torch": torch.nn.parallel.DistributedDataParallel(
            GPT(CONFIG),
            process_group=dist.new_group(),
            bucket_cap_mb=BUCKET_MB,
            gradient_as_bucket_view=True,
        ),
    }
    alone = GPT(CONFIG)

    def step(model, optimizer):
        optimizer.zero_grad()
        cross_entropy(model(ids[:, :-1]), ids[:, 1:]).backward()
        if isinstance(model, DistributedDataParallel):
            model.finish_gradient_synchronization()
        optimizer.step()

    took = in_turns(
        rank,
        TURNS,
        {
            who: partial(step, model, torch.optim.SGD(model.parameters(), 1e-3))
            for who, model in (models | {"alone": alone}).items()
        },
    )
    for parameters in zip_longest(*(model.module.parameters() for model in models.values())):
        assert all(
            torch.allclose(parameters[0], other, rtol=1e-4, atol=1e-6) for other in parameters
        ), "the contenders' weights differ"
    return took


def measured(program, ranks: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run = launch(
            program, ranks, record=False, directory=Path(folder) / "run", name="data_parallel"
        )
        run.wait(timeout=600)
        return {who: float(seconds) for who, seconds in run.result.items()}


def rows():
    warm()
    took, table = measured(reductions, 4), []
    for size, (_, _, target) in SIZES_MB.items():
        table += [
            row(
                f"{size} MB on 4 ranks: our ring over gloo's all_reduce",
                took[f"ours {size}"] / took[f"gloo {size}"],
                "times",
                at_most=target,
            ),
            row(f"{size} MB on 4 ranks: gloo's all_reduce", 1000 * took[f"gloo {size}"], "ms"),
        ]
    parameters = sum(p.numel() for p in GPT(CONFIG).parameters())
    for ranks in (2, 4):
        took = measured(steps, ranks)
        what = f"{parameters / 1e6:.1f} million parameters on {ranks} ranks: "
        table += [
            row(
                f"{what}our step over torch's DDP, both on gloo's all_reduce",
                took["backend"] / took["torch"],
                "times",
                at_most=1.0,
            ),
            row(
                f"{what}our step on our ring over torch's DDP",
                took["ring"] / took["torch"],
                "times",
            ),
            row(
                f"{what}the step of one rank alone over torch's DDP",
                took["alone"] / took["torch"],
                "times",
            ),
            row(f"{what}torch's step", 1000 * took["torch"], "ms"),
        ]
    return table
