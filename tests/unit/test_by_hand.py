"""Grids that are filled by hand: the order of a pipeline, a ring, the pieces of a matrix."""

from itertools import chain

import pytest

from bigtrain_lab import Collective, Impossible, Schedule, simulate
from bigtrain_lab.core.words import size
from bigtrain_lab.experiments.layouts import Layouts
from bigtrain_lab.panel import PiecesByHand, RingByHand, by_hand
from bigtrain_lab.panel.by_hand import SLOTS

ORDER = "0F0 1F0 0F1 1B0 0B0 1F1 0F2 1B1 0B1 1F2 1B2 0B2"  # 1F1B in the order of its starts


def put(hand, text):
    for row, choice, *_ in text.split():
        hand.put(int(row), choice)
    return hand


def test_what_is_put_by_hand_runs_when_the_simulator_says():
    hand = put(by_hand(2, 3), ORDER)
    plan = simulate(hand.schedule, SLOTS)
    assert {str(action): end for action, end in hand.ends.items()} == {
        span.name: plan.units(span.end) for span in plan.spans() if span.kind in "FB"
    }
    assert "12 slots, 25.0% idle, at most 2 alive on a rank" in hand.said.value
    assert "Par: 12 slots and 2 alive" in hand.said.value
    assert hand.schedule.over(1) == Schedule.named("1f1b")(2, 3).over(1)


@pytest.mark.parametrize(
    "hand, before, row, choice, why",
    [
        (by_hand, "", 1, "F", "Rank 1 cannot run F0 yet: it needs F0 of rank 0. Let that run"),
        (by_hand, "", 0, "B", "Rank 0 cannot run B0 yet: it needs F0 of rank 0"),
        (by_hand, "0F 1F", 0, "B", "it needs B0 of rank 1"),
        (by_hand, "0F " * 8, 0, "F", "Rank 0 has run all its forwards"),
        (RingByHand, "00", 0, "1", "in round 2 yet: what comes to it in round 1 is not placed"),
        (RingByHand, "00 11 22 30", 0, "0", "Rank 1 has the gradient of rank 0 in its chunk 0"),
        (PiecesByHand, "00 00 01 01", 0, "2", "Row 0 or device 2 is full: each takes 4 pieces"),
        (PiecesByHand, "00 10 20 30", 1, "0", "Row 1 or device 0 is full"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(hand, before, row, choice, why):
    hand = put(hand(), before)
    with pytest.raises(Impossible, match="stand in no row: give a row from 0 to 3, and one of"):
        hand.put(-1, choice)
    with pytest.raises(Impossible, match=why):
        hand.put(row, choice)
    hand.children[row].children[[*hand.colours].index(choice) + 1].click()
    assert why in hand.said.value and len(hand.cells) == len(before.split())


def test_the_last_one_put_is_taken_back():
    hand = put(by_hand(2, 3), ORDER)
    hand.take_back()
    assert "12 slots" not in hand.said.value and "10 slots so far" in hand.said.value
    with pytest.raises(Impossible, match="not complete"):
        hand.schedule


def test_a_ring_is_done_when_the_check_of_collectives_says_so():
    """It is added until the sum is whole, and then copied, as the library's ring does."""
    hand, par = RingByHand(5), Collective.named("ring")(5)
    sends = [f"{move.src}{move.chunk}" for move in chain(*par.checked)]
    put(hand, " ".join(sends[:-1]))
    assert "8 rounds, and 24 of 25 sums are whole" in hand.said.value
    put(hand, sends[-1])
    assert [{*moves} for moves in hand.rounds] == [{*moves} for moves in par.checked]
    assert "8 rounds, and 25 of 25 sums are whole.</b> Par: 8 rounds" in hand.said.value


@pytest.mark.parametrize(
    "devices, layout",
    [("0123" * 4, "split-f"), ("0000111122223333", "split-d"), ("0011001122332233", "split-d-f")],
)
def test_pieces_send_what_the_layout_of_the_library_sends(devices, layout):
    sizes = {"n": 64, "d": 32, "f": 48}
    hand = put(PiecesByHand(**sizes), " ".join(f"{at // 4}{to}" for at, to in enumerate(devices)))
    sent = size(4 * max(map(Layouts(layout=layout, **sizes).predict().bytes_sent, range(4))))
    assert f"The devices send {sent} in all" in hand.said.value
    assert f"{layout} {sent}" in hand.said.value
