"""A step of LAMB beside torch's AdamW and pytorch_optimizer's Lamb, on a CPU, one thread, in turns.

The ratios count: a machine that is busy with other things slows all of them.
"""

import torch

from bigtrain_lab.techniques.lamb import LAMB
from bigtrain_lab.techniques.lars import LARS

from .measure import alternating, row

ROUNDS = 31
SIZES = {
    "100 tensors of 100,000": (100, 100_000),
    "2,000 tensors of 1,000": (2_000, 1_000),
    "2 tensors of 5,000,000": (2, 5_000_000),
}
NO_PEER = (
    "pytorch_optimizer is not installed (pip install bigtrain-lab[peers]), so its Lamb was not"
    " measured"
)
SMALLEST = {"ROUNDS": 1, "SIZES": {"2 tensors of 10": (2, 10)}}


def rows():
    torch.set_num_threads(1)
    return [line for name, size in SIZES.items() for line in compared(name, *size)]


def contenders(tensors: int, elements: int) -> dict:
    """name -> step; each has weights of its own."""
    kinds = {
        "LAMB": LAMB,
        "LARS": LARS,
        "AdamW, foreach": lambda p: torch.optim.AdamW(p, foreach=True),
        "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    }
    try:
        from pytorch_optimizer import Lamb

        kinds["pytorch_optimizer's Lamb"] = lambda p: Lamb(p, weight_decay=0.01)
    except ImportError:
        pass
    steps = {}
    for name, kind in kinds.items():
        draw = torch.Generator().manual_seed(0)
        weights = [
            torch.nn.Parameter(torch.randn(elements, generator=draw)) for _ in range(tensors)
        ]
        for weight in weights:
            weight.grad = torch.randn(elements, generator=draw)
        steps[name] = kind(weights).step
        steps[name](), steps[name]()
    return steps


def compared(what: str, tensors: int, elements: int) -> list[dict]:
    asked = what == next(iter(SIZES))  # elsewhere there is no target
    steps = contenders(tensors, elements)
    taken = alternating(ROUNDS, **steps)
    found = [row(f"{what}: {name}", 1e3 * seconds, "ms") for name, seconds in taken.items()]
    targets = {"AdamW, foreach": 1.0, "AdamW, fused": 2.0, "pytorch_optimizer's Lamb": 0.5}
    for other, target in targets.items():
        if other in taken:
            found.append(
                row(
                    f"{what}: LAMB over {other}",
                    taken["LAMB"] / taken[other],
                    "times",
                    at_most=target if asked else None,
                )
            )
        else:
            found.append(row(f"{what}: {NO_PEER}", 0, ""))
    return found
