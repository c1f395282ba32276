"""The weights of a module as plans read them: names, shapes and formats, and no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

from ..core.formats import DTYPES, DType
from ..core.later import later, torch

with later():
    from . import sliced_model


class Cut(NamedTuple):
    """The dimension along which a parameter is cut; each of `blocks` equal blocks on its own: the
    rows of queries, keys and values are three."""

    dim: int
    blocks: int = 1

    def part(self, whole: "torch.Tensor", rank: int, ranks: int) -> "torch.Tensor":
        """A rank's part, a copy."""
        blocks = whole.chunk(self.blocks, self.dim)
        return torch.cat([block.chunk(ranks, self.dim)[rank] for block in blocks], self.dim)

    def whole(self, parts: "Sequence[torch.Tensor]") -> "torch.Tensor":
        """What the parts of all ranks were cut from."""
        rows = zip(*(part.chunk(self.blocks, self.dim) for part in parts))
        return torch.cat([piece for block in rows for piece in block], self.dim)


@dataclass(frozen=True, eq=False)
class Weight:
    """What a plan asks of a parameter. `cut`: how slices share it; None where each has all of
    it."""

    shape: tuple[int, ...]
    dtype: DType
    requires_grad: bool
    cut: Cut | None
    device: ClassVar[str] = "meta"

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel() * self.itemsize

    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, eq=False)
class Shapes:
    """The weights of a module by name."""

    named: dict[str, Weight]

    @classmethod
    def of(cls, module: "torch.nn.Module") -> "Shapes":
        return cls(
            {
                name: Weight(
                    tuple(p.shape),
                    DTYPES[str(p.dtype).removeprefix("torch.")],
                    p.requires_grad,
                    sliced_model.cut_of(p),
                )
                for name, p in module.named_parameters()
            }
        )

    def named_parameters(self):
        return self.named.items()

    def parameters(self):
        return self.named.values()
