"""Ring all-reduce from isend and recv: the sum on every rank, a chunk a round to the next rank.

    rounds 2 (N - 1)        bytes sent by each rank 2 (N - 1) / N S        in place

Rank q's numbers are w 16^q: the digits of a sum say how often each rank's numbers stand in it.
Source: Patarasuk and Yuan 2009, Journal of Parallel and Distributed Computing 69(2).
"""

import torch

from .bench import numbers

NAME, NEAR = "ring-all-reduce", 0.02
MANY = 100  # numbers, of which a chunk more or less shows in the bytes


def scenes(draw):
    """(name, what all ranks are given, what each is given)."""
    k, odd, p = draw.randint(150, 250), draw.choice((3, 5, 6, 7)), draw.randint(3, 8)
    few = draw.randint(9, 30)
    for ranks, lengths, dtype, most in (
        (4, [4 * k], "float64", 2**12),
        (4, [4 * k + 3], "float64", 2**12),
        (odd, [odd * k + draw.randint(1, odd - 1)], "float64", 2**12),
        (8, [8 * k + 5], "float64", 2**12),
        (2, [2 * k + 1], "float64", 2**12),
        (1, [k], "float64", 2**12),
        (p, [0], "float64", 2**12),
        (p, [1], "float64", 2**12),
        (p, [p - 1], "float64", 2**12),
        (p, [p + 1], "float64", 2**12),
        (3, [10**6 + 3], "float64", 2**12),
        (p, [few, few // 2, few], "int64", 2 ** (62 - 4 * p)),  # float64 would round the sums
        (4, [few, few // 2, few], "float32", 2**8),
    ):
        calls = ", then ".join(f"{n:,}" for n in lengths)
        yield (
            f"N = {ranks}, {calls} numbers of {dtype}",
            {
                "seed": draw.randrange(2**31),
                "most": most,
                "lengths": lengths,
                "dtype": dtype,
            },
            [{"multiple": 16**rank} for rank in range(ranks)],
        )


def shown(common: dict, own: list[dict], came: list[dict], ranks) -> dict:
    """Which numbers each rank's sums count, and what was sent for them."""
    drawn = torch.cat(numbers(**common | {"dtype": "int64"}))
    exact = torch.int64 if common["dtype"] == "int64" else torch.float64
    sums = [torch.tensor(sum(each["sums"], []), dtype=exact) for each in came]
    often = [
        torch.stack([(each // drawn).long() >> 4 * rank & 15 for rank in range(len(own))])
        for each in sums
    ]
    row = {
        "returns the tensor that was given": [each["kept"] for each in came],
        "numbers that are no sum": [int((each % drawn != 0).sum()) for each in sums],
        "numbers that lack a rank's": [int((each == 0).any(0).sum()) for each in often],
        "numbers that count one twice": [int((each > 1).any(0).sum()) for each in often],
        "a tensor changed before its send had finished": ranks.changed,
        "messages that nobody received": ranks.left,
    }
    if len(drawn) > MANY:
        row |= {
            "ready collectives called": [
                sum(what != "isend" for what, *_ in each) for each in ranks.seen
            ],
            "bytes sent by each rank": ranks.sent,
            "bytes received": ranks.received,
            "messages to ranks that are no neighbours": ranks.far,
            "rounds beyond 2 (N - 1)": max(0, ranks.rounds - 2 * (len(own) - 1)),
        }
    return row
