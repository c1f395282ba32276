"""checkpoint_sequential: a chain of layers carries out a recompute plan, operation by operation, as the plan is written.

    forward     the operations up to the last layer's first pass       A  advance, nothing recorded
    backward    all others, when the gradient of the output comes      F  the same with its graph kept      B  backward of that graph

The plan (recompute.py) says after each operation which states x_i stay kept; every other one is let go of. Kept states and
recorded graphs are held as autograd holds what it saves, so that whoever counts saved activations counts exactly these, and
the peak is the plan's own. A layer that runs again does so under the conditions of its first pass: dropout draws one mask.

The whole chain is one node of the caller's graph. Weights gather their gradients as each B runs, which is why the backward
runs once and has limits (inner.py): what a layer uses that depends on weights elsewhere travels in the state tuple, a hook of
a shared weight runs once a use, and torch.autograd.grad is refused.
Source: Griewank and Walther 2000, Revolve (ACM TOMS 26(1)), section 2; Chen et al. 2016 (arXiv:1604.06174), algorithm 1.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from ...core import Impossible
from ...recompute import Chain, Op, Recompute, named, plan_of, turn
from .conditions import Conditions, learns
from .inner import backward_inside, require_whole_backward
from .inside import selective_layers
from .region import keep
from .weigh import weigh


def checkpoint_sequential(layers: Sequence[Callable], plan, x, *, budget_bytes: int | None = None, span: Callable | None = None):
    """layers[-1](... layers[0](x)), run again in the backward as the plan says. A state is a tensor or a tuple of tensors.

    plan           a name ("sqrt", "every-2", "optimal"), a Recompute, an order of actions, or operations
    budget_bytes   what the plan chooses by, or must stay within. With it the layers are weighed (`weigh`) in each call: in a
                   training loop make the operations once, by plan_of, and pass them
    span(action)   a context manager around each operation, such as Rank.span
    Impossible for a plan that cannot be carried out, a layer that changes its input in place or returns no tensor, and
    any backward but one loss.backward().
    """
    if not isinstance(layers, Iterable):
        raise Impossible(f"layers is one {type(layers).__name__}: give a list of layers, or a Sequential.")
    layers = list(layers)
    if not torch.is_grad_enabled() or not learns(layers, tensors_of(x, "x is")):
        for layer in layers:
            x = layer(x)
        return x
    if any(t.is_inference() for t in tensors_of(x, "x is")):
        raise Impossible("x was made in inference mode, so no backward can keep it: pass its clone().")
    plan = named(plan) if isinstance(plan, str) else plan
    if isinstance(plan, Recompute) and plan.inside:
        layers = selective_layers(layers)
    chain = Chain.equal(len(layers)) if budget_bytes is None else weigh(layers, x)
    execution = _Execution(layers, plan_of(plan, chain, budget_bytes), isinstance(x, Tensor), span or nullcontext)
    outputs = _OneNode.apply(execution, torch.empty(0, requires_grad=True), *tensors_of(x, "x is"))
    return outputs[0] if execution.bare[len(layers)] else outputs


class _OneNode(torch.autograd.Function):
    """The chain in the caller's graph. `token` has a gradient, so that the node is there even where x has none."""

    @staticmethod
    def forward(ctx, execution, token, *x):
        ctx.set_materialize_grads(False)
        ctx.execution = execution
        return execution.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, *dy):
        require_whole_backward("A plan's")
        return None, None, *ctx.execution.backward(dy)


