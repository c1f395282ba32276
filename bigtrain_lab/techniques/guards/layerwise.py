"""What LAMB and LARS refuse: numbers out of range, and tensors that they would step wrongly."""

from torch import Tensor

from . import refuse

OPTIONS = {
    "lr": (lambda value: 0 <= value < float("inf"), "a finite number of at least 0"),
    "eps": (lambda value: value >= 0, "a number of at least 0"),
    "weight_decay": (lambda value: value >= 0, "a number of at least 0"),
    "betas": (
        lambda value: len(value) == 2 and all(0 <= beta < 1 for beta in value),
        "two numbers from 0 to below 1",
    ),
    "momentum": (lambda value: 0 <= value < 1, "a number from 0 to below 1"),
    "trust_coefficient": (lambda value: value > 0, "a number above 0"),
    "clip_norm": (lambda value: value is None or value > 0, "a number above 0, or None"),
    # torch's optimizers know these; of a parameter group LAMB and LARS would not read them
    "maximize": (lambda value: not value, "False, and the loss with a minus"),
    "amsgrad": (lambda value: not value, "False"),
    "max_grad_norm": (lambda value: value is None or value > 0, "a number above 0, or None"),
}


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
