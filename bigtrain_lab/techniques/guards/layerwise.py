"""What LAMB and LARS refuse: numbers out of range, and tensors that they would step wrongly."""

from torch import Tensor

from . import refuse

RANGES = {  # option -> (what it must be, whether it is)
    "lr": ("a finite number of at least 0", lambda value: 0 <= value < float("inf")),
    "eps": ("at least 0", lambda value: value >= 0),
    "weight_decay": ("at least 0", lambda value: value >= 0),
    "betas": (
        "two numbers from 0 to below 1",
        lambda value: len(value) == 2 and all(0 <= beta < 1 for beta in value),
    ),
    "momentum": ("from 0 to below 1", lambda value: 0 <= value < 1),
    "trust_coefficient": ("above 0", lambda value: value > 0),
    "clip_norm": ("above 0, or None", lambda value: value is None or value > 0),
    "max_grad_norm": ("above 0, or None", lambda value: value is None or value > 0),
}


def refuse_options(options: dict) -> None:
    for name, (what, holds) in RANGES.items():
        refuse(
            (
                name in options and not holds(options[name]),
                f"{name} is {options.get(name)!r}: it must be {what}.",
            )
        )


def refuse_parameters(parameters: list[Tensor]) -> None:
    refuse(
        *(
            (
                not p.is_floating_point(),
                (
                    f"Parameter {number} is {str(p.dtype).removeprefix('torch.')}: a norm of a"
                    " layer needs real floating-point numbers, so give complex ones as two real"
                    " tensors."
                ),
            )
            for number, p in enumerate(parameters)
        )
    )
