"""A backward inside a backward, by which a chain and reversible layers gather the gradients of weights as they go, and its limits.

    torch.autograd.grad    asks for gradients in another place than .grad: refused
    a tensor with a graph  that a function uses beside its input is reached by each inner backward, and the first one frees its
                           graph: refused at the second, by torch itself where that is the outer backward. `checkpoint`
                           (region.py), whose graph is the plain one, has no such limit
    hooks of a weight      that several layers share run once a use, where one backward runs them once with the sum
"""

import torch

from ...core import Impossible


def require_whole_backward(whose: str) -> None:
    """Impossible inside anything but a loss.backward()."""
    if not torch.autograd._is_checkpoint_valid():
        raise Impossible(f"{whose} weights gather their gradients in .grad while its backward runs, so torch.autograd.grad and "
                         "backward(inputs=) cannot have them: call loss.backward().")


def backward_inside(outputs, gradients, name: str, instead: str) -> None:
    """torch.autograd.backward; where it meets a graph that an earlier one freed, a sentence about `name` that says what to do instead."""
    try:
        torch.autograd.backward(outputs, gradients)
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise Impossible(f"{name} uses a tensor beside its input that has a graph of its own, and another backward has freed that "
                         f"graph: {instead}.") from error
