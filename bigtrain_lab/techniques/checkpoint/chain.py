"""Recompute of a chain of layers, by a plan.

The plan "every k layers" takes one `checkpoint` for each segment:

    for i in range(0, len(layers), k):
        x = checkpoint(nn.Sequential(*layers[i : i + k]), x)

Only each segment's input is kept. But this runs the last segment twice for nothing, and within a
rerun nothing is recomputed again. A plan in general (order/recompute/plan.py) is a list of
operations, which `checkpoint_sequential` carries out one by one. Of three layers:

                 forward     backward
    keep-all     0F 1F 2F    2B 1B 0B
    keep-none    0A 1A 2F    2B 0A 1F 1B 0F 0B      x_0 alone is kept: 0A computes x_1 again
    every-2      0A 1A 2F    2B 0F 1F 1B 0B         layers 0 and 1 are recorded together

    A   in the forward, record with empty slots (again.py); in the backward, record nothing
    F   record with saved tensors
    B   the backward of a layer

The graph stays the plain one. Before autograd runs the node that made x_{i+1}, a prehook carries
out all operations up to B(i). After each operation the plan names the states x_i to keep. They are
saved as autograd saves tensors, so a meter of saved tensors reads the plan's own peak.
Source: Griewank and Walther 2000, Revolve (ACM TOMS 26(1)), section 2; Chen et al. 2016
(arXiv:1604.06174), algorithm 1.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from threading import RLock

import torch
from torch import Tensor, nn
from torch._C._autograd import _top_saved_tensors_default_hooks

from ...order.recompute.plan import Chain, Op, Recompute, is_read, named, plan_of, turn
from ...runtime.memory.saved import in_backward, replaced
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

    plan           a name ("sqrt", "every-2", "optimal"), a Recompute, actions in order, or
                   operations
    budget_bytes   the most bytes of saved tensors: the plan is chosen by it, or must keep to it.
                   Each call then weighs the layers (`weigh`). For a training loop make operations
                   once, by plan_of
    span(action)   a context manager around each operation, such as Rank.span. The span of a B is
                   entered in one autograd hook and left in another. It must not change grad mode

    Impossible: a plan that cannot be carried out; a layer that changes its input in place or
    returns no tensor.
    """
    layers = list(layers)
    if not torch.is_grad_enabled():
        for layer in layers:
            x = layer(x)
        return x
    plan = named(plan) if isinstance(plan, str) else plan
    if isinstance(plan, Recompute) and plan.inside:
        layers = selective_layers(layers)
    chain = Chain.equal(len(layers)) if budget_bytes is None else weigh(layers, x)
    walk = _Walk(layers, plan_of(plan, chain, budget_bytes), isinstance(x, Tensor), span)
    outputs = walk.forward(tensors_of(x, "x is"))
    return outputs[0] if walk.bare[len(layers)] else outputs


