"""checkpoint_sequential: a chain of layers carries out a recompute plan, operation by operation, as
the plan is written.

    forward     each layer once, in order
                    A  what it saves becomes tickets (tickets.py)
                    F  autograd saves as always
    backward    when the gradient of x_{i+1} comes, all operations up to B(i)
                    A  advance from a kept state, nothing recorded
                    F  advance that fills layer i's tickets
                    B  autograd's own backward of layer i

The graph is the plain one: torch.autograd.grad, retain_graph, hooks, a backward of a backward and
what layers use beside their input work as without a plan. The plan (recompute.py) says after each
operation which states x_i stay kept; every other one is let go of. Kept states and refilled tickets
are held as autograd holds what it saves, so that whoever counts saved activations counts exactly
these, and the peak is the plan's own. A layer that runs again does so under the conditions of its
first pass: dropout draws one mask. An F in the backward ends with the last tensor that its layer
saves, unless the plan reads the state that it makes.

    retain_graph    the chain's input is kept on, and each later backward carries the plan out from
                    the start
    not carried out, since nobody asks: the passes of layers below the first one that has a gradient

Source: Griewank and Walther 2000, Revolve (ACM TOMS 26(1)), section 2; Chen et al. 2016
(arXiv:1604.06174), algorithm 1.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from threading import RLock

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_current_graph_task_keep_graph
from torch.autograd import Variable

from ...order.recompute.plan import Chain, Op, Recompute, is_read, named, plan_of, turn
from ..guards import checkpoint as guard
from .conditions import Conditions
from .inside import selective_layers
from .tickets import Tickets, entered, keep
from .weigh import tensors_of, weigh


def checkpoint_sequential(
    layers: Sequence[Callable],
    plan,
    x,
    *,
    budget_bytes: int | None = None,
    span: Callable | None = None,
):
    """layers[-1](... layers[0](x)), run again in the backward as the plan says. A state is a tensor
    or a tuple of tensors.

    plan           a name ("sqrt", "every-2", "optimal"), a Recompute, an order of actions, or
                   operations
    budget_bytes   what the plan chooses by, or must stay within. With it the layers are weighed
                   (`weigh`) in each call: in a training loop make the operations once, by plan_of,
                   and pass them
    span(action)   a context manager around each operation, such as Rank.span. A backward's is
                   entered and left between autograd's nodes, which set grad mode anew: it must
                   leave that alone
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
    execution = _Execution(
        layers, plan_of(plan, chain, budget_bytes), isinstance(x, Tensor), span or nullcontext
    )
    outputs = execution.forward(tensors_of(x, "x is"))
    return outputs[0] if execution.bare[len(layers)] else outputs


def recomputed(plan) -> Callable:
    """(stage, x, *context) -> the stage's output, run again in the backward by the plan: a name, or
    a Recompute. A stage is a chain whose forward is nn.Sequential's, or whose class says so: its
    `chained_layers` are called one after the other, each with the context too. Any other stage is
    one layer."""
    plan = named(plan) if isinstance(plan, str) else plan

    def forward(stage, x, *context):
        if plan.inside:
            return selective_layers([stage])[0](x, *context)
        layers = chained_layers(stage)
        if layers is None:
            return run([stage], x, *context)
        vars(stage)["forward"] = partial(
            run, layers
        )  # so that a call of the stage still runs its hooks
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


