import torch
from torch.overrides import TorchFunctionMode

LOW = "matmul mm bmm addmm baddbmm einsum linear conv1d conv2d".split()
LOW += ["scaled_dot_product_attention"]
FULL = "exp softmax log_softmax log pow __rpow__".split()
FULL += "sum mean var std norm layer_norm cross_entropy mse_loss".split()
NARROW = [torch.float16, torch.bfloat16, torch.float32]
entered = []


class answer(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __enter__(self):
        entered.append(self)
        return super().__enter__()

    def __exit__(self, *error):
        entered.pop()
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.__name__, kwargs or {}
        if self is not entered[-1]:
            return func(*args, **kwargs)
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
