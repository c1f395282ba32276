"""The peak of a training step from shapes alone: what is alive together, moment by moment, in forward, backward and update.

    at a transformer's loss, second step       12 P + activations + 2 B S V z      activations: 1 B S V z of them, log-softmax
    at the end of the backward, second step    16 P                                P parameters, float32, Adam
    in the first step                          8 P less: Adam's m and v are born in its update

The step is `loss = cross_entropy(model(inputs), targets); loss.backward(); optimizer.step(); optimizer.zero_grad()`, run again
and again with the loss in the same variable. The walk goes operator by operator (tape.py), so bytes are exact, on a CPU in one
format, for this library's GPT (sequences of two tokens or more, heads of two values or more) and for an MLP; inputs and targets
are the caller's and are left out. With torch unobserved its allocator's own peak is `watched=False`, up to a few scalars.
Cost: one row a storage. The optimizer goes from tensor to tensor, as torch's does on a CPU.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch

from bigtrain_lab.core import Impossible

from .account import parameter_shapes
from .config import GPTConfig, require_count, require_floating
from .tape import Held, Moment, Storage, Tape, added, attention, cross_entropy, dropout, layer_norm, linear, pointwise, residual

OPTIMIZERS = ("sgd", "momentum", "adam")


class Account:
    """All storages of some training steps: `rows`, in the order of birth, and the `moments` at which something changes."""

    def __init__(self, rows: tuple[Held, ...], moments: tuple[Moment, ...]):
        self.rows, self.moments = rows, moments

    @cached_property
    def levels(self) -> list[int]:
        """Bytes alive at each moment."""
        return [sum(levels) for levels in zip([0] * len(self.moments), *self.levels_by_kind.values())]

    @cached_property
    def levels_by_kind(self) -> dict[str, list[int]]:
        """kind -> bytes alive at each moment."""
        changes = {kind: [0] * (len(self.moments) + 1) for kind in {row.kind: None for row in self.rows}}
        for row in self.rows:
            changes[row.kind][row.born] += row.bytes
            changes[row.kind][row.dies] -= row.bytes
        return {kind: list(accumulate(own[:-1])) for kind, own in changes.items()}

    @property
    def peak_bytes(self) -> int:
        return max(self.levels)

    @property
    def peak_moment(self) -> int:
        return self.levels.index(self.peak_bytes)

    @cached_property
    def births(self) -> dict[str, list[int]]:
        """Action -> the moments at which something is born in it."""
        found: dict[str, list[int]] = {}
        for i, moment in enumerate(self.moments):
            if moment.name != "end":
                found.setdefault(moment.action, []).append(i)
        return found

    def moments_of(self, action: str) -> list[int]:
        """The births in an action, such as "B0", the first step's backward."""
        return self.births.get(action, [])

    def peak_of(self, step: int) -> int:
        """Peak of one training step, counted from 0."""
        return max(level for level, moment in zip(self.levels, self.moments) if moment.action[1:] == str(step))

    def alive(self, moment: int) -> list[Held]:
        """What is alive then, largest first."""
        return sorted((row for row in self.rows if row.born <= moment < row.dies), key=lambda row: -row.bytes)

    def at_peak(self) -> list[Held]:
        return self.alive(self.peak_moment)

    def kinds(self, moment: int) -> dict[str, int]:
        """kind -> bytes alive then."""
        total: dict[str, int] = {}
        for row in self.alive(moment):
            total[row.kind] = total.get(row.kind, 0) + row.bytes
        return total

    def after(self, action: str) -> dict[str, int]:
        """kind -> bytes at the end of an action, such as "B0", the first step's backward."""
        return self.kinds(self.moments.index(Moment(action, "end")))

    def peak(self, kind: str) -> int:
        """Most bytes of one kind."""
        return Account(tuple(row for row in self.rows if row.kind == kind), self.moments).peak_bytes


class Forward(NamedTuple):
    """What a walk of a model's forward hands out: the loss, and the walk of its backward."""

    loss: Storage
    backward: Callable[[], None]


