"""1F1B (PipeDream-Flush): after a warm-up of p-r-1 forwards each rank alternates one forward, one
backward.

    rank 0  F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 F4 B1 B1 ...  idle as GPipe: (p-1)(F+B) a rank
    rank 3  .  .  .  F0 B0 B0 F1 B1 B1 F2 ...                 live micro-batches: min(m, p-r), not m

It saves no time. It saves memory, and memory buys micro-batches, which save time. Source: Narayanan
et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training (arXiv:2006.09503), section 3.2.
"""

from ..schedule import B, F, Schedule, U


def one_forward_one_backward(rank: int, ranks: int, micro_batches: int) -> list:
    """The order that 1F1B and PipeDream share, without updates."""
    warm_up = min(micro_batches, ranks - rank - 1)
    steps = [F(rank, m) for m in range(warm_up)]
    for m in range(warm_up, micro_batches):
        steps += [F(rank, m), B(rank, m - warm_up)]
    return steps + [B(rank, m) for m in range(micro_batches - warm_up, micro_batches)]


class OneFOneB(Schedule):
    name = "1f1b"

    def steps(self, rank):
        return [
            *one_forward_one_backward(rank, self.ranks, self.micro_batches),
            U(rank, self.micro_batches - 1),
        ]
