import torch
from torch.overrides import TorchFunctionMode

LOW = "matmul mm bmm einsum linear conv1d conv2d".split()
FULL = "exp softmax log_softmax log pow".split()
FULL += "sum mean norm layer_norm cross_entropy mse_loss".split()
NARROW = [torch.float16, torch.bfloat16, torch.float32]


class answer(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.__name__, kwargs or {}
        if name in LOW:
            return self.call(func, args, kwargs, self.dtype)
        if name in FULL:
            return self.call(func, args, kwargs, torch.float32)
        return func(*args, **kwargs)

    def call(self, func, args, kwargs, dtype):
        args = [self.cast(each, dtype) for each in args]
        return func(*args, **{name: self.cast(each, dtype) for name, each in kwargs.items()})

    def cast(self, value, dtype):
        if isinstance(value, torch.Tensor) and value.dtype in NARROW:
            return value.to(dtype)
        return value
