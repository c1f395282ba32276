"""The layout of tensors side by side in a flat one. It asks of a tensor only how many elements it
has, so a plan lays out weights that no one has made."""

from collections.abc import Sequence
from itertools import accumulate

from ..core.later import later

with later():
    import torch


class Flat:
    """Layout of tensors of one dtype and device in a flat one of `length` elements. It is cut into
    `size` equal parts of `part` elements, of which part `rank` is this rank's.

    starts, sizes   for each tensor: its first element in the flat tensor, its count
    own             for each tensor: its elements (start, stop) in this rank's part; (0, 0) if none
    """

    def __init__(self, tensors: "Sequence[torch.Tensor]", size: int, rank: int):
        self.tensors, self.size, self.rank = list(tensors), size, rank
        self.sizes = [tensor.numel() for tensor in tensors]
        self.starts = [0, *accumulate(self.sizes)][:-1]
        self.part = -(-sum(self.sizes) // size)
        self.length = self.part * size
        first, last = rank * self.part, (rank + 1) * self.part
        ends = [
            (max(start, first) - start, min(start + count, last) - start)
            for start, count in zip(self.starts, self.sizes)
        ]
        self.own = [(start, stop) if start < stop else (0, 0) for start, stop in ends]

    def views(self, flat: "torch.Tensor") -> "list[torch.Tensor]":
        """Return each tensor's view of the flat tensor, in its shape."""
        return [
            flat[start : start + count].view(tensor.shape)
            for tensor, start, count in zip(self.tensors, self.starts, self.sizes)
        ]

    def mine(self, flat: "torch.Tensor") -> "torch.Tensor":
        """Return this rank's part of the flat tensor, as a view."""
        return flat[self.rank * self.part : (self.rank + 1) * self.part]

    def pieces(self, part: "torch.Tensor") -> "list[torch.Tensor]":
        """Return each tensor's piece, as views of this rank's part. A piece has as many dimensions
        as its tensor, so that `p.dim() > 1` still chooses what decays."""
        first = self.rank * self.part
        return [
            keeping_dim(part[start + begin - first : start + end - first] if end else part[:0], own)
            for own, start, (begin, end) in zip(self.tensors, self.starts, self.own)
        ]


def keeping_dim(elements: "torch.Tensor", whole: "torch.Tensor") -> "torch.Tensor":
    """Elements in a row, with as many dimensions as the whole tensor, at least one: (k, 1) of a
    matrix."""
    return elements.view(-1, *[1] * (whole.dim() - 1))
