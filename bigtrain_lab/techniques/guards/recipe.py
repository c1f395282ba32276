"""Parts of a recipe that contradict each other: refused in one sentence before a process starts.
What its functions return is refused when they are called."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, isnan

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...core import Impossible
from ...order import Schedule, lower
from ...order.recompute.plan import Recompute, named
from ..mixed_precision import MixedPrecision
from . import refuse, refuse_settings, shown, whole
from .optimizers import refuse_beyond
from .schedules import refuse_order

FUNCTION = "a function (the docstring of Recipe says of what)"
COUNT = "a whole number of at least 1"
SETTINGS = {  # of a recipe, each by itself
    "model": (lambda value: callable(value) and not isinstance(value, nn.Module), FUNCTION),
    **dict.fromkeys(("data", "loss", "optimizer"), (callable, FUNCTION)),
    "weights": (lambda value: value is None or callable(value), FUNCTION),
    **dict.fromkeys(("steps", "micro_batches", "ranks", "replicas", "slices"), (whole, COUNT)),
    "bucket_bytes": (whole, COUNT),
    "samples": (lambda value: value is None or whole(value), COUNT),
    "recompute": (
        lambda value: (
            value is None
            or callable(value)
            or isinstance(value, Recompute)
            or (isinstance(value, str) and bool(named(value)))
        ),
        "the name of a plan, such as sqrt, or a function (stage, x, *context) -> output",
    ),
    "clip": (
        lambda value: value is None or value > 0,
        "the largest norm that the gradient may have, above 0, or None",
    ),
    "learning_rate": (
        lambda value: value is None or callable(value),
        "a function of the update's number, such as noam(512, 4000), or give the optimizer its "
        "rate",
    ),
    "zero": (lambda value: value in (0, 1, 2, 3), "0, or stage 1, 2 or 3 of ZeRO"),
}


def refuse_recipe(recipe) -> None:
    refuse_settings(SETTINGS, vars(recipe))
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


def refuse_schedule(recipe, order: Schedule, precision: MixedPrecision) -> None:
    """What the schedule leaves no room for."""
    fixed = recipe.schedule if isinstance(recipe.schedule, Schedule) else recipe
    refuse(
        *(
            (
                getattr(recipe, name) not in (1, getattr(fixed, name)),
                f"{name} is {getattr(recipe, name)} and the schedule has {getattr(fixed, name)}: "
                f"leave {name} out.",
            )
            for name in ("ranks", "micro_batches")
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
    refuse_beyond(
        optimizer,
        order.stages,
        "stages",
        "leave that out and give the recipe clip, which takes the norm over all of them",
    )


# -- what the recipe's functions return -----------------------------------------------------------


def require(fits: bool, call, name: str, value, right: str):
    """The value, if it fits; the sentence names the function and its line in the user's file."""
    if fits:
        return value
    code = getattr(call, "__code__", None)
    where = f" (line {code.co_firstlineno} of {code.co_filename})" if code else ""
    raise Impossible(f"{name}{where} returned {shown(value)}: let it return {right}.")


def finite(value) -> bool:
    """True for a number that is neither nan nor infinite, and for any on meta."""
    try:
        return getattr(value, "is_meta", False) or isfinite(value)
    except (TypeError, ValueError, RuntimeError):
        return False


def asked(recipe, name: str, *given):
    """What a function of the recipe returns, if it fits."""
    function, (fits, right) = getattr(recipe, name), RETURNS[name]
    value = function(*given)
    called = f"{name}({given[0]})" if isinstance(given[0], int) else name
    return require(fits(value, *given), function, called, value, right)


def is_sample(value, number: int) -> bool:
    several = isinstance(value, (tuple, list)) and len(value) in (2, 3)
    return (
        several
        and isinstance(value[0], Tensor)
        and all(isinstance(each, (tuple, list)) for each in value[2:])
        and all(part.numel() for part in value[:2] if isinstance(part, Tensor))
    )


def are_weights(value, window: Sequence) -> bool:
    return hasattr(value, "__len__") and len(value) == len(window) and all(map(finite, value))


def steps_these(made, weights: Sequence) -> bool:
    """True for an optimizer of no other parameters, at finite rates and without a nan."""
    groups = getattr(made, "param_groups", [{"params": [None]}])
    fits = {p for group in groups for p in group["params"]} <= set(weights)
    rates = [group["lr"] for group in groups if isinstance(group.get("lr"), (float, Tensor))]
    numbers = [each for group in groups for each in group.values() if isinstance(each, float)]
    return fits and all(map(finite, rates)) and not any(map(isnan, numbers))


RETURNS = {  # function of a recipe -> (whether what it returned fits, what it should return)
    "model": (lambda made, stage: isinstance(made, nn.Module), "the stage's nn.Module"),
    "data": (
        is_sample,
        "(inputs, targets), the inputs a tensor of at least one row, or these and a tuple of "
        "further arguments",
    ),
    "weights": (are_weights, "finite numbers, one a micro-batch"),
    "learning_rate": (
        lambda rate, update: finite(rate) and rate >= 0,
        "a finite number of at least 0",
    ),
    "optimizer": (
        steps_these,
        "a torch optimizer of no other parameters than it is given, at a finite rate and without "
        "a nan",
    ),
    "recompute": (
        lambda output, *_: any(isinstance(leaf, Tensor) for leaf in tree_leaves(output)),
        "the stage's output",
    ),
}


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
