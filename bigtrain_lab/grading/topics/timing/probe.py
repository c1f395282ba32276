"""Timing a compiled function: devices of which each number is known."""

NAME, NEAR = "timing", 1e-3


def scenes(draw):
    def device(**numbers):
        return {
            "compiling": draw.uniform(2, 9),
            "launch": draw.uniform(1e-3, 2e-3),
            "work": draw.uniform(0.1, 0.3),
            "disturbed": [False],
            "begin": draw.uniform(100, 900),
            **numbers,
        }

    yield (
        "a device that does all before it returns",
        device(compiling=0.0, launch=draw.uniform(0.1, 0.2), work=0.0),
    )
    yield "a device that works on after the call", device(compiling=0.0)
    yield "a function that compiles first", device()
    yield "a slow launch", device(launch=draw.uniform(0.05, 0.2))
    for name, which, every in (
        ("every fourth call disturbed", (3,), 4),
        ("every third call disturbed", (2,), 3),
        ("the second call disturbed, and every fifth", (1,), 5),
        ("the third call disturbed, and every fifth", (2,), 5),
        ("the fifth call disturbed, and every fifth", (4,), 5),
        ("the sixth call disturbed, and every fifth", (0,), 5),
        ("the fourth call disturbed, and every fifth", (3,), 5),
        ("the second and third of seven calls disturbed", (1, 2), 7),
    ):
        yield name, device(disturbed=[call in which for call in range(every)])


def shown(device: dict, seconds: float) -> float | str:
    """Means of however many calls are told alike."""
    alone, is_disturbed = device["launch"] + device["work"], any(device["disturbed"])
    alike = (
        ("between the work's time and a call's", device["work"], alone),
        (
            "between an undisturbed call's time and a disturbed one's",
            alone,
            is_disturbed * (device["launch"] + 8 * device["work"]),
        ),
        (
            "between a call's time and that of the first one, which compiles",
            alone,
            alone + (not is_disturbed) * device["compiling"],
        ),
    )
    return next(
        (told for told, least, most in alike if (1 + 1e-6) * least < seconds < 0.999 * most),
        seconds,
    )
