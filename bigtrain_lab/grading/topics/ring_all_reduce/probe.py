"""Ring all-reduce from isend and recv: the sum on every rank, a chunk a round to the next rank.

    rounds 2 (N - 1)        bytes sent by each rank 2 (N - 1) / N S        in place

Rank q's numbers are the q-th digits of the sums, which say how often each rank's stand in them.
Source: Patarasuk and Yuan 2009, Journal of Parallel and Distributed Computing 69(2).
"""

import torch

from ...trainings import unpacked
from .bench import digits

NAME, NEAR = "ring-all-reduce", 0.02
MANY = 100  # numbers, of which a chunk more or less shows in the bytes


def scenes(draw):
    """(name, what all ranks are given, what each is given)."""
    k, odd, p = draw.randint(150, 250), draw.choice((3, 5, 6, 7)), draw.randint(4, 8)
    few = draw.randint(9, 30)
    for ranks, lengths, dtype, bits in (  # of a digit
        (4, [4 * k], "float64", 6),
        (4, [4 * k + 3], "float64", 6),
        (odd, [odd * k + draw.randint(1, odd - 1)], "float64", 6),
        (8, [8 * k + 5], "float64", 6),
        (2, [2 * k + 1], "float64", 6),
        (1, [k], "float64", 6),
        (p, [0], "float64", 6),
        (p, [1], "float64", 6),
        (p, [p - 1], "float64", 6),
        (p, [p + 1], "float64", 6),
        (3, [10**6 + 3], "float64", 6),
        (p, [few, few // 2, few], "int64", 62 // p),  # odd sums above 2^53, which float64 rounds
        (4, [few, few // 2, few], "float32", 6),
        (3, [few], "int32", 9),  # sums above 2^24, which float32 rounds
    ):
        calls = ", then ".join(f"{n:,}" for n in lengths)
        yield (
            f"N = {ranks}, {calls} numbers of {dtype}",
            {"bits": bits, "lengths": lengths, "dtype": dtype},
            [{"seed": draw.randrange(2**31)} for _ in range(ranks)],
        )


def shown(common: dict, own: list[dict], came: list[dict], ranks) -> dict:
    """Which numbers each rank's sums count, and what was sent for them."""
    bits, lengths = common["bits"], common["lengths"]
    drawn = torch.stack([torch.cat(digits(each["seed"], bits, lengths)) for each in own])
    places = bits * torch.arange(len(own))[:, None]
    exact = torch.int64 if common["dtype"] == "int64" else torch.float64
    sums = [
        unpacked(each["sums"], exact) if each["sums"] else torch.empty(0, dtype=exact)
        for each in came
    ]
    found = [each.long() >> places & 2**bits - 1 for each in sums]
    size = torch.empty(0, dtype=getattr(torch, common["dtype"])).itemsize
    parts = [-(-n // len(own)) for n in lengths]
    longest, most = max(parts), 2 * (len(own) - 1) * size * sum(parts)
    numbers = {
        "numbers that are no sum [rank]": [
            int(((whole != whole.long()) | (each % drawn > 0).any(0)).sum())
            for whole, each in zip(sums, found)
        ],
        "sums that lack a rank's number [rank]": [int((each == 0).any(0).sum()) for each in found],
        "sums that count a rank's number twice [rank]": [
            int((each > drawn).any(0).sum()) for each in found
        ],
    }
    row = {
        "returns the tensor that was given [rank]": [each["kept"] for each in came],
        "the tensor has its rank's own numbers alone [rank]": [
            bool((each.sum(0) == each[rank]).all()) for rank, each in enumerate(found)
        ],
        **numbers,
        # told where all else of the messages is right: it goes with most other mistakes
        "a tensor changed before its send had finished": ranks.changed
        and not ranks.far
        and not any(map(any, numbers.values())),
        "messages that nobody received": ranks.left,
        "ready collectives called [rank]": [
            sum(what != "isend" for what, *_ in each) for each in ranks.seen
        ],
        "messages to ranks that are no neighbours": ranks.far,
        "bytes beyond those of 2 (N - 1) chunks [rank]": [
            max(0, sent - most) for sent in ranks.sent
        ],
        "numbers of a message beyond S / N, rounded up [rank]": [
            max(0, max((sent for _, _, sent in each), default=0) // size - longest)
            for each in ranks.seen
        ],
        "rounds beyond 2 (N - 1)": max(0, ranks.rounds - 2 * (len(own) - 1) * len(lengths)),
    }
    if sum(lengths) > MANY:
        row |= {
            "bytes sent by each rank [rank]": ranks.sent,
            "bytes received [rank]": ranks.received,
        }
    return row
