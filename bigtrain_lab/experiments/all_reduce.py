"""Why not just send everything to rank 0?

Each rank has a gradient of its own, and all need the sum. The collective says who sends which chunk
to whom in each round; the ranks do it with real tensors and find out from the numbers themselves
whose gradients each chunk has added up. Additions take no time on the modelled clock: beside a link
they are fast.
"""

from collections.abc import Iterable
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from ..core import TICKS_PER_SECOND, Scalar, Trace, counted, duration, grouped, knob, size
from ..core.later import later, torch
from ..core.trace import MARK
from ..order import (
    HOLDS,
    MOST,
    Action,
    Collective,
    Compute,
    Plan,
    Recv,
    lower_collective,
    place,
    provenance,
    sizes,
)
from .experiment import MB, Quantity
from .on_hardware import OnNodes, profiles

with later():
    from ..runtime.talk import execute, moves

PERIOD = 99_991  # numbers after which a gradient repeats itself: any rank knows any element of all
LOOKED_AT = 4  # elements of a chunk, from which it is read whose gradients it holds
KEPT = 256  # elements of each chunk that a run keeps, to be compared


def adds_up(kind: type[Collective]) -> bool:
    """Whether all ranks bring, and want, the whole sum."""
    return (kind.brings, kind.wants) == (Collective.brings, Collective.wants)


