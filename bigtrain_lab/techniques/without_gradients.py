"""Functions under torch.no_grad, in files that are imported where there is no torch."""

from collections.abc import Callable
from functools import wraps

from ..core.later import later

with later():
    import torch


def without_gradients(function: Callable) -> Callable:
    """The function, in which autograd records nothing."""

    @wraps(function)
    def plain(*given, **named):
        with torch.no_grad():
            return function(*given, **named)

    return plain
