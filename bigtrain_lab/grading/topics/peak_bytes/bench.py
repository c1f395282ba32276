"""Peak bytes: sizes of MLPs and GPTs, for each of which the answer tells a number of bytes."""

import math
import sys
from collections.abc import Mapping

import torch

from ....models import GPTConfig, steps
from ....train import dry_run
from ....train.account import Account
from ...trainings import Refused, number, refuse

KINDS = ("weights", "gradients", "optimizer", "activations", "temporaries")


def play(answer, sizes, by_kind) -> list:
    """Of each size the bytes in all; with `by_kind` in a list, by kinds, where the answer tells
    them."""
    steps.account = account_of_steps
    found = [told(answer(*given(**size))) for size in sizes]
    return [each if by_kind else sum(each) for each in found]


def given(model, batch: int, optimizer: str, dtype: str) -> tuple:
    """What an answer is called with."""
    dtype = getattr(torch, dtype)
    model = GPTConfig(**model, dtype=dtype) if isinstance(model, dict) else tuple(model)
    return model, batch, optimizer, dtype


def told(answer) -> list:
    """A number of bytes, or one for each kind."""
    if not isinstance(answer, Mapping):
        return [bytes_of(answer, "bytes")]
    if strange := [kind for kind in answer if kind not in KINDS]:
        raise Refused(f"{strange[0]!r} is no kind of memory: take of {', '.join(KINDS)}.")
    return [bytes_of(answer.get(kind, 0), kind) for kind in KINDS]


def bytes_of(value, what: str) -> float:
    none = (
        f"Your function gave {str(value)[:60]} for {what}: "
        "return a number of bytes, or one for each kind in a dictionary."
    )
    count = number(value, none)
    refuse((not 0 <= count < math.inf, none))
    return int(count) if count == int(count) else count


def account_of_steps(program, **asked) -> Account:
    """dry_run.account, for the library's list of what is saved: not for an answer."""
    refuse(
        (
            sys._getframe(1).f_code.co_filename != steps.__file__,
            "Your answer runs the step dry: count from shapes alone.",
        )
    )
    return dry_run.account(program, **asked)
