"""Weight stashing: which version each action of PipeDream's order uses, and which a stage keeps.

    a forward uses the newest version there; its backward the same; update t turns version t into
    t + 1; a stage keeps a version until the last backward that uses it: p - s versions on stage s

The order itself tells how many updates a stage has made before each action, so what is right is
counted from it and never from what an answer says.
Source: Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.3.
"""

from .bench import HELD

NAME = "stashing"
ALLOWS = (
    "bigtrain_lab.order.schedule",
    "bigtrain_lab.core",
    "bigtrain_lab.order.schedules.pipedream",
    "bigtrain_lab.order.schedules.one_f_one_b",
)
FORWARDS, OTHERS = "versions of forwards", "versions of backwards and updates"
FORBIDS = ("bigtrain_lab.order.schedules.pipedream.PipeDream.version",)


def scenes(draw):
    for p, m in (
        (4, 8),
        (draw.randint(5, 6), 7),  # fewer than twice p - 1
        (draw.randint(2, 3), draw.randint(10, 14)),
        (draw.randint(3, 5), 2),
        (1, 3),
    ):
        yield from (
            (
                f"{asked}, p = {p}, m = {many}",
                {"ranks": p, "micro_batches": many, "asked": asked},
            )
            for asked, many in ((FORWARDS, m), (OTHERS, m), (HELD, m), (HELD, m + p + 14))
        )


def shown(inputs: dict, came: dict) -> dict:
    if inputs["asked"] == HELD:
        return kept(came, inputs["ranks"], inputs["micro_batches"])
    return versions(came, inputs["asked"] == FORWARDS)


def versions(came: dict, of_forwards: bool) -> dict:
    """Where updates are, then each forward's version, or how far that of another action is from
    what the order makes right."""
    updates, newest, beside, named = [], {}, {}, {}
    for work, told in zip(came["order"], came["versions"]):
        made, used, places = 0, {}, []
        for place, ((kind, stage, batch), version) in enumerate(zip(work, told)):
            action = f"stage {stage}'s {kind}{batch}"
            if kind == "F":
                used[batch] = version
                newest[f"version of {action}"] = version
            elif kind == "B":
                beside[f"version of {action} less its forward's"] = version - used.get(batch, -1)
            else:
                named[f"version of {action} less the updates made"] = version - made
                places.append([place, batch])
                made += 1
        updates.append(places)
    return {
        "asynchronous": came["asynchronous"],
        "updates after each rank's backwards": updates,
        **(newest if of_forwards else beside | named),
    }


def kept(came: dict, p: int, m: int) -> dict:
    """After each number of updates: how many versions are lost and, before the drain, how many are
    too many."""
    row = {}
    for stage, (work, held) in enumerate(zip(came["order"], came["held"])):
        newest, used, ends = 0, {}, [-1]
        for place, (kind, _, batch) in enumerate(work):
            if kind == "F":
                used[batch] = newest
            elif kind == "U":
                newest += 1
                ends.append(place)
        for updates, given in enumerate(reversed(held)):
            rest = [batch for kind, _, batch in work[ends[updates] + 1 :] if kind == "B"]
            needed = {updates, *(used[batch] for batch in rest if used[batch] <= updates)}
            call = f"versions_held({stage}, {updates})"
            row[f"versions that {call} lost"] = len(needed - {*given})
            if updates < m - p:
                row[f"versions that {call} need not keep"] = len({*given} - needed)
    return row