class _Execution:
    """Where a plan's execution stands. The graph holds it, by tickets and hooks, and it holds
    nothing of the graph."""

    def __init__(self, layers: list[Callable], ops: Sequence[Op], bare: bool, span: Callable):
        self.layers, self.ops, self.span, self.bare = (
            layers,
            ops,
            span,
            {0: bare},
        )  # bare[i]: x_i is a tensor, and no tuple
        self.sweep, self.at = (
            turn(ops, len(layers)),
            0,
        )  # how many operations are the forward; which one is next
        guard.refuse_order([op.action.stage for op in ops[: self.sweep]], len(layers))
        self.begins = {op.action.stage: at for at, op in enumerate(ops) if op.action.kind == "B"}
        self.lock = RLock()
        self.tickets = [Tickets(f"Layer {i}", self.lock) for i in range(len(layers))]
        self.kept, self.hand, self.start = (
            {},
            {},
            None,
        )  # states, the one just made, x_0 where the graph is retained
        self.conditions, self.learns = (
            [],
            [],
        )  # of each layer's first pass; which of its inputs have a gradient
        self.under_way = None  # in the forward: a layer, its input, and the conditions of its pass
        self.task, self.first_task, self.retained = (
            None,
            None,
            False,
        )  # which backward runs, which was the first; whether the graph stays
        self.backward = None  # the B that runs: how to leave its span, and what is kept after it

    def forward(self, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = tuple(
            [t.view_as(t) if t.requires_grad else t for t in x]
        )  # a node of its own, where the backward of layer 0 ends
        self.announce(0, x)
        for op in self.ops[: self.sweep]:
            with self.span(op.action):
                x = self.first(op, x)
        self.at = self.sweep
        return x

    def first(self, op: Op, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (kind, layer, _), stays = op
        self.settle(layer, x, stays)
        conditions = Conditions.now(x, self.conditions[-1] if layer else None, self.layers[layer])
        self.learns.append([t.requires_grad for t in x])
        self.under_way = layer, x, conditions
        with (
            self.tickets[layer].first(partial(self.fill, layer), x)
            if kind == "A"
            else nullcontext()
        ):
            y = self.run(layer, x)
        self.under_way = None
        self.conditions.append(conditions.after(self.layers[layer], f"layer {layer}"))
        self.announce(layer + 1, y)
        if layer + 1 in stays:
            self.kept[layer + 1] = [keep(t.detach()) for t in y]
        return y

    def run(self, layer: int, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        versions = [t._version for t in x]
        result = self.layers[layer](x[0] if self.bare[layer] else x)
        guard.refuse_in_place(layer, x, versions)
        self.bare[layer + 1] = isinstance(result, Tensor)
        return tensors_of(result, f"Layer {layer} returned")

    def cut(self, layer: int, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            [t.detach().requires_grad_(learns) for t, learns in zip(x, self.learns[layer])]
        )

    def settle(self, layer: int, x: tuple[Tensor, ...], stays: tuple[int, ...]) -> None:
        """Keep x_layer where it stays, and let go of the others before the layer needs room."""
        if layer in stays and layer not in self.kept:
            self.kept[layer] = [keep(t.detach()) for t in x]
        self.let_go([i for i in stays if i != layer + 1])

    def let_go(self, stays: Sequence[int]) -> None:
        if self.retained:
            self.start = self.kept.get(0, self.start)
        self.kept = {i: state for i, state in self.kept.items() if i in stays}

    def announce(self, i: int, x: tuple[Tensor, ...]) -> None:
        """Have autograd tell when dL/dx_i is there: before the node that made x_i runs."""
        for node in {t.grad_fn for t in x} - {None}:
            node.register_prehook(lambda gradients: self.arrived(i))

    def arrived(self, i: int) -> None:
        with self.lock:
            self.begin_task()
            if self.task == self.first_task:  # later ones are driven by the tickets alone
                self.carry_out(self.begins[i - 1] if i else len(self.ops))

    def fill(self, layer: int) -> None:
        """A ticket of this layer was shown, and is empty."""
        if self.under_way and self.under_way[0] == layer:  # its own forward asks for gradients
            _, x, conditions = self.under_way
            with conditions.restored():
                self.tickets[layer].again(partial(self.run, layer, self.cut(layer, x)), held=False)
            return
        self.begin_task()
        if self.at > self.begins[layer]:  # once more, from the start
            guard.refuse_gone(start := self.kept.get(0, self.start))
            self.at, self.hand, self.kept = 0, {}, {0: start}
        self.carry_out(self.begins[layer])

    def begin_task(self) -> None:
        """Note in which backward we are."""
        task = torch._C._current_graph_task_id()  # -1: in none, someone looks at what a node saved
        if task != self.task:
            self.task, self.retained = task, _get_current_graph_task_keep_graph()
            if task != -1:
                self.first_task = task if self.first_task is None else self.first_task
                Variable._execution_engine.queue_callback(self.finish)

    def carry_out(self, goal: int) -> None:
        """All operations up to this one; if it is a backward, it begins."""
        while self.at <= min(goal, len(self.ops) - 1):
            op, self.at = self.ops[self.at], self.at + 1
            self.end_backward()
            if op.action.kind == "B":
                self.hand, self.backward = {}, (entered(self.span(op.action)), op.keep)
            else:
                with self.span(op.action):
                    self.again(op)
        if goal == len(self.ops):
            self.end_backward()

    def end_backward(self) -> None:
        if self.backward:
            (leave, stays), self.backward = self.backward, None
            self.let_go(stays)
            leave()

    def again(self, op: Op) -> None:
        (kind, layer, _), stays = op
        x, read = (
            self.hand.pop(layer, None) or tuple([handle.unpack() for handle in self.kept[layer]]),
            is_read(self.ops, self.at - 1),
        )
        self.settle(layer, x, stays)
        with self.conditions[layer].restored():
            if kind == "F":
                y = self.tickets[layer].again(
                    partial(self.run, layer, self.cut(layer, x)), whole=read
                )
            else:
                y = torch.no_grad()(self.run)(layer, x)
        self.conditions[layer] = self.conditions[layer].again()
        self.hand = {layer + 1: tuple([t.detach() for t in y])} if read else {}
        if layer + 1 in stays:
            self.kept[layer + 1] = [keep(t) for t in self.hand[layer + 1]]

    def finish(self) -> None:
        """The whole backward, of which the chain's is a part, has ended."""
        self.end_backward()
        if not self.retained:
            self.hand, self.kept, self.start = {}, {}, None
