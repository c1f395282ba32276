"""A pipeline schedule is data: for each rank, the order of its actions. Everything else is derived
from it.

An action is written stage, kind, micro-batch: "2F0" is the forward of micro-batch 0 on stage 2.
Kinds: F forward, B backward, I and W the halves of B (gradient of the input, gradient of the
weights), U the optimizer's update after the micro-batch it names. Micro-batches are numbered on
through a whole run, so every action is unique.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ..core import ByFields, Family, Impossible, refuse
from ..core.impossible import refuse_counts

KINDS = "FBIWU"


class Action(NamedTuple):
    """One piece of work: `Action("F", 2, 0)` prints as "2F0". As a message it is its own result,
    which the Cost prices."""

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
        refuse(
            (
                not match,
                f"{text!r} is not an action: write stage, one of {', '.join(KINDS)}, micro-batch,"
                " as in 2F0.",
            )
        )
        return cls(match[2], int(match[1]), int(match[3]))


Step = tuple[
    Action, ...
]  # more than one action = one span: run back to back, messages leave at its end


def name_of(step: Step) -> str:
    """How a span is called: "2F0", or "2F0+2F1" for several actions in one."""
    return str(step[0]) if len(step) == 1 else "+".join(map(str, step))


def kind_of(step: Step) -> str:
    """The kinds in the step, each once: "F", or "F+B"."""
    return step[0].kind if len(step) == 1 else "+".join(dict.fromkeys(a.kind for a in step))


@dataclass(frozen=True)
class Schedule(ByFields, Family, ABC, family="bigtrain_lab.order.schedules"):
    """Subclass, set `name`, write `steps(rank)`; a schedule with more settings is a frozen
    dataclass of its own.

    A synchronous schedule ends each batch of `micro_batches` with one U a stage, added where it is
    left out. An asynchronous one sets `asynchronous = True`: it never drains between batches, and
    updates every `update_size` micro-batches (one).
    """

    ranks: int
    micro_batches: int
    chunks = 1  # stages that each rank holds; a field where it can be chosen
    asynchronous = False
    stashing = True  # asynchronous: an update keeps the old weights while an action still uses them

    def __post_init__(self):
        refuse_counts(
            "schedule",
            {"ranks": self.ranks, "micro_batches": self.micro_batches, "chunks": self.chunks},
        )

    @abstractmethod
    def steps(self, rank: int) -> list[Step]:
        """What `rank` does, in order, for one batch."""

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def rank_of(self, stage: int, micro_batch: int) -> int:
        """The rank that holds this stage (for this micro-batch, where a schedule runs in both
        directions)."""
        return stage % self.ranks

    @property
    def update_size(self) -> int:
        """Micro-batches whose mean gradient makes one update."""
        return 1 if self.asynchronous else self.micro_batches

    def version(self, action: Action) -> int:
        """The weight version that the action uses: the number of updates its stage's weights have
        behind them."""
        return action.micro_batch // self.micro_batches

    def uses(self, work: Iterable[Step]) -> Counter:
        """(stage, version) -> how many actions of a rank's work compute with that version."""
        return Counter((a.stage, self.version(a)) for step in work for a in step if a.kind in "FBI")

    @cached_property
    def halved(self) -> frozenset[tuple[int, int]]:
        """(stage, micro-batch of a batch) of each backward that the order splits into I and W."""
        return frozenset(
            action[1:]
            for steps in self.over(1)
            for step in steps
            for action in step
            if action.kind in "IW"
        )

    def needs(self, action: Action) -> list[Action]:
        """The actions whose results this one uses: of B and I the next stage's, of U all B and
        W."""
        kind, stage, micro_batch = action
        if kind == "F":
            return [Action("F", stage - 1, micro_batch)] if stage else []
        if kind in "BI":
            if stage + 1 == self.stages:
                return [Action("F", stage, micro_batch)]
            split = self.halved and (stage + 1, micro_batch % self.micro_batches) in self.halved
            return [
                Action("F", stage, micro_batch),
                Action("I" if split else "B", stage + 1, micro_batch),
            ]
        if kind == "W":
            return [Action("I", stage, micro_batch)]
        summed = range(micro_batch - self.update_size + 1, micro_batch + 1)
        split = {m for m in summed if (stage, m % self.micro_batches) in self.halved}
        return [Action("W" if m in split else "B", stage, m) for m in summed]

    def over(self, batches: int) -> "list[list[Step]]":
        """Each rank's steps for a run of several batches: repeated after each flush, or one stream
        without any."""
        if self.asynchronous:
            return list(map(list, (self.lengthened(batches) if batches > 1 else self)._order))
        shift = self.micro_batches
        return [
            [
                step if not b else tuple(Action(k, s, m + b * shift) for k, s, m in step)
                for b in range(batches)
                for step in once
            ]
            for once in self._order
        ]

    def lengthened(self, batches: int) -> "Schedule":
        """An asynchronous schedule over several batches as one stream, which drains at its end
        only."""
        return replace(self, micro_batches=self.micro_batches * batches)

    @cached_property
    def _order(self) -> "list[list[Step]]":
        """Every rank's steps; a bare action becomes a step, and a batch without any U ends with one
        a stage."""
        order = [self._checked(rank) for rank in range(self.ranks)]
        if not self.asynchronous and not any(
            a.kind == "U" for steps in order for step in steps for a in step
        ):
            for stage in range(self.stages if any(order) else 0):
                order[self.rank_of(stage, 0)].append(U(stage, self.micro_batches - 1))
        return order

    def _checked(self, rank: int) -> "list[Step]":
        """steps(rank), with every step a tuple; Impossible, in a sentence, where that is not a list
        of actions."""
        who = f"{type(self).__name__}.steps({rank})"
        try:
            steps = [
                (step,) if isinstance(step, Action) else tuple(step) for step in self.steps(rank)
            ]
        except Impossible:
            raise
        except Exception as error:
            raise Impossible(
                f"{who} failed with {type(error).__name__}: {error}; let it return a list of steps."
            ) from error
        for step in steps:
            if not step or not all(isinstance(action, Action) for action in step):
                raise Impossible(
                    f"{who} has the step {step!r}: a step is an action such as F(0, 1), or several"
                    " of them."
                )
        return steps

    @staticmethod
    def of(*texts: str, name: str = "written") -> "Written":
        """A synchronous order that is written down, one text a rank:

            of("0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1")

        "0F0+1B3" is one step of two actions. Ranks, stages and micro-batches are those written, and
        a stage lies on the rank that runs it. Without any U a batch ends with one a stage.
        """
        refuse((not texts, 'There is no order: give one text a rank, such as "0F0 0B0".'))
        orders = tuple(read(rank, text) for rank, text in enumerate(texts))
        last = max(action.micro_batch for order in orders for step in order for action in step)
        return Written(len(texts), last + 1, orders, name)


