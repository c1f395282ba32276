"""Tickets: what autograd would save in one call of a function, held by numbers only, until the function has run again.

    first     autograd saves t0, t1, t2, ...     and is given ticket 0, ticket 1, ticket 2, ... in their place
    again     it shows a ticket                  whoever gave it runs the function again; what is saved first, second, third
                                                 goes to tickets 0, 1, 2; after the last that is alive the run is stopped

So the graph is the plain one, and everything that works on a graph works. A filled ticket holds its tensor as autograd would:
until its node has run, or, where the graph is retained, until it is shown: the next backward runs the function again.

That a rerun saves as many tensors, each of its shape, type and device, and that no weight among them has changed, is checked;
values are not.
Source: torch.autograd.graph.saved_tensors_hooks (torch 2.13, "Hooks for saved tensors").
"""

from collections.abc import Callable
from weakref import ref

import torch
from torch import Tensor
from torch._C._autograd import SavedTensor, _get_current_graph_task_keep_graph, _make_saved_tensor, _top_saved_tensors_default_hooks
from torch.autograd.graph import saved_tensors_hooks

from ...core import Impossible
from .conditions import weight_moved

AGAIN = "Let it depend on its arguments and torch's random state only."


def keep(tensor: Tensor) -> SavedTensor:
    """A handle with .unpack(), which holds the tensor as autograd holds what it saves: active hooks see it, a change in place is told."""
    return _make_saved_tensor(tensor, is_output=False)


class Tickets:
    """Those of one call. It holds them weakly: they hold whoever fills them, and go with the graph.

    `name`: of the function, for sentences. `lock`: of all that one filling may touch, for in a backward each device has a thread.
    """

    def __init__(self, name: str, lock):
        self.name, self.lock = name, lock
        self.given: list[ref[_Ticket]] = []

    def first(self, fill: Callable[[], None]) -> saved_tensors_hooks:
        """The context of the first call. `fill()` will run the function again, by `again`."""
        def pack(tensor: Tensor) -> _Ticket:
            ticket = _Ticket(fill, self.lock, looks(tensor))
            self.given.append(ref(ticket))
            return ticket
        return saved_tensors_hooks(pack, _Ticket.unpack)

    def again(self, call: Callable, whole: bool = False, held: bool = True):
        """Fill every ticket that is alive by call(). Its result where the call is to run `whole`, else None: it ends with the last ticket.

        `held`: the tensors as autograd holds what it saves; not while the first call is still under way, for the rerun will not save them.
        """
        tickets = [ticket() for ticket in self.given]
        last = max((at for at, ticket in enumerate(tickets) if ticket), default=-1)
        saved: list[tuple[Tensor, int]] = []  # in order, each with its version then

        def collect(tensor: Tensor) -> Tensor:
            tensor = tensor.detach()  # an output that its own graph saves would hold that graph for ever
            if len(saved) <= last:
                if ticket := tickets[len(saved)]:
                    shape, dtype, device, version = ticket.looks
                    if tensor.shape != shape or tensor.dtype != dtype or tensor.device != device:
                        raise Impossible(f"{self.name} did not do the same when it ran again: tensor {len(saved)} that autograd saves was "
                                         f"{described(ticket.looks)}, and is now {described(looks(tensor))}. {AGAIN}")
                    if version is not None and tensor._version != version:
                        raise weight_moved(shape, self.name)
                saved.append((tensor, tensor._version))
                if len(saved) > last and not whole:
                    raise _Enough
            return tensor

        result = None
        if last >= 0 or whole:
            try:
                with torch.set_grad_enabled(last >= 0), saved_tensors_hooks(collect, lambda tensor: tensor):
                    result = call()
            except _Enough:
                pass
        if len(saved) <= last:
            raise Impossible(f"{self.name} saved {len(saved)} tensors when it ran again, and {len(tickets)} before: {AGAIN}")
        held = held and _top_saved_tensors_default_hooks(True)  # where nobody looks on, a handle is only slower
        for ticket, (tensor, version) in zip(tickets, saved):
            if ticket and tensor._version != version:  # autograd's own check is off where hooks pack
                raise Impossible(f"{self.name} changed a {described(ticket.looks)} in place which its backward needs: write the result to a new "
                                 "tensor.")
            if ticket:
                ticket.kept = keep(tensor) if held else (tensor, version)
        return result


class _Ticket:
    """What autograd holds in place of a saved tensor."""

    __slots__ = ("fill", "lock", "looks", "kept", "__weakref__")

    def __init__(self, fill: Callable[[], None], lock, looks: tuple):
        self.fill, self.lock, self.looks, self.kept = fill, lock, looks, None

    def unpack(self) -> Tensor:
        with self.lock:
            if self.kept is None:
                self.fill()
            kept = self.kept
            if _get_current_graph_task_keep_graph():
                self.kept = None
        if isinstance(kept, SavedTensor):
            return kept.unpack()
        tensor, version = kept
        if tensor._version != version:
            raise Impossible(f"A {described(self.looks)} was changed in place while a backward that needs it ran: write the result to a new tensor.")
        return tensor


class _Enough(BaseException):
    """Ends a run whose last wanted tensor is there. No Exception, so that no `except Exception` in the function stops it."""


def looks(tensor: Tensor) -> tuple:
    """What a rerun can be held to without keeping the tensor: shape, type, device, and of a weight how often it was changed in place."""
    owner = tensor if tensor._base is None else tensor._base
    return tensor.shape, tensor.dtype, tensor.device, tensor._version if owner.is_leaf and owner.requires_grad else None


def described(looks: tuple) -> str:
    shape, dtype, device, _ = looks
    return f"{str(dtype).removeprefix('torch.')} of shape {tuple(shape)} on {device}"
