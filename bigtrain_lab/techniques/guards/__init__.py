"""What refuses a user's mistakes, apart from the lectures: one file a technique."""

from operator import index

from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...core import Impossible
from ...runtime.failure.wait_graph import ranks


def refuse(*cases: tuple[object, str]) -> None:
    """Impossible, with the sentence of the first case that holds. All sentences are made: of
    values whose text is cheap."""
    for holds, sentence in cases:
        if holds:
            raise Impossible(sentence)


def refuse_loss(call: str, loss, micro_batch: str) -> None:
    """Refuse what a `call` returned for a micro-batch, where no gradient can come from it."""
    what = (
        f"a {type(loss).__name__}"
        if not isinstance(loss, Tensor)
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


class Gone(Tensor):
    """The stand-in in a `.grad` that is elsewhere: any torch function on it raises."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        told = next(each.told for each in tree_leaves((args, kwargs)) if isinstance(each, cls))
        raise Impossible(told)

    __tensor_flatten__ = staticmethod(lambda: ([], None))  # it has no bytes of its own


def gone(parameter: Tensor, told: str) -> Gone:
    """Make a stand-in. All its elements lie in one place, so that nothing can be added to it."""
    strides = (0,) * parameter.dim()
    found = parameter.detach().as_strided(parameter.shape, strides).as_subclass(Gone)
    found.told = told
    return found


def is_gone(gradient: Tensor | None) -> bool:
    return isinstance(gradient, Gone)


def real(gradient: Tensor | None) -> Tensor | None:
    """The gradient; None of a stand-in."""
    return None if is_gone(gradient) else gradient


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
