"""A device with a clock of its own: calls return before their work is done, the first with each
shape compiles, and now and then another process disturbs one."""

from ...trainings import number

ROWS = 64  # of what is computed on, which has a length and parts alone


def play(answer, compiling, launch, work, disturbed, begin) -> float:
    """The seconds that the answer tells. `disturbed`: of a round, 8 times as long."""
    now, busy, calls, shapes = begin, begin, 0, set()

    def function(x):
        nonlocal now, busy, calls
        now += launch + compiling * (len(x) not in shapes)
        shapes.add(len(x))
        busy = max(busy, now) + work * (8 if disturbed[calls % len(disturbed)] else 1)
        calls += 1
        return x

    def wait():
        nonlocal now
        now = max(now, busy)

    found = answer(function, range(ROWS), wait, lambda: now)
    return number(found, "Your answer returned no number: return the seconds of one call.")
