"""Parts of a recipe that contradict each other: refused in one sentence before a process starts.
What its functions return is refused when they are called."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, isnan

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...core import Impossible
from ...order.plan import lower
from ...order.recompute.plan import Recompute, named
from ...order.schedule import Schedule
from ..mixed_precision import MixedPrecision
from . import refuse, whole
from .schedules import refuse_order


def refuse_recipe(recipe) -> None:
    refuse_values(recipe)
    refuse(
        (
            recipe.slices > 1 and not recipe.slicing,
            (
                f"slices is {recipe.slices}, and slicing does not say how layers are cut: give a"
                " plan such as gpt_slices(config)."
            ),
        ),
        (
            recipe.slices > 1 and not callable(recipe.sliced_loss),
            (
                "sliced_loss is missing: give (own slice of the output, targets, group) -> scalar"
                " mean, such as vocab_parallel_cross_entropy where the logits stay sliced."
            ),
        ),
        (
            recipe.sequence_parallel and recipe.slices == 1,
            (
                "sequence_parallel shares the sequence among slices, and slices is 1: take 2 or"
                " more, or leave it out."
            ),
        ),
        (
            recipe.zero and recipe.replicas == 1,
            (
                f"zero is {recipe.zero}, and one replica has nobody to share with: take 2 replicas"
                " or more."
            ),
        ),
        (
            recipe.zero and {"strategy", "all_reduce"} & recipe.data_parallel.keys(),
            (
                f"data_parallel has a strategy or an all_reduce, and stage {recipe.zero} of ZeRO"
                " reduces and scatters its buckets: leave them out, or take zero=0."
            ),
        ),
    )
    refuse_schedule(recipe, recipe.order, MixedPrecision(recipe.precision, recipe.scaler))


def refuse_values(recipe) -> None:
    """Settings that are of no use by themselves."""
    functions = ["model", "data", "loss", "optimizer"] + ["weights"] * (recipe.weights is not None)
    for name in functions:
        value = getattr(recipe, name)
        refuse(
            (
                not callable(value) or isinstance(value, nn.Module) and name == "model",
                (
                    f"{name} is {shown(value)}: give a function (the docstring of Recipe says of "
                    "what)."
                ),
            )
        )
    counts = ["steps", "micro_batches", "ranks", "replicas", "slices", "bucket_bytes"]
    for name in counts + ["samples"] * (recipe.samples is not None):
        value = getattr(recipe, name)
        refuse(
            (
                not whole(value),
                f"{name} is {value!r}: give a whole number of at least 1.",
            )
        )
    if isinstance(recipe.recompute, str):
        named(recipe.recompute)
    refuse(
        (
            recipe.clip is not None and not recipe.clip > 0,
            (
                f"clip is {recipe.clip!r}: give the largest norm that the gradient may have, above"
                " 0, or None."
            ),
        ),
        (
            not (recipe.learning_rate is None or callable(recipe.learning_rate)),
            (
                f"learning_rate is {recipe.learning_rate!r}: give a function of the update's"
                " number, such as noam(512, 4000), or give the optimizer its rate."
            ),
        ),
        (
            not (
                recipe.recompute is None
                or isinstance(recipe.recompute, (str, Recompute))
                or callable(recipe.recompute)
            ),
            (
                f"recompute is {recipe.recompute!r}: give the name of a plan, such as sqrt, or a"
                " function (stage, x, *context) -> output."
            ),
        ),
        (
            recipe.zero not in (0, 1, 2, 3),
            f"zero is {recipe.zero!r}: take 0, or stage 1, 2 or 3 of ZeRO.",
        ),
    )


def refuse_schedule(recipe, order: Schedule, precision: MixedPrecision) -> None:
    """What the schedule leaves no room for."""
    if isinstance(recipe.schedule, Schedule):
        for name in ("ranks", "micro_batches"):
            own, given = getattr(recipe.schedule, name), getattr(recipe, name)
            refuse(
                (
                    given not in (1, own),
                    f"{name} is {given} and the schedule has {own}: leave {name} out.",
                )
            )
    masters = precision.masters or precision.scaler or precision.level.masters
    given = {
        "clip": recipe.clip,
        "weights": recipe.weights,
        "samples": recipe.samples,
        "tied": recipe.tied,
        "replicas": recipe.replicas > 1,
        "slices": recipe.slices > 1,
        "learning_rate": recipe.learning_rate,
        "precision": masters,
    }
    refuse_order(order, given, scaled=bool(precision.scaler))
    last = [recipe.windows[-1][replica :: recipe.replicas] for replica in range(recipe.replicas)]
    for rest in {max(1, len(own)) for own in last} - {order.micro_batches}:
        try:
            lower(replace(order, micro_batches=rest))
        except Impossible as error:
            raise Impossible(
                f"The last window has {rest} micro-batches, for which there is no "
                f"such schedule: {error}"
            ) from error


def refuse_optimizer(optimizer, order) -> None:
    """One that clips would clip each stage by a norm of its own, which turns the gradient."""
    refuse(
        (
            order.stages > 1 and getattr(optimizer, "max_grad_norm", None) is not None,
            (
                f"max_grad_norm is the optimizer's, and each of the {order.stages} stages "
                "has an optimizer: give the recipe clip, which takes the norm over all of "
                "them."
            ),
        )
    )


# -- what the recipe's functions return -----------------------------------------------------------


def require(fits: bool, call, name: str, value, right: str):
    """The value, if it fits; the sentence names the function and its line in the user's file."""
    if fits:
        return value
    code = getattr(call, "__code__", None)
    where = f" (line {code.co_firstlineno} of {code.co_filename})" if code else ""
    raise Impossible(f"{name}{where} returned {shown(value)}: let it return {right}.")


