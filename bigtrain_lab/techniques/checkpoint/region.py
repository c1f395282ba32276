"""checkpoint(fn, ...): keep the arguments of a call, and compute in the backward what autograd
would have saved.

Autograd saves tickets (tickets.py) in place of tensors. The first ticket that a backward shows runs
fn again on the kept arguments. The graph is the plain one, so everything that works on a graph
works: several outputs, inputs without gradients, torch.autograd.grad, retain_graph, a backward of a
backward, and checkpoints inside checkpoints.

Memory: fn's arguments, and a random state of 5 kB, which a ledger does not see (conditions.py);
during the backward all that fn saves. Time: one more forward at most.
fn must do the same when it runs again. The tickets check that, and we also check that no weight
changed. The modules that fn uses get the weights back that they had (beside.py).
Source: Chen et al. 2016 (arXiv:1604.06174), by the hooks of torch.autograd.graph.
"""

from threading import RLock

import torch
from torch import Tensor
from torch._C._autograd import SavedTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..guards import checkpoint as guard
from .conditions import Conditions
from .tickets import Tickets, keep


def checkpoint(fn, /, *args, **kwargs):
    """fn(*args, **kwargs), whose saved tensors are computed anew in the backward. Arguments of any
    kind; tensors may be nested.

    Impossible where fn changes an argument in place or returns nothing, and in the backward where
    it runs differently.
    """
    guard.refuse_options(kwargs)
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    leaves, form = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    versions = guard.versions(leaves, args, kwargs)
    region = _Region(fn, leaves, tensors, form)
    with region.tickets.first(region.fill, tensors):
        result = fn(*args, **kwargs)
    region.in_forward, region.conditions = False, region.conditions.after(fn, guard.called(fn))
    guard.refuse_result(fn, result, leaves, versions, args, kwargs)
    return result


class _Region:
    """One call of checkpoint. Its tickets hold it: it goes when the last of them goes."""

    def __init__(self, fn, leaves: list, tensors: list[Tensor], form):
        self.fn, self.form, self.conditions = fn, form, Conditions.now(tensors, fn=fn)
        self.leaves = [keep(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.tickets, self.in_forward = Tickets(guard.called(fn), RLock()), True
        # in_forward: fn's own forward may ask for gradients

    def fill(self) -> None:
        leaves = [own(leaf) if isinstance(leaf, SavedTensor) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.form)
        with self.conditions.restored():
            self.tickets.again(lambda: self.fn(*args, **kwargs), held=not self.in_forward)
        self.conditions = self.conditions.again()


def own(handle: SavedTensor) -> Tensor:
    """The kept tensor, cut from the graph it came from, with a gradient where it had one."""
    tensor = handle.unpack()
    return tensor.detach().requires_grad_(tensor.requires_grad)
