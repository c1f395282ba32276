"""Sequence parallelism: norms, dropout and residual, which slicing leaves whole, are cut by tokens.

    all-reduce = reduce-scatter + all-gather        so the same bytes travel, and between the two
                                                    each rank has 1/t of the tokens

    x_{S/t} -> norm --gather_sequence--> [ column ... row ] --scatter_sum--> dropout, + x_{S/t}

A norm sees one token at a time, and needs no communication. Its weights are the same on all ranks,
and each rank finds the gradient of its own tokens: `sum_duplicates` adds those up once an update.

Matrices that share an input gather its tokens once in the forward, and once in the backward:

    forward    x_{S/t} --gather--> x_S --> Q, K, V      autograd would save x_S; it saves x_{S/t}
    backward   x_{S/t} --gather--> x_S;  dW_Q = dQ^T x_S, ... at the first product that asks
               dx_S = dQ W_Q + dK W_K + dV W_V --scatter_sum--> dx_{S/t}

Autograd saves tensors through hooks, and asks the innermost ones alone. So those of `SharedGather`
wrap one product, replace x_S, and hand all else to the hooks around them: a checkpoint, a ledger.
The product stays F.linear, with whatever backward it has.

Cost: an all-gather in the backward for each input of column-parallel matrices, a quarter more bytes
than tensor slicing sends; and one all-reduce of the duplicates' gradients an update. Megatron-LM
hides that gather behind dQ W_Q; here nothing does.
Memory: 1/t of all that a layer saves. x_S lives as long as x does in the forward, and from the
first to the last of its products in the backward; where that is split, from I to W.
Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.2.
"""

from functools import partial
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from ..runtime.talk.group import Group
from .checkpoint.again import keep
from .guards import tensor_parallel as guard
from .prepared_model import masters_of
from .tensor_parallel import crossing, cut_of, gathered, in_format, own_part

SEQUENCE = -2  # the dimension: (..., sequence, features)
tokens_gathered = partial(gathered, dim=SEQUENCE)
OF_TOKENS = WeakIdKeyDictionary()  # the parameters that see this rank's tokens alone


def gather_sequence(x: Tensor, group=None, name: str = "gather") -> Tensor:
    """Join the ranks' tokens. The backward scatters the sum of the ranks' gradients."""
    return crossing(x, group, name, tokens_gathered, tokens_summed)


def scatter_sum(x: Tensor, group=None, name: str = "scatter") -> Tensor:
    """Return this rank's tokens of the sum of the ranks' x. The backward joins the gradients."""
    return crossing(x, group, name, tokens_summed, tokens_gathered)


def tokens_summed(x: Tensor, group: Group, name: str) -> Tensor:
    guard.refuse_uneven(f"{name}: the sequence", x.shape[SEQUENCE], group.size)
    return group.reduce_scatter(torch.cat(x.chunk(group.size, SEQUENCE)), name=name)


def own_tokens(group: Group, module: nn.Module, given, output: Tensor) -> Tensor:
    """Cut a module's output, which is the same on all ranks, to this rank's tokens: a hook."""
    return own_part(output, group, "its tokens", SEQUENCE)


@torch.no_grad()
def sum_duplicates(module: nn.Module, group=None, name: str = "gradients of duplicates") -> None:
    """Add the gradients of the module's duplicates up over the ranks, in one all-reduce: before the
    update, and before gradients are clipped. Impossible where it was not sliced with sequence=True:
    its gradients are whole already."""
    group, masters = Group.of(group), masters_of([module])
    if group.size > 1:
        guard.refuse_whole(module, OF_TOKENS)
    duplicates = [p for p in module.parameters() if cut_of(p) is None]
    homes = [home for p in duplicates if (home := masters.get(p, p)).grad is not None]
    if group.size == 1 or not homes:
        return
    flat = torch.cat([home.grad.reshape(-1) for home in homes])
    group.all_reduce(flat, name=name)
    for home, total in zip(homes, flat.split([home.numel() for home in homes])):
        home.grad.copy_(total.view_as(home.grad))


# -- one gather for several products ---------------------------------------------------------------


class SharedGather:
    """The last input of a model's column-parallel matrices: this rank's `local` tokens, and the
    `whole` that was gathered of all. Layers that share the input share it, by `product`. `key`:
    what must be as it was for the gathered tokens to be used again."""

    def __init__(self):
        self.forget()

    def forget(self, _=None) -> None:
        self.of, self.local, self.whole, self.key, self.again = (lambda: None), None, None, (), None

    def product(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, name: str
    ) -> Tensor:
        """Compute x W^T + b for the tokens of all ranks, of which x has this rank's."""
        key = weight.dtype, torch.is_grad_enabled(), x.is_inference() or x._version
        if self.of() is not x or self.key != key:
            local = in_format(x, weight)
            self.of, self.local, self.key = ref(x, self.forget), local.detach(), key
            self.whole = gather_sequence(local, group, name)
            self.again = Again(partial(tokens_gathered, group=group, name=f"{name}: once more"))
        places, again = {address(self.whole): self.local}, self.again

        def pack(tensor: Tensor):
            if (local := places.get(address(tensor))) is None:
                return kept_beyond(tensor).unpack
            again.products += 1
            local, view = (
                kept_beyond(local),
                (tensor.shape, tensor.stride(), tensor.storage_offset()),
            )
            return lambda: again.take(local.unpack()).as_strided(*view)

        with saved_tensors_hooks(pack, lambda unpack: unpack()):
            y = F.linear(self.whole, weight, bias)
        places.clear()  # autograd holds `pack` as long as the graph
        return y


class Again:
    """The gather of a backward, once for so many `products`; the last one drops it."""

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
    """Return the address of torch's record of a storage, which a meta tensor has too."""
    return tensor.untyped_storage()._cdata


def kept_beyond(tensor: Tensor):
    """Save the tensor by the saved-tensor hooks outside ours; return a handle with .unpack(). Torch
    has no public way to ask them."""
    innermost = torch._C._autograd._top_saved_tensors_default_hooks(True)
    torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        return keep(tensor)
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks(*innermost)
