"""A pipeline schedule is data: for each rank, the order of its actions. Everything else is derived from it.

An action is written stage, kind, micro-batch: "2F0" is the forward of micro-batch 0 on stage 2. Kinds: F forward,
B backward, I and W the halves of B (gradient of the input, gradient of the weights), U the optimizer's update after
the micro-batch it names. Micro-batches are numbered on through a whole run, so every action is unique.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from .core import Family, Impossible

KINDS = "FBIWU"


class Action(NamedTuple):
    """One piece of work: `Action("F", 2, 0)` prints as "2F0". As a message it is its own result, which the Cost prices."""

    kind: str
    stage: int
    micro_batch: int
    bytes = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @property
    def name(self) -> str:
        return str(self)

    @classmethod
    def parse(cls, text: str) -> "Action":
        match = re.fullmatch(rf"(\d+)([{KINDS}])(\d+)", text)
        if not match:
            raise Impossible(f"{text!r} is not an action: write stage, one of {', '.join(KINDS)}, micro-batch, as in 2F0.")
        return cls(match[2], int(match[1]), int(match[3]))


Step = tuple[Action, ...]  # more than one action = one span: run back to back, messages leave at its end


def name_of(step: Step) -> str:
    """How a span is called: "2F0", or "2F0+2F1" for several actions in one."""
    return str(step[0]) if len(step) == 1 else "+".join(map(str, step))


def kind_of(step: Step) -> str:
    """The kinds in the step, each once: "F", or "F+B"."""
    return step[0].kind if len(step) == 1 else "+".join(dict.fromkeys(a.kind for a in step))


@dataclass(frozen=True)
class Schedule(Family, ABC, family="bigtrain_lab.schedules"):
    """Subclass, set `name`, write `steps(rank)`; a schedule with more settings is a frozen dataclass of its own.

    A synchronous schedule ends each batch of `micro_batches` with one U a stage, added where it is left out. An asynchronous one sets
    `asynchronous = True`: it never drains between batches, and updates every `update_size` micro-batches (one).
    """

    ranks: int
    micro_batches: int
    asynchronous = False

    def __post_init__(self):
        for name in ("ranks", "micro_batches"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise Impossible(f"{name.replace('_', '-')} is {value!r}: a schedule needs a whole number of at least 1.")

    @abstractmethod
    def steps(self, rank: int) -> list[Step]:
        """What `rank` does, in order, for one batch."""

    @property
    def stages(self) -> int:
        return self.ranks

    def rank_of(self, stage: int, micro_batch: int) -> int:
        """The rank that holds this stage (for this micro-batch, where a schedule runs in both directions)."""
        return stage % self.ranks

    @property
    def update_size(self) -> int:
        """Micro-batches whose mean gradient makes one update."""
        return 1 if self.asynchronous else self.micro_batches

    def version(self, action: Action) -> int:
        """The weight version that the action uses: the number of updates its stage's weights have behind them."""
        return action.micro_batch // self.micro_batches

    def needs(self, action: Action) -> list[Action]:
        """The actions whose results this one uses (of U: the backwards, or their W where they are split)."""
        kind, stage, micro_batch = action
        if kind == "F":
            return [Action("F", stage - 1, micro_batch)] if stage else []
        if kind in "BI":
            behind = [Action(kind, stage + 1, micro_batch)] if stage + 1 < self.stages else []
            return [Action("F", stage, micro_batch), *behind]
        if kind == "W":
            return [Action("I", stage, micro_batch)]
        first = micro_batch - self.update_size + 1
        return [Action("B", stage, m) for m in range(first, micro_batch + 1)]

    def over(self, batches: int) -> "list[list[Step]]":
        """Each rank's steps for a run of several batches: repeated after each flush, or one stream without any."""
        if self.asynchronous:
            return self.lengthened(batches)._order()
        shift = self.micro_batches
        return [
            [step if not b else tuple(Action(k, s, m + b * shift) for k, s, m in step) for b in range(batches) for step in once]
            for once in self._order()
        ]

    def lengthened(self, batches: int) -> "Schedule":
        """An asynchronous schedule over several batches as one stream, which drains at its end only."""
        return replace(self, micro_batches=self.micro_batches * batches)

    def _order(self) -> "list[list[Step]]":
        """Every rank's steps; a bare action becomes a step, and a batch without any U ends with one a stage."""
        order = [self._checked(rank) for rank in range(self.ranks)]
        if not self.asynchronous and not any(a.kind == "U" for steps in order for step in steps for a in step):
            for stage in range(self.stages if any(order) else 0):
                order[self.rank_of(stage, 0)].append(U(stage, self.micro_batches - 1))
        return order

    def _checked(self, rank: int) -> "list[Step]":
        """steps(rank), with every step a tuple; Impossible, in a sentence, where that is not a list of actions."""
        who = f"{type(self).__name__}.steps({rank})"
        try:
            steps = [(step,) if isinstance(step, Action) else tuple(step) for step in self.steps(rank)]
        except Impossible:
            raise
        except Exception as error:
            raise Impossible(f"{who} failed with {type(error).__name__}: {error}; let it return a list of steps.") from error
        for step in steps:
            if not step or not all(isinstance(action, Action) for action in step):
                raise Impossible(f"{who} has the step {step!r}: a step is an action such as F(0, 1), or several of them.")
        return steps

    @classmethod
    def options(cls) -> set[str]:
        """The settings that this schedule has beyond ranks and micro-batches."""
        return {f.name for f in fields(cls)} - {"ranks", "micro_batches"}


def F(stage: int, micro_batch: int) -> Step:
    return (Action("F", stage, micro_batch),)


def B(stage: int, micro_batch: int) -> Step:
    return (Action("B", stage, micro_batch),)


def U(stage: int, micro_batch: int) -> Step:
    return (Action("U", stage, micro_batch),)
