"""The most bytes alive together in two training steps, from shapes alone.

    peak_bytes(model, batch, optimizer, dtype) -> bytes, or {kind: bytes} at the peak
    peak = max over moments: at the loss, in each layer's backward, in the update

The truth is the ledger's count of the step itself, run on meta tensors; a torch that nobody observes
holds a few numbers less, and is right too. First MLPs within 1%, where a large mistake is told from
another; then MLPs to the byte; then transformers within 1%, whose peak is at the loss or in the update.
"""

import math
import sys
from collections.abc import Mapping
from numbers import Real

import torch

from ...models import GPTConfig, steps
from ...train import dry_run
from ..fence import Refused
from ..likeness import Scene, Topic, Wrong

RIGHT = """
from dataclasses import replace
from math import prod
from bigtrain_lab.models import GPTConfig, parameter_shapes

def answer(model, batch, optimizer, dtype):
    z, backward, gradients = dtype.itemsize, [], 0
    if isinstance(model, GPTConfig):
        L, S, D, H = model.layers, model.sequence, model.width, model.heads
        rows, classes = batch * S, model.vocabulary
        shapes = list(parameter_shapes(model, 0, model.pieces).values())
        block = 13 * rows * D + 3 * rows * D + 4 * rows + batch * H * S**2
        kept = L * block + 2 * rows * D + 2 * rows
    else:
        layers = list(zip(model, model[1:]))
        rows, classes = batch, model[-1]
        shapes = [shape for inner, outer in layers for shape in ((outer, inner), (outer,))]
        kept = rows * sum(model[1:-1])
        for i, (inner, outer) in reversed(list(enumerate(layers))):
            gradients += (inner + 1) * outer
            there = {"gradients": gradients, "activations": rows * sum(model[1:i + 1])}
            backward.append({**there, "temporaries": rows * outer + (rows * inner if i > 0 else 0) + 2})
            if i > 0:
                backward.append({**there, "temporaries": 2 * rows * inner + 2})
    sizes = [prod(shape) for shape in shapes]
    weights, logits = sum(sizes), rows * classes
    state = {"sgd": 0, "momentum": weights, "adam": 2 * weights}[optimizer] * z
    state += 4 * len(shapes) if optimizer == "adam" else 0
    pairs = zip([0, *sizes], sizes)
    adam = max(before + 2 * now for before, now in pairs) if optimizer == "adam" else 0
    loss = {"activations": kept + logits, "temporaries": 2 * logits + rows + 2}
    update = {"gradients": weights, "temporaries": adam + 1}
    moments = [loss, *backward, update]
    highest = max(moments, key=lambda moment: sum(moment.values()))
    return {"weights": weights * z, "optimizer": state, **{kind: count * z for kind, count in highest.items()}}
"""
LEDGERS = """
from bigtrain_lab.models import GPTConfig, gpt_steps, mlp_steps

def answer(model, batch, optimizer, dtype):
    gpt = isinstance(model, GPTConfig)
    account = gpt_steps(model, batch, optimizer) if gpt else mlp_steps(model, batch, optimizer, dtype)
    return account.kinds(account.peak_moment)
"""
SAVED = """
import math
import torch
from bigtrain_lab.models import GPTConfig, parameter_bytes, parameter_shapes, saved_bytes

def answer(model, batch, optimizer, dtype):
    if not isinstance(model, GPTConfig):
        return of_mlp(model, batch, optimizer, torch.empty(0, dtype=dtype).element_size())
    z = model.dtype.itemsize
    shapes = parameter_shapes(model, 0, model.pieces)
    weights = parameter_bytes(model, 0, model.pieces)
    states = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer] * weights
    activations = sum(row.bytes for row in saved_bytes(model, 0, model.pieces, batch))
    logits = batch * model.sequence * model.vocabulary * z
    most = max(math.prod(shape) for shape in shapes.values()) * z
    at_loss = weights + states + activations + 2 * logits
    in_update = 2 * weights + states + (2 * most if optimizer == "adam" else 0)
    return float(max(at_loss, in_update))

def of_mlp(widths, batch, optimizer, size):
    parameters = []
    for n in range(len(widths) - 1):
        parameters += [widths[n] * widths[n + 1], widths[n + 1]]
    base = sum(parameters) * size
    if optimizer == "momentum":
        base += sum(parameters) * size
    if optimizer == "adam":
        base += 2 * sum(parameters) * size + 4 * len(parameters)
    hidden = [batch * width * size for width in widths[1:-1]]
    peak = base + sum(hidden) + (3 * batch * widths[-1] + batch + 2) * size
    made = 0
    for n in range(len(widths) - 2, -1, -1):
        made += (parameters[2 * n] + parameters[2 * n + 1]) * size
        now = base + made + sum(hidden[:n]) + 2 * size
        peak = max(peak, now + batch * widths[n + 1] * size + (hidden[n - 1] if n else 0))
        if n:
            peak = max(peak, now + 2 * hidden[n - 1])
    worst, last = 0, 0
    if optimizer == "adam":
        for count in parameters:
            worst, last = max(worst, last + 2 * count), count
    return max(peak, base + made + (worst + 1) * size)
"""
EVENTS = """
import numpy as np

def answer(model, batch, optimizer, dtype):
    gpt, z = hasattr(model, "vocabulary"), dtype.itemsize
    if gpt:
        S, D, V = model.sequence, model.width, model.vocabulary
        block = [D, D, 3 * D * D, 3 * D, D * D, D, D, D, 4 * D * D, 4 * D, 4 * D * D, D]
        tensors = [V * D, S * D] + block * model.layers + [D, D] + [V * D] * (not model.tied)
        n = batch * S
        saved = [16 * n * D + 4 * n + batch * model.heads * S * S] * model.layers + [2 * n * D + 2 * n]
    else:
        tensors = [count for a, b in zip(model, model[1:]) for count in (a * b, b)]
        n, V, saved = batch, model[-1], [batch * width for width in model[1:-1]]
    P = sum(tensors)
    levels, now = [], P + P * ["sgd", "momentum", "adam"].index(optimizer)

    def make(count):
        nonlocal now
        now += count
        levels.append(now)

    for each in saved:
        make(each)
    make(3 * n * V + n + 2)
    make(-2 * n * V - n)
    if gpt:
        make(P - 2 - n * V - sum(saved))
    else:
        for i in reversed(range(len(model) - 1)):
            make(tensors[2 * i] + tensors[2 * i + 1] + (n * model[i] if i else 0))
            make(-n * model[i + 1])
            if i:
                make(n * model[i])
                make(-n * model[i] - saved.pop())
        make(-2)
    make(1)
    held = 0
    for count in tensors if optimizer == "adam" else ():
        make(2 * count)
        make(-held - count)
        held = count
    return np.int64(max(levels) * z + (4 * len(tensors) if optimizer == "adam" else 0))
"""

