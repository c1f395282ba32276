"""Data parallel by hooks: buckets of gradients, each summed on a lane while the backward goes on.

    gradient   sum_r g_r / sum_r n_r, of losses that are sums over the n_r samples of rank r
    buckets    at most bucket_bytes each, or one parameter; launched in one order on all ranks

The truth is torch's own gradient of all samples in one process.
Source: Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 3.2.
"""

from collections import defaultdict
from itertools import cycle

from ...ranks import MARK
from ...trainings import off, tensor
from .bench import Net

NAME, FEW = "data-parallel", 8
MANY = 2**33 + 511  # samples: float32 takes them for 2^33


def scenes(draw):
    """(name, what all ranks are given, what each is given)."""
    many, k, most = draw.randint(3, 5), draw.randint(2, 4), draw.randint(300, 700)
    few = draw.randint(1, 6)
    # samples of each rank's micro-batches, in batch 2 the next rank's, and one more in each; the
    # heads that these use, in each of two batches
    both = "ab", "ab"
    for name, samples, heads, bucket_bytes in (
        ("2 ranks, equal samples", [[4]] * 2, both, 160),  # fewer than its numbers
        ("buckets of 2 ranks", [[4]] * 2, both, 160),
        ("3 ranks, unequal samples, none on one", [[few], [], [few + 3]], both, most),
        ("buckets of 3 ranks, none on one", [[few], [], [few + 3]], both, most),
        (f"{many} ranks, {k} micro-batches", [[2] * k] * many, both, 600),
        (f"buckets of {many} ranks, {k} micro-batches", [[2] * k] * many, both, 600),
        ("3 ranks, more samples than 32 bits count", [[few]] * 3, both, 10**6),  # one bucket
        ("buckets of 3 ranks, one for all", [[few]] * 3, both, 10**6),
        ("3 ranks, of which one uses one head in batch 1", [[3]] * 3, ("a", "ba"), 300),
        ("3 ranks, of which none uses one head last", [[3, 2]] * 3, ("a a", "ab a"), 300),
        # all in one bucket, of which the trunk comes last
        ("3 ranks, of which none uses one head in batch 1", [[3]] * 3, ("a", "ba"), 10**6),
        ("3 ranks, of which one uses the heads in another order", [[3]] * 3, ("ba", "ba"), 170),
        ("1 rank, and none uses one head last", [[2, 3]], ("a a", "ab a"), 600),
    ):
        own = [
            {
                "seed": draw.randrange(2**31),
                "batches": [
                    [
                        {
                            "seed": draw.randrange(2**31),
                            "shapes": [[n + number, 5], [n + number, 3]],
                            "heads": used,
                        }
                        for n, used in zip(samples[rank - number], cycle(each.split()))
                    ]
                    for number, each in enumerate(
                        heads if rank == 1 or "none uses" in name else both
                    )
                ],
            }
            for rank in range(len(samples))
        ]
        more, watched = MANY * ("32 bits" in name), name.startswith("buckets")
        yield name, {"bucket_bytes": bucket_bytes, "more": more, "watched": watched}, own


def shown(common: dict, own: list[dict], came: list[dict], ranks) -> dict:
    """Whether ranks start alike and their gradients beside the truth, or what travelled when."""
    net = Net(own[0]["seed"])
    if common["watched"]:
        sizes = [p.nbytes for p in net.learnt()]
        rows = [launches(seen, sizes, common["bucket_bytes"]) for seen in ranks.seen]
        return {f"{name} [rank]": [each[name] for each in rows] for name in rows[0]}
    whole = net.state().tolist()
    row = {
        "how many numbers are unlike rank 0's at the start [rank]": [
            sum(a != b for a, b in zip(each["start"], whole)) for each in came
        ]
    }
    for at in range(2):
        losses = [net.loss(data) for each in own for data in each["batches"][at]]
        samples = common["more"] * len(own)
        samples += sum(data["shapes"][0][0] for each in own for data in each["batches"][at])
        net.zero_grad()
        (sum(losses) / samples).backward()
        found = [tensor(each["gradients"][at]) for each in came]
        row[f"how many numbers of batch {at + 1}'s gradient are wrong [rank]"] = [
            off(each, net.gradient()) for each in found
        ]
        row[f"batch {at + 1}'s gradient [rank]"] = [each[:FEW] for each in found]
    row["parameters without a gradient"] = [each["lacking"] for each in came]
    row["frozen parameters with one"] = [each["beyond"] for each in came]
    return row


def launches(seen: list, sizes: list[int], limit: int) -> dict:
    """What a rank sent in two batches, and did in their backwards."""
    during, now = defaultdict(list), "end"
    for what, where, _ in seen:
        if where == MARK and what != "gradient":
            now = what
        elif what == "launch" or where in ("", MARK):  # else a lane does it
            during[now].append(what)
    quiet, lasts = during["under no_sync"], [during["last of batch 0"], during["last of batch 1"]]
    later = [last[last.index("launch") :] if "launch" in last else [] for last in lasts]
    sent = [size for what, _, size in seen if what == "all_reduce" and size > 8]
    lane = [size for what, where, size in seen if what == "all_reduce" and where not in ("", MARK)]
    beyond = [size - limit for size in sent if size > limit and size not in sizes]
    enough = 2 * (sum(sizes) // limit + 1)
    return {
        "collectives under no_sync": len(quiet) - quiet.count("gradient"),
        "waits inside the backward": sum(
            last.count("wait") + last.count("all_reduce") for last in lasts
        ),
        "launches before the backward ends": all(later),
        "the first launch sends a bucket": max(lane[:1], default=0) > 8,
        "launches when two gradients are to come": all(
            each.count("gradient") >= 2 for each in later
        ),
        "bytes of a bucket beyond the limit": max(beyond, default=0),
        "buckets beyond twice as many as needed": max(0, len(sent) // 2 - enough),
        "times that a gradient is sent": round(sum(sent) / sum(sizes) / 2, 1),
    }
