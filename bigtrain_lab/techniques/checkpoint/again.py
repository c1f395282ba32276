"""Recompute: throw activations away in the forward; run the forward again when its backward comes.

    plain        x o###o###o###o###o loss      each layer's record is kept until its backward
    checkpoint   x *---o---o---o---o loss      of all layers only the input is kept
                   *###o###o###o###o <--       they run again, recorded, and then backwards
    every-2      x *---o---o###o###o loss      of each segment the input is kept. The last segment
                   *###o###o <--               is recorded at once, each other in its backward

    ---  a layer that runs     ###  and is recorded     *  a state that is kept     o  that is not

With every-2 only one segment's record is alive at a time.

A layer that runs twice costs a second forward: with F:B = 1:2 a third more work. What to keep, and
when to run what again, is a plan (order/recompute/plan.py). Sources: Griewank and Walther 2000,
Revolve (ACM TOMS 26(1)), section 2; Chen et al. 2016 (arXiv:1604.06174), algorithm 1.

The idea in ten lines is `checkpoint_by_function`: a node whose forward records nothing, and whose
backward records and ends that record. But autograd sees such a node alone: `torch.autograd.grad`
finds no weights, inputs without a gradient leave it out of the graph, and hooks of a weight that
two nodes share run twice. So `checkpoint` leaves the graph as it is and replaces what it saves:

    first run    autograd saves t0, t1, t2, ...     and is given empty slots in their place
    backward     it asks for the first slot         the function runs again: what is saved first,
                                                    second, third fills slots 0, 1, 2

Everything that works on a plain graph works: several outputs, torch.autograd.grad, hooks, a
backward of a backward, a checkpoint inside another. Where the graph is retained, filled slots
stay filled until it goes.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
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
        return fn(*inputs)

    @staticmethod
    def backward(ctx, *gradients):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.enable_grad(), ctx.conditions.restored():
            outputs = ctx.fn(*inputs)
        torch.autograd.backward(outputs, gradients)
        return None, *(x.grad for x in inputs)


def checkpoint(fn, /, *args, **kwargs):
    """Run fn(*args, **kwargs), and again in the backward, which then needs what fn saves.

    Arguments of any kind; tensors may be nested. Memory: the arguments, 5 kB of random state, and
    during the backward all that fn saves. Time: one more forward at most. Impossible where fn
    changes an argument in place or returns nothing, and in the backward where it runs differently.
    """
    guard.refuse_options(kwargs)
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    leaves, form = tree_flatten((args, kwargs))
    versions = guard.versions(leaves, args, kwargs)
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
    """An argument as it was: a tensor cut from its graph, with a gradient where it had one."""
    if not isinstance(kept, SavedTensor):
        return kept
    tensor = kept.unpack()
    return tensor.detach().requires_grad_(tensor.requires_grad)


def keep(tensor: Tensor) -> SavedTensor:
    """Hold a tensor as autograd holds what it saves, so that whoever counts saved tensors counts it
    and a change in place is found. torch has no public name for that."""
    return _make_saved_tensor(tensor, is_output=False)


class Record:
    """What autograd saves in one call of a function: a slot each. The record keeps weak references
    to its slots. Each slot holds `fill`, which holds the record. The slots die with the graph.
    `lock`: in a backward each device has a thread."""

    def __init__(self, name: str, lock):
        self.name, self.lock, self.begun = name, lock, False  # begun: the first call is under way
        self.given: list[ref[Slot]] = []
        # saved tensors that neither the function made nor were its inputs; their changes in place
        self.outside: list[tuple[ref[Tensor], int]] = []

    @contextmanager
    def slots(self, fill: Callable[[], None], inputs: Iterable[Tensor]) -> Iterator[None]:
        """The context of the first call, on these inputs; `fill()` will call `self.fill`."""
        known, begin, outside = {id(root(x)) for x in inputs}, _get_sequence_nr(), {}

        def slot(tensor: Tensor) -> Slot:
            of, weight = root(tensor), None
            made_by_fn = of.grad_fn is not None and of.grad_fn._sequence_nr() >= begin
            if not made_by_fn and id(of) not in known:
                outside[id(of)] = ref(of)
                weight = of if isinstance(of, nn.Parameter) else None
            made = Slot(fill, self.lock, looks(tensor), weight)
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
        """Rerun call() and fill the slots still alive. Stop at the last one. If `whole`, run to the
        end and return the result."""
        guard.refuse_moved(
            [(there, n) for each, n in self.outside if (there := each()) is not None], self.name
        )
        slots = [slot() for slot in self.given]
        last = max((at for at, slot in enumerate(slots) if slot), default=-1)
        saved: list[tuple[Tensor, int]] = []  # in order, each with its version then

        def collect(tensor: Tensor) -> Tensor:
            # An output that its own graph saves would hold the graph, and the graph the output.
            tensor = tensor.detach()
            if len(saved) <= last:
                if slot := slots[len(saved)]:
                    guard.refuse_other(self.name, len(saved), slot, looks(tensor), root(tensor))
                saved.append((tensor, tensor._version))
                if len(saved) > last and not whole:
                    raise _Enough
            return tensor

        result = None
        if last >= 0 or whole:
            try:
                with torch.set_grad_enabled(last >= 0), saved_tensors_hooks(collect, same):
                    result = call()
            except _Enough:
                pass
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
    """What autograd holds in place of a saved tensor."""

    __slots__ = ("fill", "lock", "looks", "weight", "kept", "__weakref__")

    def __init__(self, fill: Callable[[], None], lock, looks: tuple, weight: Tensor | None):
        self.fill, self.lock, self.looks, self.weight, self.kept = fill, lock, looks, weight, None

    def tensor(self) -> Tensor:
        with self.lock:
            if self.kept is None:
                self.fill()
            return self.kept.unpack()


class _Enough(BaseException):
    """The end of a run whose last wanted tensor is there. No Exception, so that no `except
    Exception` in the function stops it."""


def same(tensor: Tensor) -> Tensor:
    return tensor


def looks(tensor: Tensor) -> tuple:
    """What a rerun can be held to without keeping the tensor."""
    return tensor.shape, tensor.dtype, tensor.device


def root(tensor: Tensor) -> Tensor:
    """The tensor whose memory this one is a view of."""
    return tensor if tensor._base is None else tensor._base
