"""What modules and optimizers hold, by kind and name: what a ledger that stands alone reads, at
each look anew, and what the program of an experiment declares to the one of its rank.

    weights, buffers   a module's parameters and buffers         gradients   every parameter's .grad
    master             an optimizer's own parameters that are float32 copies of a module's of lower
                       precision
    optimizer          all tensors of an optimizer's state, also those in lists, tuples and
                       dictionaries there
Names: "mlp.up.weight", "mlp.up.weight gradient", "mlp.up.weight exp_avg".
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...core import MEMORY_KINDS, Impossible, refuse
from .balance import APART

ROWS, COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ROWS,
    torch.sparse_bsr: ROWS,
    torch.sparse_csc: COLUMNS,
    torch.sparse_bsc: COLUMNS,
}
USUAL = (torch.Tensor, nn.Parameter)
HELD_KINDS = (*MEMORY_KINDS, *APART)  # what a program may declare, in their order
NESTED = (
    "values",
    "_nested_tensor_size",
    "_nested_tensor_strides",
    "_nested_tensor_storage_offsets",
)


def of(watched: Iterable) -> dict[str, dict[str, torch.Tensor]]:
    """{kind: {name: tensor}} of modules and optimizers."""
    watched = list(watched)
    modules = [thing for thing in watched if isinstance(thing, nn.Module)]
    return named(
        {f" of module {i}" if len(modules) > 1 else "": module for i, module in enumerate(modules)},
        [thing for thing in watched if not isinstance(thing, nn.Module)],
    )


def named(
    modules: Mapping[str, nn.Module],
    optimizers: Iterable,
    masters: Mapping[nn.Parameter, nn.Parameter] = {},
) -> dict[str, dict[str, torch.Tensor]]:
    """The same, where one knows more: what to put behind the names of each module, and which weight
    a master is of."""
    held = {kind: {} for kind in ("weights", "master", "gradients", "optimizer", "buffers")}
    names: dict[nn.Parameter, str] = {}
    for of_which, module in modules.items():
        walk = [("", module)]  # a ledger looks at a small model as often as it acts
        while walk:
            prefix, part = walk.pop()
            inner = [(f"{prefix}{name}.", each) for name, each in part._modules.items() if each]
            walk += reversed(inner)
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    names.setdefault(parameter, prefix + name + of_which)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    held["buffers"][prefix + name + of_which] = buffer
    held["weights"] = {name: parameter for parameter, name in names.items()}
    held["master"] = {
        names[weight]: master for weight, master in masters.items() if master.dtype != weight.dtype
    }
    names |= {master: names[weight] for weight, master in masters.items()}
    low = None
    for optimizer in optimizers:
        for parameter in parameters_of(optimizer):
            if parameter not in names:
                low = low or {
                    tuple(p.shape)
                    for p in held["weights"].values()
                    if not is_lazy(p) and p.element_size() < 4
                }
                names[parameter] = f"parameter {len(names)}"
                kind = (
                    "master"
                    if parameter.dtype == torch.float32 and tuple(parameter.shape) in low
                    else "weights"
                )
                held[kind][names[parameter]] = parameter
        for parameter, state in optimizer.state.items():
            add_tensors(held["optimizer"], names.get(parameter, ""), state)
    held["gradients"] = {
        f"{name} gradient": parameter.grad
        for parameter, name in names.items()
        if parameter.grad is not None
    }
    return held


def add_tensors(found: dict[str, torch.Tensor], name: str, value) -> None:
    """All that are in a value, however deep, by the way to them: "mlp.up.weight exp_avg",
    "mlp.up.weight old_dirs 3"."""
    if isinstance(value, torch.Tensor):
        found[name] = value
        return
    inner = (
        value.items()
        if isinstance(value, (dict, Mapping))
        else enumerate(value)
        if isinstance(value, (list, tuple, deque))
        else ()
    )
    for key, part in inner:
        add_tensors(found, f"{name} {key}".strip(), part)


def device(watched: Iterable) -> torch.device:
    """The first parameter's; the CPU where there is none."""
    devices = (
        parameter.device
        for thing in watched
        for parameter in (
            thing.parameters() if isinstance(thing, nn.Module) else parameters_of(thing)
        )
    )
    return next(devices, torch.device("cpu"))


def parameters_of(optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def hooks(
    watched: Iterable, became_gradient: Callable, before_step: Callable, after_step: Callable
) -> Iterator:
    """Handles of hooks that tell of each gradient as it comes, by (parameter's name, gradient), and
    of each optimizer's step."""
    named = {}
    for thing in watched:
        if isinstance(thing, nn.Module):
            named |= {
                parameter: name
                for name, parameter in thing.named_parameters()
                if parameter.requires_grad
            }
        elif hasattr(thing, "register_step_post_hook"):
            yield thing.register_step_pre_hook(lambda *_: before_step())
            yield thing.register_step_post_hook(lambda *_: after_step())
    for parameter, name in named.items():
        if not is_lazy(parameter) and parameter.is_leaf:
            yield parameter.register_post_accumulate_grad_hook(
                lambda p, name=name: None if p.grad is None else became_gradient(name, p.grad)
            )  # another hook may have taken it


def held(holdings: Mapping[str, Iterable]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(kind, name or "", tensor) of all that is declared, in the kinds' order; Impossible where a
    kind is unknown."""
    if unknown := set(holdings) - set(HELD_KINDS):
        raise Impossible(
            f"Cannot watch {', '.join(sorted(unknown))}: name the kinds of memory"
            f" {', '.join(HELD_KINDS)}."
        )
    for kind in HELD_KINDS:
        tensors = holdings.get(kind, ())
        for name, tensor in (
            tensors.items()
            if isinstance(tensors, Mapping)
            else (("", tensor) for tensor in tensors)
        ):
            if tensor is not None:
                yield kind, name, tensor


def refuse_strange(watched: Iterable) -> None:
    """Impossible where something is neither a module nor an optimizer."""
    refuse(
        *(
            (
                not isinstance(thing, nn.Module)
                and not (hasattr(thing, "param_groups") and hasattr(thing, "state")),
                f"A ledger cannot watch {type(thing).__name__}: give it modules and optimizers.",
            )
            for thing in watched
        )
    )


def plain(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The dense tensors that a tensor is made of: itself, a subclass's inner ones, a sparse one's
    indices and values, a nested one's values and sizes, what a transform of torch.func wraps; none,
    if it has no bytes: torch's zero tensor, a lazy module's weight.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return plain(torch._C._functorch.get_unwrapped(tensor))
    usual = type(tensor) in USUAL
    if not usual and hasattr(tensor, "__tensor_flatten__"):
        return [
            part for name in tensor.__tensor_flatten__()[0] for part in plain(getattr(tensor, name))
        ]
    if tensor.layout is not torch.strided or tensor.is_nested:
        return [
            getattr(tensor, name)()
            for name in (NESTED if tensor.is_nested else PARTS.get(tensor.layout, ()))
        ]
    return () if not usual and is_lazy(tensor) or tensor._is_zerotensor() else (tensor,)
