"""The optimizers that an experiment's menu offers, with what each costs."""

import torch

OPTIMIZERS = {
    # name: values of state a weight, bytes of state a tensor beside them, values read and written a weight, how to make it
    "sgd": (0, 0, 3, lambda lr: lambda params: torch.optim.SGD(params, lr)),
    "momentum": (1, 0, 5, lambda lr: lambda params: torch.optim.SGD(params, lr, momentum=0.9)),
    "adam": (2, 4, 7, lambda lr: lambda params: torch.optim.Adam(params, lr)),
}

COUNTED = ("derived: torch's step reads gradient and weight and writes the weight; momentum reads and writes its buffer too, "
           "Adam its two; each tensor of Adam has a step count in float32")


def state_bytes(optimizer: str, weight_bytes: int, tensors: int) -> int:
    """What it keeps between steps for weights of so many bytes, in so many tensors."""
    values, a_tensor, _, _ = OPTIMIZERS[optimizer]
    return values * weight_bytes + a_tensor * tensors
