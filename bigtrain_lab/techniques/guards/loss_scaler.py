"""What cannot be scaled, or would be unscaled twice or never: refused in one sentence."""

import operator

import torch
from torch import Tensor

from . import refuse
from .optimizers import is_part


def rule(growth_factor, backoff_factor, growth_interval) -> tuple[float, float, int]:
    refuse(
        (
            not (
                growth_factor > 1 > backoff_factor > 0
                and hasattr(growth_interval, "__index__")
                and growth_interval >= 1
            ),
            (
                f"{growth_factor=}, {backoff_factor=}, {growth_interval=}: the scale must grow by a"
                " factor above 1, back off by one between 0 and 1, and wait a whole number of"
                " steps, at least 1 step."
            ),
        )
    )
    return growth_factor, backoff_factor, operator.index(growth_interval)


def usable(scale) -> float:
    """As a float32, as on a device: in it 1e-50 is 0 and 1e39 is inf."""
    number = torch.tensor(float(scale), dtype=torch.float32).item()
    refuse(
        (
            not 0 < number < float("inf"),
            (
                f"A loss scale of {scale!r} scales nothing: take a positive number that float32"
                " holds, such as 65536."
            ),
        )
    )
    return number


def refuse_format(what: str, tensor: Tensor, half: bool = True) -> None:
    """`half`: whether float16 is let through."""
    refuse(
        (
            tensor.dtype == torch.float64,
            (
                f"{what} is float64, whose smallest number is 2^-1074: nothing underflows there and"
                " a loss scale does no good. Train a float64 model without a scaler, or convert it"
                " with model.float()."
            ),
        ),
        (
            tensor.dtype == torch.float16 and not half,
            (
                f"{what} is float16: divided by the scale it would vanish again. Keep float32"
                " master weights, whose gradients are float32 (MixedPrecision does), or let the"
                " model stay in float32 under a policy."
            ),
        ),
    )


def refuse_unscale(scaler, unscaled: bool, own: set[Tensor], gradients: list[Tensor]) -> None:
    """`unscaled`: since the last update; `own`: the optimizer's parameters, with `gradients`."""
    refuse(
        (
            unscaled,
            (
                "These gradients were unscaled since the last update(): a second division would"
                f" make them {scaler.get_scale():g} times too small. Call unscale_ once a step,"
                " before clipping."
            ),
        ),
        (
            scaler.agreed is not None,
            (
                "The ranks have agreed on this step, and another optimizer comes after it: step all"
                " at once, as mp.step(one, other), or unscale_ each before the first step."
            ),
        ),
        (
            scaler.learnt & own,
            (
                "Two optimizers hold one parameter, whose gradient would be divided twice: give"
                " each weight, a tied one too, to one."
            ),
        ),
        (
            scaler.group is None and any(map(is_part, own)),
            (
                "Other ranks hold the rest of these weights, and may find an inf that this one does"
                " not: give DynamicLossScaler(group=...) all ranks that train the model."
            ),
        ),
        (
            not gradients,
            (
                "None of the optimizer's parameters has a gradient: call scale(loss).backward() "
                "before, of a loss that depends on them."
            ),
        ),
        (
            not scaler.scaled,
            (
                f"No loss was scaled yet, so dividing these gradients by {scaler.get_scale():g}"
                " would all but stop the training: call scale(loss).backward() instead of"
                " loss.backward()."
            ),
        ),
    )
    for gradient in gradients:
        refuse_format("A gradient", gradient, scaler.half_gradients)


def refuse_step(stepped: bool, args: tuple, kwargs: dict) -> None:
    refuse(
        (
            kwargs.get("closure") is not None or any(map(callable, args)),
            (
                "step() was given a closure: it makes new gradients inside the optimizer, still S "
                "times too large and not looked at. Use an optimizer that needs none, or train "
                "without a scaler (bf16 needs none)."
            ),
        ),
        (
            stepped,
            (
                "step() was called for this optimizer since the last update(): call update() once"
                " all optimizers have stepped."
            ),
        ),
    )


def refuse_update(known: bool) -> None:
    refuse(
        (
            not known,
            (
                "update() before any step(): nothing was learnt about the scale. Call"
                " step(optimizer) first."
            ),
        )
    )