def shown(value) -> str:
    return " ".join(repr(value).split())[:80]


def finite(value) -> bool:
    """True for a number that is neither nan nor infinite, and for any on meta."""
    try:
        return getattr(value, "is_meta", False) or isfinite(value)
    except (TypeError, ValueError, RuntimeError):
        return False


def module(recipe, stage: int) -> nn.Module:
    made = recipe.model(stage)
    return require(
        isinstance(made, nn.Module), recipe.model, "model", made, "the stage's nn.Module"
    )


def sample(recipe, number: int) -> Sequence:
    given = recipe.data(number)
    several = isinstance(given, (tuple, list)) and len(given) in (2, 3)
    fits = (
        several
        and isinstance(given[0], Tensor)
        and all(isinstance(each, (tuple, list)) for each in given[2:])
        and all(part.numel() for part in given[:2] if isinstance(part, Tensor))
    )
    return require(
        fits,
        recipe.data,
        "data",
        given,
        "(inputs, targets), the inputs a tensor of at "
        "least one row, or these and a tuple of further arguments",
    )


def weights(recipe, window: Sequence) -> Sequence:
    given = recipe.weights(window)
    fits = hasattr(given, "__len__") and len(given) == len(window) and all(map(finite, given))
    return require(
        fits, recipe.weights, "weights", given, f"{len(window)} finite numbers, one a micro-batch"
    )


def rate(recipe, update: int) -> float:
    given = recipe.learning_rate(update)
    return require(
        finite(given) and given >= 0,
        recipe.learning_rate,
        f"learning_rate of update {update}",
        given,
        "a finite number of at least 0",
    )


def optimizer(recipe, weights: Sequence):
    made = recipe.optimizer(weights)
    groups = getattr(made, "param_groups", [{"params": [None]}])
    fits = {p for group in groups for p in group["params"]} <= set(weights)
    rates = [group["lr"] for group in groups if isinstance(group.get("lr"), (float, Tensor))]
    nan = any(
        isinstance(each, float) and isnan(each) for group in groups for each in group.values()
    )
    return require(
        fits and not nan and all(map(finite, rates)),
        recipe.optimizer,
        "optimizer",
        made,
        "a torch optimizer of no other parameters than it is given, at a finite rate and "
        "without a nan",
    )


def output(recipe, stage: nn.Module, x, *context):
    result = recipe.recompute(stage, x, *context)
    fits = any(isinstance(leaf, Tensor) for leaf in tree_leaves(result))
    return require(fits, recipe.recompute, "recompute", result, "the stage's output")


def refuse_loss(recipe, loss, output) -> None:
    """A loss that is no scalar, or nan of a finite `output`, which is that of the first sample."""
    name = "sliced_loss" if recipe.slices > 1 else "loss"
    scalar = isinstance(loss, Tensor) and loss.numel() == 1
    wrong = (
        scalar
        and isinstance(output, Tensor)
        and not loss.is_meta
        and isnan(loss.item())
        and output.isfinite().all()
    )
    require(
        scalar and not wrong,
        getattr(recipe, name),
        name,
        loss,
        "a scalar tensor with its "
        "graph, which is no nan before the first update: look for one in data, too",
    )
