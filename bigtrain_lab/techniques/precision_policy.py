"""An operator policy: which operators compute in 16 bits, and which in float32.

It is in force inside `with Policy(dtype):`.

    LOW      matrix products, in 16 bits: most of the work; fast units sum them in float32
    FULL     exp, powers, logarithms, norms, losses and long sums, in float32: exp(11.1) and 256^2
             are inf in fp16, and a sum of 1 + 1 + ... stalls at 2,048 (256 in bf16)
    WIDEST   operators of several tensors of which torch refuses a mixture: in the widest type
    others   as torch has them: float16 + float32 is a float32

Never cast: integers and bools (ids, labels, masks), float64, and results written in place or to
`out=`. A float mask of -1e9 overflows fp16: use -inf. Autograd records a cast as an operator, so a
gradient has the type of its tensor.

The tables contain torch.autocast's for CUDA, for every device. (Its CPU tables differ: they leave a
softmax in bf16.) They add what overflows or stalls alike: mean, var, exp2, lerp ... An inverse or a
solve is in none of them: give it float32, as under autocast.
Cost: 1 to 2 us an operator in Python, and the casts.
Source: Micikevicius et al. 2018 (arXiv:1710.03740), section 3.3.
"""

from functools import reduce
from types import FunctionType

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

LOW = {
    "products": (
        "matmul __rmatmul__ mm bmm mv addmm addmv addbmm addr baddbmm chain_matmul linalg_matmul"
        " linalg_multi_dot linalg_vecdot einsum linear"
    ),
    "convolutions": (
        "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d"
    ),
    "attention": "scaled_dot_product_attention",  # its softmax is in float32 inside the kernel
    "recurrences": "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    "activations": "prelu",  # its slope is a weight
}
FULL = {
    "softmax": (
        "softmax log_softmax softmin logsumexp logaddexp logaddexp2 softplus gumbel_softmax"
        " special_softmax special_log_softmax special_logsumexp"
    ),
    "norms of layers": (
        "layer_norm rms_norm group_norm batch_norm instance_norm local_response_norm normalize"
    ),
    "losses": (
        "cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse_loss"
        " l1_loss smooth_l1_loss huber_loss kl_div gaussian_nll_loss poisson_nll_loss"
        " hinge_embedding_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss"
        " multilabel_soft_margin_loss soft_margin_loss triplet_margin_loss cosine_embedding_loss"
        " ctc_loss cosine_similarity"
    ),
    "exponentials": (
        "exp exp2 expm1 log log2 log10 log1p sinh cosh tan acos asin erfinv special_exp2"
        " special_expm1 special_log1p special_erfinv"
    ),
    "powers": "pow __rpow__ float_power square rsqrt reciprocal __rdiv__ __rtruediv__",
    "resampling": "interpolate upsample",
    "long sums": (
        "sum nansum mean nanmean prod cumsum cumprod logcumsumexp var std var_mean std_mean norm"
        " linalg_norm linalg_vector_norm linalg_matrix_norm dist cdist pdist pairwise_distance"
        " renorm trace"
    ),
}
WIDEST = {
    "mixed types": (
        "addcmul addcdiv atan2 bilinear cross dot inner outer vdot tensordot grid_sample index_put"
        " index_add index_copy scatter scatter_add lerp cat concat concatenate stack hstack vstack"
        " where"
    )
}
COMPOSED = functional.__name__, torch.autograd.__name__


def listed(table: dict[str, str]) -> frozenset[str]:
    return frozenset(name for names in table.values() for name in names.split())


class Policy(TorchFunctionMode):
    """Mode that casts operators' arguments. `dtype`: torch.float16 or torch.bfloat16, for the
    operators of LOW."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype
        self.rule = (
            dict.fromkeys(listed(LOW), dtype)
            | dict.fromkeys(listed(FULL), torch.float32)
            | dict.fromkeys(listed(WIDEST))
        )
        self.opened: dict = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in self.rule and kwargs.get("out") is None:
            to = self.rule[name] or widest((args, kwargs))
            args, kwargs = (
                [cast(each, to) for each in args],
                {key: cast(value, to) for key, value in kwargs.items()},
            )
        elif type(func) is FunctionType and (
            func.__module__ in COMPOSED or func is Tensor.backward
        ):
            func = self.inside(func)
        return func(*args, **kwargs)

    def inside(self, func):
        """Return a Python function of torch, such as multi_head_attention_forward, that runs under
        the policy. Tensor.backward is one too, for what torch's checkpoint reruns in it.

        Called as it is, the function would dispatch to this mode again without end. So run a copy
        whose has_torch_function is always False.
        """
        if func not in self.opened:
            no_dispatch = {
                name: lambda *_: False
                for name in func.__globals__
                if name.startswith("has_torch_function")
            }
            copy = FunctionType(
                func.__code__,
                func.__globals__ | no_dispatch,
                func.__name__,
                func.__defaults__,
                func.__closure__,
            )
            copy.__kwdefaults__ = func.__kwdefaults__
            self.opened[func] = copy

        def under_policy(*args, **kwargs):
            with self:
                return self.opened[func](*args, **kwargs)

        return under_policy


def cast(value, to: torch.dtype | None):
    """Cast a floating tensor, or those in a list or tuple, to that type. Everything else, float64
    too, stays as it is. `to` is None if there is no floating tensor."""
    if isinstance(value, Tensor):
        own = value.dtype
        return (
            value
            if own is to or own is torch.float64 or not own.is_floating_point
            else value.to(to)
        )
    is_row = type(value) in (list, tuple)
    return type(value)(cast(each, to) for each in value) if is_row else value


def widest(values) -> torch.dtype | None:
    """Return the type to which torch promotes all floating tensors among the values: float32 for
    float16 and bfloat16."""
    found = [
        each.dtype
        for each in tree_leaves(values)
        if isinstance(each, Tensor) and each.is_floating_point()
    ]
    return reduce(torch.promote_types, found) if found else None
