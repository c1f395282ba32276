"""What the ranks of a pipeline hold, at and inside actions, from a few actions of each stage.

    rehearsal   F0 F1 B0 B1 U, F2 B2 U              the recipe's loop without values, on one stage
    rank        levels += what a like action did    for each action of its stages, in its order

Actions are alike where they are of one kind and find alike gradients and weight versions. Stages
share no storage, so what they hold adds up, whatever the order in which a rank serves them.

Cost: a dry run of three micro-batches a kind of stage (an asynchronous schedule: of as many as show
each case), then O(actions).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

from ..core.later import later
from ..order.schedule import Action, Schedule, Step
from .account import Acted, Holdings, Moves, Work, difference, total

with later():
    from . import dry_run, recipe


class Like(NamedTuple):
    """What an action is like. `found`: the gradients that are there, "", of I, W or both; of F and
    U "" for the stage's first one. `halved`: a forward whose backward is. `turns`: the last use of
    an old weight version, or an update before which the version is needed still."""

    kind: str
    found: str = ""
    halved: bool = False
    turns: bool = False


def likes(schedule: Schedule, work: Iterable[Step]) -> Iterator[list[Like]]:
    """Of each step of one rank."""
    stashes = schedule.asynchronous and schedule.stashing
    uses = schedule.uses(work) if stashes else Counter()
    found: dict[tuple, str] = defaultdict(str)  # (stage, "F", "U" or "B") -> what is there
    updates: Counter = Counter()
    for step in work:
        alike = []
        for action in step:
            kind, stage, number = action
            place = stage, kind if kind in "FU" else "B"
            there, halved, turns = found[place], False, False
            if kind in "FU":
                found[place] = "again"
                halved = kind == "F" and (stage, number % schedule.micro_batches) in schedule.halved
            else:
                found[place] = "".join(half for half in "IW" if half in there or kind in half + "B")
                there = there if kind == "B" else kind * (kind in there)
            if stashes and kind in "FBI":
                version = stage, schedule.version(action)
                uses[version] -= 1
                turns = not uses[version] and version[1] != updates[stage]
            if kind == "U":
                turns = uses[stage, updates[stage]] > 0
                updates[stage] += 1
                found[stage, "B"] = ""
            alike.append(Like(kind, there, halved, turns))
        yield alike


@dataclass(frozen=True)
class Rehearsal(Schedule):
    """A few micro-batches of one stage, on each rank of a chain; of a synchronous one, then a batch
    of one more. `acts`: (kind, micro-batch, weight version); `every`: micro-batches of an update
    of an asynchronous one."""

    acts: tuple[tuple[str, int, int], ...] = ()
    every: int = 0
    stashing: bool = True

    asynchronous = property(lambda self: bool(self.every))
    update_size = property(lambda self: self.every or self.micro_batches)

    def steps(self, rank):
        return [
            (Action(kind, rank, number),)
            for kind, number, _ in self.acts
            if number < self.micro_batches
        ]

    def version(self, action):
        versions = {(kind, number): version for kind, number, version in self.acts}
        return versions[action.kind, action.micro_batch] if self.every else super().version(action)

    def whole(self, stage: int) -> list[Step]:
        """All that the rank of a stage does."""
        batches = [self] if self.every else [self, replace(self, micro_batches=1)]
        return [
            tuple(
                action._replace(micro_batch=action.micro_batch + number * self.micro_batches)
                for action in step
            )
            for number, batch in enumerate(batches)
            for step in batch.over(1)[stage]
        ]

    @lru_cache(maxsize=64)  # noqa: B019  (of a frozen value, few at a time)
    def shows(self) -> frozenset[Like]:
        return frozenset(chain(*likes(self, self.whole(0))))


def in_words(text: str) -> Rehearsal:
    acts = tuple((word[0], int(word[1:]), 0) for word in text.split())
    return Rehearsal(1, 1 + max(number for _, number, _ in acts), acts)


WHOLE, HALVES = map(in_words, ("F0 F1 B0 B1", "F0 F1 I0 I1 W0 W1"))


@lru_cache(maxsize=64)
def rehearsals(schedule: Schedule, steps: int) -> list[tuple[Rehearsal, ...]]:
    """Of each stage those that show all that its actions in so many steps are like."""
    needed: dict[int, set[Like]] = defaultdict(set)
    orders: dict[int, list[Action]] = defaultdict(list)
    for work in schedule.over(steps):
        for step, alike in zip(work, likes(lengthened(schedule, steps), work)):
            for action, like in zip(step, alike):
                needed[action.stage].add(like)
                orders[action.stage].append(action)
    found: dict[frozenset, tuple[Rehearsal, ...]] = {}
    for stage in range(schedule.stages):
        if (wanted := frozenset(needed[stage])) not in found:
            found[wanted] = those_that_show(wanted, lengthened(schedule, steps), orders)
    return [found[frozenset(needed[stage])] for stage in range(schedule.stages)]


def those_that_show(wanted: frozenset, schedule: Schedule, orders) -> tuple[Rehearsal, ...]:
    chosen, missing = [], set(wanted)
    usual = () if schedule.asynchronous else (WHOLE, HALVES)
    for one in sorted(usual, key=lambda one: -len(wanted & one.shows())):
        if missing & one.shows():
            chosen.append(one)
            missing -= one.shows()
    if missing:
        chosen.append(next(one for one in excerpts(schedule, orders) if missing <= one.shows()))
    return tuple(chosen)


def excerpts(schedule: Schedule, orders: Mapping[int, list[Action]]) -> Iterator[Rehearsal]:
    """The first micro-batches of the first updates of each stage, the shortest excerpt first."""
    size, late = schedule.update_size, schedule.asynchronous
    updates = schedule.micro_batches // size if late else 1
    sizes = ((a * n, a, n) for a in range(1, size + 1) for n in range(1, updates + 1))
    for length, of_each, groups in sorted(sizes):
        for stage in sorted(orders, reverse=True):
            acts = []
            for action in orders[stage]:
                group, number = divmod(action.micro_batch, size)
                if action.kind == "U":
                    number += of_each - size if late else size  # a batch ends with one anyway
                if group < groups and number < of_each:
                    version = schedule.version(action) if late else 0
                    acts.append((action.kind, group * of_each + number, version))
            yield Rehearsal(1, length, tuple(acts), of_each * late, schedule.stashing)


def lengthened(schedule: Schedule, steps: int) -> Schedule:
    """The schedule that numbers the micro-batches of so many steps."""
    return schedule.lengthened(steps) if schedule.asynchronous and steps > 1 else schedule


# -- one stage ------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A stage. `start`: kind -> bytes of its weights, of which there are `tensors`; `later`: what
    changes between an action and the next one, such as a result that is sent; `sent`: bytes of its
    messages by site."""

    start: dict[str, int]
    tensors: int
    acted: dict[Like, Acted]
    later: dict[Like, dict[str, int]]
    sent: dict[str, int] = {}

    def work(self, kind: str) -> Work:
        """Of a later action of this kind; of a backward that finds no gradients."""
        return self.usual(kind).work

    def seconds(self, kind: str, hardware, dtype: str) -> float:
        """Of that action on this hardware, with products in this format."""
        return self.work(kind).seconds(hardware, dtype, self.tensors if kind == "U" else 1)

    def message_bytes(self, kind: str) -> int:
        """Of what a stage sends on after F, or back after B."""
        return sum(
            size for site, size in self.sent.items() if site[-1:] == kind and site[:-1].isdigit()
        )

    def usual(self, kind: str) -> Acted:
        return self.acted[
            Like(kind, "again" if kind in "FU" else "", kind == "F" and Like("I") in self.acted)
        ]

    def joined(self, *others: "Part") -> "Part":
        """With all that these showed."""
        acted, later = dict(self.acted), dict(self.later)
        for other in others:
            acted, later = other.acted | acted, other.later | later
        return self._replace(acted=acted, later=later)


