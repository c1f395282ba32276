"""Something broke on one of my ranks. Which one, and how do I see it?

A small pipeline on which you let one thing go wrong. Predict first: will the run end, whom will it
name, after how long, and what will the others be doing? Each fault is real, and every other lab has
the same switch among its settings.
"""

from collections.abc import Iterable
from typing import ClassVar

from ..core import Trace, knob
from .experiment import Quantity
from .staleness import Staleness

SYMPTOMS = {
    "none": "All is well: every rank was done, and modelled times are those that were predicted.",
    "raise": (
        "An exception: the run ends at once, and tells the rank, the exception and its line. The"
        " others lose their connection a moment later and raise too: of many tracebacks, the"
        " earliest counts."
    ),
    "exit": (
        "A process that left without a word: no traceback anywhere. Its exit code and the last line"
        " of its log are all there is."
    ),
    "kill": (
        "A process that was killed: no traceback, and exit code -9. On a cluster, ask the system's"
        " log: memory ran out, most often."
    ),
    "hang": (
        "No end and no error: one rank stands still in an action and all others wait for it. Only a"
        " time limit sees it, and a dump of each rank's stack finds the one that waits for nobody."
    ),
    "deadlock": (
        "No rank works: each waits for another, in plain torch until a time limit. Who waits for"
        " whom has a cycle, and the cycle is the bug."
    ),
    "straggler": (
        "No error at all: each step takes longer. The rank that is busy while all others idle more"
        " than before is the slow one."
    ),
    "nan": (
        "No error, and no time lost: the loss is not a number, and in a step or two no weight is"
        " one. The first rank that sent such a value, of those that received none, is where it"
        " began."
    ),
}
GUESSES = {  # what to expect of a run -> the faults of which it is right
    "?": (),
    "it ends at once with a traceback": ("raise",),
    "it ends at once without a traceback": ("exit", "kill", "deadlock"),
    "it ends by a time limit": ("hang",),
    "it is slower": ("straggler",),
    "its loss is not a number": ("nan",),
    "all is as always": ("none",),
}


class Faults(Staleness):
    name: ClassVar[str] = "faults"
    question: ClassVar[str] = "Something broke on one of my ranks. Which one, and how do I see it?"
    figures: ClassVar[tuple[str, ...]] = Staleness.figures[:-1]
    answers: ClassVar[tuple[str, ...]] = (
        "step time",
        "step time without the fault",
        "loss, mean of last batch",
    )
    curves: ClassVar[dict[str, str]] = {}

    guess: str = knob("?", "what you expect of the run", choices=tuple(GUESSES))
    varied: ClassVar[dict] = {
        "fault": {"default": "straggler", "help": "what goes wrong", "more": False},
        "fault_at": {"default": 9, "high": 60, "more": False},
        "seed": {},
        "schedule": {
            "default": "1f1b",
            "help": "the order in which each rank works",
            "more": True,
        },
        "ranks": {},
        "learning_rate": {"more": True},
        "micro_batches": {},
        "stashing": {"more": True},
        "steps": 3,
        "width": {},
        "rows": {},
        "guess": {},
    }

    def describe(self) -> str:
        if self.fault == "none":
            return "nothing goes wrong"
        where = f", at its action {self.fault_at}" * (self.fault != "straggler")
        return f"one rank{where}: {self.misfortune}"

    def why(self, trace: Trace) -> Iterable[str]:
        if trace.clock == "predicted":  # and no more: the picture is to be read
            yield (
                "Before you run it: does the run end, whom does it name, and what do the other"
                " ranks do? Choose a guess."
            )
        else:
            if self.fault == "straggler" and self.fault_factor > 1:
                slow = max(range(trace.ranks), key=trace.busy)
                yield (
                    f"Here rank {slow} was busy longest, for"
                    f" {trace.busy(slow) / trace.makespan:.0%} of the time."
                )
            yield SYMPTOMS[self.fault]
            if self.guess != "?":
                right = next(guess for guess, faults in GUESSES.items() if self.fault in faults)
                said = "Right." if self.guess == right else f"No: {right}."
                yield f"You guessed: {self.guess}. {said}"
            yield from super().why(trace)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            *super().quantities,
            Quantity(
                "step time without the fault",
                self.profile.unit,
                lambda t: (
                    self.replace(fault="none").simulated(memory=False).step_time
                    if t.clock == "predicted"
                    else None
                ),
            ),
        )
