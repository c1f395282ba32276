"""A module that is cut into stages trains as the whole one does, or is refused before it runs.

Two micro-batches are trained in this process, cut and whole. Cost: both, one after the other, and
the memory of two such modules.
"""

from contextlib import contextmanager

import torch

from ...core import Impossible
from .. import one_process
from . import refuse


@contextmanager
def trial():
    """Stages run within. A tensor of another rank is on meta: torch raises a RuntimeError where a
    module reads its values, and a TypeError where it asks for an array of them."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        raise Impossible(
            f"A trial of the stages failed, so take a plan with pp 1 or change the module: {error}"
        ) from error


@torch.random.fork_rng(devices=[])
def refuse_other(cut, whole: torch.nn.Module, loss, recipe) -> None:
    """Refuse a module that the recipe trained otherwise when it was `cut`."""
    samples = [[recipe.data(number)] for number in range(recipe.steps)]
    own, other = (
        {"": torch.tensor(trained.losses)} | trained.weights
        for trained in (cut, one_process.synchronous([whole], samples, loss, recipe.optimizer))
    )
    refuse(
        (
            not all(
                torch.allclose(value, other[name], 1e-4, 1e-5, equal_nan=True)
                for name, value in own.items()
            ),
            "Cut into stages, the module trains otherwise than whole. Draw numbers with torch,"
            " weights in make() and others inside of blocks. Let the loss use its two arguments"
            " alone, and change no lists, dicts or state that several blocks share.",
        )
    )


def refuse_elsewhere(x: torch.Tensor, sent: list) -> None:
    """Refuse to send what another rank computed."""
    refuse(
        (
            not x.is_meta and any(getattr(each, "is_meta", False) for each in sent),
            "A block or what follows them needs what another rank computed before them, so the"
            " module cannot be cut: take a plan with pp 1.",
        )
    )
