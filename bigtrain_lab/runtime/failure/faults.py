"""Faults on purpose: what breaks real training, at an action of your choice, so that its symptom
can be learnt.

A fault strikes where every technique passes and none looks: at the start of a recorded span. It is
real (the process does end, the number is a NaN), and a run tells it as it would tell one that
nobody asked for.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan

from ...core import Cost, refuse
from ...core.impossible import refuse_unknown
from ...core.later import later

with later():
    from ..memory import owned

FAULTS = {
    "none": "nothing goes wrong",
    "raise": "the program raises an exception",
    "exit": "the process leaves without a word",
    "kill": "the process is killed, as by the system when memory is short",
    "hang": "the action never ends",
    "deadlock": "the rank and the next one wait to receive from each other",
    "straggler": "each action takes longer",
    "nan": "one weight becomes not a number",
}
MISTAKES = {  # of one of several replicas
    "none": "all replicas do the same",
    "absent": "the rank takes no part in one all-reduce",
    "swapped": "the rank calls two all-reduces in the other order",
    "short": "the rank has a batch less and ends before the others",
}
SLOWER = 2.0  # times its time that each action of a straggler takes, where nothing else is said
EXIT_CODE = 3


class OnPurpose(RuntimeError):
    """The exception of the fault "raise"."""


@dataclass(frozen=True)
class Fault:
    """`kind` strikes `rank` at the start of its action number `at`, counted from 0; a straggler is
    slow from its first, and takes `factor` times its time."""

    kind: str
    rank: int = 0
    at: int = 0
    factor: float = SLOWER

    def __post_init__(self):
        refuse_unknown("fault", self.kind, FAULTS)
        refuse(
            (
                self.rank < 0 or self.at < 0,
                f"A fault on rank {self.rank} at action {self.at}: count both from 0.",
            ),
            (
                not 1 <= self.factor < inf,
                f"A straggler cannot take {self.factor} times its time: give a number of at"
                " least 1.",
            ),
        )

    def __str__(self) -> str:
        """What goes wrong, in words."""
        return (
            f"each action takes {self.factor:g} times its time"
            if self.kind == "straggler"
            else FAULTS[self.kind]
        )

    def refuse(self, ranks: int) -> None:
        """Refuse this fault, which is not "none", where a run of so many ranks cannot have it."""
        refuse(
            (
                self.rank >= ranks,
                f"The fault is on rank {self.rank}, and there are ranks 0 to {ranks - 1}: choose"
                " one of them.",
            ),
            (
                self.kind == "deadlock" and ranks < 2,
                "A deadlock takes two ranks that wait for each other: take 2 ranks or more.",
            ),
        )

    def priced(self, cost: Cost) -> Cost:
        """The cost of the faulty run: a straggler's actions take longer, predicted and modelled
        alike."""
        return (
            replace(cost, slowdown={**cost.slowdown, self.rank: self.factor})
            if self.kind == "straggler"
            else cost
        )


class Astray:
    """Calls an all-reduce, but leaves out call number `at` ("absent"), or makes it after the next
    one ("swapped")."""

    def __init__(self, mistake: str, at: int, all_reduce: Callable):
        self.mistake, self.at, self.all_reduce, self.calls, self.kept = (
            mistake,
            at,
            all_reduce,
            0,
            [],
        )

    def __call__(self, *call):
        now, self.calls = self.calls == self.at, self.calls + 1
        if now:
            self.kept = [call] * (self.mistake == "swapped")
            return
        self.all_reduce(*call)
        while self.kept:
            self.all_reduce(*self.kept.pop())


class Strike:
    """A fault as it lives in one rank: the recorder calls `begin` and `end` around each span."""

    def __init__(self, fault: Fault, rank):
        self.fault, self.rank, self._actions, self.holdings = fault, rank, 0, dict
        self.ours = rank.index == fault.rank
        if fault.kind == "deadlock":  # its other half
            self.ours |= rank.index == (fault.rank + 1) % rank.size

    def begin(self, name: str) -> None:
        """An action begins: the fault, if this is where it strikes."""
        now, self._actions = self._actions == self.fault.at, self._actions + 1
        if not (now and self.ours):
            return
        match self.fault.kind:
            case "raise":
                raise OnPurpose(f"the fault that was asked for, in {name}")
            case "exit":
                os._exit(EXIT_CODE)
            case "kill":
                os.kill(
                    os.getpid(), signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM
                )
            case "hang":
                while True:
                    time.sleep(3600)
            case "deadlock":
                other = (
                    self.rank.index + (1 if self.rank.index == self.fault.rank else -1)
                ) % self.rank.size
                self.rank.group().recv(other, name="a go-ahead")  # which nobody sends
            case "nan":
                self._spoil()

    def end(self, took_ns: int) -> None:
        """The action's work is done: a straggler takes its time."""
        if self.ours and self.fault.kind == "straggler":
            time.sleep((self.fault.factor - 1) * took_ns / 1e9)

    def finish(self) -> None:
        """The program is over: Impossible where the fault had nothing to strike at."""
        refuse(
            (
                self.ours and self.fault.kind != "straggler" and self._actions <= self.fault.at,
                f"The fault was to strike at action {self.fault.at} of rank {self.rank.index},"
                f" which made only {self._actions}: choose an earlier one.",
            )
        )

    def _spoil(self) -> None:
        weights = [
            w
            for kind, _, w in owned.held(self.holdings())
            if kind == "weights" and w.is_floating_point() and w.numel()
        ]
        refuse(
            (
                not weights,
                f"Rank {self.rank.index} has told no weights that could become a NaN: call"
                " rank.watch(...) before the first action.",
            )
        )
        weights[-1].data[(0,) * weights[-1].dim()] = (
            nan  # the last: of an embedding, most rows are never read
        )
