"""Timing a compiled function: devices of which each number is known."""

NAME, NEAR = "timing", 1e-3
BETWEEN = "between an undisturbed call's time and a disturbed one's"


def scenes(draw):
    def device(**numbers):
        usual = {
            "compiling": draw.uniform(2, 9),
            "launch": draw.uniform(1e-3, 2e-3),
            "work": draw.uniform(0.1, 0.3),
            "disturbed": [False],
            "begin": draw.uniform(100, 900),
        }
        return usual | numbers

    at_once = device(compiling=0.0, launch=draw.uniform(0.1, 0.2), work=0.0)
    yield "a device that does all before it returns", at_once
    yield "a device that works on after the call", device(compiling=0.0)
    yield "a function that compiles first", device()
    yield "a slow launch", device(launch=draw.uniform(0.05, 0.2))
    for name, which, every in (
        ("every fourth call disturbed", (draw.randint(2, 3),), 4),
        ("the second call disturbed, and every fifth", (1,), 5),
        ("the third call disturbed, and every fifth", (2,), 5),
        ("the fifth call disturbed, and every fifth", (4,), 5),
        ("the sixth call disturbed, and every fifth", (0,), 5),
        ("the fourth call disturbed, and every fifth", (3,), 5),
        (
            "the second and third of seven calls disturbed, and another",
            (1, 2, draw.randint(3, 6)),
            7,
        ),
    ):
        yield name, device(disturbed=[call in which for call in range(every)])


def shown(device: dict, seconds: float) -> float | str:
    """Means of however many calls are told alike."""
    alone = device["launch"] + device["work"]
    with_another = device["launch"] + 8 * device["work"]
    between = any(device["disturbed"]) and 1.001 * alone < seconds < 0.999 * with_another
    return BETWEEN if between else seconds