def rehearse(
    training: "recipe.Recipe", rehearsal: Rehearsal, stage: int, stages: int, arriving=None
) -> Part:
    """Run a stage of a chain of so many. `training`: its model is asked for this stage alone;
    `arriving`: on meta, what comes from the stage before."""
    order = replace(rehearsal, ranks=stages)
    samples = None if order.asynchronous else training.replicas * (order.micro_batches + 1)
    training = replace(training, schedule=order, steps=2 if samples else 1, samples=samples)
    run = dry_run.dry_run(
        partial(recipe.train, training),
        index=stage,
        size=stages,
        arriving=arriving,
        slices=training.slices,
    )
    work, acted, later = order.whole(stage), {}, {}
    for (action,), (like,), after in zip(work, likes(order, work), [*work[1:], None]):
        if like not in acted:
            now = run.actions[str(action)]
            acted[like] = now._replace(products=())  # which only a planner asks for
            then = run.actions[str(after[0])].before if after else now.after
            later[like] = difference(now.after, then)
    return Part(run.start, sum(row.kind == "weights" for row in run.alive), acted, later, run.sent)


# -- all of a rank --------------------------------------------------------------------------------


def moves_of(step: Step, acted: Sequence[Acted], later: Sequence[dict]) -> tuple[Moves, dict]:
    """What a step does to its rank's levels, and what changes before the next one."""
    ends, later = [difference(each.before, each.after) for each in acted], list(later)
    used = {
        (a.kind == "F", a.stage + (-1 if a.kind == "F" else 1), a.micro_batch)
        for a in step
        if a.kind in "FBI"
    }
    for at, action in enumerate(step):  # handed on within the step
        if (action.kind == "F", action.stage, action.micro_batch) in used:
            ends[at], later[at] = total(ends[at], later[at]), {}
    kinds, rows = joined(acted, ends)
    return Moves(tuple(ends), kinds, tuple(rows)), total(*later)


