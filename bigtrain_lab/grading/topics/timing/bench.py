"""A device with a clock of its own: calls return before their work is done, the first with each
shape compiles, and now and then another process disturbs one."""

from types import SimpleNamespace

from ...trainings import Refused


class Array(SimpleNamespace):
    """What is computed on: it has a length alone."""

    def __getitem__(self, part):
        return Array(rows=len(range(self.rows)[part]))

    def __len__(self):
        return self.rows


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

    found = answer(function, Array(rows=64), wait, lambda: now)
    if found is None or isinstance(found, (list, tuple)):
        raise Refused("Your answer returned no number: return the seconds of one call.")
    return float(found)
