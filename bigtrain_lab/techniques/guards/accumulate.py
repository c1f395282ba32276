"""What cannot be accumulated, or would be weighted wrongly in silence: refused in one sentence."""

from collections.abc import Callable, Iterator, Sequence
from operator import index

from ...core.later import torch
from . import refuse, refuse_loss, whole


def whole_number(k) -> int:
    refuse(
        (
            not whole(k),
            f"k is {k!r}: accumulate a whole number of micro-batches, at least 1.",
        )
    )
    return index(k)


def refuse_update(clip: float | None, optimizer) -> None:
    refuse(
        (
            clip is not None and not clip > 0,  # a negative one would turn the gradient round
            (
                f"clip is {clip!r}: give the largest norm that the gradient may have, above 0, or "
                "None: it is not clipped."
            ),
        ),
        (
            not hasattr(optimizer, "step") or isinstance(optimizer, torch.optim.LBFGS),
            (
                f"The optimizer is a {type(optimizer).__name__}: give one of torch.optim that steps"
                " without a closure, such as AdamW."
            ),
        ),
    )


def weighted(window: Sequence, factors: Sequence[float]) -> Iterator[tuple[int, object, float]]:
    """(number, micro-batch, its factor)."""
    refuse(
        (
            len(factors) != len(window),
            (
                f"The rule gave {len(factors)} factors for {len(window)} micro-batches: let it"
                " return one for each."
            ),
        )
    )
    return zip(range(len(window)), window, factors)


def scalar(loss, number: int) -> "torch.Tensor":
    """The summed loss of a micro-batch, from which a gradient can come."""
    refuse_loss("loss_sum", loss, f"{number} of the window")
    return loss


def counted(window: Sequence, tokens: Callable = lambda count: count) -> list[int]:
    """Tokens of each micro-batch, be they a tensor's or a float's; one that has none would have the
    mean loss 0/0."""
    refuse((not window, "The window holds no micro-batches: give at least one."))
    found = [tokens(micro_batch) for micro_batch in window]
    counts = [int(count) for count in found]
    at = next((at for at, n in enumerate(counts) if n < 1 or n != found[at]), 0)
    refuse(
        (
            counts[at] != found[at],
            f"tokens says {found[at]!r} for micro-batch {at} of the window: let it return how many "
            "tokens the summed loss is over, a whole number.",
        ),
        (
            counts[at] < 1,
            f"Micro-batch {at} of a window of {len(counts)} has {counts[at]} tokens to learn from: "
            "leave it out, it adds nothing to a sum and has no mean.",
        ),
    )
    return counts


def some(losses: list[float]) -> list[float]:
    refuse((not losses, "There are no micro-batches: give at least one."))
    return losses


def refuse_momentum(momentum: float, k: float) -> None:
    refuse(
        (
            not 0 <= momentum <= 1 or not k > 0,
            (
                f"momentum is {momentum!r} and k {k!r}: batch norm mixes by a share from 0 to 1,"
                " over more than 0 micro-batches."
            ),
        )
    )
