"""Batch x optimizer at equal samples: what accuracy each reaches, and in how many updates it meets the target.

The task is the lab's: 2^18 samples of the digits, a classifier of 8 hidden layers of 64 without normalisation. One rule for all:

    rate(update) = base * f(batch / 32) * (a rise over the first tenth of the updates, then a straight fall to 0)
    f = square root for Adam, LAMB and LARS, whose steps do not grow with the gradient; f = identity for SGD with momentum

Each optimizer's base is chosen once, at a batch of 32, among four: the lowest loss on held-out samples at the end, of a seed that
the table does not use. Nothing is tuned at a larger batch. The table tells the median over the seeds, with the least and the
greatest; a target is met where every seed meets it.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from statistics import median

import torch

from bigtrain_lab.core import Mesh
from bigtrain_lab.experiments.large_batch import Looks, LargeBatch
from bigtrain_lab.rates import ACCURACY, TEST_LOSS
from bigtrain_lab.recipe import train
from bigtrain_lab.runtime import Rank

from .measure import row

BASES = {"momentum": (3e-3, 1e-2, 3e-2, 1e-1), "adam": (1e-3, 2e-3, 4e-3, 8e-3), "lars": (0.3, 1, 3, 10), "lamb": (1e-3, 2e-3, 4e-3, 8e-3)}
SCALING = {"momentum": "linear"}  # else the square root
BATCHES, TARGET = (32, 512, 2048, 4096, 8192), 0.9
SEEDS, TUNED_ON = (0, 1, 2, 3), 100
HELD_AT = 4096  # the batch at which LAMB meets the target and Adam does not


class Noted(Rank):
    """A rank alone that keeps what is logged."""

    def __init__(self):
        super().__init__(0, Mesh(world=1), torch.device("cpu"))
        self.found: dict[str, list[float]] = {}

    def log(self, name, value):
        self.found.setdefault(name, []).append(value)


def trained(settings: dict) -> tuple[float, float, int | None]:
    """(loss, accuracy) on held-out samples at the end, and the updates to the target."""
    torch.set_num_threads(1)
    lab, rank = LargeBatch(at_once=8192, target=TARGET, **settings), Noted()
    train(lab.recipe, rank, Looks(lab, rank))
    accuracy = rank.found[ACCURACY]
    reached = next((update for update, value in zip(lab.evaluated, accuracy) if value >= TARGET), None)
    return rank.found[TEST_LOSS][-1], accuracy[-1], reached


def rows(bases=BASES, batches=BATCHES, seeds=SEEDS, samples: int = 2**18, workers: int | None = None):
    common = {"samples": samples}
    with ProcessPoolExecutor(workers or os.cpu_count(), get_context("spawn")) as pool:
        tried = [(optimizer, rate) for optimizer, rates in bases.items() for rate in rates]
        losses = dict(zip(tried, pool.map(trained, (
            common | {"optimizer": name, "learning_rate": rate, "batch": 32, "seed": TUNED_ON} for name, rate in tried))))
        chosen = {name: min(rates, key=lambda rate, name=name: losses[name, rate][0]) for name, rates in bases.items()}
        cells = [*product(batches, bases)]
        found = dict(zip([(*cell, seed) for cell in cells for seed in seeds], pool.map(trained, (
            common | {"optimizer": name, "learning_rate": chosen[name], "scaling": SCALING.get(name, "square-root"), "batch": batch, "seed": seed}
            for batch, name in cells for seed in seeds))))
    for (name, rate), (loss, accuracy, _) in losses.items():
        yield row(f"tuning at batch 32, {name}, base {rate:g}{' (chosen)' * (rate == chosen[name])}: loss at accuracy {accuracy:.1%}", loss, "")
    for batch, name in cells:
        yield from cell_rows(batch, name, [found[batch, name, seed] for seed in seeds])


def cell_rows(batch: int, name: str, runs: list[tuple]):
    values, reached = sorted(100 * accuracy for _, accuracy, _ in runs), [each for *_, each in runs]
    targets = {}
    if batch == HELD_AT and name == "lamb":
        targets = {"at_least": 100 * TARGET}
    told = f"batch {batch:,}, {name}: accuracy"
    yield row(f"{told}, median of {len(runs)} seeds, {values[0]:.1f} to {values[-1]:.1f}", median(values), "%")
    yield row(f"{told}, lowest of the seeds", values[0], "%", **targets)
    if batch == HELD_AT and name == "adam":
        yield row(f"{told}, highest of the seeds", values[-1], "%", at_most=100 * TARGET)
    if all(reached):
        yield row(f"batch {batch:,}, {name}: updates to {TARGET:.0%}, median", median(reached), "")
