"""Servers and workers that no plan can be made of, and delays that no descent has."""

from collections.abc import Sequence

from . import refuse, whole


def refuse_order(requests: Sequence[int], shard_bytes: Sequence, bound, synchronous: bool) -> None:
    """What no plan can be made of."""
    counts = ", ".join(map(str, requests))
    refuse(
        (not len(requests), "There are no workers: give at least one."),
        (
            not all(whole(each, 1) for each in requests),
            f"The workers have {counts} batches: give each a whole number, at least 1.",
        ),
        (not len(shard_bytes), "There are no servers: give at least one, which keeps the weights."),
        (
            synchronous and bound is not None,
            (
                f"synchronous and bound={bound}: a synchronous server lets nobody ahead; leave one"
                " out."
            ),
        ),
        (
            bound is not None and not whole(bound, 0),
            (
                f"bound is {bound!r}: give how many batches a worker may be ahead, a whole number"
                " from 0 on, or None for any number."
            ),
        ),
        (
            synchronous and len(set(requests)) > 1,
            (
                f"The workers have {counts} batches: a synchronous server needs one from each in"
                " every round, so give all the same number."
            ),
        ),
    )


def refuse_delay(delay, accuracy) -> None:
    refuse(
        (not whole(delay, 0), f"delay is {delay!r}: give a whole number of updates, from 0 on."),
        (
            not 0 < accuracy < 1,
            f"accuracy is {accuracy!r}: give a share of the rate between 0 and 1.",
        ),
    )
