PARAMETERS = 20 * 2**20
LAYER = 4.5 * 2**20  # bytes of one sample that its backward needs
INPUT = 0.25 * 2**20  # of which its input has so many
FASTEST_FIRST = (
    (8, 1, 1, 16, True, False),
    (4, 2, 1, 32, True, False),
    (1, 4, 1, 32, False, False),
    (1, 4, 2, 16, False, True),
)


def held(dp, pp, tp, micro_batches, zero_1, recompute):
    own = PARAMETERS / (pp * tp)
    state = 8 * own + 8 * own / (dp if zero_1 else 1)
    rows, alive = 64 // micro_batches, min(pp, micro_batches // dp)
    if recompute:
        return state + rows * (INPUT * 6 / pp * alive + LAYER)
    return state + rows * LAYER / tp * 6 / pp * alive


def answer(devices, memory_bytes):
    for plan in FASTEST_FIRST:
        dp, pp, tp, *_ = plan
        if dp * pp * tp == devices and held(*plan) <= memory_bytes:
            names = ("replicas", "pipeline", "slices", "micro_batches", "zero_1", "recompute")
            return {"schedule": "1f1b", **dict(zip(names, plan))}
