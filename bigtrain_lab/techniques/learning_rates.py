"""How large a step each update takes: functions of the update's number, counted from 1.

A rate changes once an update, whatever number of micro-batches it was made of.
"""

from torch.optim import Optimizer


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Give every parameter group the rate, times its own "rate_scale" where it has one. A rate that
    is a tensor, as under torch.compile, is filled."""
    for group in optimizer.param_groups:
        scaled = rate * group.get("rate_scale", 1.0)
        group["lr"] = group["lr"].fill_(scaled) if hasattr(group["lr"], "fill_") else scaled
