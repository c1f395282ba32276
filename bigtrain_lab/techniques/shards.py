"""Tensors side by side in a flat one, of which each of N ranks keeps an equal piece.

    |   w (5)   | b (2) |  v (4)  |.|      11 elements, padded to 12
    | rank 0  | rank 1  | rank 2    |      4 each: of w, rank 0 has w[0:4], rank 1 has w[4:5]

An optimizer that works element by element needs no whole tensors, so a piece may begin anywhere.
Of a tensor it has one range of elements, or none.
Cost: at most N - 1 elements of padding a flat tensor.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), section 5.1.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from .flat import keeping_dim


@dataclass(frozen=True, eq=False)
class Home:
    """A weight, and the tensor that the optimizer steps for it (`stepped`): itself, a float32
    master, or this rank's elements `start` to `stop` of either, flattened."""

    name: str
    weight: Tensor
    stepped: Tensor
    start: int = 0
    stop: int | None = None

    def whole(self, own: Tensor, group) -> Tensor:
        """Assemble the whole tensor from each rank's elements `own`. All ranks of the group call
        it together."""
        found = own.new_zeros(self.weight.shape)
        found.view(-1)[self.start : self.stop] = own.reshape(-1)
        return group.unrecorded().all_reduce(found)

    def part(self, whole: Tensor) -> Tensor:
        """Return a copy of this rank's elements of a tensor of the weight's shape."""
        return keeping_dim(whole.reshape(-1)[self.start : self.stop].clone(), whole)


STEPPED = WeakIdKeyDictionary()  # a weight -> its master, or this rank's piece of either
CUTS = WeakIdKeyDictionary()  # a parameter -> its Cut, how tensor slicing cut it
COPIES = WeakIdKeyDictionary()  # the weights that another rank counts in a norm of the model


def home_of(name: str, weight: Tensor, values: Tensor | None = None) -> Home:
    """Return the Home of a weight: itself, or for a half weight a new float32 master. `values`:
    where the master starts; without them at the weight."""
    if weight.itemsize >= 4:
        return Home(name, weight, weight)
    master = (weight if values is None else values).detach().float()
    return Home(name, weight, nn.Parameter(master, weight.requires_grad))


def assembled(pieces: Iterable[tuple[int, int, Tensor]], start: int, stop: int) -> Tensor:
    """Return elements `start` to `stop` of a flattened tensor, from another cut of it: `pieces` are
    (start, stop, elements). The result is shorter where the pieces leave elements out."""
    return torch.cat(
        [
            elements.view(last - first)[max(0, start - first) : max(0, stop - first)]
            for first, last, elements in sorted(pieces, key=lambda piece: piece[:2])
        ]
    )
