"""What the ledger costs: a training step with it over the same step without it, in turns; beside it
torch's MemTracker.

The step: forward, backward and Adam of the byte-level GPT, float32, one thread. Its cost is one per
operator, so it weighs most where operators are small; `operators` says how many a step has.
"""

from contextlib import nullcontext
from statistics import median

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from bigtrain_lab.models import GPT, GPTConfig, cross_entropy
from bigtrain_lab.runtime import Ledger

from .measure import row, seconds

SIZES = {  # name -> config, batch, rounds, what the ratio may be
    "0.1 M weights (2 layers of width 64)": (
        GPTConfig(layers=2, width=64, heads=4, sequence=32),
        4,
        61,
        None,
    ),
    "4 layers of width 128": (GPTConfig(layers=4, width=128, heads=4, sequence=128), 16, 15, 1.5),
    "4 layers of width 512": (GPTConfig(layers=4, width=512, heads=8, sequence=128), 16, 5, 1.1),
}
SMALLEST = {
    "SIZES": {"1 layer of width 8": (GPTConfig(layers=1, width=8, heads=1, sequence=4), 1, 1, None)}
}


class Counting(TorchDispatchMode):
    operators = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.operators += 1
        return operator(*args, **(kwargs or {}))


def contenders(config: GPTConfig, batch: int):
    """A step, and what to be inside of while it is timed: nothing, a ledger, torch's tracker."""
    model = GPT(config)
    optimizer = torch.optim.Adam(model.parameters())
    ids = torch.randint(
        config.vocabulary, (batch, config.sequence), generator=torch.Generator().manual_seed(0)
    )

    def step():
        cross_entropy(model(ids), ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # the optimizer's state is there from now on
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    return step, {"plain": nullcontext(), "ledger": Ledger(model, optimizer), "tracker": tracker}


def alternating(rounds: int, step, inside: dict) -> dict[str, float]:
    """Median seconds of a step inside each, in turns; each is entered anew, and that is not
    timed."""
    times = {name: [] for name in inside}
    for _ in range(rounds):
        for name, context in inside.items():
            if name == "tracker":
                context.reset_mod_stats()
            with context:
                times[name].append(seconds(step))
    return {name: median(taken) for name, taken in times.items()}


def rows():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    table = []
    try:
        for name, (config, batch, rounds, at_most) in SIZES.items():
            step, inside = contenders(config, batch)
            with Counting() as counting:
                step()
            took = alternating(rounds, step, inside)
            extra = took["ledger"] - took["plain"]
            table += [
                row(
                    f"{name}: a step with the ledger over one without",
                    took["ledger"] / took["plain"],
                    "times",
                    at_most=at_most,
                ),
                row(
                    f"{name}: a step with torch's MemTracker over one without",
                    took["tracker"] / took["plain"],
                    "times",
                ),
                row(f"{name}: a step without", 1000 * took["plain"], "ms"),
                row(
                    f"{name}: what the ledger adds, each of {counting.operators} operators",
                    1e6 * extra / counting.operators,
                    "us",
                ),
            ]
    finally:
        torch.set_num_threads(threads)
    return table
