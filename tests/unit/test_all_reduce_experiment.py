"""The lab all-reduce: the lesson's numbers, and whose gradients each chunk holds, read from real
numbers and replayed."""

import json

import pytest

from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.cli import main
from bigtrain_lab.core import Impossible, Scalar, Trace
from bigtrain_lab.experiments.all_reduce import AllReduce
from bigtrain_lab.order.collective import Collective, Move, provenance
from bigtrain_lab.order.holdings import holdings
from bigtrain_lab.view.player import pack


def table(**settings) -> dict:
    asked = AllReduce(node_size=72, **settings)
    trace = asked.predict()
    return {quantity.name: quantity.of(trace) for quantity in asked.quantities}


@pytest.mark.parametrize(
    "collective, ranks, time_s, rounds, sent, port",
    [
        ("ring", 4, 0.04666, 6, 559.5, 1119),
        ("ring", 64, 0.06183, 126, 734.3, 1468.7),
        ("star", 5, 0.2487, 2, 1492, 2984),
        ("star", 65, 3.979, 2, 23872, 47744),
    ],
)  # 4 and 64 workers, and a server
def test_the_numbers_of_the_lesson(collective, ranks, time_s, rounds, sent, port):
    """373 MB over 12 GB/s and 5 us."""
    assert list(table(collective=collective, ranks=ranks, megabytes=373).values()) == pytest.approx(
        [time_s, rounds, sent * 1e6, port * 1e6], rel=1e-3
    )


def test_few_rounds_win_where_the_gradient_is_small():
    ring, halving = (
        table(collective=name, ranks=64, megabytes=0.004096)
        for name in ("ring", "halving-doubling")
    )
    assert (ring.pop("time"), halving.pop("time")) == pytest.approx((0.63e-3, 0.0607e-3), rel=2e-3)
    assert (ring.pop("rounds"), halving.pop("rounds")) == (126, 12) and ring == halving


def test_between_nodes_a_hierarchy_sends_less():
    ring, both = (
        AllReduce(collective=name, ranks=16, node_size=8, megabytes=100).predict().makespan
        for name in ("ring", "hierarchical")
    )
    assert both < 0.2 * ring


@pytest.mark.parametrize(
    "collective, ranks", [("ring", 8), ("star", 4), ("halving-doubling", 5), ("all-gather", 3)]
)
def test_ranks_read_from_the_numbers_what_a_replay_says(collective, ranks, tmp_path):
    asked = AllReduce(collective=collective, ranks=ranks, megabytes=0.1, seed=3)
    run = asked.run(directory=tmp_path / "run", jitter_s=0.001)
    run.wait()
    predicted, modelled = asked.predict(), run.trace("modelled")
    assert (
        predicted.where(Scalar).events == modelled.where(Scalar).events != ()
        and clocks_differ(predicted, modelled) == []
    )
    last = {(e.rank, int(e.name.split()[-1])): e.value for e in modelled.where(Scalar)}
    *_, home = provenance(asked.order)
    assert all(home[rank][chunk] == value for (rank, chunk), value in last.items())


def test_a_chunk_that_no_set_of_gradients_makes_is_nobody_s():
    asked = AllReduce(ranks=3, megabytes=0.01)
    parts = [asked.terms(1, 1, 9)[rank] for rank in range(3)]
    assert [asked.held(1, tensor) for tensor in (parts[0], parts[0] + parts[2], sum(parts))] == [
        1,
        5,
        7,
    ]
    assert [asked.held(1, tensor) for tensor in (2 * parts[0], parts[0] + 1e-3)] == [0, 0]


def test_what_is_refused(family):
    with pytest.raises(Impossible, match="9 ranks do not fill nodes of 8: take 8 or 16 ranks"):
        AllReduce(collective="hierarchical", ranks=9)
    with pytest.raises(Impossible, match="9 ranks are predicted only: run at most 8"):
        AllReduce(ranks=9).run()

    class Typed(Collective):
        name = "typed"

        def rounds(self):
            return [[Move(0, 1, 0, reduce=True), Move(1, 0, 0, reduce=True)]] * 2

    with pytest.raises(
        Impossible, match="After round 2 rank 1's chunk 0 holds rank 0's gradient twice"
    ):
        AllReduce(collective="typed", ranks=2)


# -- what a trace tells of chunks, and what the player is told -------------------------------------


@pytest.mark.parametrize(
    "collective, ranks, number, words",
    [
        (
            "ring",
            4,
            1,
            "Round 1 of 6: every rank sends one chunk to the next rank on the ring, which adds it.",
        ),
        (
            "ring",
            2,
            2,
            "Round 2 of 2: ranks 0 and 1 exchange one chunk, and each keeps a copy of it.",
        ),
        (
            "star",
            4,
            1,
            "Round 1 of 2: ranks 1, 2 and 3 send one chunk each to rank 0, which adds them.",
        ),
        (
            "star",
            4,
            2,
            (
                "Round 2 of 2: rank 0 sends one chunk to ranks 1, 2 and 3, and each keeps a copy"
                " of it."
            ),
        ),
        ("star", 2, 1, "Round 1 of 2: rank 1 sends one chunk to rank 0, which adds it."),
        (
            "halving-doubling",
            8,
            2,
            (
                "Round 2 of 6: ranks 0 and 2, 1 and 3, 4 and 6, 5 and 7 exchange 2 chunks, and each"
                " adds them."
            ),
        ),
        (
            "bidirectional-ring",
            5,
            2,
            (
                "Round 2 of 4: every rank sends one chunk to each of its two neighbours, and each"
                " adds it."
            ),
        ),
        (
            "tree",
            8,
            5,
            (
                "Round 5 of 6: rank 0 sends one chunk to rank 2, 1 to 3, and each receiver keeps a"
                " copy of it."
            ),
        ),
    ],
)
def test_each_round_is_one_sentence(collective, ranks, number, words):
    told = holdings(AllReduce(collective=collective, ranks=ranks).predict())
    assert told.rounds[number - 1][1] == words


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
    mixed = Trace.of([*trace.events, *wrong[:2]], **trace.header())
    assert holdings(mixed) == holdings(trace)


def test_a_text_timeline_shows_the_messages(capsys):
    assert main(["predict", "all-reduce", "--collective", "star", "--ranks", "3"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[2][0] for line in shown.splitlines() if line.startswith("rank ")] == [
        "r",
        "·",
        "·",
    ] and "holds of" not in shown


def test_a_lane_of_messages_alone_has_them_as_boxes_one_after_the_other():
    trace = AllReduce(collective="star", ranks=4).predict()
    first, *others = [box for box in trace.boxes() if box.rank == 0]
    assert [box.start for box in others] == [box.end for box in [first, *others][:-1]] and len(
        others
    ) == 2
    assert {box.kind for box in trace.boxes()} == {"reduce", "copy"}
