"""The layout of tensors side by side in a flat one. It asks of a tensor only how many elements it
has, so a plan lays out weights that no one has made."""

from collections.abc import Sequence
from itertools import accumulate

from ..core.later import torch


class Flat:
    """Layout of tensors of one dtype and device in a flat one of `length` elements. It is cut into
    `size` equal pieces of `share` elements, of which piece `rank` is this rank's.

    starts, sizes   for each tensor: its first element in the flat tensor, its count
    own             for each tensor: its elements (start, stop) in this rank's piece; (0, 0) if none
    """

    def __init__(self, tensors: "Sequence[torch.Tensor]", size: int, rank: int):
        self.tensors, self.size, self.rank = list(tensors), size, rank
        self.sizes = [tensor.numel() for tensor in tensors]
        self.starts = [0, *accumulate(self.sizes)][:-1]
        self.share = -(-sum(self.sizes) // size)
        self.length = self.share * size
        first, last = rank * self.share, (rank + 1) * self.share
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
        """Return this rank's piece of the flat tensor, as a view."""
        return flat[self.rank * self.share : (self.rank + 1) * self.share]

    def pieces(self, piece: "torch.Tensor") -> "list[torch.Tensor]":
        """Return each tensor's elements in this rank's piece, as views of it. They have as many
        dimensions as the tensor, so that `p.dim() > 1` still chooses what decays."""
        first = self.rank * self.share
        return [
            keeping_dim(
                piece[start + begin - first : start + end - first] if end else piece[:0], own
            )
            for own, start, (begin, end) in zip(self.tensors, self.starts, self.own)
        ]


def keeping_dim(elements: "torch.Tensor", whole: "torch.Tensor") -> "torch.Tensor":
    """Elements in a row, with as many dimensions as the whole tensor, at least one: (k, 1) of a
    matrix."""
    return elements.view(-1, *[1] * (whole.dim() - 1))
