"""A mesh names the axes along which ranks are laid out: rank = row-major index of its coordinates.

The last axis varies fastest, so its peers are neighbours: put the axis that talks most last, inside
a node. Source: Shazeer et al. 2018, Mesh-TensorFlow (arXiv:1811.02084).
"""

from dataclasses import dataclass
from itertools import product
from math import prod

from .impossible import Impossible, refuse, refuse_counts


@dataclass(frozen=True, init=False)
class Mesh:
    """`Mesh(dp=2, pp=2, tp=2)`: 8 ranks; sizes in keyword order."""

    axes: tuple[tuple[str, int], ...]

    def __init__(self, **axes: int):
        refuse_counts("mesh", axes)
        object.__setattr__(self, "axes", tuple(axes.items()))

    @property
    def size(self) -> int:
        return prod(size for _, size in self.axes)

    def coords(self, rank: int) -> dict[str, int]:
        """Where `rank` sits on each axis."""
        if not 0 <= rank < self.size:
            raise Impossible(
                f"Rank {rank} is not on this mesh of {self.size} ranks (0 to {self.size - 1})."
            )
        coords = {}
        for axis, size in reversed(self.axes):
            rank, coords[axis] = divmod(rank, size)
        return {axis: coords[axis] for axis, _ in self.axes}

    def rank(self, **coords: int) -> int:
        """The rank at these coordinates; the inverse of `coords`."""
        rank = 0
        for axis, size in self.axes:
            rank = rank * size + coords[axis]
        return rank

    def peers(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The ranks that differ from `rank` along these axes only, itself included, in order."""
        sizes = dict(self.axes)
        refuse(
            *(
                (
                    axis not in sizes,
                    f"This mesh has no axis {axis!r}: its axes are {', '.join(sizes) or 'none'}.",
                )
                for axis in axes
            )
        )
        own = self.coords(rank)
        return tuple(
            self.rank(**own | dict(zip(axes, place)))
            for place in product(*(range(sizes[axis]) for axis in axes))
        )
