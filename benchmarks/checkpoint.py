"""A training step under our recompute beside torch.utils.checkpoint's, in turns: the same layers,
inputs, segments and results.

    a layer at a time    checkpoint(layer, x) for each layer      theirs: checkpoint(layer, x,
                                                                  use_reentrant=False)
    segments             checkpoint_sequential(layers, "every-k") theirs:
                         checkpoint_sequential(layers, n / k, x, use_reentrant=False)

Gradients are equal bit by bit. A rerun stops inside the last layer of its segment, where the last
tensor is saved, ours as theirs. Both run the same operators, so the ratio nears 1 as these grow.
`by itself` is what one checkpoint costs around a function that does next to nothing.
"""

import statistics

import torch
from torch import nn
from torch.utils import checkpoint as theirs

from bigtrain_lab.models import GPTConfig
from bigtrain_lab.models.blocks import Block
from bigtrain_lab.models.gpt import initialise
from bigtrain_lab.order.recompute.plan import Chain, plan_of
from bigtrain_lab.techniques.checkpoint import checkpoint, checkpoint_sequential
from bigtrain_lab.techniques.reversible import ReversibleBlock, ReversibleSequence

from .measure import row, seconds

# layers, width, heads, sequence, rows, segment, rounds
SIZES = {
    "small": (12, 32, 4, 16, 2, 3, 40),
    "shallow": (4, 128, 4, 64, 8, 2, 40),
    "larger": (8, 128, 4, 64, 8, 4, 25),
}
WARM_UP = 2
SMALLEST = {"SIZES": {"small": (4, 32, 4, 16, 2, 2, 1)}, "WARM_UP": 0}


def ratio(rounds: int, **contenders) -> dict[str, float]:
    """Median seconds of each, by turns, each first in turn; and the median of the first two's
    ratios, round by round."""
    taken, order = {name: [] for name in contenders}, list(contenders)
    for turn in range(WARM_UP + rounds):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            spent = seconds(contenders[name])
            if turn >= WARM_UP:
                taken[name].append(spent)
    one, other = order[:2]
    return {name: statistics.median(of) for name, of in taken.items()} | {
        "ratio": statistics.median(a / b for a, b in zip(taken[one], taken[other]))
    }


def chain(layers: int, width: int, heads: int, sequence: int, rows: int):
    config = GPTConfig(layers=layers, width=width, heads=heads, sequence=sequence)
    made = nn.ModuleList(Block(config, f"layers.{i}") for i in range(layers))
    initialise(made, layers, 0)
    return made, torch.randn(rows, sequence, width, generator=torch.Generator().manual_seed(0))


def one_by_one(call, layers, x):
    for layer in layers:
        x = call(layer, x)
    return x


def step(forward, layers, x):
    def run():
        layers.zero_grad()
        forward(layers, x).square().mean().backward()

    return run


def same(layers, steps) -> None:
    """Both compute the same bits."""
    found = []
    for run in steps:
        run()
        found.append([p.grad.clone() for p in layers.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found)), "the gradients differ"


def rows():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*alone(), *(line for size in SIZES for line in of_size(size)), *reversible()]
    finally:
        torch.set_num_threads(threads)


def of_size(size: str):
    *shape, segment, rounds = SIZES[size]
    layers, x = chain(*shape)
    ops = plan_of(f"every-{segment}", Chain.equal(len(layers)))  # once, as in a training loop
    where = f"{size} ({shape[0]} blocks of width {shape[1]}, {shape[4]} x {shape[3]} tokens)"
    ways = {
        "checkpoint of each block": (
            lambda layers, x: one_by_one(checkpoint, layers, x),
            lambda layers, x: one_by_one(
                lambda layer, x: theirs.checkpoint(layer, x, use_reentrant=False), layers, x
            ),
        ),
        f"checkpoint_sequential, segments of {segment}": (
            lambda layers, x: checkpoint_sequential(layers, ops, x),
            lambda layers, x: theirs.checkpoint_sequential(
                list(layers), shape[0] // segment, x, use_reentrant=False
            ),
        ),
    }
    for name, (our, their) in ways.items():
        steps = step(our, layers, x), step(their, layers, x)
        same(layers, steps)
        took = ratio(
            rounds,
            ours=steps[0],
            theirs=steps[1],
            plain=step(lambda layers, x: one_by_one(lambda f, x: f(x), layers, x), layers, x),
        )
        yield row(
            f"{name}, {where}: our step over torch.utils.checkpoint's",
            took["ratio"],
            "times",
            at_most=1.0,
        )
        yield row(f"{name}, {where}: our step", 1000 * took["ours"], "ms")
        yield row(
            f"{name}, {where}: our step over the plain one", took["ours"] / took["plain"], "times"
        )


def alone():
    x = torch.ones(4, requires_grad=True)
    took = ratio(
        400,
        ours=lambda: checkpoint(torch.sin, x).backward(x),
        theirs=lambda: theirs.checkpoint(torch.sin, x, use_reentrant=False).backward(x),
        plain=lambda: torch.sin(x).backward(x),
    )
    yield row(
        "one checkpoint by itself: ours over torch.utils.checkpoint's",
        took["ratio"],
        "times",
        at_most=1.0,
    )
    yield row(
        "one checkpoint by itself: what ours adds", 1e6 * (took["ours"] - took["plain"]), "us"
    )


def reversible():
    torch.manual_seed(0)

    def part():
        return nn.Sequential(
            nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)
        )

    sequence, x = (
        ReversibleSequence(ReversibleBlock(part(), part()) for _ in range(8)),
        torch.randn(256, 256),
    )

    def plain(blocks, x):
        streams = x, x
        for block in blocks.blocks:
            streams = block.couple(*streams)
        return streams[0] + streams[1]

    took = ratio(
        9,
        ours=step(lambda blocks, x: sum(blocks(x, x)), sequence, x),
        plain=step(plain, sequence, x),
    )
    yield row(
        "8 reversible blocks of width 256: the step over the same without inverses",
        took["ratio"],
        "times",
    )
