"""Time a compiled function: what one call takes once it is compiled, on a device that works on after the call returns.

The probe's device has a clock of its own: the first call with each shape compiles, a launch returns at
once, `wait` returns when the work is done, and now and then another process disturbs a call.
"""

from types import SimpleNamespace

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong

RIGHT = """
def answer(function, x, wait, clock):
    function(x)
    wait()
    times = []
    for call in range(15):
        start = clock()
        function(x)
        wait()
        times.append(clock() - start)
    times.sort()
    return times[len(times) // 2]
"""
MEDIAN = """
from statistics import median

def answer(function, x, wait, clock):
    def timed():
        wait()
        before = clock()
        result = function(x)
        wait()
        return clock() - before
    for _ in range(3):
        timed()
    return median(timed() for _ in range(21))
"""
LEAST = """
def answer(function, x, wait, clock):
    best = float("inf")
    for k in range(12):
        wait()
        t = clock()
        function(x)
        wait()
        if k:
            best = min(best, clock() - t)
    return best
"""
STAMPS = """
import numpy as np

def answer(function, x, wait, clock):
    function(x), wait()
    stamps = [clock()]
    for _ in range(25):
        function(x)
        wait()
        stamps.append(clock())
    return np.median(np.diff(stamps))
"""
CLASS = """
import torch

class Timer:
    def __init__(self, wait, clock):
        self.wait, self.clock, self.taken = wait, clock, []
    def __enter__(self):
        self.wait()
        self.start = self.clock()
    def __exit__(self, *error):
        self.wait()
        self.taken.append(self.clock() - self.start)

def answer(function, x, wait, clock):
    timer = Timer(wait, clock)
    for _ in range(31):
        with timer:
            function(x)
    return torch.tensor(timer.taken[1:], dtype=torch.float64).median()
"""
FUNCTION, AFTER = (
    "        function(x)\n",
    "        function(x)\n        wait()\n        times.append(clock() - start)\n",
)
WARM = "    function(x)\n    wait()\n    times"
SORTED = "    times.sort()\n    return times[len(times) // 2]"
NOT_WAITED = "You timed the launch, not the work: the device works on after the call returns, so wait before you read the clock."
BETWEEN = "between an undisturbed call's time and a disturbed one's"
ONE = "One timing is not enough: another process may have disturbed that call, so time many and take the median."


