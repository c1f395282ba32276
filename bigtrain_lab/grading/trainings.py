"""What benches share: the refusal of an answer, and small fake trainings: tensors from seeds, and
what optimizers hold."""

from __future__ import annotations

import base64
from contextlib import suppress
from functools import partial

from ..core import refuse as refuse_any
from ..core.later import later

with later():
    import torch


class Refused(Exception):
    """A sentence on what an answer may not do, or lacks."""


refuse = partial(refuse_any, error=Refused)  # (condition, sentence), ...


def play(answer):
    """A bench that asks for one value."""
    return answer()


def number(given, otherwise: str) -> float:
    """A number of Python's, numpy's or torch's. Refused, with the sentence `otherwise`, where it
    is none."""
    if not isinstance(given, (bool, str)):
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            return float(given)
    raise Refused(otherwise)


def tensor(numbers) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def packed(tensor) -> str:
    """Raw numbers as text: a million of them in a hundredth of a list's time."""
    return base64.b64encode(tensor.numpy().tobytes()).decode()


def unpacked(text: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype)


def drawn(numbers: dict) -> list[torch.Tensor]:
    """Float64 tensors of {"seed": ..., "shapes": [[...], ...]}, the same wherever drawn."""
    seed = torch.Generator().manual_seed(numbers["seed"])
    return [torch.randn(shape, generator=seed, dtype=torch.float64) for shape in numbers["shapes"]]


def parameters(first: dict, frozen: int | None = None) -> list[torch.nn.Parameter]:
    """Parameters drawn so; number `frozen` requires no gradient."""
    return [torch.nn.Parameter(p, requires_grad=at != frozen) for at, p in enumerate(drawn(first))]


def push(params: list, targets: list, scale: float = 1.0) -> None:
    """The gradients of a loss scale |p - target|^2 / 2, so that they follow the weights."""
    for p, target in zip(params, targets):
        p.grad = scale * (p.detach() - target) if p.requires_grad else None


def mean(targets: list[dict]) -> list[torch.Tensor]:
    """The targets of all ranks as one: its gradient is the mean gradient."""
    return [sum(some) / len(targets) for some in zip(*map(drawn, targets))]


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def held(optimizers) -> int:
    """Float64 numbers that optimizers' states keep, by what lies in memory; no counts of steps."""
    kept = [
        each.untyped_storage()
        for optimizer in list(optimizers)
        for state in optimizer.state.values()
        for each in state.values()
        if torch.is_tensor(each) and each.dim()
    ]
    return sum({storage.data_ptr(): storage.nbytes() for storage in kept}.values()) // 8


def off(found: torch.Tensor, right: torch.Tensor, near: float = 1e-9) -> int:
    """How many numbers are further off than `near` of the largest."""
    return int((~((found - right).abs() <= near * right.abs().max())).sum())


def travelled(seen: list, ranks: int) -> tuple[float, float]:
    """Float64 numbers sent between the marks "begin" and "step", and "step" and "end"; where
    several optimizers step, half of all each."""
    before = after = passed = 0.0
    cuts = []
    for what, _, size in seen:
        if what == "begin":
            passed, cuts = 0.0, []
        elif what == "step":
            cuts.append(passed)
        elif what == "end":
            until = cuts[0] if len(cuts) == 1 else passed / 2
            before, after = before + until / 8, after + (passed - until) / 8
        elif what == "isend":
            passed += size
        else:
            passed += size * (ranks - 1) / ranks * (1 + (what == "all_reduce"))
    return before, after


def by_step(came: list[dict]) -> dict:
    """What each step showed, as one row: "weights, step 2"."""
    return {
        f"{what}, step {n}": now for n, each in enumerate(came, 1) for what, now in each.items()
    }