# What mistakes change.
STATE = 'state = {"sgd": 0, "momentum": weights, "adam": 2 * weights}[optimizer] * z'
COUNTS, SHAPES = (
    "state += 4 * len(shapes)",
    "shapes = list(parameter_shapes(model, 0, model.pieces).values())",
)
BIASES, BLOCK, HIDDEN = (
    "for shape in ((outer, inner), (outer,))]",
    "block = 13 * rows * D + 3 * rows * D + 4 * rows + batch * H * S**2",
    "kept = rows * sum(model[1:-1])",
)
KEPT, STACK = "kept = L * block + 2 * rows * D + 2 * rows", "rows * sum(model[1:i + 1])"
LOSS = 'loss = {"activations": kept + logits, "temporaries": 2 * logits + rows + 2}'
UPDATE = 'update = {"gradients": weights, "temporaries": adam + 1}'
GRADIENTS, DX = (
    "gradients += (inner + 1) * outer",
    "rows * outer + (rows * inner if i > 0 else 0) + 2",
)
MOMENTS, BEFORE, Z = "moments = [loss, *backward, update]", "before + 2 * now for", "z, backward"
RETURN = (
    'return {"weights": weights * z, "optimizer": state, **{kind: count * z for kind, count in'
    " highest.items()}}"
)
TOTAL = "total = weights * z + state + sum(highest.values()) * z"
EACH = "each = [weights * z + state + sum(moment.values()) * z for moment in moments]"
TRANSFORMER = "isinstance(model, GPTConfig)"


def returns(text: str) -> tuple[tuple[str, str], ...]:
    return ((RETURN, text),)


def only(moments: str) -> tuple[tuple[str, str], ...]:
    return ((MOMENTS, f"moments = {moments}"),)


HIGHEST = "Take the highest of all three kinds of moments: loss, backward, update."
SUMS = (
    "You added bytes that are never alive together: take the highest moment. Where activations "
    "are at their most, hardly a gradient is there."
)
ADDED = (
    "You added moments: each is all that is alive at once, the weights among it. Take the highest"
    " of them, not their sum."
)
UNITS = "Your number is bytes divided by a thousand, a million or so: return bytes."
MIB = (
    "Your number is off by 4.86%, as MB are from MiB: 1 MB is 10^6 bytes, 1 MiB is 2^20. Return"
    " bytes."
)
VIEWS = (
    "Q, K and V were counted more than once: they are views of one storage, so count it once,"
    " whole."
)
TIED = (
    "Tied embedding and output were counted twice: they share one storage, so count it, its"
    " gradient and its state once."
)
LOGITS = (
    "You counted too few tensors of batch x classes at the loss: the log-softmax, its gradient and"
    " the logits' gradient are alive together."
)
ADAMS = (
    "Adam's temporaries are wrong: it makes sqrt(v) and a denominator, each of the size of the"
    " tensor in hand, and keeps the denominator until the next tensor has both."
)
ACTIVATIONS = (
    "The activations are missing: what the forward saves for the backward, of each sample."
)
ONCE = (
    "A hidden layer was counted twice: the ReLU and the next layer share one storage, and the"
    " ReLU's input is let go."
)
DYDX = (
    "A tensor is missing in a layer's backward: dy, dx and the layer's own input are alive at once,"
    " so count all three."
)
BEHIND = (
    "The gradients of the layers behind are missing: add them up, from the last layer to the first."
)
DOUBLE = "float64 takes 8 bytes and not 4, in state and activations too: use dtype.itemsize."
BY_KIND = tuple(
    f"{name}, within 1%"
    for name in (
        "MLPs of many samples and SGD",
        "MLPs of many samples and Adam",
        "transformers and Adam",
        "transformers of one sample and Adam",
    )
)
KINDS = ("weights", "gradients", "optimizer", "activations", "temporaries")