def peak_bytes(model: GPTConfig | Sequence[int], batch: int, optimizer: str = "adam", dtype: torch.dtype = torch.float32, steps: int = 2) -> int:
    """Most bytes alive together in the first `steps` training steps. `model`: a GPTConfig, which says its own dtype, or the
    widths of an MLP, as (16, 64, 10); `batch` samples. Impossible for an optimizer that is not counted."""
    account = gpt_steps(model, batch, optimizer, steps) if isinstance(model, GPTConfig) else mlp_steps(model, batch, optimizer, dtype, steps)
    return account.peak_bytes


# -- models ---------------------------------------------------------------------------------------------------------


def gpt_steps(config: GPTConfig, batch: int, optimizer: str = "adam", steps: int = 2, watched: bool = True) -> Account:
    """The GPT of this library on `batch` samples of `config.sequence` tokens; dropout is drawn where config.dropout > 0."""
    require_count("batch", batch)
    tape = Tape(config.dtype.itemsize, watched)
    return training(tape, parameter_shapes(config, 0, config.pieces), lambda: gpt(tape, config, batch), optimizer, steps)


def gpt(tape: Tape, config: GPTConfig, batch: int, loss_of: Callable = cross_entropy) -> Forward:
    D, V, S, p = config.width, config.vocabulary, config.sequence, config.dropout
    rows, last = batch * S, f"layers.{config.layers + 1}"
    hidden = rows * D
    token = tape.make("layers.0.token output", hidden)
    x = tape.make("layers.0 output", hidden)
    tape.drop(token)
    x, dropout_backward = dropout(tape, "layers.0.dropout", x, hidden, p)
    walked, pending = [], []
    for i in range(1, config.layers + 1):
        x, backward = block(tape, f"layers.{i}", x, batch, config)
        walked.append(backward)
    normed, norm_backward = layer_norm(tape, f"{last}.norm", x, rows, D)
    logits, logits_backward = linear(tape, f"{last}.logits", normed, rows, D, V, bias=False, give=pending.append if config.tied else None)
    tape.drop(normed, x)
    loss, loss_backward = loss_of(tape, logits, rows, V)

    def backward():
        dy, one = loss_backward()
        dy = norm_backward(logits_backward(dy))
        while walked:
            dy = walked.pop()(dy)
        dx = dropout_backward(dy)
        summed = tape.make("layers.0.position summed gradient", S * D)
        tape.accumulate(tape.make("layers.0.position.weight gradient", S * D))
        tape.drop(summed)
        token = tape.make("layers.0.token.weight gradient", V * D)
        tape.drop(dx)
        for before in pending:  # a tied table's, from the logits
            token = added(tape, "layers.0.token.weight gradient", V * D, before, token)
        tape.accumulate(token)
        tape.drop(one)
    return Forward(loss, backward)


def block(tape: Tape, name: str, x: Storage, batch: int, config: GPTConfig):
    """x += attention(norm(x)); x += mlp(norm(x)). The block's input stays until its output takes the variable over."""
    D, S, p = config.width, config.sequence, config.dropout
    rows, hidden = batch * S, batch * S * D

    def attend(x):
        normed, norm_backward = layer_norm(tape, f"{name}.attention_norm", x, rows, D)
        out, backward = attention(tape, f"{name}.attention", normed, batch, S, D, config.heads, p=p)
        tape.drop(normed)
        return out, lambda dy: norm_backward(backward(dy))

    def mlp(x):
        normed, norm_backward = layer_norm(tape, f"{name}.mlp_norm", x, rows, D)
        out, backward = feed_forward(tape, f"{name}.mlp", normed, rows, D, 4 * D, p)
        tape.drop(normed)
        return out, lambda dy: norm_backward(backward(dy))

    tape.hold(x)
    middle, first_backward = residual(tape, f"{name}.attention", x, hidden, attend)
    y, second_backward = residual(tape, f"{name}.mlp", middle, hidden, mlp)
    tape.drop(x)
    return y, lambda dy: first_backward(second_backward(dy))


