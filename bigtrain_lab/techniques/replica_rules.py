"""The order of a replica's messages, without tensors: events in, operations out.

    begin(actions)                  an update begins
    needed(action), done(action)    a unit's forward or backward begins, has ended
    full(part)                      a backward has produced every gradient of the part
    again()                         stage 2: another backward of the same gradient begins
    finished()                      the last backward is over: send the rest, wait for all sums
    stepped()                       the optimizer has run: gather the new weights (stages 1, 2)
    read()                          forwards without a backward have ended

    stage 1   [2B0] S0 [1B0] S1    [0B0] S2    s0 s1 s2 [0U0] G0 G1 G2 g0 g1 g2
    stage 2   [2B0] S0 [1B0] s0 S1 [0B0] s1 S2 s2       [0U0] G0 G1 G2 g0 g1 g2
    stage 3   G0 g0 G1 [0F0] D0 g1 [1F0] D1 G1 g1 G0 [1B0] D1 S1 g0 [0B0] D0 s1 S0 s0 [0U0]

[2B0] is the backward of unit 2 for micro-batch 0: F forward, B backward, U update. G0 launches the
all-gather of part 0, S0 its reduce-scatter. g0 and s0 wait for them, and D0 frees its weights. A
message is under way from its launch to its wait, beside the actions between. At stages 1 and 2 part
0 has the weights of the last unit, at stage 3 those of unit 0. Here stages 1 and 2 have three
units, stage 3 two.

Simulator and run share these rules. The simulator feeds them the actions of a plan; a run feeds
them the events of its hooks. Both get the same list of operations.

All ranks send the parts in one order, since a collective needs every rank. Where the actions are
known (`begin`), a part is sent in the action that completes its gradient. Else stages 0 to 2 send
the parts in order of their numbers, each once it is full. Stage 3 sends a full part at once.

Stages 2 and 3 keep one reduce-scatter in flight: the next one waits for it. So a rank stores the
whole gradients of two parts at most. At stage 2 that is so if gradients come in the order of the
parts. A late part holds the others back.

Stage 2 sends in every backward, since a rank keeps only its piece of a gradient between backwards.
A sum of several backwards on the rank would need the whole gradient.

Bytes sent a rank in a step of m backwards, for psi bytes of padded parameters:
    stage 1   2 (N-1)/N psi     stage 2   (m+1) (N-1)/N psi     stage 3   3 m (N-1)/N psi
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
    """Weights whose messages are one message: a bucket, or at stage 3 the weights of a unit.

    members   numbers of its weights
    units     numbers of the units that use any of them
    shared    one of its weights is used by several units
    learns    its weights have gradients
    bytes     of its weights, and of their gradients, in a message with padding
    """

    members: tuple[int, ...]
    units: frozenset[int]
    shared: bool
    learns: bool
    bytes: int


class Call(NamedTuple):
    """The collective behind a label, its part, and the number of its update (`batch`). `op` is None
    and `part` -1 for the one wait of a whole batch (see `cycles`)."""

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


def batch_label(batch: int) -> str:
    """Name the one wait for all messages of a batch."""
    return f"the gradient of batch {batch}"


class Uses:
    """The expected order of forwards and backwards, by which stage 3 gathers ahead. It repeats the
    last update; from the first surprise on it is recorded anew.

    at        how many of the expected uses have begun
    fetched   how many of them have had their weights gathered
    """

    def __init__(self, expected: Sequence[Action] = ()):
        self.expected, self.at, self.fetched = [*expected], 0, 0

    def advance(self, action: Action) -> bool:
        """Advance by one use. Return whether it was expected; if not, forget the later ones."""
        use = action[:2]  # of whichever micro-batch
        if self.at and self.at == len(self.expected) and self.expected[0][:2] == use:
            self.expected += self.expected  # another micro-batch begins: expect it to be alike
        met = self.at < len(self.expected) and self.expected[self.at][:2] == use
        if not met:
            self.expected[self.at :] = [action]
        self.at += 1
        return met

    def end(self) -> None:
        """Rewind: the next update is expected to repeat the uses of this one."""
        del self.expected[self.at :]
        self.at = self.fetched = 0


class Rules:
    """The state machine of one rank: each event returns its launches, waits and drops, in order.
    `calls` maps the label of a launch to its collective.

    ranks      ranks that share the parts
    ahead      stage 3: how many uses ahead the weights are gathered
    overlap    send a part when it is full; else all parts after the last backward
    cycles     stage 0: the strategy's program on the lane decides what is sent when; the compute
               lane waits once, for the whole batch
    """

    def __init__(
        self,
        parts: Sequence[Part],
        stage: int,
        ranks: Sequence[int],
        *,
        ahead: int = 1,
        overlap: bool = True,
        cycles: bool = False,
    ):
        self.parts, self.stage, self.ranks, self.batch = parts, stage, tuple(ranks), 0
        self.ahead, self.overlap, self.cycles = ahead, overlap, cycles
        self.most = inf if stage < 2 else 1  # gradient messages in flight
        self.learning = [k for k, part in enumerate(parts) if part.learns]
        self.parts_of = defaultdict(list)  # unit -> its parts
        for k, part in enumerate(parts):
            for unit in part.units:
                self.parts_of[unit].append(k)
        self.calls: dict[str, Call] = {}
        self.numbers: Counter = Counter()  # part, (kind, unit) or "U" -> how often, for labels
        self.under_way: list[str] = []  # labels of the gradient messages in flight
        self.open: Counter = Counter()  # part -> forwards and backwards that compute with it now
        self.gathered: set[int] = set()  # parts whose all-gather was launched, and no drop since
        self.gathering: dict[int, str] = {}  # part -> label of its all-gather, until a wait for it
        self.uses, self.reading = Uses(), Uses()  # in training; in forwards without a backward
        self.now = self.uses
        self.begin()

    def begin(self, actions: Sequence[Action] | None = None) -> None:
        """Begin an update. `actions`: this rank's actions of it, if a schedule is known. Else
        stages 0 to 2 send the parts in order of their numbers. Stage 3 sends a part at once when it
        is full, and learns the order of the uses."""
        self.known = actions is not None
        late = self.stage < 3 or not self.overlap
        self.queue = [*self.learning] if late else []  # parts to send, in order
        self.are_full: set[int] = set()  # parts that were full since they were sent
        self.leaving = dict.fromkeys(actions or (), ())  # action -> the parts it completes
        # how many parts of the queue may be sent now: with known actions those that the present
        # one completes, and that by its end
        self.due = 0 if self.known else len(self.queue)
        if not self.known:
            return
        self.now = self.uses = Uses([action for action in actions if action.kind in "FBI"])
        seen: Counter = Counter()
        ends: dict[int, list[Action]] = defaultdict(list)  # part -> last backwards of micro-batches
        for action in (each for each in actions if each.kind in "BW"):
            for k in self.parts_of[action.stage]:
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
        """Begin an action. At stage 3 wait for the unit's weights, and gather those of the next;
        W, the backward for the weights alone, does not read them."""
        self.due += len(self.leaving.get(action, ()))
        if self.stage < 3 or action.kind == "W":
            return []
        uses, ops = self.reading if action.kind == "E" else self.uses, []
        met, at = uses.advance(action), uses.at - 1
        if not met or uses is not self.now:
            ops, uses.fetched = self._discard(), at
        self.now = uses
        if uses.fetched == at:
            ops += self._gather(uses)
        ops += [
            Wait(self.gathering.pop(k)) for k in self.parts_of[action.stage] if k in self.gathering
        ]
        self.open.update(self.parts_of[action.stage])
        return ops + self._gather_ahead(uses)

    def done(self, action: Action) -> list:
        """End an action: drop the unit's weights (stage 3), and send what it completed."""
        ops: list = []
        if self.stage == 3 and action.kind != "W":
            self.open.subtract(own := self.parts_of[action.stage])
            last = [k for k in own if not self.open[k]]
            self.gathered.difference_update(last)
            ops = [*map(Drop, last), *self._gather_ahead(self.now)]
        return ops + self._leave_all(self.due)

    def full(self, k: int) -> list:
        """Note that one backward has brought all gradients of a part; send what is next in line.

        With known actions: the parts that this action completes, as far as they are full. Else
        stage 3 sends the part at once; the other stages send in order of the parts."""
        if self.stage == 3 and self.overlap and not self.known:
            self.queue.append(k)
            self.due += 1
        if not self.due or not self.overlap or self.known and self.parts[k].shared:
            return []
        self.are_full.add(k)
        ops: list = []
        while self.due and self.queue[0] in self.are_full:
            ops += self._leave()
        return ops

    def again(self) -> list:
        """Another backward of the same gradient begins, at stage 2: what did not come leaves."""
        ops = self._leave_all(len(self.queue))
        self.queue, self.due, self.are_full = [*self.learning], len(self.learning), set()
        return ops

    def finished(self) -> list:
        """Complete the gradient: send the parts still in the queue, and wait for all messages."""
        ops = self._leave_all(len(self.queue))
        if self.cycles and self.under_way:
            self.under_way = [batch_label(self.batch)]
            self.calls[batch_label(self.batch)] = Call(None, -1, self.batch)
        ops += [*map(Wait, self.under_way), *self._discard()]
        self.under_way, self.batch = [], self.batch + 1
        self.uses.end()
        return ops

    def read(self) -> list:
        """End a pass of forwards without a backward: drop what was gathered ahead."""
        self.reading.end()
        return self._discard()

    def stepped(self) -> list:
        """All-gather the stepped pieces, at stages 1 and 2. Stage 3 gathers before each use."""
        if self.stage not in (1, 2):
            return []
        labels = [f"parameters of bucket {k} of batch {self.numbers['U']}" for k in self.learning]
        self.numbers["U"] += 1
        ops = [self._launch(label, "all_gather", k) for label, k in zip(labels, self.learning)]
        return [*ops, *map(Wait, labels)]

    def _leave(self) -> list:
        """Send the first part of the queue; at stages 2 and 3 wait for the one before."""
        k, ops = self.queue.pop(0), []
        self.due = max(0, self.due - 1)
        self.are_full.discard(k)
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

    def _leave_all(self, count: int) -> list:
        """Send the first `count` parts of the queue."""
        return [op for _ in range(count) for op in self._leave()]

    def _gather_ahead(self, uses: Uses) -> list:
        """Gather for the next `ahead` uses, in order. Stop at one whose weights are still
        here: they are dropped after this use, and gathered again then."""
        ops: list = []
        while uses.fetched < min(uses.at + self.ahead, len(uses.expected)):
            if self.gathered & {*self.parts_of[uses.expected[uses.fetched].stage]}:
                break
            ops += self._gather(uses)
        return ops

    def _gather(self, uses: Uses) -> list:
        kind, unit, _ = uses.expected[uses.fetched]
        uses.fetched += 1
        number, ops = self.numbers[kind, unit], []
        self.numbers[kind, unit] += 1
        for k in self.parts_of[unit]:
            if k not in self.gathered:
                self.gathered.add(k)
                self.gathering[k] = f"parameters of {self._named(k, unit, kind, number)}"
                ops.append(self._launch(self.gathering[k], "all_gather", k))
        return ops

    def _discard(self) -> list:
        """Drop parts that were gathered ahead, and are not used next."""
        ops = [op for k, label in self.gathering.items() for op in (Wait(label), Drop(k))]
        self.gathered.difference_update(self.gathering)
        self.gathering = {}
        return ops

    def _named(self, k: int, unit: int, kind: str, number: int) -> str:
        one = len(self.parts_of[unit]) == 1
        return f"{Action(kind, unit, number)}" + (
            "" if one else f", part {self.parts_of[unit].index(k)}"
        )

    def _launch(self, label: str, kind: str, k: int) -> Launch:
        together = Together(label, kind, self.parts[k].bytes, self.ranks)
        self.calls[label] = Call(together, k, self.batch)
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
