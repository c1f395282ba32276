"""How many operators a device starts for a piece of the model: one of each kind, run without values.

Sizes do not matter, so the three pieces are tiny: embedding, block, and head with its loss. They run with gradients of an
earlier micro-batch to add to. B's halves are those of techniques/split_backward.py.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from itertools import product

import torch

from ..dry_run import META, dry_run
from ..models import GPTConfig, GPTStage, Noise, cross_entropy
from ..techniques.split_backward import WeightGradientsLater

KINDS = "FBIW"


def operators(config: GPTConfig) -> list[dict[str, int]]:
    """Kind of action -> operators, for each piece."""
    tiny = replace(config, layers=1, width=2, heads=1, sequence=2, vocabulary=2, tied=False,
                   dropout=0.5 if config.dropout else 0.0)
    embedding, block, head = counted(tiny)
    return [embedding, *[block] * config.layers, head]


@lru_cache
def counted(config: GPTConfig) -> list[dict[str, int]]:
    acted = dry_run(lambda rank: program(rank, config)).actions
    return [{kind: acted[f"{at}{kind}1"].work.operators for kind in KINDS} for at in range(config.pieces)]


def program(rank, config: GPTConfig) -> None:
    """Each piece forward and backward twice, whole and in halves; the second time counts."""
    rank.watch(dict)
    for at, turn, halves in product(range(config.pieces), range(2), (True, False)):
        if not turn and halves:
            stage = GPTStage(config, at, at + 1).to(META)
        ids = torch.zeros(1, config.sequence, dtype=torch.long, device=META)
        hidden = torch.zeros(1, config.sequence, config.width, dtype=config.dtype, device=META, requires_grad=True)
        later = WeightGradientsLater()
        with rank.span(f"{at}F{turn}"):
            with later if halves else nullcontext():
                output = stage(hidden if at else ids, Noise(0, 0, turn))
            output = cross_entropy(output, ids) if at == config.pieces - 1 else output
        gradient = torch.zeros_like(output)
        with rank.span(f"{at}{'I' if halves else 'B'}{turn}"):
            output.backward(gradient)
        if halves:
            with rank.span(f"{at}W{turn}"):
                later.run()
