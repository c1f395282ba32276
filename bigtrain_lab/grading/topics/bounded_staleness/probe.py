"""A parameter server with bounded staleness: who waits for whom, and which weights each gets.

    order     by (time, worker), as soon as no earlier push can come: arrival decides nothing
    answer    when clock - (least clock of those still there) <= bound; the weights of that moment
    stale by  updates between a worker's read and the one that applies its gradient

Source: Ho et al. 2013, More effective distributed ML via a stale synchronous parallel parameter
server (NIPS).
"""

from .bench import layers, plain

NAME = "bounded-staleness"
FORBIDS = ("bigtrain_lab.order.plan.Turns",)


def scenes(draw):
    few, s, first, slow = (draw.randint(*ends) for ends in ((3, 4), (1, 2), (2, 5), (19, 23)))
    each = [[draw.randint(2, 4) + worker for _ in range(6)] for worker in range(few)]
    straggler = [*each[1:], [slow] * 5]
    hiccup = [[*own[:worker], slow, *own[worker + 1 :]] for worker, own in enumerate(each)]
    leaver = [own[: 6 - 2 * (worker == 0)] for worker, own in enumerate(each)]
    alike = [[first, 3, 3, 3, 3], [first, 5, 5, 5], [first, 11, 11]]
    for name, paces, bound, average, *arrivals in (
        ("one worker", [[draw.randint(2, 5)] * 3], None, False, "first"),
        ("3 workers, bound 1", [[3] * 6, [draw.choice((5, 7))] * 5, [11] * 4], 1, False, "first"),
        ("3 workers that begin alike, no bound", alike, None, False, "first"),
        (f"{few} workers, no bound", each, None, False, "last", "first"),
        (f"{few} workers, bound 0", each, 0, False, "first"),
        (f"{few} workers, bound {s}, one slow", straggler, s, False, "first"),
        (f"{few} workers, bound {s}, hiccups", hiccup, s, False, "last", "first"),
        (f"{few} workers of one pace, bound {s}", [[3] * 4] * few, s, False, "last", "first"),
        (f"{few} workers, no bound, one leaves", leaver, None, False, "last", "first"),
        (
            f"{few} workers, bound 1, one leaves ahead",
            [[2] * 3, *([7 + worker] * 4 for worker in range(1, few))],
            1,
            False,
            "last",
            "first",
        ),
        (
            f"{few} workers, bound 1, one leaves behind",
            [[slow], *([3 + worker] * 5 for worker in range(1, few))],
            1,
            False,
            "last",
            "first",
        ),
        (f"{few} workers, average", each, 0, True, "first"),
        (f"{few} workers, average, hiccups", hiccup, None, True, "last", "first"),
        ("5 workers, no bound", several(draw), None, False, draw.randrange(2**31)),
        ("5 workers, bound 0", several(draw), 0, False, draw.randrange(2**31)),
        (f"5 workers, bound {s}", several(draw), s, False, draw.randrange(2**31)),
    ):
        yield (
            f"{name}, heard in two orders" if len(arrivals) > 1 else name,
            {
                "paces": paces,
                "bound": bound,
                "average": average,
                "rate": draw.choice((0.125, 0.25, 0.5)),
                "arrivals": arrivals,
            },
        )


def several(draw) -> list[list[int]]:
    return [[draw.randint(1, 9) for _ in range(draw.randint(3, 7))] for _ in range(5)]


def shown(inputs: dict, came: list[dict]) -> dict:
    """Of the first run, with the pushes that each answer's layers contain."""
    run, paces = came[0], inputs["paces"]
    most = max(map(len, paces))
    row = {
        "one trace in each order of arrival": all(
            other["applied"] == run["applied"] for other in came
        ),
        "workers that wait for ever": run["waiting"],
        "answers (to worker.number) that changed after they were given": run["changed"],
        "worker and time of what is applied": [
            f"{worker} at {time:g}" for time, worker, _ in run["applied"]
        ],
    }
    answers = sorted(run["answers"].items())
    row |= {
        f"versions that worker {worker} reads": [
            version for push, (version, _) in answers if push[0] == str(worker)
        ]
        for worker in range(len(paces))
    }
    first = plain(layers(len(paces), most))
    for push, (_, weights) in answers:
        for at, (before, layer) in enumerate(zip(first, weights)):
            often = [(b - w) / inputs["rate"] / (at + 1) for b, w in zip(before, layer)]
            row[f"pushes (worker.number) in layer {at} of the answer to {push}"] = [
                f"{times(count)}{place // most}.{place % most}"
                for place, count in enumerate(often)
                if abs(count) > 1e-6
            ]
    return row | {"staleness of each gradient": [stale for *_, stale in run["applied"]]}


def times(count: float) -> str:
    """Nothing where that is once."""
    return "" if abs(count - 1) <= 1e-6 else f"{count:.4g} x "
