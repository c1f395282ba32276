"""A chain of layers under a recompute plan, which is carried out as it is written.

                 forward     backward                          of three layers
    keep-all     0F 1F 2F    2B 1B 0B
    keep-none    0A 1A 2F    2B 0A 1F 1B 0F 0B                 x_0 alone is kept: 0A makes x_1 anew
    every-2      0A 1A 2F    2B 0F 1F 1B 0B                    layers 0 and 1 are recorded together

    A   in the forward, a graph with empty slots; in the backward, no graph
    F   saved tensors are kept
    B   the backward

The graph stays the plain one: a record's slots (again.py) stand for what each layer saves. When
autograd reaches the node that made x_{i+1}, a prehook runs all operations up to B(i). Then layer
i's backward runs. The plan (order/recompute/plan.py) says after each operation which states stay
kept. Those, and filled slots, are held as autograd holds what it saves. Whoever counts saved
tensors counts exactly them, and the peak is the plan's own. Source: Griewank and Walther 2000,
Revolve (ACM TOMS 26(1)), section 2; Chen et al. 2016 (arXiv:1604.06174), algorithm 1.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from threading import RLock

import torch
from torch import Tensor, nn
from torch._C._autograd import _top_saved_tensors_default_hooks

from ...order.recompute.plan import Chain, Op, Recompute, is_read, named, plan_of, turn
from ..guards import checkpoint as guard
from .again import Record, keep
from .conditions import Conditions
from .inside import selective_layers
from .weigh import tensors_of, weigh


def checkpoint_sequential(
    layers: Sequence[Callable],
    plan,
    x,
    *,
    budget_bytes: int | None = None,
    span: Callable | None = None,
):
    """Run layers[-1](... layers[0](x)), and again in the backward as the plan says. A state is a
    tensor or a tuple of tensors.

    plan           a name ("sqrt", "every-2", "optimal"), a Recompute, an order of actions, or
                   operations
    budget_bytes   what the plan chooses by, or must stay within. With it the layers are weighed
                   (`weigh`) in each call: in a training loop make the operations once, by plan_of,
                   and pass them
    span(action)   a context manager around each operation, such as Rank.span. The span of a B is
                   entered in one autograd hook and left in another. It must not change grad mode
    Impossible for a plan that cannot be carried out, and a layer that changes its input in place or
    returns no tensor.
    """
    guard.refuse_layers(layers)
    layers = list(layers)
    if not torch.is_grad_enabled():
        for layer in layers:
            x = layer(x)
        return x
    guard.refuse_inference(tensors_of(x, "x is"))
    plan = named(plan) if isinstance(plan, str) else plan
    if isinstance(plan, Recompute) and plan.inside:
        layers = selective_layers(layers)
    chain = Chain.equal(len(layers)) if budget_bytes is None else weigh(layers, x)
    walk = _Walk(layers, plan_of(plan, chain, budget_bytes), isinstance(x, Tensor), span)
    outputs = walk.forward(tensors_of(x, "x is"))
    return outputs[0] if walk.bare[len(layers)] else outputs


class _Walk:
    """A plan as it is carried out, operation by operation.

        forward     each layer once, in order      A  what it saves becomes slots
                                                   F  autograd saves as always
        backward    when dL/dx_{i+1} comes, all operations up to B(i)
                                                   A  advance from a kept state, nothing recorded
                                                   F  advance that fills layer i's slots
                                                   B  autograd's own backward of layer i

    After each operation the states x_i that the plan does not name are let go of. Not carried out,
    since nobody asks: passes of layers below the first one that has a gradient. The graph holds the
    walk, by slots and hooks; the walk holds nothing of the graph.
    """

    def __init__(
        self, layers: list[Callable], ops: Sequence[Op], bare: bool, span: Callable | None
    ):
        self.layers, self.ops, self.span = layers, ops, span or nullcontext
        self.bare = {0: bare}  # whether x_i is a tensor, and no tuple
        # operations of the forward; the number of the next operation
        self.forward_ops, self.at = turn(ops, len(layers)), 0
        guard.refuse_order([op.action.stage for op in ops[: self.forward_ops]], len(layers))
        self.begins = {op.action.stage: at for at, op in enumerate(ops) if op.action.kind == "B"}
        self.lock = RLock()
        self.records = [Record(f"Layer {i}", self.lock) for i in range(len(layers))]
        # number -> state: those that the plan keeps; the one that this operation or the next reads
        self.kept, self.hand = {}, {}
        # of each layer's first pass; whether each of its inputs has a gradient
        self.conditions, self.needs_grad = [], []
        self.backward = None  # the B that is under way: how to leave its span, and what stays after

    def forward(self, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # a node of its own, where the backward of layer 0 ends
        x = tuple([t.view_as(t) if t.requires_grad else t for t in x])
        self._announce(0, x)
        for op in self.ops[: self.forward_ops]:
            with self.span(op.action):
                x = self._first(op, x)
        self.at = self.forward_ops
        return x

    def _first(self, op: Op, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (kind, layer, _), stays = op
        self._settle(layer, x, stays)
        self.hand = {layer: x}
        self.conditions.append(Conditions(x, self.layers[layer], f"layer {layer}"))
        self.needs_grad.append([t.requires_grad for t in x])
        record = self.records[layer].slots(partial(self._fill, layer), x)
        with record if kind == "A" else nullcontext():
            y = self._run(layer, x)
        self.hand = {}
        self.conditions[layer].ran()
        self._announce(layer + 1, y)
        if layer + 1 in stays:
            self.kept[layer + 1] = [keep(t.detach()) for t in y]
        return y

    def _again(self, op: Op) -> None:
        (kind, layer, _), stays = op
        # An output that nobody reads is not made: the rerun stops at the last slot.
        x, read = self.hand.pop(layer, None), is_read(self.ops, self.at - 1)
        x = x or tuple([each.unpack() for each in self.kept[layer]])
        self._settle(layer, x, stays)
        with self.conditions[layer].restored():
            if kind == "F":
                y = self._record(layer, x, read)
            else:
                y = torch.no_grad()(self._run)(layer, x)
        self.hand = {layer + 1: tuple([t.detach() for t in y])} if read else {}
        if layer + 1 in stays:
            self.kept[layer + 1] = [keep(t) for t in self.hand[layer + 1]]

    def _record(self, layer: int, x: tuple[Tensor, ...], whole: bool):
        x = tuple([t.detach().requires_grad_(g) for t, g in zip(x, self.needs_grad[layer])])
        return self.records[layer].fill(partial(self._run, layer, x), whole)

    def _run(self, layer: int, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        versions = [t._version for t in x]
        result = self.layers[layer](x[0] if self.bare[layer] else x)
        guard.refuse_in_place(layer, x, versions)
        self.bare[layer + 1] = isinstance(result, Tensor)
        return tensors_of(result, f"Layer {layer} returned")

    def _settle(self, layer: int, x: tuple[Tensor, ...], stays: tuple[int, ...]) -> None:
        """Keep x_layer where it stays, and let go of the others before the layer needs room."""
        if layer in stays and layer not in self.kept:
            self.kept[layer] = [keep(t.detach()) for t in x]
        self._let_go([i for i in stays if i != layer + 1])

    def _let_go(self, stays: Sequence[int]) -> None:
        self.kept = {i: state for i, state in self.kept.items() if i in stays}

    def _announce(self, i: int, x: tuple[Tensor, ...]) -> None:
        """Have autograd tell when dL/dx_i is there: before the node that made x_i runs."""
        for node in {t.grad_fn for t in x} - {None}:
            node.register_prehook(lambda _: self._to(self.begins[i - 1] if i else len(self.ops)))

    def _fill(self, layer: int) -> None:
        """Fill the slots of a layer, of which an empty one was asked for."""
        if self.at < self.forward_ops:  # its own forward asks for gradients
            with self.conditions[layer].restored():
                self._record(layer, self.hand[layer], False)
        else:
            self._to(self.begins[layer])

    def _to(self, goal: int) -> None:
        """Carry out all operations up to this one; if it is a backward, it begins."""
        with self.lock:
            while self.at <= min(goal, len(self.ops) - 1):
                op, self.at = self.ops[self.at], self.at + 1
                self._end_backward()
                if op.action.kind == "B":
                    self.hand, self.backward = {}, (entered(self.span(op.action)), op.keep)
                    at_the_end(self._end_backward)
                else:
                    with self.span(op.action):
                        self._again(op)
            if goal == len(self.ops):
                self._end_backward()

    def _end_backward(self) -> None:
        if self.backward:
            (leave, stays), self.backward = self.backward, None
            self._let_go(stays)
            leave()


def at_the_end(callback: Callable) -> None:
    """Have autograd call it when the backward that is under way ends; torch has no public name for
    that."""
    if torch._C._current_graph_task_id() != -1:
        torch.autograd.Variable._execution_engine.queue_callback(callback)


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


# -- a stage of a model ----------------------------------------------------------------------------


def recomputed(plan) -> Callable:
    """Make (stage, x, *context) -> the stage's output, run again in the backward by the plan: a
    name, or a Recompute. A stage is a chain whose forward is nn.Sequential's, or whose class says
    so: its `chained_layers` are called one after the other, each with the context too. Any other
    stage is one layer."""
    plan = named(plan) if isinstance(plan, str) else plan

    def forward(stage, x, *context):
        if plan.inside:
            return selective_layers([stage])[0](x, *context)
        layers = chained_layers(stage)
        if layers is None:
            return run([stage], x, *context)
        vars(stage)["forward"] = partial(run, layers)  # a call of the stage still runs its hooks
        try:
            return stage(x, *context)
        finally:
            del vars(stage)["forward"]

    def run(layers, x, *context):
        return checkpoint_sequential(
            [lambda x, layer=layer: layer(x, *context) for layer in layers], plan, x
        )

    return forward


def chained_layers(stage: nn.Module) -> Iterable[Callable] | None:
    """Layers that are the whole of the stage's forward, in order; None where nobody says so. A
    forward that is more derived than `chained_layers`, or the instance's own, does something else;
    torch's name for one that `stage.compile()` made is private.
    """
    if {"forward", "_compiled_call_impl"} & vars(stage).keys():
        return None
    says = next(
        each for each in type(stage).__mro__ if {"forward", "chained_layers"} & vars(each).keys()
    )
    if says is nn.Sequential:
        return stage
    return stage.chained_layers if "chained_layers" in vars(says) else None