class _Walk:
    """Executor of a plan, operation by operation.

        forward     each layer once, in order         A  what autograd saves becomes slots
                                                      F  autograd saves as always
        backward    before dL/dx_{i+1} is used, all operations up to B(i)
                                                      A  layer i without a record
                                                      F  layer i again; its slots are filled
                                                      B  autograd's own backward of layer i

    After each operation only the states x_i that the plan names are kept. Layers below the first
    one with a gradient have no backward, so the plan ends there. Slots and hooks of the graph refer
    to the walk. It does not refer back, so both die together.
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
        # {i: x_i}: states that the plan keeps; the state that this operation or the next one reads
        self.kept, self.current = {}, {}
        # of each layer's first pass; whether each of its inputs has a gradient
        self.conditions, self.needs_grad = [], []
        # of the B that is running: a function that leaves its span, and the states to keep after it
        self.backward = None

    def forward(self, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # x_0 gets a node of this graph: a hook before it ends the backward of layer 0
        x = tuple([t.view_as(t) if t.requires_grad else t for t in x])
        self._hook_gradient(0, x)
        for op in self.ops[: self.forward_ops]:
            with self.span(op.action):
                x = self._first(op, x)
        self.at = self.forward_ops
        return x

    def _first(self, op: Op, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (kind, layer, _), to_keep = op
        self._keep_input(layer, x, to_keep)
        self.current = {layer: x}
        self.conditions.append(Conditions(x, self.layers[layer], f"layer {layer}"))
        self.needs_grad.append([t.requires_grad for t in x])
        record = self.records[layer].slots(partial(self._fill, layer), x)
        with record if kind == "A" else nullcontext():
            y = self._run(layer, x)
        self.current = {}
        self.conditions[layer].ran()
        self._hook_gradient(layer + 1, y)
        if layer + 1 in to_keep:
            self.kept[layer + 1] = [keep(t.detach()) for t in y]
        return y

    def _again(self, op: Op) -> None:
        (kind, layer, _), to_keep = op
        # If no later operation reads the output, the rerun stops at the last slot.
        x, read = self.current.pop(layer, None), is_read(self.ops, self.at - 1)
        x = x or tuple([each.unpack() for each in self.kept[layer]])
        self._keep_input(layer, x, to_keep)
        with self.conditions[layer].restored():
            y = (
                self._record(layer, x, read)
                if kind == "F"
                else torch.no_grad()(self._run)(layer, x)
            )
        self.current = {layer + 1: tuple([t.detach() for t in y])} if read else {}
        if layer + 1 in to_keep:
            self.kept[layer + 1] = [keep(t) for t in self.current[layer + 1]]

    def _record(self, layer: int, x: tuple[Tensor, ...], whole: bool):
        x = tuple([t.detach().requires_grad_(g) for t, g in zip(x, self.needs_grad[layer])])
        return self.records[layer].fill(partial(self._run, layer, x), whole)

    def _run(self, layer: int, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        versions = [t._version for t in x]
        result = self.layers[layer](x[0] if self.bare[layer] else x)
        guard.refuse_in_place(layer, x, versions)
        self.bare[layer + 1] = isinstance(result, Tensor)
        return tensors_of(result, f"Layer {layer} returned")

    def _keep_input(self, layer: int, x: tuple[Tensor, ...], to_keep: tuple[int, ...]) -> None:
        """Keep x_layer if the plan says so. Free the other states before the layer runs."""
        if layer in to_keep and layer not in self.kept:
            self.kept[layer] = [keep(t.detach()) for t in x]
        self._free_all_but([i for i in to_keep if i != layer + 1])

    def _free_all_but(self, to_keep: Sequence[int]) -> None:
        self.kept = {i: state for i, state in self.kept.items() if i in to_keep}

    def _hook_gradient(self, i: int, x: tuple[Tensor, ...]) -> None:
        """Begin B(i-1) when dL/dx_i is complete: before autograd runs the node that made x_i."""
        for node in {t.grad_fn for t in x} - {None}:
            node.register_prehook(
                lambda _: self._advance_to(self.begins[i - 1] if i else len(self.ops))
            )

    def _fill(self, layer: int) -> None:
        """Fill the slots of a layer; autograd has asked for an empty one."""
        if self.at < self.forward_ops:  # the layer's own forward calls torch.autograd.grad
            with self.conditions[layer].restored():
                self._record(layer, self.current[layer], False)
        else:
            self._advance_to(self.begins[layer])

    def _advance_to(self, goal: int) -> None:
        """Carry out all operations up to number `goal`. If it is a B, its span begins."""
        with self.lock:
            while self.at <= min(goal, len(self.ops) - 1):
                op, self.at = self.ops[self.at], self.at + 1
                self._end_backward()
                if op.action.kind == "B":
                    self.current, self.backward = {}, (entered(self.span(op.action)), op.keep)
                    at_the_end(self._end_backward)
                else:
                    with self.span(op.action):
                        self._again(op)
            if goal == len(self.ops):
                self._end_backward()

    def _end_backward(self) -> None:
        if self.backward:
            (leave, to_keep), self.backward = self.backward, None
            self._free_all_but(to_keep)
            leave()


def at_the_end(callback: Callable) -> None:
    """Have autograd call it at the end of the running backward. torch has no public name for
    that."""
    if in_backward():
        torch.autograd.Variable._execution_engine.queue_callback(callback)


def entered(context) -> Callable[[], None]:
    """Enter a context in one of autograd's hooks. Return a function that leaves it in a later one.

    Autograd sets the hooks on saved tensors anew for each node. So those of the context, such as a
    meter's, are popped here, and pushed again before it is left.
    """
    before, aside = _top_saved_tensors_default_hooks(True), []
    context.__enter__()
    while (now := _top_saved_tensors_default_hooks(True)) is not None and (
        before is None or now[0] is not before[0]
    ):
        torch._C._autograd._pop_saved_tensors_default_hooks()
        aside.append(now)

    def leave() -> None:
        for hooks in reversed(aside):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)
        context.__exit__(None, None, None)

    return leave


# -- a stage of a model ----------------------------------------------------------------------------


def recomputed(plan) -> Callable:
    """Return a function: (stage, x, *context) -> the stage's output, recomputed by the plan, a name
    or a Recompute.

    A stage is a chain if its forward is nn.Sequential's, or if its class has `chained_layers`. They
    are called one after the other, each with the context too. Any other stage is one layer."""
    plan = named(plan) if isinstance(plan, str) else plan

    def forward(stage, x, *context):
        if plan.inside:
            return selective_layers([stage])[0](x, *context)
        layers = chained_layers(stage)
        if layers is None:
            return run([stage], x, *context)
        with replaced(stage, "forward", lambda _: partial(run, layers)):
            return stage(x, *context)  # runs its hooks

    def run(layers, x, *context):
        return checkpoint_sequential(
            [lambda x, layer=layer: layer(x, *context) for layer in layers], plan, x
        )

    return forward


def chained_layers(stage: nn.Module) -> Iterable[Callable] | None:
    """Return the layers whose chain is the stage's forward; None where nothing says so.

    A forward does something else if it is more derived than `chained_layers`, or the instance's
    own. torch's name for a forward that `stage.compile()` made is private.
    """
    if {"forward", "_compiled_call_impl"} & vars(stage).keys():
        return None
    says = next(
        each for each in type(stage).__mro__ if {"forward", "chained_layers"} & vars(each).keys()
    )
    if says is nn.Sequential:
        return stage
    return stage.chained_layers if "chained_layers" in vars(says) else None
