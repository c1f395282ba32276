"""A training step of our ZeRO stages beside torch's own, on the same model, units and buckets, in
turns.

    stage 3      FullyShardedDataParallel beside fully_shard (FSDP2), which frees every unit after
                 its forward too
    stages 1, 2  ZeroOptimizer beside DistributedDataParallel with ZeroRedundancyOptimizer; torch
                 has no stage 2

A step is forward, backward, the sum over ranks, and AdamW. One thread a rank, on gloo. Times are of
the slowest rank; medians.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from bigtrain_lab.models import GPT, GPTConfig, cross_entropy
from bigtrain_lab.runtime import warm
from bigtrain_lab.techniques.zero import FullyShardedDataParallel, ZeroOptimizer

from .data_parallel import in_turns, measured
from .measure import row

CONFIG, ROWS, BUCKET_MB, TURNS, RATE = (
    GPTConfig(layers=4, width=256, heads=4, sequence=64),
    4,
    4,
    25,
    1e-3,
)
SMALLEST = {"TURNS": 1, "CONFIG": GPTConfig(layers=1, width=16, heads=1, sequence=4)}


def steps(rank):
    ids = torch.randint(
        256, (ROWS, CONFIG.sequence + 1), generator=torch.Generator().manual_seed(rank.index)
    )
    mesh = DeviceMesh("cpu", list(range(rank.size)), mesh_dim_names=("dp",))
    theirs = GPT(CONFIG)
    for layer in theirs.layers.values():
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(theirs, mesh=mesh)
    replica = TorchDDP(
        GPT(CONFIG),
        process_group=dist.new_group(),
        bucket_cap_mb=BUCKET_MB,
        gradient_as_bucket_view=True,
    )
    ours, adam = (
        FullyShardedDataParallel(GPT(CONFIG), dist.new_group()),
        partial(torch.optim.AdamW, lr=RATE),
    )
    one, two = GPT(CONFIG), GPT(CONFIG)
    sharded = {
        stage: ZeroOptimizer(
            model.parameters(),
            torch.optim.AdamW,
            stage,
            dist.new_group(),
            bucket_bytes=BUCKET_MB * 2**20,
            lr=RATE,
        )
        for stage, model in ((1, one), (2, two))
    }
    trained = {
        "stage 3": (ours, adam(ours.parameters())),
        "FSDP2": (theirs, adam(theirs.parameters())),
        "stage 1": (one, sharded[1]),
        "stage 2": (two, sharded[2]),
        "torch's ZeRO": (
            replica,
            ZeroRedundancyOptimizer(
                replica.parameters(), torch.optim.AdamW, process_group=dist.new_group(), lr=RATE
            ),
        ),
    }

    def step(model, optimizer):
        optimizer.zero_grad()
        cross_entropy(model(ids[:, :-1]), ids[:, 1:]).backward()
        if model is ours:
            model.finish_gradient_synchronization()
        optimizer.step()

    took = in_turns(rank, TURNS, {who: partial(step, *each) for who, each in trained.items()})
    with torch.no_grad():
        losses = [
            cross_entropy(model(ids[:, :-1]), ids[:, 1:]).item() for model, _ in trained.values()
        ]
    assert max(losses) - min(losses) < 1e-3 * max(losses), (
        f"the contenders' losses differ: {losses}"
    )
    return took


def rows():
    warm()
    table, parameters = [], sum(p.numel() for p in GPT(CONFIG).parameters())
    for ranks in (2, 4):
        took = measured(steps, ranks)
        what = f"{parameters / 1e6:.1f} million parameters on {ranks} ranks: "
        table += [
            row(
                f"{what}our stage 3 over FSDP2",
                took["stage 3"] / took["FSDP2"],
                "times",
                at_most=1.0,
            ),
            row(
                f"{what}our stage 1 over torch's DDP with ZeroRedundancyOptimizer",
                took["stage 1"] / took["torch's ZeRO"],
                "times",
                at_most=1.0,
            ),
            row(
                f"{what}our stage 2 over torch's DDP with ZeroRedundancyOptimizer",
                took["stage 2"] / took["torch's ZeRO"],
                "times",
                at_most=1.0,
            ),
            *(row(f"{what}{who}", 1000 * seconds, "ms") for who, seconds in took.items()),
        ]
    return table
