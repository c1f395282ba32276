"""Which samples each rank gets: every N-th of one order that all ranks draw alike.

    rank r of N    order[r], order[r + N], order[r + 2 N], ...      order: drawn from seed + epoch

If N does not divide the number of samples, some ranks have one less. In the all-reduce of a batch
that a rank does not have, the others would wait for ever. So there are three ways:

    pad       the order's first samples are appended to it, and so count twice
    drop      the rest is left out
    uneven    ranks differ by one sample, for a loop that allows it

Padding and dropping are torch's own; uneven ranks are added here.
Cost: 8 bytes a sample. Source: Li et al. 2020 (arXiv:2006.15704).
"""

from collections.abc import Sized

from torch.utils import data

from .guards import refuse


class DistributedSampler(data.DistributedSampler):
    """Indices of rank `rank` of `ranks`, for a DataLoader.

    samples  their number, or a data set with a length
    shuffle  a new order in each epoch, of which every rank calls set_epoch(epoch) before; without
             that call all epochs have the first one's order. False: always 0, 1, 2, ...
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
        samples = range(samples) if isinstance(samples, int) else samples
        refuse(
            (not 0 <= rank < ranks, f"There is no rank {rank} of {ranks}: take 0 to {ranks - 1}."),
            (
                last not in ("pad", "drop", "uneven"),
                f"last is {last!r}: choose pad, drop or uneven.",
            ),
            (
                last != "uneven" and len(samples) < (1 if last == "pad" else ranks),
                (
                    f"{len(samples)} samples leave nothing for {ranks} ranks: give more samples, or"
                    " take fewer ranks."
                ),
            ),
        )
        super().__init__(samples, ranks, rank, shuffle, seed, drop_last=last == "drop")
        if last == "uneven":  # torch's own has no such way
            self.total_size = len(samples)
            self.num_samples = len(range(rank, len(samples), ranks))
