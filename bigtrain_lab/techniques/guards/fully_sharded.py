"""What ranks cannot shard, or would shard wrongly, and what they would read of parameters that are
elsewhere: refused in one sentence."""

from dataclasses import fields, is_dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...core import Impossible
from ...runtime.talk.group import Group
from ...runtime.talk.message import Shape
from ..prepared_model import masters_of
from . import refuse as refuse_any
from . import refuse_unlike_modules, who
from .optimizers import SHARDED, TRIED
from .replicas import refuse_written


def refuse(module: nn.Module, group: Group, compute_dtype, units) -> None:
    """Also where the ranks' modules or settings differ."""
    parameters = dict(module.named_parameters())
    lazy = [name for name, p in parameters.items() if isinstance(p, UninitializedTensorMixin)]
    odd = [name for name, p in parameters.items() if not p.is_floating_point()]
    parts = set(module.modules())
    strange = [type(unit).__name__ for unit in units or () if unit not in parts]
    sliced = [name for name, p in parameters.items() if getattr(p, "cut", None)]
    refuse_any(
        (lazy, f"{', '.join(lazy)} have no shape yet: run one forward before you wrap the module."),
        (
            not any(p.requires_grad for p in parameters.values()),
            "No parameter of the module needs a gradient: there is nothing to train.",
        ),
        (
            odd,
            (
                f"{', '.join(odd)} {'are' if odd[1:] else 'is'} neither real nor floating: make a "
                "buffer of it, or split it into real parts."
            ),
        ),
        (
            compute_dtype is not None
            and not (isinstance(compute_dtype, torch.dtype) and compute_dtype.is_floating_point),
            f"compute_dtype is {compute_dtype!r}: give a floating format, such as torch.bfloat16.",
        ),
        (
            strange,
            (
                f"units names a {', '.join(strange)} that is no part of the module: give modules "
                "of the one that you wrap."
            ),
        ),
        (
            sliced,
            f"{', '.join(sliced)} are slices: train them by a Recipe, with slices= and zero=3.",
        ),
        (
            masters_of([module]),
            (
                "The module's weights have masters or pieces already: wrap a module once, with "
                "units= for its parts, and one that nothing has prepared, with compute_dtype= the "
                "half format."
            ),
        ),
    )
    refuse_unlike_modules(module, group, f"compute_dtype {compute_dtype}")


def refuse_changed(model) -> None:
    """A parameter that is not as it was wrapped."""
    if model.replicas.under_way or model.open_backwards or any(u.there for u in model.units):
        return
    own = dict.fromkeys(model.module.parameters())
    for held in model.replicas.held:
        refuse_written(held)
        dropped = held.nothing.untyped_storage()._cdata
        for home in held.homes:
            p, gone = home.weight, home.weight not in own
            if gone or p.untyped_storage()._cdata != dropped:
                what = "was taken out" if gone else f"became {Shape.of(p)} on {p.device}"
                raise Impossible(
                    f"Parameter {home.name} on {who(model)} {what} after the module was "
                    "wrapped: change the module before you wrap it; values come by "
                    "load_full_state_dict()."
                )
            if p.requires_grad != home.stepped.requires_grad:
                flag = str(home.stepped.requires_grad)
                raise Impossible(
                    f"requires_grad of {home.name} on {who(model)} was {flag} when the "
                    "module was wrapped and is not now: change it before you wrap it."
                )


def tensors_in(output, module: nn.Module) -> list[Tensor]:
    """Those of what a call returned, or left as an attribute, that a backward can reach."""
    leaves = [
        *chain(*map(opened, tree_leaves(output))),
        *(value for part in module.modules() for value in vars(part).values()),
    ]
    return [
        *{
            id(each): each
            for each in leaves
            if isinstance(each, Tensor) and each.grad_fn is not None
        }.values()
    ]


def opened(value) -> list:
    """A dataclass's tensors too, which torch takes for one value."""
    if is_dataclass(value) and not isinstance(value, type):
        return tree_leaves([getattr(value, each.name) for each in fields(value)])
    return [value]


def refuse_graph(model) -> None:
    refuse_any(
        (
            torch.is_grad_enabled(),
            (
                f"A backward with create_graph=True on {who(model)} would need weights again when "
                "they are gone: take units without FullyShardedDataParallel for it."
            ),
        )
    )


def watch(model) -> None:
    """state_dict and load_state_dict of the module, or of a part of it, refuse; and optimizers that
    need whole tensors."""
    SHARDED.update(dict.fromkeys(model.replicas.pieces, who(model)))
    SHARDED.update(dict.fromkeys(model.replicas.pieces.values(), True))
    TRIED.clear()

    def saved(_, __, ___) -> None:
        refuse_any(
            (
                not model.replicas.gathered_by_hand,
                (
                    "Parameters are sharded, and empty between uses: call "
                    "full_state_dict() of the FullyShardedDataParallel."
                ),
            )
        )

    def loaded(*_) -> None:
        refuse_any(
            (
                not model.replicas.gathered_by_hand,
                (
                    "Parameters are sharded, and empty between uses: call "
                    "load_full_state_dict() of the FullyShardedDataParallel."
                ),
            )
        )

    for part in model.module.modules():
        part.register_state_dict_pre_hook(saved)
        part.register_load_state_dict_pre_hook(loaded)


class Watch(TorchFunctionMode):
    """Around the first forward: no operator gets a parameter while its unit is closed."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = {id(each) for each in tree_leaves((args, kwargs))}
        empty = [
            name
            for unit in self.model.units
            if not unit.there
            for name, p in unit.named.items()
            if id(p) in given
        ]
        asked = getattr(getattr(function, "__self__", None), "__name__", None)  # p.device, p.T
        reads = function.__name__ in ("__get__", "__set__") and asked not in ("T", "mT", "H", "mH")
        refuse_any(
            (
                empty and not reads,
                (
                    f"{', '.join(empty)} on {who(self.model)} is used outside the forward of its "
                    "unit, where it is empty: call the module that has it, or name in units= one "
                    "whose forward uses it."
                ),
            )
        )
        return function(*args, **kwargs or {})


def refuse_inside(model) -> None:
    refuse_any(
        (
            any(unit.there for unit in model.units) or model.open_backwards,
            (
                f"A state of whole tensors was asked for on {who(model)} while a unit is in use: "
                "call finish_gradient_synchronization() before."
            ),
        )
    )


def refuse_copy() -> None:
    raise Impossible(
        "A FullyShardedDataParallel has a part of its parameters only: copy the "
        "module before you wrap it, or keep what full_state_dict() returns."
    )
