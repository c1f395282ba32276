"""What ZeRO refuses: optimizers that look across elements, and parameters that moved away."""

from collections.abc import Iterable

from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ...core import Impossible
from . import data_parallel, who
from .optimizers import refuse_across


def refuse_stage(stage) -> None:
    if stage not in (1, 2):
        raise Impossible(
            f"stage is {stage!r}: take 1 (optimizer state in parts) or 2 (gradients "
            "too); for parameters in parts wrap the module in FullyShardedDataParallel."
        )


def groups_of(params: Iterable) -> list[dict]:
    """The parameters as groups."""
    params = [params] if isinstance(params, Tensor) else list(params)
    if not params:
        raise Impossible("There are no parameters: give model.parameters().")
    groups = params if isinstance(params[0], dict) else [{"params": params}]
    groups = [
        each
        | {
            "params": (
                [each["params"]] if isinstance(each["params"], Tensor) else list(each["params"])
            )
        }
        for each in groups
    ]
    every = [p for each in groups for p in each["params"]]
    if len(set(map(id, every))) < len(every):
        raise Impossible(
            "A parameter is in two groups, and would be stepped twice: give each once."
        )
    return groups


def refuse_late(made: bool) -> None:
    if made:
        raise Impossible(
            "Parameters that come later would have no pieces, and gradients of each rank's "
            "own: give all groups when the optimizer is made."
        )


def refuse_optimizer(optimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise Impossible(
            f"optimizer_class made a {type(optimizer).__name__}: give a torch optimizer's "
            "class, such as torch.optim.AdamW."
        )
    if not hasattr(optimizer, "among"):  # which will know its ranks
        refuse_across(optimizer, lambda p: True)
    if getattr(optimizer, "max_grad_norm", None) is not None and optimizer.ranks is not None:
        raise Impossible(
            "The optimizer has a group of its own: leave its group out, ZeRO gives it one."
        )


def refuse_kept(shards, gradient) -> None:
    """A new gradient comes while the last one's mean is there still."""
    if gradient.count == 0 and shards.pieces[gradient.home].grad is not None:
        raise Impossible(
            f"Parameter {gradient.name} on {who(shards)} gets a gradient before the "
            "last one was dropped: call the optimizer's zero_grad() after its step."
        )


def refuse_moved(shards) -> None:
    for shard in shards.buckets:
        for parameter, view in zip(shard.layout.tensors, shard.layout.views(shard.weights)):
            if parameter.data_ptr() != view.data_ptr() or parameter.shape != view.shape:
                name = next(each.name for each in shards.gradients if each.home is parameter)
                raise Impossible(
                    f"Parameter {name} on {who(shards)} has other memory or another "
                    "shape than when its pieces were made: change the module before."
                )


def refuse_written(shards) -> None:
    """A gradient that may be on its way was changed, or made, by somebody else."""
    for each in shards.gradients:
        if not (each.used or each.home.grad is None or each.home.grad is each.gone):
            raise Impossible(
                f"Parameter {each.name} on {who(shards)} has a gradient that no "
                "backward brought, as a master of MixedPrecision has: prepare(model, "
                "masters=False), and give model.parameters(), of which ZeRO keeps "
                "masters in parts."
            )
    data_parallel.refuse_written(shards)


class Gone(Tensor):
    """What stands in a parameter's `.grad` when the gradient has left: every use is refused."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        what = next(each.what for each in tree_leaves((args, kwargs)) if isinstance(each, cls))
        raise Impossible(
            f"The gradient of parameter {what} was used after it had left for the "
            "ranks' pieces: read it in the optimizer's param_groups, clip by its "
            "clip_grad_norm_(), and drop it by its zero_grad()."
        )

    __tensor_flatten__ = staticmethod(lambda: ([], None))  # it has no bytes of its own


def refuse_scaler(optimizer) -> None:
    if hasattr(optimizer, "found_inf"):  # which torch's GradScaler sets while it steps
        raise Impossible(
            f"torch's GradScaler on {who(optimizer.shards)} sees the part of this rank "
            "alone, so ranks would skip different steps: take a "
            "DynamicLossScaler(group=...)."
        )


def refuse_other_rank(optimizer, state_dict: dict) -> None:
    own = optimizer.shards.group.rank, optimizer.shards.group.size
    if tuple(state_dict.get("rank", own)) != own:
        of, size = state_dict["rank"]
        raise Impossible(
            f"This state_dict is of rank {of} of {size}, and this is rank {own[0]} of "
            f"{own[1]}: save full_state_dict() and load it by load_full_state_dict()."
        )


def refuse_copy():
    raise Impossible(
        "A ZeroOptimizer cannot be copied, since it talks to other ranks: make one over "
        "the copied model, and load full_state_dict()."
    )


def refuse_no_sync(stage: int) -> None:
    if stage == 2:
        raise Impossible(
            "Stage 2 keeps no gradients of others, so it has none to add up: leave "
            "no_sync() out, or take stage 1."
        )
