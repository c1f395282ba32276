"""What ZeRO refuses: optimizers that look across elements, and parameters that moved away."""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

from ...core import Impossible
from . import who
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
    if any(not isinstance(p, nn.Parameter) for p in every):
        raise Impossible("A tensor among the parameters is no nn.Parameter: make it one.")
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


def refuse_scaler(optimizer) -> None:
    if hasattr(optimizer, "found_inf"):  # which torch's GradScaler sets while it steps
        raise Impossible(
            f"torch's GradScaler on {who(optimizer.replicas)} sees the part of this rank "
            "alone, so ranks would skip different steps: take a "
            "DynamicLossScaler(group=...)."
        )


def refuse_other_rank(optimizer, state_dict: dict) -> None:
    own = optimizer.replicas.group.rank, optimizer.replicas.group.size
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
