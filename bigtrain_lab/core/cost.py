"""What an action costs: ticks of compute, bytes of messages, bytes of memory, links between ranks.

A Cost is the only thing that prices a plan. The simulator reads it to predict; the ranks of a real
run carry the same Cost and advance their virtual clocks by it, so predicted and modelled time can
be equal. Every duration is rounded up to whole ticks once, here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from .impossible import Impossible, refuse
from .lane import FREE, Link


def exact(value) -> Fraction:
    """A number as the decimal it was written as: 0.1 is 1/10, not the nearest binary fraction."""
    try:
        return value if isinstance(value, Fraction) else written(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise Impossible(f"{value!r} is no cost: give a finite number.") from error


@lru_cache(maxsize=4096, typed=True)  # a plan asks for few prices, and often
def written(value) -> Fraction:
    return Fraction(repr(float(value)) if isinstance(value, float) else value)


COLLECTIVES = {
    # name: passes around a ring of n ranks, of n - 1 latencies each; how often a port sends (n - 1)
    # / n of the tensor; how often all of it; "tag: source"
    "all_reduce": (2, 2, 0, "published: Patarasuk and Yuan 2009, ring all-reduce"),
    "reduce_scatter": (1, 1, 0, "published: Thakur, Rabenseifner and Gropp 2005, ring"),
    "all_gather": (1, 1, 0, "published: Thakur, Rabenseifner and Gropp 2005, ring"),
    "broadcast": (
        1,
        0,
        1,
        "derived: a ring that passes on small pieces at once; nccl-tests counts the tensor once",
    ),
    "barrier": (2, 0, 0, "derived: an all-reduce of no bytes"),
}


@lru_cache(maxsize=1 << 12)
def port_share(kind: str, ranks: int) -> Fraction:
    """How many times the tensor's bytes leave the port of each of so many ranks, in a ring."""
    _, parts, wholes, _ = COLLECTIVES[kind]
    return Fraction(parts * (ranks - 1), ranks) + wholes


class Inside(NamedTuple):
    """A collective of `bytes` that an action calls once this share of its work is done."""

    share: Fraction
    kind: str
    bytes: int
    name: str


