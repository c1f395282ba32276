"""V-Half: the V of ZB-V within half of 1F1B's memory; a rank works ahead only while it holds few enough chunks.

    live chunks   2 floor((p+2)/2) on every rank, where 1F1B holds up to 2p        idle share   about p/(2m), 1F1B p/m
    idle a rank   3p-7 chunk slots for even p >= 4, 3p-4 for odd p >= 3            (F = I = W = 1, m >= 2p)

A micro-batch takes memory of a rank from its F to its W. In a V, a rank that waits long for the W of its first chunk waits
briefly for that of its second, so all ranks need the same. The rule, slot by slot: run what can run of F, I, W, in this
order; a forward only below the limit, and of the limit rank r keeps 1 + floor(r/2) places for its second chunk.
The authors repeat a building block and then reorder. This rule reaches the makespan and the peak of their program.
Source: Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv:2405.15362), sections 3 and 4.
"""

from functools import lru_cache

from ..schedule import Action, InV


@lru_cache(maxsize=32)
def within(limit: int, ranks: int, micro_batches: int) -> list[list[Action]]:
    """Each rank's order where F, I and W take a slot each and a rank holds at most `limit` chunks."""
    stages = 2 * ranks
    f, i, w = ([0] * stages for _ in "FIW")  # how many of each stage have run
    orders: list[list[Action]] = [[] for _ in range(ranks)]
    while min(w) < micro_batches:
        had_f, had_i = [micro_batches, *f], [*i, micro_batches]  # before this slot: by the stage before, by the next stage
        for first, order in enumerate(orders):
            second = stages - 1 - first
            held = f[first] - w[first]
            room = held + f[second] - w[second] < limit
            if room and f[second] < had_f[second]:
                kind, stage, done = "F", second, f
            elif room and held < limit - 1 - first // 2 and f[first] < had_f[first]:
                kind, stage, done = "F", first, f
            elif i[first] < had_i[first + 1]:
                kind, stage, done = "I", first, i
            elif i[second] < min(f[second], had_i[second + 1]):
                kind, stage, done = "I", second, i
            elif w[first] < i[first]:
                kind, stage, done = "W", first, w
            elif w[second] < i[second]:
                kind, stage, done = "W", second, w
            else:
                continue
            order.append(Action(kind, stage, done[stage]))
            done[stage] += 1
    return orders


class VHalf(InV):
    name = "v-half"

    def steps(self, rank):
        return within(2 * ((self.ranks + 2) // 2), self.ranks, self.micro_batches)[rank]
