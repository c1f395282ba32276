"""The order of a replica's messages, without tensors: events in, operations out.

    begin(actions)                  an update begins
    needed(action), done(action)    a unit's forward or backward begins, has ended
    full(part)                      a backward has produced every gradient of the part
    again()                         stage 2: another backward of the same gradient begins
    finished()                      the last backward is over: send the rest, wait for all sums
    stepped()                       the optimizer has run: gather the new weights (stages 1, 2)
    discard()                       what was gathered ahead is not used next (stage 3)

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

Elements sent a rank in a step of m backwards, for psi parameters with padding:
    stage 1   2 (N-1)/N psi     stage 2   (m+1) (N-1)/N psi     stage 3   3 m (N-1)/N psi
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5 and 7.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain, groupby
from math import inf
from typing import NamedTuple

from ..core import grouped
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
    kind      stage 0: dtype and device of its gradients
    start, stop
              stage 0: its elements in the flat tensor of its kind
    """

    members: tuple[int, ...]
    units: frozenset[int]
    shared: bool
    learns: bool
    bytes: int
    kind: tuple | None = None
    start: int = 0
    stop: int | None = None


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
    """Name the message of these parts."""
    first, last = numbers[0], numbers[-1]
    which = f"bucket {first}" if first == last else f"buckets {first} to {last}"
    return f"{which} of batch {batch}"


