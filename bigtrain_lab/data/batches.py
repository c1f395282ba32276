"""Batches of about as many tokens: sentences of like lengths together, so that little of a padded
batch is padding.

    epoch e    order = DistributedSampler's, drawn from seed + e, stably sorted by length;
               cut where rows x longest > tokens; then the batches are shuffled
    update w   batch w mod n of epoch w div n; micro-batch i of m: sentences i, i + m, i + 2 m, ..

All epochs are cut at the same places, since their sorted lengths are the same: each has n batches,
and update w is a function of its number alone. Sentences of one length change their batch from
epoch to epoch, batches their order. The m micro-batches of an update are those of all replicas
together (m = replicas x accumulation), so ranks share each batch as a DistributedSampler would, by
sentences; one that gets none computes a row of padding, which counts no token.
Cost: a sort an epoch, 8 bytes a sentence. Buckets by length as in Vaswani et al. 2017
(arXiv:1706.03762), section 5.1: about 25,000 tokens a batch there.

Shapes: B sentences of a micro-batch, S source, T target.
"""

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256

import numpy as np
import torch

from bigtrain_lab.core import refuse
from bigtrain_lab.models.config import require_counts
from bigtrain_lab.models.seed import generator
from bigtrain_lab.techniques.distributed_sampler import DistributedSampler
from bigtrain_lab.techniques.one_process import Sample

from .tokens import BEGIN, END, PAD

Ids = tuple[Sequence[int], Sequence[int]]


class Batches:
    """Of pairs of ids, batches of at most `tokens` tokens of the longer side, padding included;
    `parts`: micro-batches of one."""

    def __init__(self, pairs: Sequence[Ids], tokens: int, parts: int = 1, seed: int = 0):
        require_counts(tokens=tokens, parts=parts)
        self.pairs, self.tokens, self.parts, self.seed = pairs, tokens, parts, seed
        self.lengths = np.array([1 + max(len(source), len(target)) for source, target in pairs])
        refuse(
            (
                self.lengths.max() > tokens,
                f"A sentence of {self.lengths.max():,} tokens is more than a batch of "
                f"{tokens:,}: take larger batches, or leave out such sentences.",
            )
        )
        self.starts = cuts(np.sort(self.lengths), tokens)
        self.latest = (-1, [])  # an epoch, and its batches

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.starts)

    def epoch(self, number: int) -> list[np.ndarray]:
        """The sentences of each batch. Threads that load for the next epoch may ask meanwhile."""
        latest, batches = self.latest
        if latest == number:
            return batches
        sampler = DistributedSampler(len(self.pairs), 0, 1, seed=self.seed)
        sampler.set_epoch(number)
        order = np.array([*sampler])
        order = order[self.lengths[order].argsort(kind="stable")]
        shuffled = torch.randperm(len(self), generator=generator("batches", self.seed, number))
        cut = np.split(order, self.starts[1:])
        self.latest = number, (batches := [cut[at] for at in shuffled.tolist()])
        return batches

    @cached_property
    def origin(self) -> dict:
        """All that decides which sentences each batch has."""
        digest = sha256()
        for pair in self.pairs:
            digest.update(repr(pair).encode())
        return {
            "seed": self.seed,
            "batch_tokens": self.tokens,
            "pairs": len(self.pairs),
            "digest of the pairs": digest.hexdigest()[:16],
        }

    def place(self, update: int) -> tuple[int, int]:
        """Epoch, and batch in it."""
        return divmod(update, len(self))

    def sentences(self, micro_batch: int) -> list[int]:
        """Which sentences a micro-batch has, numbered through the run."""
        update, part = divmod(micro_batch, self.parts)
        epoch, place = self.place(update)
        return self.epoch(epoch)[place][part :: self.parts].tolist()

    def words(self, micro_batch: int) -> int:
        """Target tokens, ends included: what its loss is the mean of."""
        return sum(len(self.pairs[number][1]) + 1 for number in self.sentences(micro_batch))

    def sample(self, micro_batch: int) -> Sample:
        """Source (B, S), the words to come (B, T), and in the context the words so far (B, T)."""
        return padded([self.pairs[number] for number in self.sentences(micro_batch)])


def cuts(lengths: np.ndarray, tokens: int) -> list[int]:
    """Where batches begin in ascending lengths: each as long as its rows times its longest are at
    most so many tokens."""
    starts = [0]
    for place, length in enumerate(lengths):
        if (place - starts[-1] + 1) * length > tokens:
            starts.append(place)
    return starts


def in_order(pairs: Sequence[Ids], rows: int) -> list[list[int]]:
    """All pairs once, the shortest sources first, so many at a time: what an evaluation reads."""
    order = np.array([len(source) for source, _ in pairs]).argsort(kind="stable").tolist()
    return [order[start : start + rows] for start in range(0, len(order), rows)]


def padded(pairs: Sequence[Ids]) -> Sample:
    """One micro-batch; of no pair a row of padding."""
    if not pairs:
        return Sample(torch.tensor([[END]]), torch.tensor([[PAD]]), (torch.tensor([[BEGIN]]),))
    return Sample(
        filled([[*source, END] for source, _ in pairs]),
        filled([[*target, END] for _, target in pairs]),
        (filled([[BEGIN, *target] for _, target in pairs]),),
    )


def filled(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """(B, longest) int64, short rows filled with padding."""
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row, dtype=torch.int64) for row in rows], batch_first=True, padding_value=PAD
    )


def tokens_of(sample: Sample) -> int:
    """Words to come, without padding."""
    return int((sample.targets != PAD).sum())
