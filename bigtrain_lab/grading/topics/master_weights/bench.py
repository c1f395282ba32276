"""An update of mixed precision: half weights, their float32 masters, and SGD of rate 1 on these, in
two groups, which hold them in another order."""

import torch

from ...trainings import Refused, refuse

SHAPES = (3, 2), (4,), (2, 2), (4,)


def play(answer, masters, steps, interval=10**6, momentum=0.0, decay=0.0) -> list[dict]:
    """What each step shows. Gradients are flat lists, or None; scale and streak go on as the answer
    returned them, where a step does not start with others."""
    masters = [torch.nn.Parameter(tensor(*each)) for each in zip(masters, SHAPES)]
    weights = [torch.nn.Parameter(master.detach().half()) for master in masters]
    optimizer = torch.optim.SGD(
        [{"params": [masters[n] for n in group]} for group in ((0, 3), (2, 1))],
        lr=1.0,
        momentum=momentum,
        weight_decay=decay,
    )
    calls, told, came = [], None, []
    optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
    for step in steps:
        told, before = step["start"] or told, [master.detach().clone() for master in masters]
        calls.clear()
        backward(weights, step["gradients"], float(told[0]))
        given = list(weights), list(masters)
        told = pair(answer(*given, optimizer, *told, interval, step["clip"]))
        check_left(given, (weights, masters))
        rounded = [
            weight.detach() != master.detach().half() for weight, master in zip(weights, masters)
        ]
        came.append(
            {
                "types": [[str(each.dtype) for each in both] for both in zip(weights, masters)],
                "masters moved by": [(b - m).flatten().tolist() for b, m in zip(before, masters)],
                "calls of optimizer.step()": len(calls),
                "how many numbers of weights are not their master's, rounded": sum(
                    int(each.sum()) for each in rounded
                ),
                "scale": float(told[0]),
                "streak": float(told[1]),
            }
        )
    return came


def tensor(numbers: list, shape: tuple) -> torch.Tensor:
    return torch.tensor(numbers).view(shape)


def backward(weights: list, gradients: list, scale: float) -> None:
    """Gradients of the scaled loss, added to what is there as autograd does."""
    for weight, gradient, shape in zip(weights, gradients, SHAPES):
        if gradient is None:
            weight.grad = None
            continue
        scaled = (tensor(gradient, shape) * scale).half()
        weight.grad = scaled if weight.grad is None else weight.grad + scaled


def pair(told) -> tuple:
    try:
        scale, streak = told
        float(scale), float(streak)
    except (TypeError, ValueError, RuntimeError):
        raise Refused(
            f"Your function returned {str(told)[:60]}: return the pair (scale, streak) for the next"
            " step, also where you skip."
        ) from None
    return scale, streak


def check_left(given: tuple, own: tuple) -> None:
    """Refused where the lists are others than before, or a tensor needs no gradient any more."""
    refuse(
        (
            [[*map(id, each)] for each in given] != [[*map(id, each)] for each in own],
            "Your function changed the lists that it was given: leave them as they are.",
        ),
        (
            not all(each.requires_grad for both in own for each in both),
            "After your function a weight or a master needs no gradient any more: copy under"
            " torch.no_grad() instead.",
        ),
    )
