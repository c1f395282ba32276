"""A training step of our sliced transformer block beside the same block under torch's DTensor
(parallelize_module), in turns.

A step is forward, backward and SGD, from the same values; both run as in a script of one's own.
DTensor cuts the rows of queries, keys and values in one piece, so they are put in the ranks' order
for it. Times are of the slowest rank; medians.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from bigtrain_lab.models import GPTConfig, GPTStage, gpt_slices
from bigtrain_lab.runtime import warm
from bigtrain_lab.runtime.talk.group import Group
from bigtrain_lab.techniques.sequence_parallel import own_part
from bigtrain_lab.techniques.sliced_model import sliced, sum_duplicates, whole_state_dict

from .data_parallel import in_turns, measured
from .measure import row

SIZES = [
    (GPTConfig(layers=1, width=width, heads=width // 64, sequence=64), samples)
    for width, samples in ((256, 2), (256, 4), (512, 4))
]
TURNS, RATE = 25, 1e-3
SMALLEST = {"SIZES": [(GPTConfig(layers=1, width=64, heads=4, sequence=4), 1)], "TURNS": 1}


def block(config):
    return GPTStage(config, 1, 2)


def by_dtensor(config, ranks: int):
    module, mesh = block(config), init_device_mesh("cpu", (ranks,))
    attention = module.layers["1"].attention
    with torch.no_grad():
        for parameter in (attention.qkv.weight, attention.qkv.bias):
            parameter.copy_(
                torch.cat(
                    [part.chunk(ranks)[r] for r in range(ranks) for part in parameter.chunk(3)]
                )
            )
    attention.heads //= ranks
    way = {
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    parallelize_module(module.layers["1"], mesh, way)
    return module


def steps(rank, config, samples: int):
    group, ranks = Group.of(dist.new_group()), rank.size
    draw = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(samples, config.sequence, config.width, generator=draw) for _ in range(2))
    models = {
        "ours": sliced(block(config), gpt_slices(config), group),
        "sequence": sliced(block(config), gpt_slices(config), group, True),
        "DTensor": by_dtensor(config, ranks),
        "alone": block(config),
    }

    def step(who, model, optimizer):
        optimizer.zero_grad()
        given, gradient = x, dy / x[..., 0].numel()
        if who == "sequence":
            given, gradient = (own_part(each, group, "x", -2) for each in (given, gradient))
        model(given.requires_grad_()).backward(gradient)
        if who == "sequence":
            sum_duplicates(model, group)
        optimizer.step()

    took = in_turns(
        rank,
        TURNS,
        {
            who: partial(step, who, model, torch.optim.SGD(model.parameters(), RATE))
            for who, model in models.items()
        },
    )
    for who in ("ours", "sequence"):
        ours = whole_state_dict(models[who], group)
        assert all(
            torch.allclose(p, ours[name], rtol=1e-4, atol=1e-5)
            for name, p in models["alone"].named_parameters()
        ), f"{who} differs"
    for name, p in models["DTensor"].named_parameters():
        whole = p.full_tensor() if hasattr(p, "full_tensor") else p
        assert "qkv" in name or torch.allclose(whole, ours[name], rtol=1e-4, atol=1e-5), (
            f"DTensor's {name} differs"
        )
    return took


def rows():
    warm()
    table = []
    for config, samples in SIZES:
        for ranks in (2, 4):
            took = measured(partial(steps, config=config, samples=samples), ranks)
            what = (
                f"a block of width {config.width}, {samples} x {config.sequence} tokens, on {ranks}"
                " ranks: "
            )
            table += [
                row(
                    f"{what}our step over DTensor's",
                    took["ours"] / took["DTensor"],
                    "times",
                    at_most=0.9,
                ),
                row(
                    f"{what}our step with sequence parallelism over without",
                    took["sequence"] / took["ours"],
                    "times",
                ),
                row(f"{what}our step over one process'", took["ours"] / took["alone"], "times"),
                row(f"{what}DTensor's step", 1000 * took["DTensor"], "ms"),
            ]
    return table
