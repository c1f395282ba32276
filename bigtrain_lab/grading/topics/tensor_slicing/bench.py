"""Slices of a layer: one rank's outputs, gradients and masks, and how wide its rows are."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...trainings import refuse, tensor


class Rows(TorchDispatchMode):
    """The most numbers that an operation makes for each token; weights' sizes are no multiple."""

    def __init__(self, tokens: int):
        super().__init__()
        self.tokens, self.widest = tokens, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **kwargs or {})
        if isinstance(made, torch.Tensor) and made.numel() % self.tokens == 0:
            self.widest = max(self.widest, made.numel() // self.tokens)
        return made


def play(answer, group, whole, share, targets, forward, logits) -> dict:
    """`whole`: numbers of x, A, a, B and b for the MLP; or this rank's `logits` for the loss of
    `targets`; `share`: of the numbers that drop lets go; `forward`: that alone."""
    given, drops = leaves(whole or {"logits": logits}), []

    def drop(x, seed):
        draw = torch.Generator().manual_seed(sum(map(ord, str(seed))))
        mask = (torch.rand(x.shape, generator=draw) >= share).double() / (1 - share)
        drops.append({"seed": str(seed), "of": x.tolist(), "mask": mask.tolist()})
        return x * mask if share else x  # itself, as out of training

    first = next(iter(given.values()))
    shape = () if targets else first.shape
    handed = [first.clone(), torch.tensor(targets)] if targets else [*given.values()]
    before = [each.detach().clone() for each in handed]
    mine, other = answer(group), [2 * each if each.is_floating_point() else each for each in handed]
    for each in handed:  # the layer before had other numbers in the same tensors
        each.data.mul_(2 if each.is_floating_point() else 1)
    call(mine, targets, handed, lambda x, seed: x)
    for each, numbers in zip(handed, before):
        each.data.copy_(numbers)
    group.mark("begin")
    with Rows(first[..., 0].numel()) as made:
        back = call(mine, targets, handed, drop)
    what = type(back).__name__ + (f" of {[*back.shape]}" if torch.is_tensor(back) else "")
    refuse(
        (
            not isinstance(back, torch.Tensor) or back.shape != shape,
            f"Rank {group.rank} returned a {what}: return a tensor of shape {[*shape]}.",
        )
    )
    group.mark("another call")
    call(mine, targets, other, lambda x, seed: x)
    group.mark("backward")
    with made:
        above = None if forward else backward(back, given)
    return {
        "returned": back.tolist(),
        "gradients": {
            name: (0 * each if each.grad is None else each.grad).tolist()
            for name, each in given.items()
        },
        "changed": sum(not torch.equal(*both) for both in zip(handed, before))
        + (above is not None and not torch.equal(above, gradient_of(back))),
        "widest": made.widest,
        "drops": drops,
    }


def call(mine, targets, given, drop):
    return mine.loss(*given) if targets else mine.mlp(*given, drop)


def leaves(whole: dict) -> dict[str, torch.Tensor]:
    return {name: tensor(numbers).requires_grad_() for name, numbers in whole.items()}


def backward(back: torch.Tensor, given: dict) -> torch.Tensor:
    """Go back, where an MLP's x goes on beside it. Returns the gradient from above."""
    above = gradient_of(back)
    (back + given["x"] if "x" in given else back).backward(above)
    return above


def gradient_of(back: torch.Tensor) -> torch.Tensor:
    """As a loss gives: another gradient in each number, and 1 in none."""
    return torch.linspace(1.5, 3, back.numel()).double().view(back.shape)
