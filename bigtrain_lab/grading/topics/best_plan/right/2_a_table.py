import numpy as np

from bigtrain_lab.order.recompute.plan import A, B, F


def answer(sizes, costs, budget):
    n = len(sizes)
    work = np.zeros((n, n, budget + 1))
    next_kept = np.zeros((n, n, budget + 1), dtype=int)
    for length in range(1, n):
        for s in range(n - length):
            t = s + length
            for room in range(sizes[s], budget + 1):
                left = room - sizes[s]
                work[s, t, room], next_kept[s, t, room] = min(
                    (sum(costs[s:j]) + work[j, t, left] + work[s, j - 1, room], j)
                    for j in range(s + 1, t + 1)
                    if sizes[j] <= left or j == t
                )

    order, todo = [], [(0, n - 1, budget)]
    while todo:
        s, t, room = todo.pop()
        if s == t:
            order += [F(t), B(t)]
        else:
            j = next_kept[s, t, room]
            order += [A(i) for i in range(s, j)]
            todo += [(s, j - 1, room), (j, t, room - sizes[s])]
    return order