@dataclass(frozen=True)
class Cost:
    """Prices by an action's kind and stage.

    durations   kind -> number, or one number a stage, in `unit`s. "F+B" prices an overlapped step
                of that shape; without it a step of several actions takes their sum.
    messages    kind -> bytes (or one number a stage) of the message that the action sends on.
    changes     action -> ((memory kind, change in bytes), ...) at the action's end; (rank, action)
                -> where ranks differ.
    resident    rank -> ((memory kind, bytes), ...) that is there before the first action.
    links       (src, dst) -> Link; a pair that is missing is a free link.
    shares      lane -> its share of the bandwidth of every link, declared where several lanes use
                one; a lane that is not named has all of it.
    slowdown    rank -> factor on its durations: a straggler.
    overlap_slowdown  factor on the duration of a step that the plan runs beside a busy lane.
    buses       number of nodes -> Link with the bandwidth that a collective over so many whole
                nodes reaches; where it is missing, the slowest link of the ring is the bandwidth.
                `node_size` ranks are on a node.
    protocols   (share of the bandwidth, factor on the latency) of each way to send inside a node; a
                collective there takes the fastest.
    trees       (most bytes a second, share of the ring's bandwidth, factor on the latency) of each
                tree; an all-reduce of several nodes takes the fastest of these and the ring.
    inside      (kind, stage) -> (Inside, ...): collectives that the action calls before it ends,
                such as those of a sliced layer.
    of_batch    (rank, micro-batch) -> durations of its actions in place of those above, such as
                where batches are padded to different lengths.
    capacity_bytes  what each rank's device holds; a real run that would hold more fails. None: no
                    limit.
    """

    durations: Mapping[str, object]
    messages: Mapping[str, object] = field(default_factory=dict)
    changes: Mapping[object, tuple] = field(default_factory=dict)
    resident: Mapping[int, tuple] = field(default_factory=dict)
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    slowdown: Mapping[int, object] = field(default_factory=dict)
    unit: str = "slot"
    ticks_per_unit: int = 1000
    capacity_bytes: int | None = None
    overlap_slowdown: object = 1
    buses: Mapping[int, Link] = field(default_factory=dict)
    node_size: int = 1
    protocols: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    trees: tuple[tuple[float, float, float], ...] = ()
    shares: Mapping[str, object] = field(default_factory=dict)
    inside: Mapping[tuple[str, int], tuple[Inside, ...]] = field(default_factory=dict)
    of_batch: Mapping[tuple[int, int], Mapping[str, object]] = field(default_factory=dict)

    def __post_init__(self):
        given = [exact(share) for share in self.shares.values()]
        refuse(
            (
                any(share <= 0 for share in given) or sum(given) > 1,
                f"The lanes' shares of the links are {dict(self.shares)}: "
                "give each more than 0, and all together at most 1.",
            )
        )
        for name, table in (
            ("duration", self.durations),
            ("message", self.messages),
            ("slowdown", self.slowdown),
            ("slowdown", {"an overlap": self.overlap_slowdown}),
            *(
                ("duration", own)
                for own in {id(own): own for own in self.of_batch.values()}.values()
            ),
        ):
            for kind, prices in table.items():
                for price in prices if isinstance(prices, (tuple, list)) else (prices,):
                    if exact(price) < 0:
                        raise Impossible(
                            f"The {name} of {kind} is {price}: a cost must not be negative."
                        )
        object.__setattr__(self, "_found", {})  # what was asked for before

    @classmethod
    def of(cls, cost: "Cost | Mapping") -> "Cost":
        """A Cost as it is; a mapping such as {"F": 1, "B": 2} as durations with free links and no
        bytes."""
        return cost if isinstance(cost, Cost) else cls(durations=dict(cost))

    def __reduce__(self):  # what was found stays behind
        return type(self), tuple(getattr(self, each.name) for each in fields(self))

    def duration(self, step, rank: int, beside: bool = False) -> int:
        """Ticks of one step (a tuple of actions, run as one span) on this rank; `beside`: the plan
        runs it while another lane of the rank may be busy. Only the plan says so, never the lanes'
        clocks."""
        key = beside, *self._alike(step, rank)
        if key not in self._found:
            together = "+".join(a.kind for a in step)
            total = (
                self._price(self.durations[together], step[0].stage)
                if len(step) > 1 and together in self.durations
                else sum(self._price(self._of(a, rank), a.stage) for a in step)
            )
            total *= (
                exact(self.slowdown.get(rank, 1))
                * (exact(self.overlap_slowdown) if beside else 1)
                * self.ticks_per_unit
            )
            self._found[key] = ceil(total)
        return self._found[key]

    def parts(self, step, rank: int, beside: bool = False) -> tuple[int, ...]:
        """`duration`, cut where the step calls a collective: one part more than it calls."""
        key = "parts", beside, *self._alike(step, rank)
        if key not in self._found:
            total, own = (
                self.duration(step, rank, beside),
                [self._price(self._of(a, rank), a.stage) for a in step],
            )
            done, at = Fraction(0), [0]
            for action, price in zip(step, own):
                at += [
                    ceil(total * (done + price * call.share) / (sum(own) or 1))
                    for call in self.inside.get((action.kind, action.stage), ())
                ]
                done += price
            self._found[key] = tuple(after - before for before, after in zip(at, [*at[1:], total]))
        return self._found[key]

    def collective(
        self, kind: str, size_bytes: int, ranks: Iterable[int], lane: str = "compute"
    ) -> int:
        """Ticks of a backend's collective of these ranks on a lane, the same on each; `size_bytes`
        is the whole tensor, also where each rank brings or keeps a part. One rank alone takes no
        time. `durations` may name a time for the kind instead. See COLLECTIVES; of a ring of n
        ranks the all-reduce takes

            2 (n - 1) alpha + 2 (n - 1) / n * size_bytes / bandwidth        alpha, bandwidth: of the
                                                                            slowest link crossed

        inside a node by the protocol that is fastest for so many bytes. An all-reduce of k nodes, r
        ranks on each, takes a tree where one is faster: a chain in each node, a binary tree of
        nodes. The latency and bandwidth of a tree are in `trees`.

            2 ((r - 1) alpha inside + floor(log2 k) alpha between) + 2 * size_bytes / bandwidth
        """
        key = (kind, size_bytes, ranks := tuple(sorted(ranks)), lane)
        if key not in self._found:
            self._found[key] = ceil(
                self._price(self.durations[kind], 0) * self.ticks_per_unit
                if kind in self.durations and len(ranks) > 1
                else min(
                    latency + size_bytes * gap for latency, gap in self.ways(kind, ranks, lane)
                )
            )
        return self._found[key]

    def ways(
        self, kind: str, ranks: tuple[int, ...], lane: str = "compute"
    ) -> list[tuple[Fraction, Fraction]]:
        """Ticks of latency and ticks a byte of each way to do this collective of these ranks."""
        if kind not in COLLECTIVES:
            raise Impossible(
                f"The cost knows no collective {kind!r}: choose one of {', '.join(COLLECTIVES)}."
            )
        if len(ranks) == 1:
            return [(Fraction(0), Fraction(0))]
        pairs = [*zip(ranks, ranks[1:] + ranks[:1])]
        links = {self.link(*pair) for pair in pairs}
        gap = max(Fraction(link.ticks, link.bytes) for link in links)
        on_node = Counter(rank // self.node_size for rank in ranks)
        if bus := self.buses.get(len(on_node)):  # each rank of a node brings a port of its own
            gap = max(gap / min(on_node.values()), Fraction(bus.ticks, bus.bytes))
        far, part = max(link.alpha for link in links), exact(self.shares.get(lane, 1))
        latency = COLLECTIVES[kind][0] * (len(ranks) - 1) * far
        sent = port_share(kind, len(ranks)) * gap / part
        protocols = self.protocols if len(on_node) == 1 else ((1.0, 1.0),)
        found = [(latency * exact(slow), sent / exact(share)) for share, slow in protocols]
        if kind == "all_reduce" and len(on_node) > 1:
            near = [pair for pair in pairs if len({rank // self.node_size for rank in pair}) == 1]
            chain = max((self.link(*pair).alpha for pair in near), default=0)
            chain *= max(on_node.values()) - 1
            hops = 2 * (chain + (len(on_node).bit_length() - 1) * far)
            for most, share, slow in self.trees:
                slowest = max(gap / exact(share), self.ticks_per_unit / exact(most))
                found.append((hops * exact(slow), 2 * slowest / part))
        return found

    def message_bytes(self, message) -> int:
        """Bytes of a message: those that it states, else those of its kind and stage, such as of an
        action's result."""
        if message.bytes is not None:
            return message.bytes
        key = (message.kind, message.stage)
        if key not in self._found:
            self._found[key] = int(self._price(self.messages.get(message.kind, 0), message.stage))
        return self._found[key]

    def memory(self, action, rank: int = 0) -> tuple[tuple[str, int], ...]:
        """Changes (kind, bytes) of this action's rank at the action's end."""
        return self.changes.get(action) or self.changes.get((rank, action), ())

    def link(self, src: int, dst: int, lane: str = "compute") -> Link:
        """The link as the lane has it."""
        link = self.links.get((src, dst), FREE)
        if lane not in self.shares:
            return link
        share = exact(self.shares[lane])
        return Link(link.alpha, link.ticks * share.denominator, link.bytes * share.numerator)

    def _alike(self, step, rank: int) -> list:
        """What a step on a rank has in common with all that cost the same: how fast the rank is,
        and which actions they are."""
        return [
            bool(self.slowdown) and exact(self.slowdown.get(rank, 1)),
            *[(a.kind, a.stage, id(self.of_batch.get((rank, a.micro_batch)))) for a in step],
        ]

    def _of(self, action, rank: int):
        kind, _, micro_batch = action
        if self.of_batch and kind in (own := self.of_batch.get((rank, micro_batch), {})):
            return own[kind]
        if kind not in self.durations and kind in "FBIW":  # an update may be free, work is not
            raise Impossible(
                f"The cost has no duration for {kind}: add one to {dict(self.durations)}."
            )
        return self.durations.get(kind, 0)

    @staticmethod
    def _price(prices, stage: int) -> Fraction:
        if not isinstance(prices, (tuple, list)):
            return exact(prices)
        if stage >= len(prices):
            raise Impossible(
                f"The cost names {len(prices)} stages and there is a stage {stage}: give one number"
                " a stage."
            )
        return exact(prices[stage])