class PeakBytes(Topic):
    name = "peak-bytes"
    allows = ("bigtrain_lab.models",)
    forbids = tuple(
        f"bigtrain_lab.models.steps.{name}"
        for name in ("gpt_steps", "mlp_steps", "translator_steps", "peak_bytes", "training")
    )
    hints = (
        "What is alive when the loss has just been computed, and what is not there yet?",
        (
            "Write the bytes at the loss, in each layer's backward and in the update in a list."
            " Which of them holds gradients?"
        ),
        (
            "Weights and state are alive always. At the loss add activations and three logits; in a"
            " layer's backward its dy, dx, the gradients behind it and the activations before it;"
            " in the update all gradients and Adam's two temporaries. Return the max."
        ),
    )
    right = {
        "the highest of a few moments, by kind": RIGHT,
        "the ledger's, of the step run dry": LEDGERS,
        "torch's, unobserved": (
            LEDGERS.replace("optimizer)", "optimizer, watched=False)").replace(
                "dtype)\n", "dtype, watched=False)\n"
            )
        ),
        "with what the library says is saved, a float": SAVED,
        "as bytes come and go, numpy's": EVENTS,
        "torch's, unobserved, by hand": RIGHT.replace("logits + rows + 2}", "logits + 2}"),
        "a tensor": RIGHT.replace(RETURN, f"import torch; {TOTAL}; return torch.tensor(total)"),
        "a fraction": RIGHT.replace(
            RETURN, f"from fractions import Fraction; {TOTAL}; return Fraction(total)"
        ),
        "only what there is": RIGHT.replace(
            RETURN,
            f"held = {RETURN[7:]}; return {{kind: float(count) for kind, count in held.items() if"
            " count}",
        ),
    }
    wrong = {
        "weights only": Wrong(
            "You counted the weights alone: add the gradients, the optimizer's state and the"
            " activations that live beside them.",
            returns("return weights * z"),
        ),
        "state only": Wrong(
            "You counted weights, gradients and state, but no activations: add what autograd saves,"
            " which grows with the batch.",
            returns("return 2 * weights * z + state"),
        ),
        "four times the weights": Wrong(
            "Your number is four times the weights: look at the optimizer, and add what autograd"
            " saves.",
            returns("return 4 * weights * z"),
        ),
        "no optimizer state": Wrong(
            "The optimizer's state is missing, such as Adam's m and v: add what it keeps between"
            " steps.",
            ((STATE, "state = 0"), (COUNTS, "state += 0")),
        ),
        "no m and v": Wrong(
            "The optimizer's state is missing, such as Adam's m and v: add what it keeps between"
            " steps.",
            (
                (STATE, 'state = weights * z if optimizer == "momentum" else 0'),
                (COUNTS, "state += 0"),
            ),
        ),
        "no momentum": Wrong(
            "Momentum's state is missing: add one number for each weight.",
            ((STATE, STATE.replace('"momentum": weights', '"momentum": 0')),),
        ),
        "two for momentum": Wrong(
            "You counted two numbers a weight for momentum: count one, since only Adam keeps two.",
            ((STATE, STATE.replace('"momentum": weights', '"momentum": 2 * weights')),),
        ),
        "state for sgd": Wrong(
            "You counted state for plain SGD: leave it out, since SGD keeps nothing between steps.",
            ((STATE, STATE.replace('"sgd": 0', '"sgd": weights')),),
        ),
        "Adam's state always": Wrong(
            "You counted Adam's state for every optimizer: SGD keeps none, momentum one number a"
            " weight.",
            ((STATE, "state = 2 * weights * z"),),
        ),
        "the first step": Wrong(
            "You gave the first step's peak, in which no state exists before the update: take the"
            " second step.",
            returns(
                "return weights * z + max([sum(m.values()) * z for m in (loss, *backward)] + [state"
                " + sum(update.values()) * z])"
            ),
        ),
        "the first step's backward": Wrong(
            "You gave the first step's peak, in which no state exists before the update: take the"
            " second step.",
            returns("return weights * z + max(sum(m.values()) * z for m in (loss, *backward))"),
        ),
        "state in the update alone": Wrong(
            "You gave the first step's peak, in which no state exists before the update: take the"
            " second step.",
            returns(
                "return weights * z + max(sum(m.values()) * z + state * (m is update) for m in"
                " (loss, update))"
            ),
        ),
        "one moment of Adam": Wrong(
            "One of Adam's moments is missing: it keeps two of the weights' size, m and v.",
            ((STATE, STATE.replace("2 * weights", "weights")),),
        ),
        "state of 4 bytes": Wrong(
            "State was counted with 4 bytes a number: momentum, m and v have the type of their"
            " weight.",
            ((STATE, STATE[:-1] + "4"),),
        ),
        "no step counts": Wrong(
            "Adam's step counts are missing: add 4 bytes for each tensor.",
            ((COUNTS, "state += 0"),),
        ),
        "one step count": Wrong(
            "Some of Adam's step counts are missing: add 4 bytes for each tensor, biases too.",
            ((COUNTS, "state += 4"),),
        ),
        "a step count a layer": Wrong(
            "Some of Adam's step counts are missing: add 4 bytes for each tensor, biases too.",
            ((COUNTS, "state += 2 * len(shapes)"),),
        ),
        "step counts of the type": Wrong(
            "Adam's step counts were given a wrong size: each takes 4 bytes, whatever the weights'"
            " type is.",
            ((COUNTS, "state += z * len(shapes)"),),
        ),
        "step counts of 8 bytes": Wrong(
            "Adam's step counts were given a wrong size: each takes 4 bytes, whatever the weights'"
            " type is.",
            ((COUNTS, "state += 8 * len(shapes)"),),
        ),
        "views three times": Wrong(VIEWS, ((BLOCK, BLOCK.replace("3 * rows", "9 * rows")),)),
        "views twice": Wrong(VIEWS, ((BLOCK, BLOCK.replace("3 * rows", "6 * rows")),)),
        "tied twice": Wrong(
            TIED, ((SHAPES, SHAPES.replace("(model,", "(replace(model, tied=False),")),)
        ),
        "the tied weight alone twice": Wrong(
            TIED,
            (
                (
                    STATE,
                    (
                        f"{STATE}; state += model.vocabulary * model.width * z if {TRANSFORMER} and"
                        " model.tied else 0"
                    ),
                ),
            ),
        ),
        "always tied": Wrong(
            "The output's matrix is missing: only a tied model shares it with the embedding, so"
            " look at model.tied.",
            ((SHAPES, SHAPES.replace("(model,", "(replace(model, tied=True),")),),
        ),
        "in MB": Wrong(UNITS, returns(f"{TOTAL}; return total / 10**6")),
        "in MiB": Wrong(UNITS, returns(f"{TOTAL}; return total / 2**20")),
        "in kB": Wrong(UNITS, returns(f"{TOTAL}; return total / 10**3")),
        "in KiB": Wrong(UNITS, returns(f"{TOTAL}; return total / 2**10")),
        "in GB": Wrong(UNITS, returns(f"{TOTAL}; return total / 10**9")),
        "in GiB": Wrong(UNITS, returns(f"{TOTAL}; return total / 2**30")),
        "in whole MB": Wrong(UNITS, returns(f"{TOTAL}; return total // 10**6")),
        "MB for MiB": Wrong(MIB, returns(f"{TOTAL}; return total / 10**6 * 2**20")),
        "MiB for MB": Wrong(MIB, returns(f"{TOTAL}; return total * 10**6 / 2**20")),
        "in numbers": Wrong(
            "Your number counts numbers, not bytes: multiply by dtype.itemsize.",
            returns(f"{TOTAL}; return total // z"),
        ),
        "in bits": Wrong(
            "Your number is 8 times too large: return bytes, not bits.",
            returns(f"{TOTAL}; return total * 8"),
        ),
        "each kind at its most": Wrong(
            SUMS,
            returns(
                "return weights * z + state + z * sum(max(m.get(kind, 0) for m in moments) for kind"
                " in ('gradients', 'activations', 'temporaries'))"
            ),
        ),
        "each kind but temporaries": Wrong(
            SUMS,
            returns(
                "return weights * z + state + z * sum(max(m.get(kind, 0) for m in moments) for kind"
                " in ('gradients', 'activations'))"
            ),
        ),
        "all and three logits": Wrong(
            SUMS, returns("return 2 * weights * z + state + z * sum(loss.values())")
        ),
        "all ever made": Wrong(
            SUMS,
            returns(
                'return 2 * weights * z + state + z * (kept + logits + sum(m["temporaries"] for m'
                " in moments))"
            ),
        ),
        "moments added": Wrong(ADDED, returns(f"{EACH}; return sum(each)")),
        "loss and update added": Wrong(ADDED, returns(f"{EACH}; return each[0] + each[-1]")),
        "highest of each added": Wrong(
            ADDED, returns(f"{EACH}; return each[0] + max([0, *each[1:-1]]) + each[-1]")
        ),
        "loss and backward added": Wrong(
            ADDED, returns(f"{EACH}; return each[0] + max([0, *each[1:-1]])")
        ),
        "backward and update added": Wrong(
            ADDED, returns(f"{EACH}; return max([0, *each[1:-1]]) + each[-1]")
        ),
        "no logits": Wrong(
            LOGITS, ((LOSS, 'loss = {"activations": kept, "temporaries": rows + 2}'),)
        ),
        "two logits": Wrong(LOGITS, ((LOSS, LOSS.replace("2 * logits", "logits")),)),
        "four logits": Wrong(
            "You counted more than three tensors of batch x classes: the logits themselves are let"
            " go as the log-softmax is made.",
            ((LOSS, LOSS.replace("2 * logits", "3 * logits")),),
        ),
        "two numbers a sample": Wrong(
            "At the loss there is one number a sample, not two: count it once.",
            ((LOSS, LOSS.replace("+ rows", "+ 2 * rows")),),
        ),
        "no scalars at the loss": Wrong(
            "Scalars are missing: the loss and its gradient are two numbers, at the loss and in the"
            " backward.",
            ((LOSS, LOSS.replace(" + 2}", "}")),),
        ),
        "one scalar": Wrong(
            "Scalars are missing: the loss and its gradient are two numbers, at the loss and in the"
            " backward.",
            (
                (LOSS, LOSS.replace(" + 2}", " + 1}")),
                (DX, DX[:-1] + "1"),
                ("2 * rows * inner + 2}", "2 * rows * inner + 1}"),
            ),
        ),
        "no small ones": Wrong(
            "One number a sample and a few scalars are missing: on MLPs every byte counts.",
            (
                (LOSS, LOSS.replace(" + rows + 2}", "}")),
                (DX, DX[:-4]),
                ("2 * rows * inner + 2}", "2 * rows * inner}"),
                (UPDATE, UPDATE.replace(" + 1", "")),
            ),
        ),
        "no scalar in the update": Wrong(
            "A scalar is missing in the update: the loss is alive still.",
            ((UPDATE, UPDATE.replace(" + 1", "")),),
        ),
        "two scalars in the update": Wrong(
            "In the update one scalar is alive, the loss: its gradient is gone.",
            ((UPDATE, UPDATE.replace(" + 1", " + 2")),),
        ),
        "first dx": Wrong(
            "You counted dx of the first layer: nobody asks for a gradient of the inputs, so leave"
            " it out.",
            (
                (DX, "rows * outer + rows * inner + 2"),
                ("            if i > 0:", "            if True:"),
            ),
        ),
        "first layer's dx": Wrong(
            "You counted dx of the first layer: nobody asks for a gradient of the inputs, so leave"
            " it out.",
            ((DX, "rows * outer + rows * inner + 2"),),
        ),
        "inputs": Wrong(
            "You counted the inputs: they are the caller's, there before the step. Leave them out.",
            returns(
                f"{TOTAL}; return total + batch * (model.sequence * 8 if {TRANSFORMER} else"
                " model[0] * z)"
            ),
        ),
        "targets": Wrong(
            "You counted the targets: they are the caller's, there before the step. Leave them"
            " out.",
            returns(f"{TOTAL}; return total + 8 * rows"),
        ),
        "no update": Wrong(
            f"The update's moment is missing: there all gradients are alive at once. {HIGHEST}",
            only("[loss, *backward]"),
        ),
        "no update of transformers": Wrong(
            f"The update's moment is missing: there all gradients are alive at once. {HIGHEST}",
            only("[loss, *backward, update] if backward else [loss]"),
        ),
        "no loss of transformers": Wrong(
            f"The moment of the loss is missing, where all activations are alive. {HIGHEST}",
            only("[loss, *backward, update] if backward else [update]"),
        ),
        "moments of transformers added": Wrong(
            ADDED, returns(f"{EACH}; return max(each) if backward else sum(each)")
        ),
        "one temporary": Wrong(ADAMS, ((BEFORE, "now for"),)),
        "denominators let go": Wrong(ADAMS, ((BEFORE, "2 * now for"),)),
        "three temporaries": Wrong(ADAMS, ((BEFORE, "3 * now for"),)),
        "temporaries of all": Wrong(ADAMS, ((BEFORE, "2 * weights for"),)),
        "one temporary of all": Wrong(ADAMS, ((BEFORE, "weights for"),)),
        "the last denominator twice": Wrong(ADAMS, ((BEFORE, "2 * before + 2 * now for"),)),
        "Adam's temporaries for all": Wrong(
            "You counted temporaries of a weight's size for SGD or momentum: leave them out, since"
            " both update in place.",
            ((' if optimizer == "adam" else 0\n    loss', "\n    loss"),),
        ),
        "no backward": Wrong(
            "The backward's moments are missing, where gradients are there and activations still."
            f" {HIGHEST}",
            only("[loss, update]"),
        ),
        "one of dy and dx of a ReLU": Wrong(
            "The moment of a ReLU's backward is too small: dy, dx and the saved output are alive,"
            " all of its width.",
            (("2 * rows * inner + 2}", "rows * inner + 2}"),),
        ),
        "loss only": Wrong(f"You gave the moment of the loss alone. {HIGHEST}", only("[loss]")),
        "update only": Wrong(
            f"You gave the moment of the update alone. {HIGHEST}", only("[update]")
        ),
        "backward only": Wrong(
            f"You gave the moments of the backward alone. {HIGHEST}", only("backward or [loss]")
        ),
        "all gradients in the backward": Wrong(
            "You counted all gradients in each layer's backward: those of the layers before are"
            " still to be made.",
            (
                (
                    '{"gradients": gradients, "act',
                    '{"gradients": sum((a + 1) * b for a, b in layers), "act',
                ),
            ),
        ),
        "its own gradient": Wrong(BEHIND, ((GRADIENTS, "gradients = (inner + 1) * outer"),)),
        "a gradient later": Wrong(
            "In a layer's backward its own dW and db are alive too: count them with those of the"
            " layers behind.",
            (
                (
                    '{"gradients": gradients, "act',
                    '{"gradients": gradients - (inner + 1) * outer, "act',
                ),
            ),
        ),
        "a saved one early": Wrong(DYDX, ((STACK, "rows * sum(model[1:i])"),)),
        "a saved one late": Wrong(
            "In a layer's backward the outputs of the layers behind are let go already: count those"
            " before it.",
            ((STACK, "rows * sum(model[1:min(i + 2, len(model) - 1)])"),),
        ),
        "remembers a model": Wrong(
            "A model that comes again with another optimizer, batch or type gets its first number:"
            " count each time.",
            returns(f"{TOTAL}; return answer.__dict__.setdefault(str(model), total)"),
        ),
        "no dy": Wrong(DYDX, ((DX, "(rows * inner if i > 0 else 0) + 2"),)),
        "no dx": Wrong(DYDX, ((DX, "rows * outer + 2"),)),
        "no gradients": Wrong(
            "The gradients are missing: one of each weight's size, from its backward to"
            " zero_grad().",
            ((GRADIENTS, "gradients += 0"), (UPDATE, UPDATE.replace('"gradients": weights, ', ""))),
        ),
        "no gradients in the update": Wrong(
            "The gradients are missing in the update: one of each weight's size, from its backward"
            " to zero_grad().",
            ((UPDATE, UPDATE.replace('"gradients": weights, ', "")),),
        ),
        "gradients at the loss": Wrong(
            "You counted gradients at the loss: zero_grad() let them go, and the backward is still"
            " to come.",
            ((LOSS, LOSS.replace("{", '{"gradients": weights, ')),),
        ),
        "gradients always": Wrong(
            "You counted all gradients at every moment: a weight's gradient lives from its own"
            " backward to zero_grad().",
            (
                (LOSS, LOSS.replace("{", '{"gradients": weights, ')),
                (
                    '{"gradients": gradients, "act',
                    '{"gradients": sum((a + 1) * b for a, b in layers), "act',
                ),
            ),
        ),
        "no activations": Wrong(
            ACTIVATIONS, ((HIDDEN, "kept = 0"), (KEPT, "kept = 0"), (STACK, "0"))
        ),
        "nothing saved at the loss": Wrong(ACTIVATIONS, ((HIDDEN, "kept = 0"), (KEPT, "kept = 0"))),
        "no activations of transformers": Wrong(ACTIVATIONS, ((KEPT, "kept = 0"),)),
        "hidden layers twice": Wrong(
            ONCE,
            (
                (HIDDEN, "kept = 2 * rows * sum(model[1:-1])"),
                (STACK, "2 * rows * sum(model[1:i + 1])"),
            ),
        ),
        "the last hidden layer": Wrong(
            "You counted one hidden layer: each of them is saved until its own backward.",
            ((HIDDEN, "kept = rows * model[-2] * (len(model) > 2)"),),
        ),
        "no temporaries": Wrong(
            "What lives for a moment is missing: count the gradients of activations on their way,"
            " and Adam's two temporaries.",
            returns(
                "return weights * z + state + z * max(sum(n for kind, n in m.items() if kind !="
                " 'temporaries') for m in moments)"
            ),
        ),
        "no biases": Wrong(
            "The biases are missing: a Linear layer has one number an output beside its matrix,"
            " with gradient and state.",
            (
                (BIASES, "for shape in ((outer, inner),)]"),
                (GRADIENTS, "gradients += inner * outer"),
            ),
        ),
        "one bias a layer": Wrong(
            "A Linear layer's bias has one number for each output: count them all.",
            (
                (BIASES, "for shape in ((outer, inner), (1,))]"),
                (GRADIENTS, "gradients += inner * outer + 1"),
            ),
        ),
        "one bias an input": Wrong(
            "A Linear layer's bias has one number for each output, not for each input.",
            (
                (BIASES, "for shape in ((outer, inner), (inner,))]"),
                (GRADIENTS, "gradients += inner * (outer + 1)"),
            ),
        ),
        "one sample": Wrong(
            "Activations and temporaries grow with the batch: you counted one sample.",
            (
                ("rows, classes = batch * S,", "batch = 1; rows, classes = S,"),
                ("rows, classes = batch,", "rows, classes = 1,"),
            ),
        ),
        "no length": Wrong(
            "A transformer's batch has batch x sequence tokens: multiply by the length.",
            (("rows, classes = batch * S,", "rows, classes = batch,"),),
        ),
        "4 bytes": Wrong(DOUBLE, ((Z, "z, backward"), ("dtype.itemsize", "4"))),
        "4 bytes for transformers": Wrong(
            DOUBLE, ((f"    if {TRANSFORMER}:\n", f"    if {TRANSFORMER}:\n        z = 4\n"),)
        ),
        "8 bytes": Wrong(
            "float32 takes 4 bytes and not 8: use dtype.itemsize.", (("dtype.itemsize", "8"),)
        ),
        "activations of 4 bytes": Wrong(
            DOUBLE,
            returns(
                "return {'weights': weights * z, 'optimizer': state, **{k: n * (z if k =="
                " 'gradients' else 4) for k, n in highest.items()}}"
            ),
        ),
        "one layer": Wrong(
            "You counted one block's activations: multiply by the number of layers.",
            ((KEPT, KEPT.replace("L * block", "block")),),
        ),
        "no probabilities": Wrong(
            "Attention saves its probabilities, batch x heads x sequence x sequence: add them for"
            " each layer.",
            ((BLOCK, BLOCK.replace("H * S**2", "0")),),
        ),
        "probabilities of one head": Wrong(
            "Attention saves its probabilities for each head: batch x heads x sequence x sequence.",
            ((BLOCK, BLOCK.replace("H * S**2", "S**2")),),
        ),
        "scores too": Wrong(
            "Of attention's sequence x sequence only the probabilities are saved: the scores before"
            " softmax are let go.",
            ((BLOCK, BLOCK.replace("H * S**2", "2 * H * S**2")),),
        ),
        "hidden states alone": Wrong(
            "A block saves more than its output: norms, q, k and v, attention, the wide layer"
            " before and after GELU.",
            ((BLOCK, "block = rows * D"),),
        ),
        "half of the MLP": Wrong(
            "GELU saves what goes in, and the next layer what comes out: both are 4 times as wide"
            " as the model.",
            ((BLOCK, BLOCK.replace("13 *", "9 *")),),
        ),
        "gradients as activations": Wrong(
            "The total is right and the kinds are not: a weight's gradient outlives the backward."
            " Count it as gradients, not as activations.",
            returns(
                f"held = {RETURN[7:]}; held['activations'] = held.get('activations', 0) +"
                " held.pop('gradients', 0); return held"
            ),
        ),
        "all of one kind": Wrong(
            "The total is right and the kinds are not: split it by what each tensor is.",
            returns(f"{TOTAL}; return {{'temporaries': total}}"),
        ),
        "saved logits as temporaries": Wrong(
            "The total is right and the kinds are not: what the forward saves are activations, the"
            " log-softmax among them.",
            returns(
                f"held = {RETURN[7:]}; held['temporaries'] += held.pop('activations', 0); return"
                " held"
            ),
        ),
        "temporaries as activations": Wrong(
            "The total is right and the kinds are not: what is made on the way and let go are"
            " temporaries.",
            returns(
                f"held = {RETURN[7:]}; held['activations'] = held.get('activations', 0) +"
                " held.pop('temporaries'); return held"
            ),
        ),
        "the logits as activations": Wrong(
            "The total is right and the kinds are not: of the three tensors at the loss the forward"
            " saved one; two are temporaries.",
            ((LOSS, 'loss = {"activations": kept + 3 * logits, "temporaries": rows + 2}'),),
        ),
        "state as weights": Wrong(
            "The total is right and the kinds are not: what the optimizer keeps is of kind"
            " optimizer.",
            returns(f"held = {RETURN[7:]}; held['weights'] += held.pop('optimizer'); return held"),
        ),
    }

    @staticmethod
    def probe(answer, draw):
        steps.account = account_of_steps
        groups = groups_drawn(draw)
        for name, (near, sizes) in groups.items():
            yield Scene(
                name, lambda sizes=sizes: {str(size): total(answer(*size)) for size in sizes}, near
            )
        for name, of in zip(BY_KIND, map(groups.get, BY_KIND)):
            yield Scene(
                f"{name}, by kind",
                lambda size=of[1][0]: {f"{', '.join(KINDS)} of {size}": by_kind(answer(*size))},
                0.01,
            )


