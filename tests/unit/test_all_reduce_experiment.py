"""The lab all-reduce: the lesson's numbers, and whose gradients each chunk holds, read from real
numbers and replayed."""

import json

import pytest

from bigtrain_lab.core import Scalar, Trace
from bigtrain_lab.experiments.all_reduce import AllReduce
from bigtrain_lab.order.collective import Collective, Move, provenance
from bigtrain_lab.order.holdings import holdings
from bigtrain_lab.view.player import pack


def test_a_chunk_that_no_set_of_gradients_makes_is_nobody_s():
    asked = AllReduce(ranks=3, megabytes=0.01)
    parts = [asked.brought(1, 1, 9)[rank] for rank in range(3)]
    assert [asked.held(1, tensor) for tensor in (parts[0], parts[0] + parts[2], sum(parts))] == [
        1,
        5,
        7,
    ]
    assert [asked.held(1, tensor) for tensor in (2 * parts[0], parts[0] + 1e-3)] == [0, 0]


# -- what a trace tells of chunks, and what the player is told -------------------------------------


@pytest.mark.parametrize(
    "collective, ranks, number, words",
    [
        ("ring", 4, 1, ("every rank", "next rank on the ring", "adds")),
        ("star", 4, 1, ("ranks 1, 2 and 3", "to rank 0", "adds")),
        ("star", 4, 2, ("rank 0 sends", "to ranks 1, 2 and 3", "copies it")),
        ("halving-doubling", 8, 2, ("ranks 0 and 2, 1 and 3", "exchange 2 chunks")),
        ("bidirectional-ring", 5, 2, ("each of its two neighbours", "adds")),
        ("tree", 8, 5, ("rank 0 sends one chunk to rank 2, 1 to 3", "copies it")),
    ],
)
def test_each_round_is_one_sentence(collective, ranks, number, words):
    said = holdings(AllReduce(collective=collective, ranks=ranks).predict()).rounds[number - 1][1]
    assert [each for each in words if each not in said] == []


@pytest.mark.parametrize("collective", Collective.all())
def test_the_player_is_told_each_chunk_s_way(collective):
    """What is carried is what the sender held before the round; what the receiver holds then is
    that, or both."""
    asked = AllReduce(collective=collective, ranks=8, node_size=4)
    packed, states = json.loads(pack(asked.predict()))["chunks"], [*provenance(asked.order)]
    assert (
        packed["start"] == states[0]
        and len(packed["rounds"]) == len(asked.order.checked) == len(states) - 1
    )
    carried = sorted(
        (move, before[move.src][move.chunk])
        for before, moves in zip(states, asked.order.checked)
        for move in moves
    )
    assert sorted((Move(*way[:4]), way[6]) for way in packed["moves"]) == carried
    held = [list(row) for row in packed["start"]]
    for _, rank, chunk, now in packed["changes"]:
        held[rank][chunk] = now
    assert held == states[-1] and {
        (end, dst, chunk) for _, dst, chunk, _, _, end, _ in packed["moves"]
    } == {tuple(c[:3]) for c in packed["changes"]}


def test_traces_of_strangers_and_of_many_ranks_tell_no_chunks():
    assert holdings(AllReduce(ranks=9).predict()) is None
    trace = AllReduce(ranks=2).predict()
    wrong = [
        Scalar(0, "compute", "scalar", name, 0, value)
        for name, value in (
            ("holds of round 1 chunk 9999", 1.0),
            ("holds of round 0 chunk 0", float("nan")),
            ("holds of round 0 chunk 1", 4.0),
            ("holds of x", 1.0),
        )
    ]
    assert holdings(Trace.of(wrong, "modelled", ranks=2)) is None
    assert holdings(Trace.of([*trace.events, *wrong[:2]], **trace.header())) == holdings(trace)