class _Execution:
    """Where a plan's execution stands: states kept, the state in hand, records, and the gradient that travels back."""

    def __init__(self, layers, ops: Sequence[Op], bare: bool, span):
        self.layers, self.span, self.bare = layers, span, {0: bare}  # bare[i]: x_i is a tensor, and no tuple
        self.sweep, self.rest = ops[:turn(ops, len(layers))], ops[turn(ops, len(layers)):]
        self.passes = Counter(op.action.stage for op in ops if op.action.kind != "B")
        self.kept, self.records, self.conditions = {}, {}, {}

    def forward(self, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.hand, self.needs_dx = {0: tuple([t.detach() for t in x])}, any(t.requires_grad for t in x)
        for op in self.sweep:
            self.carry_out(op)
        return self.hand.pop(len(self.layers))

    def backward(self, dy: tuple) -> tuple:
        if not self.rest:
            raise Impossible("The backward of a plan runs once, since its records go as it runs: compute the output anew.")
        self.gradient, rest, self.rest = dy, self.rest, ()
        for op in rest:
            self.carry_out(op)
        return self.gradient

    def carry_out(self, op: Op) -> None:
        (kind, layer, _), stays = op
        with self.span(op.action):
            if kind == "B":
                self.hand = {}
                self.gradient = self.records.pop(layer).backward(self.gradient, f"Layer {layer}")
                self.kept = {i: state for i, state in self.kept.items() if i in stays}
                return
            x = self.hand[layer] if layer in self.hand else tuple(handle.unpack().detach() for handle in self.kept[layer])
            if layer in stays and layer not in self.kept:
                self.kept[layer] = [keep(t) for t in x]
            self.kept = {i: state for i, state in self.kept.items() if i in stays and i != layer + 1}  # before the layer needs room
            self.hand = {layer + 1: self.run(kind, layer, x)}
            if layer + 1 in stays:
                self.kept[layer + 1] = [keep(t) for t in self.hand[layer + 1]]

    def run(self, kind: str, layer: int, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """x_{layer+1}, without a graph; the graph of an F is in its record."""
        again = layer in self.conditions
        if not again and self.passes[layer] > 1:
            self.conditions[layer] = Conditions.now(x)
        versions = [t._version for t in x]
        with self.conditions[layer].restored() if again else nullcontext(), torch.set_grad_enabled(kind == "F"):
            inside = record = None
            if kind == "F":
                self.records[layer] = record = _Record(len(x))
                inside = record.enter(x) if layer or self.needs_dx else x
            result = self.layers[layer]((inside or x)[0] if self.bare[layer] else inside or x)
        y = tensors_of(result, f"Layer {layer} returned")
        self.bare[layer + 1] = isinstance(result, Tensor)
        if versions != [t._version for t in x]:
            raise Impossible(f"Layer {layer} changed its input in place, so it could not run again: let it write its result to a new tensor.")
        if layer in self.conditions:
            self.conditions[layer] = self.conditions[layer].with_weights(self.layers[layer], f"layer {layer}")
        if record:
            record.leave(y)
        return tuple([t.detach() for t in y])


class _Record:
    """The graph of one layer, held by its two ends only, so that what it saves is all that it holds."""

    def __init__(self, inputs: int):
        self.dx: list = [None] * inputs

    def enter(self, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return _Entry.apply(self.dx, torch.empty(0, requires_grad=True), *x)

    def leave(self, y: tuple[Tensor, ...]) -> None:
        self.ends = [get_gradient_edge(t) if t.requires_grad else None for t in y]

    def backward(self, dy: tuple, name: str) -> tuple:
        """dL/dx; the weights' gradients are added where weights have them."""
        ends = [(end, d) for end, d in zip(self.ends, dy) if end and d is not None]
        if ends:
            backward_inside(*zip(*ends), name, "pass that tensor along in the state tuple")
        return tuple(self.dx)


class _Entry(torch.autograd.Function):
    """Stands where x enters a record. A leaf would keep x alive as long as the record, whether the layer saves it or not."""

    @staticmethod
    def forward(ctx, dx: list, token, *x):
        ctx.set_materialize_grads(False)
        ctx.dx = dx
        return tuple([t.detach() for t in x])

    @staticmethod
    def backward(ctx, *dx):
        ctx.dx[:] = dx
        return None, None, *(None for _ in dx)


def tensors_of(state, what: str) -> tuple[Tensor, ...]:
    if isinstance(state, Tensor):
        return (state,)
    if not isinstance(state, tuple) or not state or not all(isinstance(t, Tensor) for t in state):
        found = "nothing" if state is None else "an empty tuple" if state == () else f"a {type(state).__name__}"
        raise Impossible(f"{what} {found}: between layers travels a tensor, or a tuple of tensors.")
    return state
