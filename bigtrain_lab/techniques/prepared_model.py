"""Hooks of a model with half weights, so that a script around it need not know of masters.

    load_state_dict   float32 values go to the masters before they are rounded to weights, so that
                      no digit is lost. If the file holds half weights, an element of a master
                      takes the loaded value, unless it rounds to exactly that value
    state_dict        weights first follow their masters, whoever stepped them
    LSTM, GRU, RNN    compare their input's type with their weights' before any operator runs: the
                      input is cast before that
    any call          outside `with mp:`, where operators would refuse to mix types or run in half,
                      is refused in one sentence

A copy of the model (deepcopy, torch.save of the whole module) has half weights that are its own and
no masters: a copy that is to be trained is made of the float32 model, and prepared by a
MixedPrecision of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import _get_current_function_mode_stack

from .guards import mixed_precision as guard, refuse
from .guards.gone import as_piece, is_gone, real
from .precision_policy import Policy
from .shards import CUTS, STEPPED


def adapt(model: nn.Module, mp) -> None:
    """Register hooks on the model: functions that have a name, since torch.save saves them too."""
    guard.PREPARED.update(dict.fromkeys(model.parameters(), ref(mp)))
    if mp.level.masters:
        model.register_load_state_dict_pre_hook(partial(take_digits, mp))
        model.register_load_state_dict_post_hook(partial(follow, mp))
        model.register_state_dict_pre_hook(partial(follow, mp))
        model._apply = partial(converted, model, mp)
    if mp.level.policy:
        for module in (m for m in model.modules() if isinstance(m, nn.RNNBase)):
            module.register_forward_pre_hook(cast_input)
        for module in entrances(model):
            module.register_forward_pre_hook(partial(refuse_outside, mp.level.name), prepend=True)


def precisions(modules: Iterable[nn.Module]) -> set:
    """Collect the MixedPrecisions that prepared any of the modules' parameters."""
    return {
        mp for module in modules for weight in module.parameters() if (mp := guard.prepared(weight))
    }


def masters_of(modules: Iterable[nn.Module]) -> dict[nn.Parameter, nn.Parameter]:
    """Map each of the modules' own weights to what the optimizer steps in its place: a half
    weight's master, or the piece that ZeRO leaves this rank of it."""
    return {
        weight: STEPPED[weight]
        for module in modules
        for weight in module.parameters()
        if weight in STEPPED
    }


def way_of(weight: nn.Parameter) -> "ToMaster | None":
    """Return the way of a half weight's gradients to its master; None where it has none."""
    mp = guard.prepared(weight)
    return mp.moves.get(weight) if mp else None


def entrances(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that a script calls: the model, or the parts of a container."""
    if isinstance(module, (nn.ModuleDict, nn.ModuleList)):
        for child in module.children():
            yield from entrances(child)
    else:
        yield module


def refuse_outside(level: str, module: nn.Module, _) -> None:
    modes = _get_current_function_mode_stack()
    refuse(
        (
            not any(isinstance(mode, Policy) for mode in modes),
            f"{type(module).__name__} was prepared at level {level} and called where its policy is"
            " not in force: call it inside `with mp:`.",
        )
    )


@torch.no_grad()
def take_digits(mp, model: nn.Module, state: dict[str, Tensor], prefix: str, *_) -> None:
    mp._round()  # so that `follow` sees which weights were loaded
    for name, weight in model.named_parameters(remove_duplicate=False):
        loaded = state.get(prefix + name)
        if (
            weight in mp.moves
            and isinstance(loaded, Tensor)
            and loaded.dtype != weight.dtype
            and loaded.shape == weight.shape
        ):
            mp.moves[weight].master.copy_(loaded)


def follow(mp, *_) -> None:
    """Masters take what was loaded in half, element by element; weights follow their masters."""
    mp._round()


def converted(model: nn.Module, mp, *given, **named) -> nn.Module:
    """As model.to(...) and model.float() do it, which would convert the stand-ins too."""
    arrived = [weight for weight in mp.moves if is_gone(weight.grad)]
    for weight in arrived:
        weight.grad = None
    type(model)._apply(model, *given, **named)
    for weight in arrived:
        mp.moves[weight].place(weight)
    return model


def cast_input(module: nn.RNNBase, given: tuple) -> tuple:
    """Cast the input to the weights' type; the policy casts the states beside it."""
    dtype = module._flat_weights[0].dtype
    return tuple(
        each.to(dtype) if number == 0 and isinstance(each, (Tensor, PackedSequence)) else each
        for number, each in enumerate(given)
    )


class ToMaster:
    """The way of a half weight's gradients to its master, where they add up in float32. In the
    weight's `.grad` a stand-in says that the master has a gradient: where somebody took it away, as
    a zero_grad() of a part does, the master's is dropped too.

    arrived   whether the master has a gradient from here
    next      (comes, added): called before and after the master gets one, such as by replicas
    seen      torch's counts of writes to the master, and to the weight, when it was last rounded
    node      of the graph, before which `comes` is called: torch forgets its hook without it
    """

    def __init__(self, weight: nn.Parameter, master: nn.Parameter):
        self.master, self.stand_in, self.arrived = master, guard.of_master(weight), False
        self.next: tuple[Callable, Callable] | None = None
        self.kind, self.seen = (weight.dtype, weight.device), (master._version, weight._version)
        self.node = get_gradient_edge(weight).node
        self.node.register_prehook(partial(self.comes, weight))
        weight.register_post_accumulate_grad_hook(self.added)
        self.settle(weight)

    def settle(self, weight: nn.Parameter) -> None:
        """Drop what was cleared, and take a gradient that somebody put there."""
        if real(weight.grad) is not None:
            self(weight)
        elif self.arrived and weight.grad is None:
            self.master.grad, self.arrived = None, False

    def comes(self, weight: nn.Parameter, _) -> None:
        """A gradient is about to be added to the weight's: the stand-in leaves."""
        if is_gone(weight.grad):
            weight.grad = None
        elif weight.grad is None:
            self.settle(weight)
        if self.next:
            self.next[0](weight)

    def added(self, weight: nn.Parameter) -> None:
        self(weight)
        if self.next:
            self.next[1](weight)

    def __call__(self, weight: nn.Parameter) -> None:
        """A half gradient is complete: it moves to the master, and is added to what is there."""
        with (
            torch._C.DisableTorchFunction()
        ):  # the policy has no say here, and asking it took longer than the cast
            if weight.grad is not None:
                gradient, weight.grad = weight.grad.detach().float(), None
                before = self.master.grad
                self.master.grad = gradient if before is None else before.add_(gradient)
                self.arrived = True
                if CUTS.get(self.master):
                    as_piece(self.master)
            self.place(weight)

    def place(self, weight: nn.Parameter) -> None:
        """Put the stand-in where a gradient has arrived; in a weight of another format, nothing."""
        self.arrived = self.arrived and self.kind == (weight.dtype, weight.device)
        if self.arrived:
            weight.grad = self.stand_in
