MB = 2**20


def answer(devices, memory_bytes):
    plan = {
        "replicas": devices,
        "pipeline": 1,
        "slices": 1,
        "micro_batches": 16,
        "schedule": "1f1b",
        "zero": 1,
        "recompute": False,
    }
    if memory_bytes < 250 * MB:
        plan |= {"replicas": devices // 2, "pipeline": 2, "micro_batches": 32}
    if devices == 4:
        plan |= {"replicas": 1, "pipeline": 4}
    if memory_bytes < 100 * MB:
        plan |= {"replicas": 1, "pipeline": 4, "slices": 2, "micro_batches": 16}
        plan["recompute"] = True
    return plan
