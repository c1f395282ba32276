def settles(rate, tau, curvature):
    steps = 200 * (tau + 1) ** 2
    w = [1.0] * (tau + 1)
    for t in range(tau, tau + steps):
        w.append(w[t] - rate * curvature * w[t - tau])
        if abs(w[-1]) > 1e9:
            return False
    quarter = steps // 4
    late, before = max(map(abs, w[-quarter:])), max(map(abs, w[-2 * quarter : -quarter]))
    return late < before or late == 0


def answer(tau, curvature):
    low, high = 0.0, 4 / curvature
    while high - low > 0.003 * high:
        middle = (low + high) / 2
        if settles(middle, tau, curvature):
            low = middle
        else:
            high = middle
    return high
