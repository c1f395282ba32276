"""Selective recompute: run again only that part of a module which saves much and costs little.

    core(q, k, v) = dropout(softmax(q k^T / sqrt(D / H))) v

    q, k, v and the result    kept
    inside the core           run again: B H S^2 numbers, two to three times, for 4 B S^2 D FLOPs

B: batch, S: sequence, H: heads, D: width. The part must be a method; the model does not change.
Bytes of a transformer layer in half precision: B S D (34 + 5 H S / D) without, 34 B S D with. In
the backward one layer's core is there at a time.
Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 5.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from torch import nn

from ...runtime.memory.saved import replaced
from ..guards import refuse
from .again import checkpoint


def selective(module: nn.Module, part: str = "core") -> Callable:
    """Return a function that calls `module` with the method `part` checkpointed, in each submodule
    that has one.

    Other callers of the module see no change.
    """
    (run,) = selective_layers([module], part)
    return run


def selective_layers(layers: Sequence[Callable], part: str = "core") -> list[Callable]:
    """Do so for each layer of a chain. A layer without the part stays as it is; at least one must
    have it."""
    owners = [owners_of(layer, part) for layer in layers]
    refuse(
        (
            not any(owners),
            f"Nothing in {type(layers[0]).__name__} has a method {part!r} to run again: name the"
            " method that should be.",
        )
    )
    return [
        partial(with_parts_again, layer, own, part) if own else layer
        for layer, own in zip(layers, owners)
    ]


def with_parts_again(layer, owners: list[nn.Module], part: str, *args, **kwargs):
    with ExitStack() as stack:
        for owner in owners:  # a call finds this before the class's own
            stack.enter_context(replaced(owner, part, partial(partial, checkpoint)))
        return layer(*args, **kwargs)


def owners_of(layer, part: str) -> list[nn.Module]:
    within = layer.modules() if isinstance(layer, nn.Module) else ()
    return [m for m in within if callable(getattr(m, part, None))]
