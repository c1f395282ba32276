"""Matrices that share an input gather its tokens once in the forward, and once in the backward.

    forward    x_S/t --gather--> x_S --> Q, K, V            autograd would save x_S; it saves x_S/t
    backward   x_S/t --gather--> x_S;  dW_Q = dQ^T x_S, ... at the first product that asks
               dx_S = dQ W_Q + dK W_K + dV W_V --scatter_sum--> dx_S/t

Autograd saves tensors through hooks, and asks the innermost ones alone. So these wrap one product,
replace x_S, and hand all else to the hooks around them: a checkpoint, a ledger. The product stays
F.linear, with whatever backward it has.

Cost: (t - 1) / t of x_S received once more a backward. Megatron-LM hides that behind dQ W_Q; here
nothing does. Memory: x_S lives as long as x does in the forward, and from the first to the last of
its products in the backward; where that is split, from I to W.
Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.2.
"""

from functools import partial
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from ..runtime.talk.group import Group
from .checkpoint.again import keep
from .checkpoint.chain import top_hooks
from .sequence_parallel import gather_sequence, tokens_gathered
from .tensor_parallel import in_format


class SharedGather:
    """The last input of a model's column-parallel matrices: this rank's `own` tokens, and the
    `whole` that was gathered of all. Its `product` is that of the layers."""

    def __init__(self):
        self.forget()

    def forget(self, _=None) -> None:
        self.of, self.own, self.whole, self.like, self.again = (lambda: None), None, None, (), None

    def product(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, name: str
    ) -> Tensor:
        """x W^T + b for the tokens of all ranks, of which x has this rank's."""
        like = weight.dtype, torch.is_grad_enabled(), x.is_inference() or x._version
        if self.of() is not x or self.like != like:
            own = in_format(x, weight)
            self.of, self.own, self.like = ref(x, self.forget), own.detach(), like
            self.whole = gather_sequence(own, group, name)
            self.again = Again(partial(tokens_gathered, group=group, name=f"{name}: once more"))
        places, again = {address(self.whole): self.own}, self.again

        def pack(tensor: Tensor):
            if (own := places.get(address(tensor))) is None:
                return kept_beyond(tensor).unpack
            again.products += 1
            own, look = kept_beyond(own), (tensor.shape, tensor.stride(), tensor.storage_offset())
            return lambda: again.take(own.unpack()).as_strided(*look)

        with saved_tensors_hooks(pack, lambda unpack: unpack()):
            y = F.linear(self.whole, weight, bias)
        places.clear()  # autograd holds `pack` as long as the graph
        return y


class Again:
    """The gather of a backward, for so many `products`."""

    def __init__(self, gather):
        self.gather, self.whole, self.products, self.left = gather, None, 0, 0

    def take(self, own: Tensor) -> Tensor:
        if self.whole is None:
            self.whole, self.left = self.gather(own), self.products
        whole, self.left = self.whole, self.left - 1
        if not self.left:
            self.whole = None
        return whole


def address(tensor: Tensor) -> int:
    """Of torch's record of a storage, which a meta tensor has too."""
    return tensor.untyped_storage()._cdata


def kept_beyond(tensor: Tensor):
    """A handle with .unpack(), as the hooks around the innermost ones keep the tensor. Torch has no
    public way to ask them."""
    innermost = top_hooks()
    torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        return keep(tensor)
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks(*innermost)