class Size(tuple):
    """What an answer is called with."""

    def __str__(self):
        model, batch, optimizer, dtype = self
        how = f"batch {batch}, {optimizer}, {str(dtype).removeprefix('torch.')}"
        if not isinstance(model, GPTConfig):
            return f"an MLP of the widths {model}, {how}"
        return (
            f"a GPT of {model.layers} layer{'s' * (model.layers > 1)}, width {model.width},"
            f" {model.heads} heads, sequence {model.sequence}, vocabulary"
            f" {model.vocabulary}{', tied' * model.tied}, {how}"
        )


def groups_drawn(draw) -> dict[str, tuple[float, list[Size]]]:
    """What is alike in some sizes: how near a right number must be, and the sizes. Two sizes of 1% tell
    a mistake from another that gives the same by chance; to the byte one is enough."""

    def mlp(widths, batch, optimizer, dtype=torch.float32):
        return Size(
            (tuple(draw.randint(*ends) for ends in widths), draw.randint(*batch), optimizer, dtype)
        )

    def gpt(
        layers, heads, each, sequence, vocabulary, batch, optimizer, tied=False, dtype=torch.float32
    ):
        heads = draw.choice(heads)
        config = GPTConfig(
            draw.randint(*layers),
            heads * draw.randint(*each),
            heads,
            draw.randint(*sequence),
            draw.randint(*vocabulary),
            tied=tied,
            dtype=dtype,
        )
        return Size((config, draw.randint(*batch), optimizer, dtype))

    # The widths' and the batch's ranges, by where the peak is.
    loss, square, many = ((5, 12), (20, 30), (40, 50)), ((5, 12), (34, 40), (26, 32)), (100, 200)
    deep, linear = ((5, 12), (20, 30), (20, 30), (40, 50)), ((4, 8), (38, 42), (43, 47))
    update, narrow, few = ((20, 40), (30, 60), (10, 20)), ((8, 15), (30, 40), (40, 60)), (1, 3)
    layer, wide, some = (
        ((10, 30), (60, 90), (60, 90), (4, 9)),
        ((100, 150), (12, 20), (4, 9)),
        (60, 120),
    )
    at_loss, long = (
        ((2, 3), (4,), (4, 6), (12, 20), (300, 500)),
        ((4,), (3, 4), (24, 32), (200, 300), (2, 4)),
    )
    in_update, one = (
        ((2, 2), (2, 4), (8, 10), (8, 10), (300, 500), (1, 1)),
        ((1, 2), (16, 20), (6, 10), (60, 100), (1, 1)),
    )
    small, tied = (
        ((1, 1), (2,), (5, 8), (8, 12), (300, 500)),
        ((1, 2), (1, 2), (9, 12), (8, 12), (700, 900)),
    )
    near = {
        "MLPs of many samples and SGD": [mlp(loss, many, "sgd"), mlp(square, many, "sgd")],
        "MLPs of more layers": [mlp(deep, many, "sgd"), mlp(deep, many, "sgd")],
        "MLPs of few samples and SGD": [mlp(update, few, "sgd"), mlp(narrow, few, "sgd")],
        "MLPs of wide hidden layers": [mlp(layer, some, "sgd"), mlp(layer, some, "sgd")],
        "MLPs of wide inputs": [mlp(wide, some, "sgd"), mlp(wide, some, "sgd")],
        "MLPs with momentum": [mlp(loss, many, "momentum"), mlp(update, few, "momentum")],
        "MLPs of many samples and Adam": [mlp(loss, many, "adam"), mlp(layer, some, "adam")],
        "MLPs of few samples and Adam": [mlp(update, few, "adam"), mlp(narrow, few, "adam")],
        "MLPs of float64": [
            mlp(loss, many, "adam", torch.float64),
            mlp(update, few, "momentum", torch.float64),
        ],
    }
    exact = [
        mlp(loss, (45, 70), "sgd"),
        mlp(linear, (18, 22), "sgd"),
        mlp(update, few, "sgd"),
        mlp(layer, (20, 60), "sgd"),
        mlp(wide, some, "momentum"),
        mlp(loss, (45, 70), "adam"),
        mlp(update, few, "adam"),
        mlp(update, few, "adam", torch.float64),
        mlp(narrow, few, "adam"),
        mlp(layer, (20, 60), "adam", torch.float64),
        *(
            mlp(
                [(4, 80)] * draw.randint(2, 5),
                (2, 150),
                draw.choice(("sgd", "momentum", "adam", "adam")),
                draw.choice((torch.float32, torch.float64)),
            )
            for _ in range(3)
        ),
        mlp([(4, 80)] * 2, (2, 150), "sgd"),
        *(
            mlp([(8, 14), *([(60, 90)] * 2), (2, 4), (100, 140)][::way], (20, 40), "sgd")
            for way in (1, -1)
        ),
    ]
    exact += [
        Size((exact[5][0], exact[5][1] + 7, "momentum", torch.float64)),
        Size((exact[5][0], exact[5][1], "sgd", torch.float32)),
        Size((exact[5][0], exact[5][1], "adam", torch.float64)),
        mlp([(8000, 9000)] * 4, (500, 900), "adam"),
    ]
    rest = {
        "transformers of one layer and SGD": [
            gpt(*small, (4, 6), "sgd"),
            gpt(*small, (10, 14), "sgd"),
        ],
        "transformers of more layers and long sequences": [
            gpt((3, 4), *long, "sgd"),
            gpt((2, 3), *long, "sgd"),
        ],
        "transformers and Adam": [gpt(*at_loss, (3, 5), "adam"), gpt(*at_loss, (7, 9), "adam")],
        "tied transformers and Adam": [
            gpt(*tied, (4, 6), "adam", tied=True),
            gpt(*tied, (9, 12), "adam", tied=True),
        ],
        "transformers of one sample and Adam": [gpt(*in_update, "adam"), gpt(*in_update, "adam")],
        "transformers of one sample and momentum": [
            gpt((2, 3), *one, "momentum"),
            gpt((1, 2), *one, "momentum"),
        ],
        "transformers of float64": [
            gpt((1, 2), (2, 4), (4, 6), (8, 16), (300, 600), (2, 6), "adam", dtype=torch.float64)
        ],
        "MLPs of bfloat16": [
            mlp(loss, many, "sgd", torch.bfloat16),
            mlp(update, few, "adam", torch.bfloat16),
        ],
        "transformers drawn": [
            gpt((1, 4), (1, 2), (6, 10), (16, 24), (300, 600), (4, 8), "momentum", tied=True),
            gpt(
                (1, 3),
                (1, 2, 4),
                (4, 8),
                (8, 24),
                (300, 900),
                (3, 8),
                draw.choice(("sgd", "momentum", "adam")),
            ),
        ],
    }
    return (
        {f"{name}, within 1%": (0.01, sizes) for name, sizes in near.items()}
        | {
            f"MLP {number} of {len(exact)}, to the byte": (0.0, [size])
            for number, size in enumerate(exact, 1)
        }
        | {f"{name}, within 1%": (0.01, sizes) for name, sizes in rest.items()}
    )