class InV(Schedule):
    """Two stages a rank in a V: s and 2p-1-s on rank s, so rank 0 has both ends of the model."""

    chunks = 2

    def rank_of(self, stage, micro_batch):
        return min(stage, 2 * self.ranks - 1 - stage)

    def numbered(self, rank: int, order: list[str]) -> list[Step]:
        """Steps from kinds and chunks; micro-batches that the batch does not have are left out.

        The n-th "F0" is the forward of micro-batch n on the rank's first stage, "F0+B1" one step
        of two, "W1" the half of the second stage that is open longest, "W" that of either.
        """
        turns, opened, steps = Counter(), [], []
        for word in order:
            step = []
            for kind, *chunk in word.split("+"):
                stage = (rank, self.stages - 1 - rank)[int(chunk[0])] if chunk else None
                if kind == "W":
                    step.append(next(half for half in opened if stage in (None, half.stage)))
                    opened.remove(step[-1])
                    continue
                counted = "F" if kind == "F" else "B", stage  # B and I take turns together
                step.append(Action(kind, stage, turns[counted]))
                turns[counted] += 1
                if kind == "I":
                    opened.append(step[-1]._replace(kind="W"))
            steps.append(tuple(a for a in step if a.micro_batch < self.micro_batches))
        return [step for step in steps if step]


@dataclass(frozen=True)
class Written(Schedule):
    """What `Schedule.of` makes."""

    orders: tuple[tuple[Step, ...], ...]
    name: str

    def steps(self, rank):
        return list(self.orders[rank])

    @cached_property
    def homes(self) -> dict[int, int]:
        """The rank of each stage: where its actions stand."""
        first: dict[int, tuple] = {}
        for rank, order in enumerate(self.orders):
            for action in (action for step in order for action in step):
                home, other = first.setdefault(action.stage, (rank, action))
                if home != rank:
                    raise Impossible(
                        f"Rank {home} runs {other} and rank {rank} {action}: write all "
                        "actions of a stage on one rank, where its weights lie."
                    )
        refuse(
            (
                missing := {*range(max(first))} - first.keys(),
                f"No rank runs stage {min(missing, default=0)}, and there is a stage {max(first)}: "
                "number the stages from 0 on.",
            )
        )
        return {stage: rank for stage, (rank, _) in first.items()}

    @property
    def chunks(self):
        return -(-self.stages // self.ranks)

    @property
    def stages(self):
        return len(self.homes)

    def rank_of(self, stage, micro_batch):
        return self.homes[stage]


def read(rank: int, text: str) -> tuple[Step, ...]:
    """The steps of one rank's text; Impossible, naming the rank, where it is no order."""
    refuse(
        (
            not isinstance(text, str) or not text.split(),
            f"The order of rank {rank} is {text!r}: write its actions in a text, such as"
            ' "0F0 0B0".',
        )
    )
    try:
        return tuple(tuple(map(Action.parse, word.split("+"))) for word in text.split())
    except Impossible as error:
        raise Impossible(f"In the order of rank {rank}, {error}") from error


def F(stage: int, micro_batch: int) -> Step:
    return (Action("F", stage, micro_batch),)


def B(stage: int, micro_batch: int) -> Step:
    return (Action("B", stage, micro_batch),)


def U(stage: int, micro_batch: int) -> Step:
    return (Action("U", stage, micro_batch),)


def by_layers(order: Schedule, layers: list[range]) -> Schedule:
    """The schedule with each action cut into those of its stage's layers, which are the stages of
    the result."""

    def cut(action: Action):
        own = layers[action.stage]
        return [
            action._replace(stage=layer) for layer in (own if action.kind == "F" else reversed(own))
        ]

    if order.asynchronous:  # which a recipe refuses
        return order
    orders = (
        tuple((each,) for step in steps for action in step for each in cut(action))
        for steps in order.over(1)
    )
    return Written(order.ranks, order.micro_batches, tuple(orders), order.name)
