"""The small models of these tests; small enough to be checked number by number."""

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

from bigtrain_lab import Cost, simulate
from bigtrain_lab.models import GPTConfig, Noise
from bigtrain_lab.train import Part, Rehearsed
from bigtrain_lab.train.dry_run import Acted, Work

SMALL = GPTConfig(layers=3, width=12, heads=3, sequence=7, vocabulary=11)
DROPPED = replace(SMALL, dropout=0.3)
NOISE = Noise(seed=5, step=2, micro_batch=1)


class Sizes(NamedTuple):
    """A stage by hand: bytes that tell its kinds apart. `early`: the gradients that I makes."""

    weights: int = 1000
    gradients: int = 100
    optimizer: int = 10
    activations: int = 1
    queued: int = 0
    early: int = 0

    def change(self, like):
        """kind -> bytes that such an action changes, as the papers say."""
        kept = {"stashed": self.weights * (1 if like.kind == "U" else -1)} if like.turns else {}
        match like.kind:
            case "F":
                return kept | {"activations": self.activations}
            case "W":
                return {
                    "queued": -self.queued,
                    "gradients": 0 if like.found else self.gradients - self.early,
                }
            case "U":
                return kept | {
                    "gradients": -self.gradients,
                    "optimizer": 0 if like.found else self.optimizer,
                }
        made = self.early if like.kind == "I" else self.gradients
        there = {"": 0, "I": self.early}.get(like.found, self.gradients)
        return kept | {
            "activations": -self.activations,
            "gradients": max(0, made - there),
            "queued": self.queued * (like.kind == "I"),
        }


class ByHand(defaultdict):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def __missing__(self, like):
        self[like] = Acted(Work(), {}, self.sizes.change(like), (), ())
        return self[like]


def traced(schedule, steps=2, sizes=Sizes()):
    """The simulated run of stages that hold so many bytes."""
    stage = Part({"weights": sizes.weights}, 1, ByHand(sizes), defaultdict(dict))
    held = Rehearsed(schedule, steps, [stage] * schedule.stages).held(schedule.ranks)
    return simulate(schedule, Cost({"F": 1, "B": 2, "I": 1, "W": 1}, **held), steps)