class AllReduce(OnNodes):
    name: ClassVar[str] = "all-reduce"
    question: ClassVar[str] = "Why not just send everything to rank 0?"
    figures: ClassVar[tuple[str, ...]] = ("timeline", "rivals")
    rivals_by: ClassVar[str] = "collective"
    answers: ClassVar[tuple[str, ...]] = (
        "time",
        "bytes through the busiest port, in and out",
        "through rank 0, if all send to it",
        "rounds",
    )

    collective: str = knob(
        "ring",
        "who sends which part of the gradient to whom, round by round",
        choices=lambda: Collective.all(),
    )
    ranks: int = knob(
        4,
        f"devices, each with a gradient of its own; up to {MOST} run on one machine, more are"
        " predicted",
        low=1,
        high=72,
    )
    megabytes: float = knob(
        16.0,
        "size of each rank's gradient; a run needs three times as much memory a rank",
        low=0.004,
        high=373,
        logarithmic=True,
    )
    dtype: str = knob(
        "float32", "number format of the gradients", choices=("float32", "float64"), more=True
    )
    varied: ClassVar[dict] = {
        "hardware": {
            "default": "rtx3090-pcie",
            "help": "whose links the modelled clock charges for",
            "choices": lambda: profiles()[1:],
            "more": False,
        },
        "node_size": {"high": 72, "more": False},
    }

    steps: ClassVar[int] = 1
    terms: ClassVar[dict[str, str]] = {"micro_batch": "round", "stage": "rank"}
    must_exist: ClassVar[tuple[str, ...]] = ("lowered",)

    # -- what the settings mean --------------------------------------------------------------------

    @cached_property
    def order(self) -> Collective:
        chosen = Collective.named(self.collective)
        return chosen(
            self.ranks,
            **{
                name: getattr(self, name)
                for name in chosen.options()
                if name in type(self).model_fields
            },
        )

    @property
    def elements(self) -> int:
        return round(self.megabytes * MB) // self.item

    def planned(self) -> list:
        return self.order.checked

    def rivals(self) -> dict[str, dict[str, Any]]:
        """The all-reduces, and what is chosen."""
        return {
            name: {"collective": name}
            for name, each in Collective.all().items()
            if adds_up(each) or name == self.collective
        }

    @cached_property
    def lowered(self) -> Plan:
        """The collective's messages; each round of a rank begins with a box that takes no time."""
        rounds = {
            at: groupby(ops, key=lambda op: place(op.message.name)[0])
            for at, ops in lower_collective(self.order, self.elements, self.item).lanes.items()
        }
        lanes = {
            at: tuple(
                op for number, ops in own for op in (Compute((Action(MARK, at[0], number),)), *ops)
            )
            for at, own in rounds.items()
        }
        return Plan(lanes, self.ranks)

    def bytes_held(self) -> dict[str, dict]:
        return {
            "resident": dict.fromkeys(
                range(self.ranks), (("gradients", self.elements * self.item),)
            )
        }

    def predict(self) -> Trace:
        trace = super().predict()
        return Trace.of([*trace.events, *self.holdings(trace)], **trace.header())

    def holdings(self, trace: Trace) -> list[Scalar]:
        """Whose gradients each chunk holds once it has come, by replay: what the ranks of a run
        find out from its numbers."""
        if self.ranks > MOST:
            return []
        arrived = {(each.rank, each.src, each.name): each.end for each in trace.transfers()}
        before, found = [*provenance(self.order)], []  # each round
        for (rank, lane), ops in self.lowered.lanes.items():
            now, own = 0, [*before[0][rank]]
            found += [self.scalar(rank, lane, 0, chunk, 0, held) for chunk, held in enumerate(own)]
            for op in ops:
                if isinstance(op, Recv):
                    number, chunk = place(op.message.name)
                    came = before[number - 1][op.src][chunk]
                    own[chunk] = came if op.message.kind == "copy" else own[chunk] | came
                    now = max(now, arrived[rank, op.src, op.message.name])
                    found.append(self.scalar(rank, lane, number, chunk, now, own[chunk]))
        return found

    @staticmethod
    def scalar(rank: int, lane: str, number: int, chunk: int, at: int, held: int) -> Scalar:
        return Scalar(rank, lane, "scalar", f"{HOLDS}round {number} chunk {chunk}", at, float(held))

    # -- reality -----------------------------------------------------------------------------------

    @cached_property
    def periods(self) -> "torch.Tensor":
        """[rank, place] the numbers of which each rank's gradient is made, again and again."""
        return torch.stack(
            [
                torch.randn(
                    PERIOD,
                    generator=torch.Generator().manual_seed(self.seed * 1009 + rank),
                    dtype=torch.float64,
                ).to(getattr(torch, self.dtype))
                for rank in range(self.ranks)
            ]
        )

    def brought(self, chunk: int, every: int, count: int) -> "torch.Tensor":
        """[rank, n] what each rank brings of some elements of a chunk: the first, and `every` so
        many one more."""
        lengths = sizes(self.elements, self.order.chunks)
        places = sum(lengths[:chunk]) + torch.arange(0, min(lengths[chunk], every * count), every)
        brings = torch.tensor([[self.order.brings(rank, chunk)] for rank in range(self.ranks)])
        return torch.where(brings, self.periods[:, places % PERIOD], 0)

    def held(self, chunk: int, tensor: "torch.Tensor") -> int:
        """The set of ranks whose gradients add up to the chunk's first elements, rank r as bit 1 <<
        r; 0 where no set does."""
        terms = self.brought(chunk, 1, LOOKED_AT).double()
        subsets = torch.arange(1 << self.ranks)[:, None] >> torch.arange(self.ranks) & 1
        off = (subsets.double() @ terms - tensor[:LOOKED_AT].double()).abs().amax(1)
        near = int(off.argmin())
        return (
            near
            if off[near]
            <= self.ranks * torch.finfo(getattr(torch, self.dtype)).eps * terms.abs().sum()
            else 0
        )

    def program(self, rank) -> dict[str, Any]:
        gradient = (
            self.periods[rank.index].repeat(-(-self.elements // PERIOD))[: self.elements].clone()
        )
        rank.watch(lambda: {"gradients": {"gradient": gradient}})
        execute.execute(self.lowered, rank, work := Seen(self, rank, gradient))
        work.store(gradient)
        return {
            f"chunk {chunk}": part[:: every(part)].numpy()
            for chunk, part in enumerate(gradient.tensor_split(self.order.chunks))
            if self.order.wants(rank.index, chunk)
        }

    def reference(self) -> dict[str, Any]:
        whole = torch.empty(self.elements, device="meta")
        return {
            f"chunk {chunk}": self.brought(chunk, every(part), len(part)).sum(0).numpy()
            for chunk, part in enumerate(whole.tensor_split(self.order.chunks))
        }

    def needed_bytes(self) -> list[int]:
        """The gradient, the chunks that came, and those on the way."""
        return [3 * self.elements * self.item] * self.ranks

    # -- what is told ------------------------------------------------------------------------------

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("time", "s", lambda t: t.makespan),
            Quantity("rounds", "", rounds_of),
            Quantity(
                "bytes sent by the busiest rank",
                "B",
                lambda t: max(map(t.bytes_sent, range(t.ranks))),
            ),
            Quantity("bytes through the busiest port, in and out", "B", lambda t: max(ports(t))),
            Quantity(
                "through rank 0, if all send to it",
                "B",
                lambda t: self.through_one_bytes if t.clock == "predicted" else None,
            ),
        )

    @property
    def through_one_bytes(self) -> int | None:
        """In and out of rank 0, if all send to it; None of what does not add up everywhere."""
        return (
            2 * (self.ranks - 1) * self.elements * self.item if adds_up(type(self.order)) else None
        )

    relief: ClassVar[str] = "A smaller gradient (megabytes) would need less on each device."

    def describe(self) -> str:
        chunks, rounds = self.order.chunks, len(self.planned())
        return (
            f"{counted(self.elements, 'element')} in {counted(chunks, 'chunk')} of"
            f" {size(self.elements * self.item / chunks)}, {counted(rounds, 'round')}"
        )

    def why(self, trace: Trace) -> Iterable[str]:
        passed = ports(trace)
        if not any(passed):
            return
        most, mean = max(passed), sum(passed) / trace.ranks
        one = self.through_one_bytes or 0
        beside = f" If all send to rank 0, its port passes {size(one)}." * (one > 0)
        yield (
            f"All ports are equally busy: each passes {size(most)}, in and out together.{beside}"
            if most < 1.01 * mean
            else (
                f"The busiest port is rank {passed.index(most)}'s: it passes {size(most)}, in"
                f" and out together, {most / mean:.3g} times the mean of all ports."
            )
        )
        if trace.clock != "measured":
            links = self.profile.links(self.ranks)
            latency = (
                sum(
                    max(links[move[:2]].alpha for move in moves)
                    for moves in self.planned()
                    if moves
                )
                / TICKS_PER_SECOND
            )
            yield (
                f"The latency of {counted(rounds_of(trace), 'round')} is {duration(latency, 's')}"
                f" of its {duration(trace.makespan, 's')}."
            )


class Seen:
    """A plan's work on chunks, which a rank looks into as they come."""

    def __init__(self, lab: AllReduce, rank, tensor: "torch.Tensor"):
        self.lab, self.rank, self.own = lab, rank, moves.Chunks(lab.order, rank.index, tensor)
        for chunk in range(len(self.chunks)):
            self.report(0, chunk)

    def __getattr__(self, name: str):
        return getattr(self.own, name)

    def receive(self, message, tensor):
        self.own.receive(message, tensor)
        self.report(place(message.name)[0], message.stage)

    def report(self, number: int, chunk: int) -> None:
        held = 0 if self.chunks[chunk] is None else self.lab.held(chunk, self.chunks[chunk])
        self.rank.log(f"{HOLDS}round {number} chunk {chunk}", held)


def every(part: "torch.Tensor") -> int:
    """Of which elements of a chunk a run keeps one."""
    return max(1, len(part) // KEPT)


def rounds_of(trace: Trace) -> int:
    return max((place(each.name)[0] for each in trace.transfers()), default=0)


def ports(trace: Trace) -> list[int]:
    """Bytes that each rank sent and received."""
    received = grouped((each.rank, each.bytes) for each in trace.transfers())
    return [trace.bytes_sent(rank) + sum(received.get(rank, ())) for rank in range(trace.ranks)]
