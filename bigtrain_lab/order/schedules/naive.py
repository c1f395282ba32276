"""Naive model parallelism: one batch goes through all stages as a whole, so one rank works at a
time.

rank 0  F F . . . . . . B B B B        p ranks, m micro-batches' worth of work in one piece
rank 1  . . F F B B B B . . . .        idle share  1 - 1/p,  the whole batch is live on every rank
"""

from ..schedule import Action, Schedule, U


class Naive(Schedule):
    name = "naive"

    def steps(self, rank):
        batch = range(self.micro_batches)
        return [
            tuple(Action("F", rank, m) for m in batch),
            tuple(Action("B", rank, m) for m in batch),
            U(rank, self.micro_batches - 1),
        ]
