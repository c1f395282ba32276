"""Selective recompute: of a module, only the part that weighs much and costs little is run again.

    attention    q, k, v  --core-->  mixed           core(q, k, v) = dropout(softmax(q k^T /
                                                     sqrt(K))) v
                 kept                kept            inside core: B H S^2 numbers, two to three
                                                     times, for 4 B S^2 D flops

A model needs no change for it but that the part is a method. Bytes of a layer in half precision: s
b h (34 + 5 a s / h) without, 34 s b h with; in the backward one layer's square at a time. Source:
Korthikanti et al. 2022 (arXiv:2205.05198), section 5.
"""

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from ..guards import refuse
from .again import checkpoint


def selective(module: nn.Module, part: str = "core") -> Callable:
    """`module` as a function in which the method `part` of each of its submodules that has one is
    checkpointed.

    The module itself stays as it is for everyone else who calls it.
    """
    (run,) = selective_layers([module], part)
    return run


def selective_layers(layers: Sequence[Callable], part: str = "core") -> list[Callable]:
    """The same for a chain of layers; one that has no such part stays as it is, and one of them
    must have it."""
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
    before = [vars(owner).get(part) for owner in owners]  # the instance's own, or an outer swap
    for owner in owners:  # a call finds this before the class's own
        vars(owner)[part] = partial(checkpoint, getattr(owner, part))
    try:
        return layer(*args, **kwargs)
    finally:
        for owner, own in zip(owners, before):
            del vars(owner)[part]
            if own:
                vars(owner)[part] = own


def owners_of(layer, part: str) -> list[nn.Module]:
    within = layer.modules() if isinstance(layer, nn.Module) else ()
    return [m for m in within if callable(getattr(m, part, None))]
