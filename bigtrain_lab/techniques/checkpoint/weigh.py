"""What the layers of a chain weigh, for a plan to choose by: each layer is recorded once, alone,
and what autograd saves is counted.

    states       bytes of x_0 .. x_n                saved     bytes of distinct storages that the
                                                              record holds, less its states,
    forwards     operations multiplied and added              the layer's own weights and all other
                 weights (matmuls and convolutions); 1 each where a chain has none

Cost: one forward of every layer, with one record alive at a time. Random numbers and gradients are
left as they were; state that a layer changes, such as running averages, moves once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from ...core import Impossible
from ...order.recompute.plan import Chain
from .conditions import Conditions


def weigh(layers: Sequence[Callable], x) -> Chain:
    """The Chain of these layers for this input, a tensor or a tuple of tensors; a backward is taken
    to cost two forwards."""
    states, saved, forwards, saves_input, saves_output = [storages(x)], [], [], [], []
    with Conditions(tensors_in(x)).restored(), torch.enable_grad():
        for number, layer in enumerate(layers):
            result, record, worked = recorded(layer, x if not number else started(x))
            x = result
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
    """(output, {address: bytes} of what autograd saves of it, operations)."""
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


def started(x):
    """The state cut from the graph that made it, with gradients to record."""
    if isinstance(x, Tensor):
        return x.detach().requires_grad_(x.is_floating_point())
    return tuple(map(started, x))


def tensors_in(x) -> tuple[Tensor, ...]:
    return (x,) if isinstance(x, Tensor) else tuple(x)


def storages(x) -> dict[int, int]:
    """{address: bytes} of the distinct storages that a state lies in. The address is that of
    torch's record of a storage, which a meta tensor's has too."""
    sizes = ((t.untyped_storage()._cdata, t.untyped_storage().nbytes()) for t in tensors_in(x))
    return {address: size for address, size in sizes if size}


def tensors_of(state, what: str) -> tuple[Tensor, ...]:
    if isinstance(state, Tensor):
        return (state,)
    if not isinstance(state, tuple) or not state or not all(isinstance(t, Tensor) for t in state):
        found = (
            "nothing"
            if state is None
            else "an empty tuple"
            if state == ()
            else f"a {type(state).__name__}"
        )
        raise Impossible(f"{what} {found}: between layers travels a tensor, or a tuple of tensors.")
    return state
