"""V-Half: a V within half of 1F1B's memory; a rank works ahead only while it holds few chunks.

    live chunks   2 floor((p+2)/2) on every rank, where 1F1B's rank 0 holds 2p of this size
    idle a rank   3p-7 chunk slots for even p >= 4, 3p-4 for odd p >= 3   (F = I = W = 1, m >= 2p)

A micro-batch takes memory from its F to its W. In a V, a rank whose first chunk waits long for its
W has a second that waits briefly, so all ranks need the same. The rule, slot by slot: run what can
run of F, I, W, in this order; a forward only below the limit, of which rank r keeps 1 + floor(r/2)
for its second chunk. The authors repeat a building block, then reorder; this rule reaches the
makespan and the peak of their program.
Source: Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv:2405.15362).
"""

from functools import lru_cache

from ..schedule import Action, InV


@lru_cache(maxsize=32)
def within(limit: int, ranks: int, micro_batches: int) -> list[list[Action]]:
    """Each rank's order where F, I and W take a slot each and a rank holds at most `limit`."""
    stages = 2 * ranks
    f, i, w = ([0] * stages for _ in "FIW")  # how many of each have run on each stage
    orders: list[list[Action]] = [[] for _ in range(ranks)]
    while min(w) < micro_batches:
        came = [micro_batches, *f]  # inputs of each stage that were there before this slot
        returned = [*i[1:], micro_batches]  # and gradients
        for first, order in enumerate(orders):
            second = stages - 1 - first
            held = f[first] - w[first]
            room = held + f[second] - w[second] < limit
            if room and f[second] < came[second]:
                kind, stage, done = "F", second, f
            elif room and held < limit - 1 - first // 2 and f[first] < came[first]:
                kind, stage, done = "F", first, f
            elif i[first] < returned[first]:
                kind, stage, done = "I", first, i
            elif i[second] < min(f[second], returned[second]):
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
