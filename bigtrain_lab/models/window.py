"""The bytes of training by accumulated gradients, from shapes alone: peak.py's walk, micro-batch by micro-batch.

    a window's first backward     a gradient is born for each weight, and stays
    each other                    a weight's gradient is a temporary, gone as soon as it is added to the one that is there

The loop is techniques/accumulate.py's: a summed loss (torch's cross_entropy with reduction "sum") times the factor of its
micro-batch, its backward, the number added to the window's; then the gradient clipped, if it is, and the update.
"""

from collections.abc import Sequence
from math import prod

from .account import parameter_shapes
from .config import GPTConfig, require_count
from .peak import Account, gpt, update
from .tape import Storage, Tape


def window_steps(config: GPTConfig, sequences: int, windows: Sequence[Sequence[int]], optimizer: str = "adam", clip: bool = False) -> Account:
    """The GPT of this library on micro-batches of `sequences`. `windows`: the numbers of each update's micro-batches, which name
    the actions: F0 B0 F1 B1 ... U1 of the window (0, 1)."""
    require_count("sequences", sequences)
    tape, shapes = Tape(config.dtype.itemsize), parameter_shapes(config, 0, config.pieces)
    for name, shape in shapes.items():
        tape.make(name, prod(shape), "weights")
    tape.end()
    for window in windows:
        part = total = None
        for number in window:
            tape.action = f"F{number}"
            before, (part, backward) = part, gpt(tape, config, sequences, summed)
            if before:
                tape.drop(before)
            tape.end()
            tape.action = f"B{number}"
            backward()
            tape.end()
            tape.action, tape.adding = "", True
            total = total or tape.make("sum of the losses", 1)
        tape.action, tape.adding = f"U{window[-1]}", False
        if clip:
            clipped(tape, list(shapes))
        update(tape, shapes, optimizer, first=window is windows[0])
        tape.drop(*tape.gradients)
        tape.gradients.clear()
        tape.end()
        tape.drop(part, total)
    return Account(tape.rows(), tuple(tape.moments))


def summed(tape: Tape, logits: Storage, rows: int, vocabulary: int):
    """Sum of -log softmax(logits)[target], and how many targets count, times a factor; takes the logits over."""
    values = rows * vocabulary
    log_probabilities = tape.make("log_probabilities", values)
    whole, counted = tape.make("summed loss", 1), tape.make("targets that count", 1)
    tape.save(log_probabilities, counted)
    tape.drop(logits, log_probabilities, counted)
    loss = tape.make("loss", 1)
    tape.drop(whole)

    def backward():
        one = tape.make("loss gradient", 1)  # held by the call of backward() until its end
        each = tape.make("summed loss gradient", 1)
        chosen = tape.make("log_probabilities gradient", values)
        tape.drop(each, counted)
        dlogits = tape.make("logits gradient", values)
        tape.drop(chosen, log_probabilities)
        return dlogits, one
    return loss, backward


def clipped(tape: Tape, names: list[str]) -> None:
    """The norm of each gradient, then that of all: a few numbers, of which the most are there when the whole norm is made."""
    norms = [tape.make(f"{name} gradient norm", 1) for name in names]
    stacked = tape.make("gradient norms", len(names))
    whole = tape.make("gradient norm", 1)
    tape.drop(stacked, *norms)
    tape.drop(whole)