def feed_forward(tape: Tape, name: str, x: Storage, rows: int, width: int, inner: int, p: float = 0.0, keeps: str = "input"):
    """down(f(up(x))); f keeps its input, as GELU, or its output, as ReLU."""
    up, up_backward = linear(tape, f"{name}.up", x, rows, width, inner)
    bent, bend_backward = pointwise(tape, f"{name}.activation", up, rows * inner, keeps)
    tape.drop(up)
    down, down_backward = linear(tape, f"{name}.down", bent, rows, inner, width)
    tape.drop(bent)
    out, dropout_backward = dropout(tape, f"{name}.dropout", down, rows * width, p)
    return out, lambda dy: up_backward(bend_backward(down_backward(dropout_backward(dy))))


def mlp_steps(sizes: Sequence[int], batch: int, optimizer: str = "adam", dtype: torch.dtype = torch.float32, steps: int = 2,
              bias: bool = True, watched: bool = True) -> Account:
    """Linear layers of the widths `sizes`, with tanh or ReLU between, under cross-entropy on the last."""
    require_count("batch", batch)
    require_floating(dtype)
    if len(sizes) < 2:
        raise Impossible(f"An MLP of the widths {tuple(sizes)} has no layer: give at least two, as (16, 64, 10).")
    for size in sizes:
        require_count("a width", size)
    layers = list(zip(sizes, sizes[1:]))
    shapes = {f"{i}.{name}": shape for i, (inner, outer) in enumerate(layers)
              for name, shape in (("weight", (outer, inner)), ("bias", (outer,)))[:1 + bias]}
    tape = Tape(dtype.itemsize, watched)

    def forward():
        x, walked = Storage("inputs", "inputs", 0, 0, ""), []  # the caller's: not on the tape
        for i, (inner, outer) in enumerate(layers):
            y, backward = linear(tape, str(i), x, batch, inner, outer, bias, first=i == 0)
            tape.drop(x)
            walked.append(backward)
            x = y
            if i < len(layers) - 1:
                x, backward = pointwise(tape, f"{i}.activation", y, batch * outer, keeps="output")
                tape.drop(y)
                walked.append(backward)
        loss, loss_backward = cross_entropy(tape, x, batch, sizes[-1])

        def backward():
            dy, one = loss_backward()
            while walked:
                dy = walked.pop()(dy)
            tape.drop(one)
        return Forward(loss, backward)
    return training(tape, shapes, forward, optimizer, steps)


# -- the step -------------------------------------------------------------------------------------------------------


def training(tape: Tape, shapes: Mapping[str, tuple[int, ...]], forward: Callable[[], Forward], optimizer: str, steps: int) -> Account:
    """Actions F0 B0 U0 F1 ...: the loss, its backward, the update with its zero_grad()."""
    require_count("steps", steps)
    if optimizer not in OPTIMIZERS:
        raise Impossible(f"optimizer is {optimizer!r}: choose one of {', '.join(OPTIMIZERS)}.")
    for name, shape in shapes.items():
        tape.make(name, prod(shape), "weights")
    tape.end()
    loss = None
    for step in range(steps):
        tape.action = f"F{step}"
        before, (loss, backward) = loss, forward()
        if before:
            tape.drop(before)
        tape.end()
        tape.action = f"B{step}"
        backward()
        tape.end()
        tape.action = f"U{step}"
        update(tape, shapes, optimizer, first=step == 0)
        tape.drop(*tape.gradients)
        tape.gradients.clear()
        tape.end()
    return Account(tape.rows(), tuple(tape.moments))


def update(tape: Tape, shapes: Mapping[str, tuple[int, ...]], optimizer: str, first: bool) -> None:
    """One tensor after the other, as torch.optim does on a CPU. State is born in the first update; Adam needs two temporaries of
    a tensor's size, sqrt(v) and the denominator, and lets a denominator go only when the next is there."""
    if first and optimizer != "sgd":
        for name, shape in shapes.items():
            if optimizer == "adam":
                tape.make(f"{name} step", 1, "optimizer", itemsize=4)
            for state in ("exp_avg", "exp_avg_sq") if optimizer == "adam" else ("momentum_buffer",):
                tape.make(f"{name} {state}", prod(shape), "optimizer")
    if optimizer == "adam":
        before = None
        for name, shape in shapes.items():
            root = tape.make(f"{name} sqrt(v)", prod(shape))
            denominator = tape.make(f"{name} denominator", prod(shape))
            tape.drop(root, *([before] if before else []))
            before = denominator
        tape.drop(before)
