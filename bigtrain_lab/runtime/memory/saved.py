"""What autograd saves for a backward, told to an observer (a ledger): each tensor as it is saved,
and as its graph lets it go.

Precise and cheap: autograd is handed a small object for each tensor it saves, and that object's
death is the release; nothing is searched. Autograd asks the innermost hooks alone, so an observer
inside another passes on what it is told. The transforms of torch.func (grad, vjp, hessian) refuse
to work where anyone has hooks: observers are away meanwhile, and hear nothing of what those save.
Source: torch.autograd.graph.saved_tensors_hooks and disable_saved_tensors_hooks.
"""

from collections.abc import Callable
from contextlib import contextmanager, nullcontext

import torch
from torch._C import _DisableTorchDispatch
from torch.autograd.graph import saved_tensors_hooks

from .owned import USUAL


class Saved:
    """What autograd keeps in place of a saved tensor; calls `released(what)` when its graph lets go
    of it.

    `beyond`: the same of an observer around this one, which autograd does not ask; it goes when
    this goes.
    """

    __slots__ = ("tensor", "version", "released", "what", "beyond")

    def __init__(self, tensor, released, what, beyond: "Saved | None" = None):
        # Detached: an output that its own graph saves would hold that graph for ever. Autograd
        # gives it its history back. That is our own call, of no interest to a dispatch mode; a
        # tensor subclass detaches in its own way.
        with _DisableTorchDispatch() if type(tensor) in USUAL else nullcontext():
            self.tensor = tensor.detach()
        self.version, self.released, self.what, self.beyond = (
            tensor._version,
            released,
            what,
            beyond,
        )

    def unpack(self) -> torch.Tensor:
        if self.tensor._version != self.version:  # autograd's own check is off where hooks pack
            raise RuntimeError(
                f"A tensor of shape {tuple(self.tensor.shape)} that the backward needs was changed"
                " in place after its forward: write the result to a new tensor."
            )
        return self.tensor

    def __del__(self):
        self.tensor = self.beyond = (
            None  # first: a storage that ends now is not held a moment longer
        )
        self.released(self.what)


class Observer:
    """Active in a `with` of its `looking()`.

    saved        called with each tensor that autograd saves; what it returns is given to `released`
                 when the graph lets go of the tensor
    transforms   of torch.func, that are at work now
    """

    def __init__(self, saved: Callable, released: Callable):
        self._saved, self._released, self.transforms = saved, released, 0

    @contextmanager
    def looking(self):
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)
        self._beyond = (
            top[0] if top and top[1] is Saved.unpack else lambda tensor: None
        )  # the observer that autograd asked until now
        graph, name = torch.autograd.graph, "disable_saved_tensors_hooks"
        with (
            replaced(graph, name, self._stepping_aside),
            saved_tensors_hooks(self._pack, Saved.unpack),
        ):
            yield

    def _pack(self, tensor: torch.Tensor) -> Saved:
        return Saved(tensor, self._released, self._saved(tensor), self._beyond(tensor))

    def _stepping_aside(self, original):
        @contextmanager
        def disable_saved_tensors_hooks(message):
            self.transforms += 1
            try:
                with hooks_away(), original(message):
                    yield
            finally:
                self.transforms -= 1

        return disable_saved_tensors_hooks


@contextmanager
def hooks_away():
    """Without the hooks on saved tensors of the innermost observers, this one and those right
    around it."""
    away = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None and top[
        1
    ] is Saved.unpack:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        away.append(top)
    try:
        yield
    finally:
        for pack, unpack in reversed(away):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextmanager
def replaced(owner, name: str, around: Callable):
    """While active, `owner` has around(its own) under that name."""
    own, original = name in vars(owner), getattr(owner, name)
    setattr(owner, name, around(original))
    try:
        yield
    finally:
        setattr(owner, name, original) if own else delattr(owner, name)


def in_backward() -> bool:
    # torch has no public name for it; without it a recompute would count as a forward
    return torch._C._current_graph_task_id() != -1
