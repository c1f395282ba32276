"""The simulator on large plans: 64 ranks x 512 micro-batches of 1f1b, and growth with the number of
actions."""

from bigtrain_lab.order.schedule import Schedule
from bigtrain_lab.order.simulate import simulate

from .measure import alternating, row


def rows():
    make = Schedule.named("1f1b")
    cost = {"F": 1, "B": 2}
    sizes = {f"64 x {m}": lambda m=m: simulate(make(64, m), cost) for m in (128, 256, 512, 1024)}
    times = alternating(5, **sizes)
    return [
        row(
            "lower and simulate 1f1b, 64 ranks x 512 micro-batches",
            times["64 x 512"],
            "s",
            at_most=1.0,
        ),
        *(row(f"1f1b, {name}", taken, "s") for name, taken in times.items()),
        row(
            "time of 64 x 1024 over 64 x 512 (linear: 2)",
            times["64 x 1024"] / times["64 x 512"],
            "times",
            at_most=2.5,
        ),
    ]
