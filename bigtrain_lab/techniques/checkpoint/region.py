"""checkpoint(fn, ...): one call whose saved tensors are tickets (tickets.py); the first that is shown runs fn again on the kept arguments.

The graph is the plain one, so everything that works on a graph works: several outputs, inputs without gradients,
torch.autograd.grad, retain_graph, a backward of a backward, checkpoints inside checkpoints (an inner one's arguments are
saved by the outer one, so a ticket of the outer stands for them).

Memory: fn's arguments, kept through autograd, so that whoever counts what autograd saves counts them, and a random state
of 5 kB, which a ledger does not see (conditions.py); during the backward all that fn saves. Time: one more forward at most.
fn must do the same when it runs again on the same arguments; beside what the tickets check, that no weight of a module has changed is,
and the modules that it uses get the weights back that they had (beside.py).
Source: Chen et al. 2016 (arXiv:1604.06174), by the hooks of torch.autograd.graph.
"""

from threading import RLock

import torch
from torch import Tensor
from torch._C._autograd import SavedTensor
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from ...core import Impossible
from .conditions import Conditions
from .tickets import Tickets, keep

TORCH_S = {"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "early_stop"}


def checkpoint(fn, /, *args, **kwargs):
    """fn(*args, **kwargs), whose saved tensors are computed anew in the backward. Arguments of any kind; tensors may be nested.

    Impossible where fn changes an argument in place or returns nothing, and in the backward where it runs differently.
    """
    if options := TORCH_S & kwargs.keys():
        raise Impossible(f"{min(options)} is an option of torch.utils.checkpoint: leave it out, or give it to fn itself by functools.partial.")
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    leaves, form = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    try:
        versions = [leaf._version if isinstance(leaf, Tensor) else None for leaf in leaves]
    except RuntimeError:
        at = next(at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_inference())
        raise Impossible(f"{argument(at, args, kwargs)} was made in inference mode, so no backward can keep it: pass its clone().") from None
    region = _Region(fn, leaves, tensors, form)
    with region.tickets.first(region.fill, tensors):
        result = fn(*args, **kwargs)
    region.in_forward, region.conditions = False, region.conditions.after(fn, called(fn))
    for at, (leaf, version) in enumerate(zip(leaves, versions)):
        if version is not None and leaf._version != version:
            raise Impossible(f"{called(fn)} changed {argument(at, args, kwargs)} in place, so its recompute would start from other "
                             "values: write the result to a new tensor.")
    if result is None:
        raise Impossible(f"{called(fn)} returned nothing, so no gradient can reach what it computed: return the result.")
    return result


class _Region:
    """One call of checkpoint. Its tickets hold it: it goes when the last of them goes."""

    def __init__(self, fn, leaves: list, tensors: list[Tensor], form):
        self.fn, self.form, self.conditions = fn, form, Conditions.now(tensors, fn=fn)
        self.leaves = [keep(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.tickets, self.in_forward = Tickets(called(fn), RLock()), True  # fn's own forward may ask for gradients

    def fill(self) -> None:
        args, kwargs = tree_unflatten([own(leaf) if isinstance(leaf, SavedTensor) else leaf for leaf in self.leaves], self.form)
        with self.conditions.restored():
            self.tickets.again(lambda: self.fn(*args, **kwargs), held=not self.in_forward)
        self.conditions = self.conditions.again()


def own(handle: SavedTensor) -> Tensor:
    """The kept tensor, cut from the graph it came from, with a gradient where it had one."""
    tensor = handle.unpack()
    return tensor.detach().requires_grad_(tensor.requires_grad)


def called(fn) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)


def argument(at: int, args: tuple, kwargs: dict) -> str:
    """How the caller would name it: args[0], or kwargs['mask']."""
    (which, *inside), _ = tree_flatten_with_path((args, kwargs))[0][at]
    return ("args", "kwargs")[which.idx] + keystr(tuple(inside))
