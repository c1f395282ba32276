"""Recompute: throw activations away in the forward; run the forward again when its backward comes.

    plain        x o###o###o###o###o loss      each layer's record is kept until its backward
    checkpoint   x *---o---o---o---o loss      the first layer's input alone is kept
                   *###o###o###o###o <--       the backward runs all layers again, recorded
    every-2      x *---o---o###o###o loss      each segment's input is kept, the last one's record
                   *###o###o <--               the backward runs the first segment again, recorded

    ---  a layer that runs     ###  and is recorded     *  a state that is kept     o  that is not

With every-2 only one segment's record is alive at a time.

A layer that runs twice costs a second forward: with F:B = 1:2 a third more work. What to keep, and
when to run what again, is a plan (order/recompute/plan.py). Sources: Griewank and Walther 2000,
Revolve (ACM TOMS 26(1)), section 2; Chen et al. 2016 (arXiv:1604.06174), algorithm 1.

The idea in ten lines is `checkpoint_by_function`, one node of the graph. Its forward records
nothing; its backward runs the function again, recorded, and then that record's backward. But the
graph has no other trace of the function. `torch.autograd.grad` finds no weights in it. Inputs
without a gradient leave the node out. Hooks of a weight that two nodes share run twice.
So `checkpoint` leaves the graph as it is and replaces what it saves:

    first run    autograd saves t0, t1, t2, ...     and is given empty slots in their place
    backward     autograd asks for a slot           the function runs again; the tensors that it
                                                    saves fill slots 0, 1, 2, ... in that order

Everything that works on a plain graph works: several outputs, torch.autograd.grad, hooks, a
backward of a backward, nested checkpoints. With retain_graph, filled slots live as long as the
graph.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import RLock
from weakref import ref

import torch
from torch import Tensor, nn
from torch._C._autograd import SavedTensor, _get_sequence_nr, _make_saved_tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..guards import checkpoint as guard
from .conditions import Conditions


def checkpoint_by_function(fn, *inputs):
    """Run fn(*inputs), tensors to tensors, and again in the backward."""
    return _Again.apply(fn, *inputs)


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *inputs):  # autograd records nothing here
        ctx.fn, ctx.conditions = fn, Conditions(inputs, fn)
        ctx.save_for_backward(*inputs)
        outputs = fn(*inputs)
        ctx.conditions.ran()
        return outputs

    @staticmethod
    def backward(ctx, *gradients):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.enable_grad(), ctx.conditions.restored():
            outputs = ctx.fn(*inputs)
        torch.autograd.backward(outputs, gradients)
        return None, *(x.grad for x in inputs)


def checkpoint(fn, /, *args, **kwargs):
    """Run fn(*args, **kwargs), and again in the backward, which then needs what fn saves.

    Arguments of any kind; tensors may be nested. Memory: the arguments, a random state where fn
    draws, and during the backward all that fn saves. Time: one more forward at most. Impossible
    where fn changes an argument in place or returns nothing, and in the backward where it saves
    other tensors. A number of fn's own that decides what it returns must not change in between
    (conditions.py says what is noted).
    """
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    leaves, form = tree_flatten((args, kwargs))
    versions = [leaf._version if isinstance(leaf, Tensor) else None for leaf in leaves]
    inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    kept = [keep(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    name = guard.called(fn)
    conditions, record = Conditions(inputs, fn, name), Record(name, RLock())

    def again() -> None:
        args, kwargs = tree_unflatten([own(each) for each in kept], form)
        with conditions.restored():
            record.fill(lambda: fn(*args, **kwargs))

    with record.slots(again, inputs):
        result = fn(*args, **kwargs)
    conditions.ran()
    guard.refuse_result(fn, result, leaves, versions, args, kwargs)
    return result


def own(kept):
    """Return an argument as it was. A tensor is cut from its graph, and has a gradient again if it
    had one."""
    if not isinstance(kept, SavedTensor):
        return kept
    tensor = kept.unpack()
    return tensor.detach().requires_grad_(tensor.requires_grad)


def keep(tensor: Tensor) -> SavedTensor:
    """Save a tensor as autograd does: meters of saved tensors count it, and a later change in place
    is an error. torch has no public name for that."""
    return _make_saved_tensor(tensor, is_output=False)


class Record:
    """Slots, one for each tensor that autograd saves in one call of a function.

    A slot refers to `fill`, and that to the record. The record refers to its slots weakly, so they
    die with the graph. `lock`: in a backward each device has a thread."""

    def __init__(self, name: str, lock):
        self.name, self.lock, self.begun = name, lock, False  # begun: the first call is under way
        self.given: list[ref[Slot]] = []
        # saved tensors that neither the function made nor were its inputs; their changes in place
        self.outside: list[tuple[ref[Tensor], int]] = []

    @contextmanager
    def slots(self, fill: Callable[[], None], inputs: Iterable[Tensor]) -> Iterator[None]:
        """Give autograd slots in the first call, on these inputs. A slot that is asked for calls
        fill(), which calls `self.fill`."""
        known, begin, outside = {id(root(x)) for x in inputs}, _get_sequence_nr(), {}

        def slot(tensor: Tensor) -> Slot:
            of, weight = root(tensor), None
            made_by_fn = of.grad_fn is not None and of.grad_fn._sequence_nr() >= begin
            if not made_by_fn and id(of) not in known:
                outside[id(of)] = ref(of)
                weight = of if isinstance(of, nn.Parameter) else None
            made = Slot(fill, self.lock, signature(tensor), weight)
            self.given.append(ref(made))
            return made

        self.begun = True
        with saved_tensors_hooks(slot, Slot.tensor):
            yield
        self.begun = False
        self._note(outside.values())

    def _note(self, tensors: Iterable["ref[Tensor]"]) -> None:
        self.outside = [(each, there._version) for each in tensors if (there := each()) is not None]

    def fill(self, call: Callable, whole: bool = False):
        """Rerun call() and fill the slots that still exist. Stop at the last one, or, if `whole`,
        run to the end and return the result."""
        guard.refuse_moved(
            [(there, n) for each, n in self.outside if (there := each()) is not None], self.name
        )
        slots = [slot() for slot in self.given]
        last = max((at for at, slot in enumerate(slots) if slot), default=-1)
        saved: list[tuple[Tensor, int]] = []  # in order, each with its version then

        def collect(tensor: Tensor) -> Tensor:
            # An output that its own graph saves would hold the graph, and the graph the output.
            of, tensor = root(tensor), tensor.detach()
            if len(saved) <= last:
                if slot := slots[len(saved)]:
                    guard.refuse_other(self.name, len(saved), slot, signature(tensor), of)
                saved.append((tensor, tensor._version))
                if len(saved) > last and not whole:
                    raise _Enough
            return tensor

        result = None
        if last >= 0 or whole:
            with (
                suppress(_Enough),
                torch.set_grad_enabled(last >= 0),
                saved_tensors_hooks(collect, same),
            ):
                result = call()
        guard.refuse_fewer(self.name, len(saved), last + 1, len(slots))
        # A first call that asks for gradients still has its own hooks on. They must not see these
        # tensors, which would become slots.
        with saved_tensors_hooks(same, same) if self.begun else nullcontext():
            for slot, (tensor, version) in zip(slots, saved):
                if slot:
                    guard.refuse_written(self.name, tensor, version)
                    slot.kept = keep(tensor)
        # A collective's thread holds these hooks a moment longer. Free what they hold now.
        saved.clear()
        slots.clear()
        self._note([each for each, _ in self.outside])
        return result


class Slot:
    """Stand-in for a saved tensor in autograd's graph."""

    __slots__ = ("fill", "lock", "signature", "weight", "kept", "__weakref__")

    def __init__(self, fill: Callable[[], None], lock, signature: tuple, weight: Tensor | None):
        self.fill, self.lock, self.kept = fill, lock, None
        self.signature, self.weight = signature, weight

    def tensor(self) -> Tensor:
        with self.lock:
            if self.kept is None:
                self.fill()
            return self.kept.unpack()


class _Enough(BaseException):
    """End of a rerun, once the last slot is filled. It is no Exception, so no `except Exception` in
    the function stops it."""


def same(tensor: Tensor) -> Tensor:
    return tensor


def signature(tensor: Tensor) -> tuple:
    """Return what a rerun's tensor is compared with, since the first one is not kept."""
    return tensor.shape, tensor.dtype, tensor.device


def root(tensor: Tensor) -> Tensor:
    """Return the tensor that this one is a view of, or the tensor itself."""
    return tensor if tensor._base is None else tensor._base
