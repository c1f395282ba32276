"""checkpoint(fn, ...): what autograd would save inside fn becomes a ticket, and the first ticket shown runs fn again.

    forward    autograd saves t0, t1, t2, ...           and is given ticket 0, ticket 1, ticket 2, ... in their place
    backward   it shows a ticket                        fn runs again on the kept arguments; what is saved first, second,
                                                        third goes to tickets 0, 1, 2; after the last ticket that is still
                                                        alive the run is stopped; each tensor leaves as its ticket is shown

The graph itself is the plain one, so everything that works on a graph works: several outputs, inputs without gradients,
torch.autograd.grad, retain_graph, a backward of a backward, checkpoints inside checkpoints (an inner one's arguments are
saved by the outer one, so a ticket of the outer stands for them).

Memory: fn's arguments, kept through autograd, so that whoever counts what autograd saves counts them, and a random state
of 5 kB, which a ledger does not see (conditions.py); during the backward all that fn saves. Time: one more forward at most. fn must do the same when it runs again on the same arguments: that no
tensor is missing, that each has its shape, type and device, and that no weight has changed (those of a module, and those that
autograd saves of any other function) is checked; values are not.
Source: torch.autograd.graph.saved_tensors_hooks (torch 2.13, "Hooks for saved tensors").
"""

from threading import RLock
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch._C._autograd import SavedTensor, _make_saved_tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from ...core import Impossible
from .conditions import Conditions, weight_moved


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
    try:
        versions = [leaf._version if isinstance(leaf, Tensor) else None for leaf in leaves]
    except RuntimeError:
        at = next(at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_inference())
        raise Impossible(f"{argument(at, args, kwargs)} was made in inference mode, so no backward can keep it: pass its clone().") from None
    region = _Region(fn, leaves, form)
    with saved_tensors_hooks(region.pack, _Ticket.unpack):
        result = fn(*args, **kwargs)
    region.in_forward, region.conditions = False, region.conditions.with_weights(fn, called(fn))
    for at, (leaf, version) in enumerate(zip(leaves, versions)):
        if version is not None and leaf._version != version:
            raise Impossible(f"{called(fn)} changed {argument(at, args, kwargs)} in place, so its recompute would start from other "
                             "values: write the result to a new tensor.")
    if result is None:
        raise Impossible(f"{called(fn)} returned nothing, so no gradient can reach what it computed: return the result.")
    return result


def keep(tensor: Tensor) -> SavedTensor:
    """A handle with .unpack(), which holds the tensor as autograd holds what it saves: active hooks see it, a change in place is told."""
    return _make_saved_tensor(tensor, is_output=False)


class _Ticket:
    """What autograd holds in place of a saved tensor."""

    __slots__ = ("region", "looks", "kept", "__weakref__")

    def __init__(self, region: "_Region", looks: "_Looks"):
        self.region, self.looks, self.kept = region, looks, None

    def unpack(self) -> Tensor:
        with self.region.lock:
            if self.kept is None:
                self.region.run_again()
            kept, self.kept = self.kept, None
        return kept.unpack() if isinstance(kept, SavedTensor) else kept


class _Region:
    """One call of checkpoint. Its tickets hold it: it goes when the last of them goes."""

    def __init__(self, fn, leaves: list, form):
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.fn, self.form, self.conditions = fn, form, Conditions.now(tensors)
        self.leaves = [keep(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.tickets: list[ref[_Ticket]] = []
        self.in_forward, self.lock = True, RLock()  # in a backward each device has a thread

    def pack(self, tensor: Tensor) -> _Ticket:
        ticket = _Ticket(self, _Looks.of(tensor))
        self.tickets.append(ref(ticket))
        return ticket

    def run_again(self) -> None:
        """Fill every ticket that is still alive."""
        tickets = [ticket() for ticket in self.tickets]
        last = max(at for at, ticket in enumerate(tickets) if ticket)
        saved: list[tuple[Tensor, int]] = []  # in order, each with its version then

        def collect(tensor: Tensor) -> Tensor:
            tensor = tensor.detach()  # an output that its own graph saves would hold that graph for ever
            if ticket := tickets[len(saved)]:
                ticket.looks.require(tensor, called(self.fn), len(saved))
            saved.append((tensor, tensor._version))
            if len(saved) > last:
                raise _Enough
            return tensor

        args, kwargs = tree_unflatten([own(leaf) if isinstance(leaf, SavedTensor) else leaf for leaf in self.leaves], self.form)
        try:
            with self.conditions.restored(), torch.enable_grad(), saved_tensors_hooks(collect, lambda tensor: tensor):
                self.fn(*args, **kwargs)
        except _Enough:
            pass
        self.conditions = self.conditions.with_weights(self.fn, called(self.fn))
        if len(saved) <= last:
            raise Impossible(f"{called(self.fn)} saved {len(saved)} tensors when it ran again, and {len(tickets)} before: {AGAIN}")
        for ticket, (tensor, version) in zip(tickets, saved):
            if ticket and tensor._version != version:  # autograd's own check is off where hooks pack
                raise Impossible(f"{called(self.fn)} changed a {ticket.looks} in place which its backward needs: write the result to a new tensor.")
            if ticket:  # inside fn's own forward (it may ask for gradients) nothing more is saved: the rerun will not save it either
                ticket.kept = tensor if self.in_forward else keep(tensor)


class _Enough(BaseException):
    """Ends a run whose last wanted tensor is there. No Exception, so that no `except Exception` in fn stops it."""


class _Looks(NamedTuple):
    """What a rerun can be held to without keeping the tensor."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    version: int | None  # of a weight: how often it was changed in place

    @classmethod
    def of(cls, tensor: Tensor) -> "_Looks":
        owner = tensor if tensor._base is None else tensor._base
        return cls(tensor.shape, tensor.dtype, tensor.device, tensor._version if owner.is_leaf and owner.requires_grad else None)

    def require(self, tensor: Tensor, name: str, at: int) -> None:
        if (tensor.shape, tensor.dtype, tensor.device) != self[:3]:
            raise Impossible(f"{name} did not do the same when it ran again: tensor {at} that autograd saves was {self}, and is now "
                             f"{_Looks.of(tensor)}. {AGAIN}")
        if self.version is not None and tensor._version != self.version:
            raise weight_moved(self.shape, name)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} of shape {tuple(self.shape)} on {self.device}"


AGAIN = "Let it depend on its arguments and torch's random state only."


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