def joined(acted: Sequence[Acted], ends: Sequence[dict]) -> tuple[tuple[str, ...], list[tuple]]:
    """The kinds that actions of one step change, and all their moments, from the step's start."""
    inside = [each.from_start() for each in acted]
    if len(acted) == 1:
        return acted[0].kinds, inside[0]
    # What is found declared was there before: it moves first, of all actions of the step.
    early = [
        total(dict(zip(each.kinds, rows[each.early - 1]))) if each.early else {}
        for each, rows in zip(acted, inside)
    ]
    kinds = tuple(dict.fromkeys((*chain(*early), *chain(*(each.kinds for each in acted)))))
    done = total(*early)
    rows = [tuple(done.get(kind, 0) for kind in kinds)] if done else []
    for each, own, moved, end in zip(acted, inside, early, ends):
        base = total(done, {kind: -more for kind, more in moved.items()})
        for row in own[each.early :]:
            now = dict(zip(each.kinds, row))
            rows.append(tuple(base.get(kind, 0) + now.get(kind, 0) for kind in kinds))
        done = total(base, end)
    return kinds, rows


class Rehearsed(Holdings):
    """What each action of a run does to what its rank holds. `parts`: its stages, or (action,
    rank) -> the part that it is of, where micro-batches have different shapes. `place`: rank -> of
    the schedule, where that has fewer."""

    def __init__(
        self,
        schedule: Schedule,
        steps: int,
        parts: Sequence[Part] | Callable,
        place: Callable[[int], int] = int,
    ):
        self.schedule, self.parts, self.place, self._moves = schedule, parts, place, {}
        self._part = parts if callable(parts) else lambda action, rank: parts[action.stage]
        self._work = [
            (work, [*likes(lengthened(schedule, steps), work)]) for work in schedule.over(steps)
        ]

    def steps(self, rank):
        before: dict[str, int] = {}
        for step, alike in zip(*self._work[self.place(rank)]):
            parts, (_, stage, number) = [self._part(action, rank) for action in step], step[0]
            acted = [part.acted[like] for part, like in zip(parts, alike)]
            later = [part.later[like] for part, like in zip(parts, alike)]
            apart = [(action.stage - stage, action.micro_batch - number) for action in step[1:]]
            key = *map(id, acted), *map(id, later), *apart
            if key not in self._moves:
                self._moves[key] = moves_of(step, acted, later)
            moves, after = self._moves[key]
            yield step, before, moves
            before = after

    def start(self, rank):
        return total(
            *(
                self._part(Action("F", stage, 0), rank).start
                for stage in range(self.schedule.stages)
                if self.schedule.rank_of(stage, 0) == self.place(rank)
            )
        )