def batch_label(batch: int) -> str:
    """Name the one wait for all messages of a batch."""
    return f"the gradient of batch {batch}"


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
        # unit -> its parts, if it has any
        self.parts_of = defaultdict(
            list, grouped((unit, k) for k, part in enumerate(parts) for unit in part.units)
        )
        self.calls: dict[str, Call] = {}
        self.numbers: Counter = Counter()  # part, (kind, unit) or "U" -> how often, for labels
        self.under_way: list[str] = []  # labels of the gradient messages in flight
        self.open: Counter = Counter()  # part -> forwards and backwards that compute with it now
        self.gathered: set[int] = set()  # parts whose all-gather was launched, and no drop since
        self.gathering: dict[int, str] = {}  # part -> label of its all-gather, until a wait for it
        # The expected forwards and backwards of an update, by which stage 3 gathers ahead, and how
        # many of them have begun. From the first surprise on they are recorded anew.
        self.uses: list[tuple[str, int]] = []
        self.at = 0
        self.begin()

    def begin(self, actions: Sequence[Action] | None = None) -> None:
        """Begin an update. `actions`: this rank's actions of it, if a schedule is known. Else
        stages 0 to 2 send the parts in order of their numbers. Stage 3 sends a part at once when it
        is full, and expects the uses of the last update."""
        self.known, self.are_full = actions is not None, set()  # parts full since they were sent
        self.uses, self.at = self.uses[: self.at] or self.uses, 0
        self.leaving = defaultdict(list)  # number of an action -> the parts it completes
        self.actions = {action: at for at, action in enumerate(actions or ())}
        # parts to send, in order
        self.queue = [] if self.overlap and (self.known or self.stage == 3) else [*self.learning]
        self.due = len(self.queue) * self.overlap  # how many of them may be sent now
        if self.known:
            self.uses = [action[:2] for action in actions if action.kind in "FBI"]
            if self.overlap:
                self._plan()

    def _plan(self) -> None:
        """Say which parts each known action completes, and queue them in that order."""
        seen: Counter = Counter()
        ends: dict[int, list[int]] = defaultdict(list)  # part -> last backwards of micro-batches
        for action, at in self.actions.items():
            for k in self.parts_of[action.stage] if action.kind in "BW" else ():
                seen[k, action.micro_batch] += 1
                if seen[k, action.micro_batch] == len(self.parts[k].units):
                    ends[k].append(at)
        last = 0
        for k in self.learning:
            if self.stage < 2:  # once an update, in order of the parts
                last = max([last, *ends[k]])
                ends[k] = [last]
            for at in ends[k]:
                self.leaving[at].append(k)
        self.queue = [k for at in sorted(self.leaving) for k in self.leaving[at]]

    def needed(self, action: Action) -> list:
        """Begin an action. At stage 3 wait for the unit's weights, and gather those of the next;
        W, the backward for the weights alone, does not read them. E, a forward without a backward,
        is no expected use."""
        self.due += len(self.leaving[self.actions.get(action)])
        if self.stage < 3 or action.kind == "W":
            return []
        if action.kind != "E":
            if self.uses[self.at : self.at + 1] != [action[:2]]:
                self.uses[self.at :] = [action[:2]]
            self.at += 1
        own = self.parts_of[action.stage]
        ops = self._gather(*action[:2])
        ops += [Wait(self.gathering.pop(k)) for k in own if k in self.gathering]
        self.open.update(own)
        return ops + self._gather_ahead(action)

    def done(self, action: Action) -> list:
        """End an action: drop the unit's weights (stage 3), and send what it completed."""
        ops: list = []
        if self.stage == 3 and action.kind != "W":
            self.open.subtract(own := self.parts_of[action.stage])
            last = [k for k in own if not self.open[k]]
            self.gathered.difference_update(last)
            ops = [*map(Drop, last), *self._gather_ahead(action)]
        return ops + self._leave_all(self.due)

    def full(self, k: int) -> list:
        """Note that one backward has brought all gradients of a part; send what is next in line.

        With known actions: the parts that this action completes, as far as they are full. Else
        stage 3 sends the part at once; the other stages send in order of the parts."""
        if self.stage == 3 and not self.known:
            self.queue.append(k)
            self.due += 1
        if self.due and not (self.known and self.parts[k].shared):
            self.are_full.add(k)
        ops: list = []
        while self.due and self.queue[0] in self.are_full:
            ops += self._leave()
        return ops

    def again(self) -> list:
        """Another backward of the same gradient begins, at stage 2: what did not come leaves."""
        ops = self._leave_all(len(self.queue))
        self.begin()
        return ops

    def finished(self) -> list:
        """Complete the gradient: send the parts still in the queue, and wait for all messages."""
        ops = self._leave_all(len(self.queue))
        if self.cycles and self.under_way:
            self.under_way = [batch_label(self.batch)]
            self.calls[batch_label(self.batch)] = Call(None, -1, self.batch)
        ops += [*map(Wait, self.under_way), *self.discard()]
        self.under_way, self.batch = [], self.batch + 1
        return ops

    def stepped(self) -> list:
        """All-gather the stepped pieces, at stages 1 and 2. Stage 3 gathers before each use."""
        if self.stage not in (1, 2):
            return []
        labels = [f"parameters of bucket {k} of batch {self.numbers['U']}" for k in self.learning]
        self.numbers["U"] += 1
        return [
            *(self._launch(label, "all_gather", k) for label, k in zip(labels, self.learning)),
            *map(Wait, labels),
        ]

    def discard(self) -> list:
        """Drop what was gathered ahead and never used."""
        ops = [op for k, label in self.gathering.items() for op in (Wait(label), Drop(k))]
        self.gathered.difference_update(self.gathering)
        self.gathering = {}
        return ops

    def _leave(self) -> list:
        """Send the first part of the queue; at stages 2 and 3 wait for the one before."""
        k, ops = self.queue.pop(0), []
        self.due = max(0, self.due - 1)
        self.are_full.discard(k)
        if len(self.under_way) >= self.most:
            ops.append(Wait(self.under_way.pop(0)))
        label = name([k], self.numbers[k])
        if self.stage == 3:
            label = f"gradients of {self._named(k, min(self.parts[k].units), 'B', self.numbers[k])}"
        self.numbers[k] += 1
        self.under_way.append(label)
        ops.append(self._launch(label, "reduce_scatter" if self.stage else "all_reduce", k))
        return ops

    def _leave_all(self, count: int) -> list:
        """Send the first `count` parts of the queue."""
        return [op for _ in range(count) for op in self._leave()]

    def _gather_ahead(self, action: Action) -> list:
        """Gather for the next `ahead` expected uses, in order. Stop at one whose weights are in
        use: they are dropped after this use, and gathered again then."""
        ops: list = []
        for use in self.uses[self.at : self.at + self.ahead] if action.kind != "E" else ():
            if any(self.open[k] for k in self.parts_of[use[1]]):
                break
            ops += self._gather(*use)
        return ops

    def _gather(self, kind: str, unit: int) -> list:
        """Gather the parts of a unit that are not here."""
        ops: list = []
        for k in (k for k in self.parts_of[unit] if k not in self.gathered):
            self.gathered.add(k)
            label = f"parameters of {self._named(k, unit, kind, self.numbers[kind, unit])}"
            self.gathering[k] = label
            ops.append(self._launch(label, "all_gather", k))
        self.numbers[kind, unit] += bool(ops)
        return ops

    def _named(self, k: int, unit: int, kind: str, number: int) -> str:
        one = len(self.parts_of[unit]) == 1
        return f"{Action(kind, unit, number)}" + (
            "" if one else f", part {self.parts_of[unit].index(k)}"
        )

    def _launch(self, label: str, kind: str, k: int) -> Launch:
        self.calls[label] = Call(
            Together(label, kind, self.parts[k].bytes, self.ranks), k, self.batch
        )
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
                    found[step] = tuple(
                        [*chain(*map(rule, step))] for rule in (self.needed, self.done)
                    )
        return found
