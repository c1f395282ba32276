"""Which samples each rank gets: every N-th of one order that all ranks draw alike.

    rank r of N    order[r], order[r + N], order[r + 2 N], ...      order: drawn from seed + epoch

A number of samples that N does not divide leaves some ranks one short. A rank with fewer batches
would leave the others waiting in the all-reduce, so either the order is padded with its own first
samples (which then count twice), or its rest is dropped, or shards stay uneven for a loop that can
bear it. Cost: 8 bytes a sample. Source: Li et al. 2020 (arXiv:2006.15704); the order is that of
torch.utils.data.DistributedSampler, to the index.
"""

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from .guards import refuse


class DistributedSampler(Sampler[int]):
    """Indices of rank `rank` of `ranks`, for a DataLoader.

    samples  how many there are, or what has a length
    shuffle  a new order an epoch, from `set_epoch`; else the order is 0, 1, 2, ... in all of them
    last     of what N does not divide: "pad", "drop" or "uneven"
    """

    def __init__(
        self,
        samples: int | Sized,
        rank: int,
        ranks: int,
        shuffle: bool = True,
        seed: int = 0,
        last: str = "pad",
    ):
        self.samples = samples if isinstance(samples, int) else len(samples)
        refuse(
            (not 0 <= rank < ranks, f"There is no rank {rank} of {ranks}: take 0 to {ranks - 1}."),
            (
                last not in ("pad", "drop", "uneven"),
                f"last is {last!r}: choose pad, drop or uneven.",
            ),
            (
                last != "uneven" and self.samples < (1 if last == "pad" else ranks),
                (
                    f"{self.samples} samples leave nothing for {ranks} ranks: give more samples, or"
                    " take fewer ranks."
                ),
            ),
        )
        self.rank, self.ranks, self.shuffle, self.seed, self.last = rank, ranks, shuffle, seed, last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of an epoch: call it before each, on every rank, else each has the order
        of the first. It does nothing where nothing is shuffled."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = (
            torch.randperm(self.samples, generator=generator)
            if self.shuffle
            else torch.arange(self.samples)
        )
        missing = -self.samples % self.ranks
        if self.last == "pad" and missing:
            order = order.repeat(1 + -(-missing // self.samples))[: self.samples + missing]
        elif self.last == "drop":
            order = order[: self.samples // self.ranks * self.ranks]
        return iter(order[self.rank :: self.ranks].tolist())

    def __len__(self) -> int:
        whole, longer = divmod(self.samples, self.ranks)
        return whole + {"pad": longer > 0, "drop": 0, "uneven": self.rank < longer}[self.last]
