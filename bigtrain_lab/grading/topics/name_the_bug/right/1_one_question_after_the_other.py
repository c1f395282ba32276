def answer(run):
    spans = run["spans"]
    backwards = [(s["rank"], s["micro_batch"]) for s in spans if s["kind"] == "B"]
    if len(backwards) > len({*backwards}):
        return "double backward"

    forward, backward = (
        max(each["bytes"] for each in run["transfers"] if each["kind"] == kind) for kind in "FB"
    )
    if backward > forward:
        return "wide gradients"

    ready, sent = {}, {}
    for s in spans:
        if s["kind"] == "B":
            ready[s["rank"], s["step"]] = s["end"]
        if s["kind"] == "all_reduce":
            sent[s["rank"], s["step"]] = s["start"]
    for at in ready:
        if at not in sent:
            return "missing all-reduce"
    for at in ready:
        if sent[at] < ready[at]:
            return "early all-reduce"
    for at in ready:
        if sent[at] > ready[at]:
            return "late all-reduce"

    ranks = range(1 + max(s["rank"] for s in spans))
    for rank in ranks:
        levels = [change for change in run["memory"] if change["rank"] == rank]
        ends = [s["end"] for s in spans if s["rank"] == rank and s["kind"] == "U"]
        first, second, third = (
            [change["bytes"] for change in levels if change["time"] <= end][-1] for end in ends
        )
        if first < second < third:
            return "growing memory"

    busy = [
        sum(s["end"] - s["start"] for s in spans if s["rank"] == rank and s["kind"] in "FBU")
        for rank in ranks
    ]
    if max(busy) > 1.5 * min(busy):
        return "straggler"
    if sum(busy) < 0.6 * len(ranks) * max(s["end"] for s in spans):
        return "few micro-batches"
    return "nothing"
