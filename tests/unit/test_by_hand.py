"""A schedule put together by hand."""

import pytest

from bigtrain_lab import Impossible, Schedule, simulate
from bigtrain_lab.panel import by_hand
from bigtrain_lab.panel.by_hand import SLOTS

ORDER = "0F0 1F0 0F1 1B0 0B0 1F1 0F2 1B1 0B1 1F2 1B2 0B2"  # 1F1B in the order of its starts


def put(hand, text):
    for stage, kind, _ in text.split():
        hand.put(int(stage), kind)
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
    "before, rank, kind, why",
    [
        ("", 1, "F", "Rank 1 cannot run F0 yet: it needs F0 of rank 0. Let that run first."),
        ("", 0, "B", "Rank 0 cannot run B0 yet: it needs F0 of rank 0"),
        ("0F0 1F0", 0, "B", "it needs B0 of rank 1"),
        ("0F0 0F1 0F2", 0, "F", "Rank 0 has run all its forwards"),
    ],
)
def test_what_cannot_run_is_refused_and_changes_nothing(before, rank, kind, why):
    hand = put(by_hand(2, 3), before)
    with pytest.raises(Impossible, match="stand in no row: give a rank from 0 to 1, and F or B"):
        hand.put(-1, kind)
    with pytest.raises(Impossible, match=why):
        hand.put(rank, kind)
    hand.children[rank].children[" FB".index(kind)].click()
    assert why in hand.said.value and len(hand.ends) == len(before.split())


def test_the_last_action_is_taken_back():
    hand = put(by_hand(2, 3), ORDER)
    hand.take_back()
    assert "12 slots" not in hand.said.value and "10 slots so far" in hand.said.value
    with pytest.raises(Impossible, match="not complete"):
        hand.schedule
