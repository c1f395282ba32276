"""ZeRO-1: steps of training on one rank, around the answer. No truth is here."""

import weakref

import torch

from ...trainings import drawn, flat, held, parameters, push


def play(
    answer, group, first, frozen, optimizer, settings, groups, clip, scale, steps, every, targets
):
    """The weights after each step, one of `every`; the numbers of state kept, and at the highest
    moment."""
    made, most, kept, weights = weakref.WeakSet(), [0], 0, []

    class Watched(getattr(torch.optim, optimizer)):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.add(self)
            most.append(held(made))

        def step(self, closure=None):
            group.mark("step")
            loss = super().step(closure)
            most.append(held(made))
            return loss

    Watched.__name__ = optimizer
    params, targets = parameters(first, frozen), drawn(targets)
    mine = answer(halves(params, groups), Watched, group, max_norm=clip, **settings)
    for _ in range(steps):
        push(params, targets, scale)
        group.mark("begin")
        mine.step()
        group.mark("end")
        kept = held(made)
        weights.append(flat(params)[::every].tolist())
    return {"weights": weights, "kept": kept, "most": max(most)}


def halves(params: list, groups: list) -> list:
    """What the optimizer is given: the parameters, or two groups of them."""
    cut = len(params) // 2
    of_groups = [
        {**each, "params": some} for each, some in zip(groups, (params[:cut], params[cut:]))
    ]
    return of_groups or list(params)
