from functools import cache

from bigtrain_lab.order.recompute.plan import A, B, F


def answer(sizes, costs, budget):
    @cache
    def best(s, t, room):
        if s == t:
            return 0, [F(t), B(t)]
        ways = []
        left = room - sizes[s]
        for j in range(s + 1, t + 1):
            if left >= sizes[j] or j == t:
                work_after, after = best(j, t, left)
                work_before, before = best(s, j - 1, room)
                work = sum(costs[s:j]) + work_after + work_before
                ways.append((work, [A(i) for i in range(s, j)] + after + before))
        return min(ways)

    return best(0, len(sizes) - 1, budget)[1]
