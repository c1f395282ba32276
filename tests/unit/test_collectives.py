"""Collectives: closed forms of rounds and bytes, wrong ones in a sentence, and all of them on real
ranks with real tensors."""

from functools import lru_cache, partial
from itertools import product
from math import ceil, log2
from types import SimpleNamespace
from zlib import crc32

import numpy as np
import pytest
import torch

from bigtrain_lab import Collective, Cost, Hardware, Impossible, Move, launch, simulate
from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.core import Link
from bigtrain_lab.order import lower_collective, provenance, sizes
from bigtrain_lab.runtime.talk.moves import collect

from .threads import on_threads

ALL = Collective.all()
SOME = 7 * 840  # elements that all numbers of chunks up to 8 divide


def power(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def halving_bytes(n: int, rank: int) -> float:
    """Those off the largest power of two give all and get all, by way of a partner."""
    p = power(n)
    return 1 if rank >= p else 2 * (p - 1) / p + (rank < n - p)


def tree_bytes(n: int, rank: int, up: bool) -> int:
    """Of a binomial tree: a rank has a child for each power of two above its own highest bit, and
    below n."""
    children = sum(rank + (1 << bit) < n for bit in range(rank.bit_length(), 8))
    return children + (up and rank > 0)


# name -> (rounds, bytes sent by a rank, bytes received by a rank), of n ranks and in tensors
FORMS = {
    "ring": (lambda n: 2 * (n - 1), lambda n, r: 2 * (n - 1) / n, None),
    "bidirectional-ring": (lambda n: 2 * (n // 2), lambda n, r: 2 * (n - 1) / n, None),
    "reduce-scatter": (lambda n: n - 1, lambda n, r: (n - 1) / n, None),
    "all-gather": (lambda n: n - 1, lambda n, r: (n - 1) / n, None),
    "hierarchical": (lambda n: 2 * (n - 1), lambda n, r: 2 * (n - 1) / n, None),
    "halving-doubling": (
        lambda n: 2 * int(log2(power(n))) + 2 * (n > power(n)),
        halving_bytes,
        None,
    ),
    "broadcast": (
        lambda n: ceil(log2(n)),
        lambda n, r: tree_bytes(n, r, False),
        lambda n, r: r > 0,
    ),
    "tree": (lambda n: 2 * ceil(log2(n)), lambda n, r: tree_bytes(n, r, True), None),
    "push-pull": (lambda n: 2 * (n > 1), lambda n, r: 2 * (n - 1) / n, None),
    "star": (lambda n: 2 * (n > 1), lambda n, r: n - 1 if r == 0 else 1, None),
}


@pytest.mark.parametrize("name", FORMS)
def test_rounds_and_bytes_are_those_of_the_closed_forms(name):
    rounds, sent, received = FORMS[name]
    for n in range(1, 9):
        collective = ALL[name](n)
        trace = simulate(lower_collective(collective, SOME, itemsize=4), {})
        got = [sum(t.bytes for t in trace.transfers() if t.rank == r) for r in range(n)]
        assert len(collective.rounds()) == rounds(n)
        assert [trace.bytes_sent(r) for r in range(n)] == [
            round(4 * SOME * sent(n, r)) for r in range(n)
        ], n
        assert got == [round(4 * SOME * (received or sent)(n, r)) for r in range(n)], n


def test_a_hierarchy_sends_a_share_between_nodes():
    """8 ranks in nodes of 4: 2 * 3/4 S inside, 2 * 1/2 * S/4 between."""
    trace = simulate(lower_collective(ALL["hierarchical"](8, node_size=4), SOME), {})
    for rank in range(8):
        between = sum(t.bytes for t in trace.transfers(rank) if t.rank // 4 != rank // 4)
        assert (between, trace.bytes_sent(rank)) == (SOME // 4, SOME // 4 + SOME * 3 // 2)
    with pytest.raises(Impossible, match="9 ranks do not fill nodes of 4: take 8 or 12 ranks"):
        simulate(ALL["hierarchical"](9, node_size=4), {})


def test_times_are_those_of_the_papers():
    """12 GB/s and 5 us: a server, a ring, and rounds where latency is all."""

    def seconds(name, ranks, elements):
        hardware = Hardware(
            "plain", {"float32": 1}, inside=Hardware.named("rtx3090-pcie").inside, node_size=ranks
        )
        return simulate(
            lower_collective(ALL[name](ranks), elements, 4),
            Cost({}, unit="s", ticks_per_unit=10**12, **hardware.prices(ranks)),
        ).makespan

    size, alpha, rate = 373e6, 5e-6, 12e9
    for n in (4, 64):
        assert seconds("ring", n, 93_250_000) == pytest.approx(
            2 * (n - 1) * alpha + 2 * (n - 1) / n * size / rate, rel=1e-6
        )
        assert seconds("star", n + 1, 93_250_000) == pytest.approx(
            2 * alpha + 2 * n * size / rate, rel=1e-9
        )  # n workers
        assert seconds("push-pull", n, 93_250_000) == pytest.approx(
            2 * alpha + 2 * (n - 1) / n * size / rate, rel=1e-6
        )
    assert seconds("ring", 64, 1024) == pytest.approx(0.63e-3, rel=2e-3)
    assert seconds("halving-doubling", 64, 1024) == pytest.approx(
        12 * alpha + 2 * 63 / 64 * 4096 / rate, rel=1e-5
    )  # each message is rounded up to 1 ps


def test_a_chunk_is_the_size_that_torch_cuts():
    for elements, chunks in product((0, 1, 3, 4, 5, 1003), range(1, 9)):
        assert sizes(elements, chunks) == [
            len(part) for part in torch.empty(elements).tensor_split(chunks)
        ]


# -- wrong ones ------------------------------------------------------------------------------------

RING = [list(moves) for moves in ALL["ring"](4).rounds()]


def changed(round_number, place, **change):
    rounds = [list(moves) for moves in RING]
    rounds[round_number - 1][place] = rounds[round_number - 1][place]._replace(**change)
    return rounds


@pytest.mark.parametrize(
    "base, rounds, told",
    [
        *(
            (Collective, rounds, told)
            for rounds, told in (
                (
                    changed(4, 0, reduce=True),
                    "After round 4 rank 1's chunk 1 holds rank 1's gradient twice: replace the chunk",
                ),
                (
                    RING[:3]
                    + [[m._replace(chunk=(m.chunk + 1) % 4, reduce=True) for m in RING[3]]],
                    "After round 4 rank 1's chunk 2 holds rank 0's gradient twice",
                ),
                (
                    RING[:-1],
                    "After the last round rank 0's chunk 2 lacks rank 1's gradient: add a move",
                ),
                (RING[:1] + RING[2:], "lacks rank"),
                ([], "After the last round rank 0's chunk 0 lacks rank 1's gradient"),
                (
                    changed(2, 1, dst=4),
                    "In round 2 rank 1 sends to rank 4: name two different ranks of 0 to 3",
                ),
                (changed(2, 1, dst=1), "In round 2 rank 1 sends to rank 1"),
                (
                    changed(1, 0, chunk=4),
                    "In round 1 rank 0 sends chunk 4, and there are chunks 0 to 3",
                ),
                (
                    [*RING[:-1], RING[-1] * 2],
                    "In round 6 rank 0 sends chunk 3 to rank 1 twice: send it once",
                ),
                ("nonsense", r"Wrong.rounds\(\) failed with TypeError"),
            )
        ),
        (
            ALL["all-gather"],
            [[Move(0, 1, 2)]],
            "In round 1 rank 0 sends chunk 2 to rank 1 and has nothing of it",
        ),
    ],
)
def test_a_wrong_collective_is_refused_by_round_and_rank(base, rounds, told, family):
    class Wrong(base):
        def rounds(self):
            return rounds

    with pytest.raises(Impossible, match=f"{told}[^\\n]*$"):
        simulate(Wrong(4), {})


def test_provenance_after_each_round_of_a_ring():
    """Rank 2's chunks, as sets of ranks: its own alone, then one more a round in the chunk that
    came."""
    seen = [held[2] for held in provenance(ALL["ring"](4))]
    assert (
        seen[:4] == [[4, 4, 4, 4], [4, 6, 4, 4], [7, 6, 4, 4], [7, 6, 4, 15]]
        and seen[-1] == [15] * 4
    )


# -- on real ranks ---------------------------------------------------------------------------------

DIGITS = {
    torch.float16: 11,
    torch.bfloat16: 8,
    torch.float32: 24,
    torch.float64: 53,
    torch.int64: 59,
}  # of whole numbers it holds


SMALL, LARGE = 10**3 + 3, 10**5 + 3


def cases(n: int, largest: int):
    """(name, collective, elements, dtype): every small size, in another dtype for each collective
    and number of ranks, the ring in all; then the largest size, in one dtype for each number of
    ranks."""
    chosen = [cls(n) for cls in ALL.values()] + [
        ALL["hierarchical"](n, node_size=m) for m in range(2, n) if n % m == 0
    ]
    pairs = [
        (number, size, dtype)
        for number, each in enumerate(chosen)
        for i, size in enumerate(dict.fromkeys((0, 1, n - 1, n, n + 1)))
        for j, dtype in enumerate(DIGITS)
        if each.name == "ring" or j == (i + number + n) % len(DIGITS)
    ]
    for number, elements, dtype in [
        *pairs,
        *((number, largest, list(DIGITS)[(8 - n) % len(DIGITS)]) for number in range(len(chosen))),
    ]:
        yield f"{number} {elements} {dtype}", chosen[number], elements, dtype


@lru_cache(maxsize=1)
def gradients(n: int, elements: int, dtype) -> torch.Tensor:
    """Each rank's, in whole numbers that the dtype holds exactly: their sum is known in int64, and
    rounded in the dtype."""
    most = 2 ** DIGITS[dtype]
    return torch.randint(
        -most, most + 1, (n, elements), generator=torch.Generator().manual_seed(elements)
    )


@lru_cache(maxsize=1)
def exactly(n: int, elements: int, dtype, brings: tuple = ()) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of what the ranks bring of each chunk (all of it), and how far a sum of n - 1
    roundings may be off."""
    total, size = (
        torch.zeros(elements, dtype=torch.int64),
        torch.zeros(elements, dtype=torch.float64),
    )
    for rank, own in enumerate(gradients(n, elements, dtype)):
        if brings:
            own = own * torch.tensor(brings[rank]).repeat_interleave(
                torch.tensor(sizes(elements, len(brings[rank])))
            )
        total += own
        size += own.abs()
    return total, size * ((n - 1) * 2.0 ** -DIGITS[dtype])


def program(rank, largest=SMALL):
    bits = []
    for name, collective, elements, dtype in cases(rank.size, largest):
        chunks, ranks, wanted = (
            range(collective.chunks),
            range(rank.size),
            torch.ones(elements, dtype=torch.bool),
        )
        brings = tuple(tuple(collective.brings(r, c) for c in chunks) for r in ranks)
        exact, allowed = exactly(
            rank.size, elements, dtype, *[brings] * (not all(map(all, brings)))
        )
        for c, part in enumerate(wanted.tensor_split(collective.chunks)):
            part.fill_(collective.wants(rank.index, c))
        own = torch.stack([gradients(rank.size, elements, dtype)[rank.index].to(dtype)] * 2, 1)[
            :, 0
        ]  # not contiguous
        before, every = own.clone(), all(collective.wants(r, c) for r in ranks for c in chunks)
        assert collect(collective, own, rank, name) is own
        right = (
            own == exact if dtype == torch.int64 else (own.long() - exact).abs() <= allowed
        )  # all are whole numbers
        assert bool((right | ~wanted).all()), (
            f"rank {rank.index}: {name} by {collective.name} is off"
        )
        assert torch.equal(own[~wanted], before[~wanted]), (
            f"rank {rank.index}: {name} by {collective.name} changed what it must not"
        )
        bits.append(
            crc32(own.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy())
            if every
            else 0
        )
    return {"bits": np.array(bits)}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_collective_of_real_tensors_is_the_exact_sum(ranks):
    """All sizes and dtypes. The bound is that of ranks - 1 roundings, whatever their order. Six
    ranks are processes, below; whose gradients a chunk holds is checked for any number."""
    first, *others = on_threads(
        lambda group: program(SimpleNamespace(index=group.rank, size=ranks, group=lambda: group)),
        ranks,
    )
    assert all(np.array_equal(found["bits"], first["bits"]) for found in others)


def test_processes_take_the_predicted_time(tmp_path):
    ranks = 6
    links = {
        (a, b): Link(1000 * (1 + (a + b) % 3), 1 + a % 2, 3)
        for a in range(ranks)
        for b in range(ranks)
        if a != b
    }
    cost = Cost({}, links=links)
    run = launch(program, ranks, cost=cost, directory=tmp_path / "run")
    assert all(np.array_equal(found["bits"], run.results[0]["bits"]) for found in run.results)
    first, *others = [
        lower_collective(c, elements, dtype.itemsize, name)
        for name, c, elements, dtype in cases(ranks, SMALL)
    ]
    assert clocks_differ(simulate(first.joined(*others), cost), run.trace("modelled")) == []


def test_the_same_in_plain_groups_which_send_without_a_copy(tmp_path):
    run = launch(partial(program, largest=LARGE), 3, record=False, directory=tmp_path / "run")
    assert all(np.array_equal(found["bits"], run.results[0]["bits"]) for found in run.results)
