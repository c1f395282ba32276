"""What replicas do with gradients and weights, when: events in, operations out. No tensors.

    needed(action), done(action)    an action of a unit begins, has ended
    full(part)                      gradients of all weights of a part have come
    finished(), stepped()           the gradient is to be whole; what is stepped has new values

    stages 1, 2   compute  [2B0] L0 [1B0] L1 [0B0] L2 ....... W0 W1 W2 [0U0] L3 ....... W3
                  comm:dp        [ scatter 0 ][ scatter 1 ][ scatter 2 ]     [ gather ]
    stage 3       compute  L0 W0 L1 [0F0] D0 W1 [1F0] D1 ...  W1 [1B0] D1 L2 ... W2 [0U0]
                  comm:dp  [ 0 ][ 1 ]                              [ scatter 1 ]

L launches, W waits, D drops. A plan's actions give the list that the simulator predicts with; in a
run, hooks give the same events to the same rules. So the order is stated here and nowhere else.

Parts leave in one order on all ranks. Where actions are known (`begin`), a part leaves in the
action that ends its gradient; else in order of the parts. Stages 2 and 3 have one gradient under
way at a time: the next one waits for it, and so a rank holds two at most.

Cost: with m micro-batches a rank sends (N-1)/N times the parameters' bytes, and their padding, 2,
m + 1 and 3 m times a step at stages 1, 2 and 3.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5 and 7.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain, groupby
from math import inf
from typing import NamedTuple

from ..order.plan import Launch, Together, Wait
from ..order.schedule import Action, Step

LANE = "comm:dp"


class Part(NamedTuple):
    """Weights that travel together: their numbers, the units that use any of them, and bytes with
    padding. `shared`: several units use one of the weights."""

    members: tuple[int, ...]
    units: frozenset[int]
    shared: bool
    learns: bool
    weight_bytes: int
    gradient_bytes: int


class Call(NamedTuple):
    """What the lane does when a label is launched: of which part, or of which batch."""

    op: Together | None
    part: int
    batch: int


class Drop(NamedTuple):
    """Free the weights of a part."""

    part: int


def name(numbers: Sequence[int], batch: int) -> str:
    """Name the message of these pieces."""
    first, last = numbers[0], numbers[-1]
    which = f"bucket {first}" if first == last else f"buckets {first} to {last}"
    return f"{which} of batch {batch}"


def whole(batch: int) -> str:
    return f"the gradient of batch {batch}"


class Uses:
    """In which order units are used, learnt anew from where it is another than before."""

    def __init__(self, expected: Sequence[Action] = ()):
        self.expected, self.at, self.fetched = [*expected], 0, 0

    def meets(self, action: Action) -> bool:
        """Whether this was expected; from here on it is."""
        if self.at and self.at == len(self.expected) and like(self.expected[0], action):
            self.expected += self.expected  # one more backward, like those before
        met = self.at < len(self.expected) and like(self.expected[self.at], action)
        if not met:
            self.expected[self.at :] = [action]
        self.at += 1
        return met

    def end(self) -> None:
        """Expect the same uses once more."""
        del self.expected[self.at :]
        self.at = self.fetched = 0


def like(one: Action, other: Action) -> bool:
    return one[:2] == other[:2]


class Rules:
    """The order of one rank's operations. `calls`: label of a launch -> what the lane does.

    ranks      those that share the parts
    ahead      uses whose weights are gathered before their turn, at stage 3
    backwards  of a gradient, where no actions are known, at stages 0 and 1
    overlap    a part leaves when it is full; else all at the end
    cycles     the lane itself says what leaves when, at stage 0: one wait is for all of a batch
    """

    def __init__(
        self,
        parts: Sequence[Part],
        stage: int,
        ranks: Sequence[int],
        *,
        ahead: int = 1,
        backwards: int = 1,
        overlap: bool = True,
        cycles: bool = False,
    ):
        self.parts, self.stage, self.ranks, self.batch = parts, stage, tuple(ranks), 0
        self.ahead, self.backwards, self.overlap = ahead, backwards, overlap
        self.cycles = cycles
        self.most = inf if stage < 2 else 1  # gradients under way
        self.learning = [k for k, part in enumerate(parts) if part.learns]
        self.of = defaultdict(list)  # unit -> its parts
        for k, part in enumerate(parts):
            for unit in part.units:
                self.of[unit].append(k)
        self.calls: dict[str, Call] = {}
        self.numbers: Counter = Counter()  # what was launched -> how often
        self.under_way: list[str] = []  # gradients
        self.open: Counter = Counter()  # part -> uses under way
        self.there: set[int] = set()  # parts that were gathered, and not dropped
        self.coming: dict[int, str] = {}  # those that nobody waited for
        self.uses, self.reading = Uses(), Uses()  # reading: forwards without a backward
        self.now = self.uses
        self.begin()

    def begin(self, actions: Sequence[Action] | None = None) -> None:
        """Begin an update. `actions`: of this rank, up to it; else their order is learnt."""
        self.told = actions is not None
        late = self.stage < 3 or self.told and not self.overlap
        self.queue = [*self.learning] if late else []  # parts that have yet to leave
        self.here: Counter = Counter()  # part -> backwards that brought it
        self.leaving = dict.fromkeys(actions or (), ())  # action -> the parts that leave in it
        self.due = 0  # parts at the head of the queue that leave in the action under way
        if not self.told:
            return
        self.now = self.uses = Uses([action for action in actions if action.kind in "FBI"])
        seen: Counter = Counter()
        ends: dict[int, list[Action]] = defaultdict(list)  # part -> actions that end a gradient
        for action in (each for each in actions if each.kind in "BW"):
            for k in self.of[action.stage]:
                seen[k, action.micro_batch] += 1
                if self.parts[k].learns and seen[k, action.micro_batch] == len(self.parts[k].units):
                    ends[k].append(action)
        last, number = 0, {action: at for at, action in enumerate(actions)}
        for k in self.learning if self.overlap else ():
            if self.stage > 1:
                for action in ends[k]:
                    self.leaving[action] += (k,)
            elif ends[k]:  # in order of the parts
                last = max(last, number[ends[k][-1]])
                self.leaving[actions[last]] += (k,)
        if self.overlap:
            self.queue = [k for action in actions for k in self.leaving[action]]

    def needed(self, action: Action) -> list:
        """An action of a unit begins; W needs no weights."""
        self.due += len(self.leaving.get(action, ()))
        if self.stage < 3 or action.kind == "W":
            return []
        uses, ops = self.reading if action.kind == "E" else self.uses, []
        met, at = uses.meets(action), uses.at - 1
        if not met or uses is not self.now:
            ops, uses.fetched = self._discard(), at
        self.now = uses
        if uses.fetched == at:
            ops += self._gather(uses)
        ops += [Wait(self.coming.pop(k)) for k in self.of[action.stage] if k in self.coming]
        self.open.update(self.of[action.stage])
        return ops + self._gather_ahead(uses)

    def done(self, action: Action) -> list:
        """It has ended, and with it the gradients that are due by it."""
        ops: list = []
        if self.stage == 3 and action.kind != "W":
            self.open.subtract(own := self.of[action.stage])
            last = [k for k in own if not self.open[k]]
            self.there.difference_update(last)
            ops = [*map(Drop, last), *self._gather_ahead(self.now)]
        while self.due:
            ops += self._leave()
        return ops

    def full(self, k: int) -> list:
        """Gradients of all weights of a part have come, of one backward."""
        ops: list = []
        if not self.overlap:
            return ops
        if self.told:
            self.here[k] = bool(self.due) and not self.parts[k].shared
            while self.due and self.here[self.queue[0]]:
                ops += self._leave()
            return ops
        if self.stage == 3:
            self.queue.append(k)
            return self._leave()
        if self.stage == 2 and k not in self.queue:  # another backward
            while self.queue:
                ops += self._leave()
            self.queue = [*self.learning]
        self.here[k] += 1
        while self.queue and self.here[self.queue[0]] >= (self.backwards if self.stage < 2 else 1):
            ops += self._leave()
        return ops

    def finished(self) -> list:
        """The gradient of the update is to be whole: what did not come leaves too."""
        ops: list = []
        while self.queue:
            ops += self._leave()
        if self.cycles and self.under_way:
            self.under_way = [whole(self.batch)]
            self.calls[whole(self.batch)] = Call(None, -1, self.batch)
        ops += [*map(Wait, self.under_way), *self._discard()]
        self.under_way, self.batch = [], self.batch + 1
        self.uses.end()
        return ops

    def read(self) -> list:
        """Forwards without a backward have ended."""
        self.reading.end()
        return self._discard()

    def stepped(self) -> list:
        """What is stepped has new values."""
        if self.stage not in (1, 2):
            return []
        labels = [f"parameters of bucket {k} of batch {self.numbers['U']}" for k in self.learning]
        self.numbers["U"] += 1
        ops = [self._launch(label, "all_gather", k) for label, k in zip(labels, self.learning)]
        return [*ops, *map(Wait, labels)]

    def _leave(self) -> list:
        """The first part of the queue."""
        k, ops = self.queue.pop(0), []
        self.due, self.here[k] = max(0, self.due - 1), 0
        if len(self.under_way) >= self.most:
            ops.append(Wait(self.under_way.pop(0)))
        number = self.numbers[k]
        self.numbers[k] += 1
        label = name([k], number)
        if self.stage == 3:
            label = f"gradients of {self._named(k, min(self.parts[k].units), 'B', number)}"
        self.under_way.append(label)
        ops.append(self._launch(label, "reduce_scatter" if self.stage else "all_reduce", k))
        return ops

    def _gather_ahead(self, uses: Uses) -> list:
        """Gather for the next uses, in their order; a part that is there must go first."""
        ops: list = []
        while uses.fetched < min(uses.at + self.ahead, len(uses.expected)):
            if self.there & {*self.of[uses.expected[uses.fetched].stage]}:
                break
            ops += self._gather(uses)
        return ops

    def _gather(self, uses: Uses) -> list:
        kind, unit, _ = uses.expected[uses.fetched]
        uses.fetched += 1
        number, ops = self.numbers[kind, unit], []
        self.numbers[kind, unit] += 1
        for k in self.of[unit]:
            if k not in self.there:
                self.there.add(k)
                self.coming[k] = f"parameters of {self._named(k, unit, kind, number)}"
                ops.append(self._launch(self.coming[k], "all_gather", k))
        return ops

    def _discard(self) -> list:
        """What was gathered ahead is not what comes."""
        ops = [op for k, label in self.coming.items() for op in (Wait(label), Drop(k))]
        self.there.difference_update(self.coming)
        self.coming = {}
        return ops

    def _named(self, k: int, unit: int, kind: str, number: int) -> str:
        one = len(self.of[unit]) == 1
        return f"{Action(kind, unit, number)}" + ("" if one else f", part {self.of[unit].index(k)}")

    def _launch(self, label: str, kind: str, k: int) -> Launch:
        part = self.parts[k]
        size = part.weight_bytes if kind == "all_gather" else part.gradient_bytes
        self.calls[label] = Call(Together(label, kind, size, self.ranks), k, self.batch)
        return Launch(label)

    def program(self, steps: Sequence[Step]) -> dict[Step, tuple[list, list]]:
        """Map each step of a rank's run to what comes before it, and after."""
        found: dict[Step, tuple[list, list]] = {}
        for is_update, batch in groupby(steps, lambda step: step[0].kind == "U"):
            batch = [*batch]
            if is_update:
                found |= {step: ([], []) for step in batch}
                found[batch[0]][0].extend(self.finished())
                found[batch[-1]][1].extend(self.stepped())
            else:
                self.begin([*chain(*batch)])
                for step in batch:
                    before = [*chain(*map(self.needed, step))]
                    found[step] = before, [*chain(*map(self.done, step))]
        return found