class Timing(Topic):
    name = "timing"
    hints = (
        "Which work is still to be done when the function returns? And what did the first call do that later ones do not?",
        "Call once and wait. Then time many calls one by one: each from the clock to the clock, with a wait before the second.",
        "function(x); wait(). Then many times: start = clock(); function(x); wait(); keep clock() - start. Return the median.",
    )
    right = {
        "median of calls": RIGHT,
        "statistics": MEDIAN,
        "the least": LEAST,
        "stamps": STAMPS,
        "a class": CLASS,
    }
    wrong = {
        "times_first_call": Wrong(
            "You timed compilation: the first call with a shape compiles, so call once before you time.",
            "def answer(function, x, wait, clock):\n    wait()\n    start = clock()\n    function(x)\n    wait()\n    return clock() - start\n",
        ),
        "mean with the first": Wrong(
            "The first call is in your mean, and compiles: call once before you time, and take a median.",
            ((WARM, "    times"), (SORTED, "    return sum(times) / len(times)")),
        ),
        "no_synchronise": Wrong(
            NOT_WAITED, ((AFTER, FUNCTION + "        times.append(clock() - start)\n"),)
        ),
        "waits too late": Wrong(
            NOT_WAITED,
            ((AFTER, FUNCTION + "        times.append(clock() - start)\n        wait()\n"),),
        ),
        "times the wait": Wrong(
            "The launch itself is not in your time: read the clock before the call.",
            (
                (
                    "        start = clock()\n        function(x)\n",
                    "        function(x)\n        start = clock()\n",
                ),
            ),
        ),
        "warms another shape": Wrong(
            "You called first with another shape, and timed a compilation: warm up with the same x.",
            "def answer(function, x, wait, clock):\n    function(x[:1])\n    wait()\n    start = clock()\n    function(x)\n    wait()\n    return clock() - start\n",
        ),
        "a warm-up in flight": Wrong(
            "The first call's work was still running when you began to time: wait after it, and time several calls.",
            "def answer(function, x, wait, clock):\n    function(x)\n    start = clock()\n    function(x)\n    wait()\n    return clock() - start\n",
        ),
        "one call": Wrong(ONE, (("range(15)", "range(1)"),)),
        "two calls": Wrong(
            "Two timings are too few: half of them may be disturbed, so time many and take the median.",
            (("range(15)", "range(2)"), (SORTED, "    return sum(times) / 2")),
        ),
        "three calls": Wrong(
            "Three timings are too few: two of them may be disturbed, so time many and take the median.",
            (("range(15)", "range(3)"),),
        ),
        "the last call": Wrong(
            "You returned the last call: another process may have disturbed it, so take the median.",
            ((SORTED, "    return times[-1]"),),
        ),
        "mean": Wrong(
            "A mean carries every disturbance: take the median of the calls, which one slow call does not move.",
            ((SORTED, "    return sum(times) / len(times)"),),
        ),
        "slowest": Wrong(
            "You returned the slowest call, which was disturbed: take the median.",
            ((SORTED, "    return max(times)"),),
        ),
        "all calls": Wrong(
            "You returned the time of all calls together: return that of one.",
            ((SORTED, "    return sum(times)"),),
        ),
        "as one": Wrong(
            "You timed many calls as one, disturbed ones among them: time each apart and take the median.",
            "def answer(function, x, wait, clock):\n    function(x)\n    wait()\n    start = clock()\n    for _ in range(20):\n        function(x)\n"
            "    wait()\n    return (clock() - start) / 20\n",
        ),
        "as one, never waited": Wrong(
            NOT_WAITED,
            "def answer(function, x, wait, clock):\n    function(x)\n    wait()\n    start = clock()\n    for _ in range(20):\n        function(x)\n"
            "    return (clock() - start) / 20\n",
        ),
        "milliseconds": Wrong(
            "You returned milliseconds: the clock tells seconds, and so do you.",
            (("return times[len(times) // 2]", "return times[len(times) // 2] * 1e3"),),
        ),
        "per element": Wrong(
            "You divided by the number of calls after taking one of them: a median is one call's time already.",
            (("return times[len(times) // 2]", "return times[len(times) // 2] / len(times)"),),
        ),
        "the clock itself": Wrong(
            "You returned a reading of the clock: take the difference of two.",
            (("times.append(clock() - start)", "times.append(clock())"),),
        ),
        "backwards": Wrong(
            "Your time is negative: the later reading minus the earlier one.",
            (("clock() - start", "start - clock()"),),
        ),
        "never calls": Wrong(
            "You never called the function while the clock ran: call it between two readings.",
            (("        function(x)\n", ""),),
        ),
        "compiled minus plain": Wrong(
            "You subtracted the first call from a later one: a call's time is its own.",
            (
                (
                    "    function(x)\n    wait()\n    times = []",
                    "    begin = clock()\n    function(x)\n    wait()\n    first = clock() - begin\n    times = []",
                ),
                ("return times[len(times) // 2]", "return first - times[len(times) // 2]"),
            ),
        ),
        "nothing": Wrong(
            "There is no time: return the seconds of one call, a number.",
            ((SORTED, "    return None"),),
        ),
        "a list": Wrong(
            "There is no time: return the seconds of one call, a number.",
            ((SORTED, "    return times"),),
        ),
    }

    @staticmethod
    def probe(answer, draw):
        def scene(name, **device):
            numbers = {
                "compile": draw.uniform(2, 9),
                "launch": draw.uniform(1e-3, 2e-3),
                "work": draw.uniform(0.1, 0.3),
                "every": 0,
                "at": 0,
                "hits": (),
                "begin": draw.uniform(100, 900),
            } | device
            return Scene(name, lambda: seconds(answer, **numbers), near=1e-3)

        yield scene(
            "a device that does all before it returns",
            compile=0.0,
            launch=draw.uniform(0.1, 0.2),
            work=0.0,
        )
        yield scene("a device that works on after the call", compile=0.0)
        yield scene("a function that compiles first")
        yield scene("a slow launch", launch=draw.uniform(0.05, 0.2))
        yield scene("every fourth call disturbed", every=4, at=draw.randint(2, 3))
        yield scene("the second call disturbed, and every fifth", every=5, at=1)
        yield scene("the third call disturbed, and every fifth", every=5, at=2)
        yield scene("the fifth call disturbed, and every fifth", every=5, at=4)
        yield scene("the sixth call disturbed, and every fifth", every=5, at=0)
        yield scene("the fourth call disturbed, and every fifth", every=5, at=3)
        yield scene(
            "the second and third call disturbed, and every seventh",
            hits=(1, 2),
            every=7,
            at=draw.randint(3, 6),
        )


class Array(SimpleNamespace):
    """What is computed on: it has a length alone."""

    def __getitem__(self, part):
        return Array(rows=len(range(self.rows)[part]))

    def __len__(self):
        return self.rows


def seconds(
    answer,
    compile: float,
    launch: float,
    work: float,
    every: int,
    at: int,
    hits: tuple,
    begin: float,
) -> float | str:
    """What the answer says that a call takes, on a device of which each number is known. Means of
    however many calls are told alike."""
    now, busy, calls, shapes = begin, begin, 0, set()

    def function(x):
        nonlocal now, busy, calls
        now += launch + compile * (len(x) not in shapes)
        shapes.add(len(x))
        busy = max(busy, now) + work * (8 if calls in hits or every and calls % every == at else 1)
        calls += 1
        return x

    def wait():
        nonlocal now
        now = max(now, busy)

    found = answer(function, Array(rows=64), wait, lambda: now)
    if found is None or isinstance(found, (list, tuple)):
        raise Refused("Your answer returned no number: return the seconds of one call.")
    disturbed = (hits or every) and 1.001 * (launch + work) < float(found) < 0.999 * (
        launch + 8 * work
    )
    return BETWEEN if disturbed else float(found)
