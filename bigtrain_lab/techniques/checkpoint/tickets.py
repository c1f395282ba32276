"""Tickets: what autograd would save in one call of a function, held by numbers only, until the
function has run again.

    first     autograd saves t0, t1, t2, ...     and is given ticket 0, ticket 1, ticket 2, ... in
                                                 their place
    again     it shows a ticket                  whoever gave it runs the function again; what is
                                                 saved first, second, third
                                                 goes to tickets 0, 1, 2; after the last that is
                                                 alive the run is stopped

So the graph is the plain one, and everything that works on a graph works. A filled ticket holds its
tensor as autograd would: until its node has run, or, where the graph is retained, until it is
shown: the next backward runs the function again.

That a rerun saves as many tensors, each of its shape, type and device, and the same weights among
them, is checked; and that what was there before the first call, beside its arguments, was not
changed in place since, as autograd would for what it saves. Values are not. Source:
torch.autograd.graph.saved_tensors_hooks (torch 2.13, "Hooks for saved tensors").
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from weakref import ref

import torch
from torch import Tensor, nn
from torch._C._autograd import (
    SavedTensor,
    _get_current_graph_task_keep_graph,
    _get_sequence_nr,
    _make_saved_tensor,
    _top_saved_tensors_default_hooks,
)
from torch.autograd.graph import saved_tensors_hooks

from ..guards import checkpoint as guard


def keep(tensor: Tensor) -> SavedTensor:
    """A handle with .unpack(), which holds the tensor as autograd holds what it saves: active hooks
    see it, a change in place is told."""
    return _make_saved_tensor(tensor, is_output=False)


class Tickets:
    """Those of one call. It holds them weakly: they hold whoever fills them, and go with the graph.

    `name`: of the function, for sentences. `lock`: of all that one filling may touch, for in a
    backward each device has a thread.
    """

    def __init__(self, name: str, lock):
        self.name, self.lock = name, lock
        self.given: list[ref[_Ticket]] = []
        self.before: list[
            tuple[ref[Tensor], int]
        ] = []  # what was there before the call, and how often it had been changed after it

    @contextmanager
    def first(self, fill: Callable[[], None], inputs: Iterable[Tensor]) -> Iterator[None]:
        """The context of the first call, on these inputs. `fill()` will run the function again, by
        `again`."""
        own, begin, before = {id(owner(x)) for x in inputs}, _get_sequence_nr(), {}

        def pack(tensor: Tensor) -> _Ticket:
            root = owner(tensor)
            other = id(root) not in own and (
                root.grad_fn is None or root.grad_fn._sequence_nr() < begin
            )
            ticket = _Ticket(
                fill,
                self.lock,
                looks(tensor),
                root if other and isinstance(root, nn.Parameter) else None,
            )
            self.given.append(ref(ticket))
            if other:
                before[id(root)] = ref(root)
            return ticket

        with saved_tensors_hooks(pack, _Ticket.unpack):
            yield
        self.note(before.values())

    def note(self, tensors: Iterable["ref[Tensor]"]) -> None:
        """How often each has been changed that is still there: what fn made for itself is gone."""
        self.before = [
            (tensor, there._version) for tensor in tensors if (there := tensor()) is not None
        ]

    def again(self, call: Callable, whole: bool = False, held: bool = True):
        """Fill every ticket that is alive by call(). Its result where the call is to run `whole`,
        else None: it ends with the last ticket.

        `held`: the tensors as autograd holds what it saves; not while the first call is still under
        way, for the rerun will not save them.
        """
        there = [
            (tensor, version) for weak, version in self.before if (tensor := weak()) is not None
        ]
        guard.refuse_moved(
            [t for t, _ in there], [v for _, v in there], [t._version for t, _ in there], self.name
        )
        tickets = [ticket() for ticket in self.given]
        last = max((at for at, ticket in enumerate(tickets) if ticket), default=-1)
        saved: list[tuple[Tensor, int]] = []  # in order, each with its version then

        def collect(tensor: Tensor) -> Tensor:
            tensor = (
                tensor.detach()
            )  # an output that its own graph saves would hold that graph for ever
            if len(saved) <= last:
                if ticket := tickets[len(saved)]:
                    guard.refuse_other_looks(self.name, len(saved), ticket.looks, looks(tensor))
                    guard.refuse_other_weight(
                        self.name, is_same(ticket.weight, owner(tensor)), tensor
                    )
                saved.append((tensor, tensor._version))
                if len(saved) > last and not whole:
                    raise _Enough
            return tensor

        result = None
        if last >= 0 or whole:
            try:
                with (
                    torch.set_grad_enabled(last >= 0),
                    saved_tensors_hooks(collect, lambda tensor: tensor),
                ):
                    result = call()
            except _Enough:
                pass
        guard.refuse_fewer(self.name, len(saved), last + 1, len(tickets))
        held = held and _top_saved_tensors_default_hooks(
            True
        )  # where nobody looks on, a handle is only slower
        for ticket, (tensor, version) in zip(tickets, saved):
            if ticket:
                guard.refuse_written(self.name, tensor, version, ticket.looks)
                ticket.kept = keep(tensor) if held else (tensor, version)
        # a collective that fn calls runs on a thread of torch's, which holds the hooks a moment
        # longer
        saved.clear()
        tickets.clear()
        self.note([tensor for tensor, _ in self.before])
        return result


class _Ticket:
    """What autograd holds in place of a saved tensor."""

    __slots__ = ("fill", "lock", "looks", "weight", "kept", "__weakref__")

    def __init__(self, fill: Callable[[], None], lock, looks: tuple, weight: Tensor | None):
        self.fill, self.lock, self.looks, self.weight, self.kept = fill, lock, looks, weight, None

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
        guard.refuse_written_since(tensor, version, self.looks)
        return tensor


class _Enough(BaseException):
    """Ends a run whose last wanted tensor is there. No Exception, so that no `except Exception` in
    the function stops it."""


def looks(tensor: Tensor) -> tuple:
    """What a rerun can be held to without keeping the tensor."""
    return tensor.shape, tensor.dtype, tensor.device


def owner(tensor: Tensor) -> Tensor:
    """The tensor whose memory this one is a view of."""
    return tensor if tensor._base is None else tensor._base


def is_same(weight: nn.Parameter | None, tensor: Tensor) -> bool:
    """Whether a rerun met the weight that the first run did; None: it met none, or one of
    torch.func.functional_call's."""
    if weight is None:
        return not isinstance(tensor, nn.Parameter)
    return tensor is weight or tensor.data_ptr() == weight.data_ptr()


def entered(context) -> Callable[[], None]:
    """Enter a context between two of autograd's nodes, to be left between two others by what is
    returned. Autograd sets the hooks on saved tensors anew for each node: those that the context
    sets, as a meter's does, are laid aside until they are to be taken off.
    """
    before, aside = top_hooks(), []
    context.__enter__()
    while (now := top_hooks()) is not None and (before is None or now[0] is not before[0]):
        torch._C._autograd._pop_saved_tensors_default_hooks()
        aside.append(now)

    def leave() -> None:
        for hooks in reversed(aside):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)
        context.__exit__(None, None, None)

    return leave


def top_hooks() -> tuple[Callable, Callable] | None:
    return _top_saved_tensors_default_hooks(True)
