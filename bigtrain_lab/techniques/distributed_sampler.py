"""Which samples each rank gets: every N-th of one order that all ranks draw alike.

    rank r of N    order[r], order[r + N], order[r + 2 N], ...      order: drawn from seed + epoch

If N does not divide the number of samples, some ranks have one less. In the all-reduce of a batch
that a rank does not have, the others would wait for ever. So there are three ways:

    pad       the order's first samples are appended to it, and so count twice
    drop      the rest is left out
    uneven    ranks differ by one sample, for a loop that allows it

Cost: 8 bytes a sample. Source: Li et al. 2020 (arXiv:2006.15704). The indices are exactly those of
torch.utils.data.DistributedSampler.
"""

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from .guards import refuse


class DistributedSampler(Sampler[int]):
    """Indices of rank `rank` of `ranks`, for a DataLoader.

    samples  their number, or a data set with a length
    shuffle  a new order in each epoch (`set_epoch`); else always 0, 1, 2, ...
    last     "pad", "drop" or "uneven"
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
        """Choose the order of an epoch. Call it before each epoch, on every rank; else all epochs
        have the first one's order. Without shuffle it changes nothing."""
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
