from contextlib import contextmanager

import torch
from torch.nn import functional as F

LOW = "matmul mm bmm addmm baddbmm einsum linear conv1d conv2d __matmul__".split()
LOW += ["scaled_dot_product_attention"]
FULL = "exp softmax log_softmax log pow __pow__ __rpow__".split()
FULL += "sum mean var std norm layer_norm cross_entropy mse_loss".split()
NARROW = [torch.float16, torch.bfloat16, torch.float32]
OWN = {
    (owner, name): getattr(owner, name)
    for owner in (torch, torch.Tensor, F)
    for name in LOW + FULL
    if hasattr(owner, name)
}


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
    before = {place: getattr(*place) for place in OWN}
    for (owner, name), func in OWN.items():
        setattr(owner, name, casting(func, dtype if name in LOW else torch.float32))
    try:
        yield
    finally:
        for place, func in before.items():
            setattr(*place, func)
