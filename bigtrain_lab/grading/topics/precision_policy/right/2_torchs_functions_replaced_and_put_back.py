from contextlib import contextmanager

import torch
from torch.nn import functional as F

LOW = "matmul mm bmm einsum linear conv1d conv2d __matmul__".split()
FULL = "exp softmax log_softmax log pow __pow__".split()
FULL += "sum mean norm layer_norm cross_entropy mse_loss".split()
NARROW = [torch.float16, torch.bfloat16, torch.float32]


def casting(func, dtype):
    def cast(value):
        if isinstance(value, torch.Tensor) and value.dtype in NARROW:
            return value.to(dtype)
        return value

    def cast_and_call(*args, **kwargs):
        return func(*map(cast, args), **{name: cast(each) for name, each in kwargs.items()})

    return cast_and_call


@contextmanager
def answer(dtype):
    saved = []
    for names, to in ((LOW, dtype), (FULL, torch.float32)):
        for name in names:
            for owner in (torch, torch.Tensor, F):
                if hasattr(owner, name):
                    saved.append((owner, name, getattr(owner, name)))
                    setattr(owner, name, casting(getattr(owner, name), to))
    try:
        yield
    finally:
        for owner, name, func in reversed(saved):
            setattr(owner, name, func)
