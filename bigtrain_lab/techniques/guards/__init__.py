"""What refuses a user's mistakes, apart from the lectures: one file a technique."""

from collections.abc import Callable, Mapping
from operator import index

from ...core import ranks, refuse
from ...core.later import torch


def refuse_settings(settings: Mapping[str, tuple[Callable, str]], given: Mapping) -> None:
    """Refuse the first value that does not fit, of those that are given. `settings`: name ->
    (whether a value fits, what fits)."""
    for name, (fits, what) in settings.items():
        if name in given and not fits(given[name]):
            refuse((True, f"{name} is {shown(given[name])}: give {what}."))


def shown(value) -> str:
    return " ".join(repr(value).split())[:80]


def refuse_loss(call: str, loss, micro_batch: str) -> None:
    """Refuse what a `call` returned for a micro-batch, where no gradient can come from it."""
    what = (
        f"a {type(loss).__name__}"
        if not isinstance(loss, torch.Tensor)
        else f"a tensor of shape {tuple(loss.shape)}"
        if loss.numel() != 1
        else ""
        if loss.requires_grad
        else "a tensor without a graph (detached, made under no_grad, or of frozen weights)"
    )
    refuse(
        (
            what,
            f"{call} gave {what} for micro-batch {micro_batch}: let it return a scalar tensor with "
            "its graph.",
        )
    )


def whole(value, least: int = 1) -> bool:
    """Whether the value is a whole number of at least so much."""
    return not isinstance(value, bool) and hasattr(value, "__index__") and index(value) >= least


def who(model) -> str:
    """This rank of a model's group, by its number in the world."""
    return f"rank {model.group.world_rank(model.group.rank)}"


def by_ranks(group, texts) -> str:
    """What each rank of the group says, with those together that say the same."""
    return "; ".join(
        f"{ranks(group.world_rank(r) for r, text in enumerate(texts) if text == one)}: {one}"
        for one in dict.fromkeys(texts)
        if one
    )