def total(answer) -> float:
    """The bytes that an answer tells, one number of them or one for each kind."""
    if isinstance(answer, Mapping):
        return sum(by_kind(answer))
    return bytes_of(answer, "bytes")


def by_kind(answer) -> list | None:
    if not isinstance(answer, Mapping):
        return None
    if strange := [kind for kind in answer if kind not in KINDS]:
        raise Refused(f"{strange[0]!r} is no kind of memory: take of {', '.join(KINDS)}.")
    return [bytes_of(answer.get(kind, 0), kind) for kind in KINDS]


def bytes_of(value, what: str) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    number = not isinstance(value, (bool, torch.Tensor)) and (
        isinstance(value, Real)
        or hasattr(value, "__index__")
        or getattr(value, "shape", None) == ()
    )
    try:
        count = float(value) if number else math.nan
    except (TypeError, ValueError, OverflowError):
        count = math.nan
    if not (math.isfinite(count) and count >= 0):
        raise Refused(
            f"Your function gave {str(value)[:60]} for {what}: "
            "return a number of bytes, or one for each kind in a dictionary."
        )
    return int(count) if count == int(count) else count


def account_of_steps(program, **asked) -> dry_run.Account:
    """dry_run.account, for the library's list of what is saved: not for an answer."""
    if sys._getframe(1).f_code.co_filename != steps.__file__:
        raise Refused("Your answer runs the step dry: count from shapes alone.")
    return dry_run.account(program, **asked)
