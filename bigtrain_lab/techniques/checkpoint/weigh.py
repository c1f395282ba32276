"""Bytes and work of each layer of a chain, for a plan to choose by.

Each layer runs once, recorded alone, and the bytes that autograd saves are counted.

    states      bytes of x_0 .. x_n
    saved       bytes of distinct storages in the layer's record, less states, weights and buffers
    forwards    multiply-adds of matmuls and convolutions; 1 each in a chain without any

Cost: one forward of every layer, with one record alive at a time. Random states and gradients stay
as they were. State that a layer changes, such as running averages, moves once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from ...order.recompute.plan import Chain
from ..guards import refuse
from .conditions import Conditions


def weigh(layers: Sequence[Callable], x) -> Chain:
    """Return the Chain of these layers for this input, a tensor or a tuple of tensors. A backward
    counts as two forwards."""
    states, saved, forwards, saves_input, saves_output = [storages(x)], [], [], [], []
    with Conditions(tensors_in(x)).restored(), torch.enable_grad():
        for number, layer in enumerate(layers):
            x, record, worked = recorded(layer, x if not number else as_leaves(x))
            states.append(storages(x))
            for flags, state in ((saves_input, states[-2]), (saves_output, states[-1])):
                flags.append(bool(state) and state.keys() <= record.keys())
                record = {
                    address: size
                    for address, size in record.items()
                    if not (flags[-1] and address in state)
                }
            saved.append(sum(record.values()))
            forwards.append(worked)
    return Chain.of(
        [sum(state.values()) for state in states],
        saved,
        forwards if any(forwards) else (),
        saves_input=saves_input,
        saves_output=saves_output,
    )


def recorded(layer: Callable, x) -> tuple[object, dict[int, int], int]:
    """Run a layer; return its output, {address: bytes} that autograd saves, and multiply-adds."""
    inputs, record = storages(x), {}
    own = storages((*layer.parameters(), *layer.buffers())) if isinstance(layer, nn.Module) else {}

    def pack(tensor: Tensor) -> Tensor:
        owner = tensor if tensor._base is None else tensor._base
        address = tensor.untyped_storage()._cdata
        if address in inputs or address not in own and not (owner.is_leaf and owner.requires_grad):
            record.update(storages(tensor))
        return tensor.detach()

    with (
        FlopCounterMode(display=False) as counter,
        saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        result = layer(x)
    return result, record, counter.get_total_flops() // 2


def as_leaves(x):
    """Cut the state from the graph that made it, so that the next record begins there."""
    return (
        x.detach().requires_grad_(x.is_floating_point())
        if isinstance(x, Tensor)
        else tuple(map(as_leaves, x))
    )


def tensors_in(x) -> tuple[Tensor, ...]:
    return (x,) if isinstance(x, Tensor) else tuple(x)


def storages(x) -> dict[int, int]:
    """Return {address: bytes} of a state's distinct storages. The address is that of torch's
    StorageImpl, which a meta tensor has too."""
    sizes = ((t.untyped_storage()._cdata, t.untyped_storage().nbytes()) for t in tensors_in(x))
    return {address: size for address, size in sizes if size}


def tensors_of(state, what: str) -> tuple[Tensor, ...]:
    if isinstance(state, Tensor):
        return (state,)
    found = (
        "nothing"
        if state is None
        else "an empty tuple"
        if state == ()
        else f"a {type(state).__name__}"
    )
    refuse(
        (
            not isinstance(state, tuple)
            or not state
            or not all(isinstance(t, Tensor) for t in state),
            f"{what} {found}: between layers travels a tensor, or a tuple of tensors.",
        )
    )
    return state
