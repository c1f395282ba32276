from collections import defaultdict
from statistics import median


def answer(run):
    table = defaultdict(lambda: defaultdict(list))
    for span in run["spans"]:
        table[span["rank"], span["step"]][span["kind"]].append(span)
    levels = defaultdict(list)
    for each in run["memory"]:
        levels[each["rank"]].append((each["time"], each["bytes"]))

    found, seconds, kept = set(), {}, {}
    for (rank, step), own in table.items():
        if len(own["B"]) != len(own["F"]):
            found.add("double backward")
        ready = max(span["end"] for span in own["B"])
        if not own["all_reduce"]:
            found.add("missing all-reduce")
        for span in own["all_reduce"]:
            if span["start"] < ready:
                found.add("early all-reduce")
            if span["start"] > ready:
                found.add("late all-reduce")
        seconds[rank] = max(span["end"] - span["start"] for span in own["F"])
        end = max(span["end"] for span in own["U"])
        kept[rank, step] = max(level for level in levels[rank] if level[0] <= end)[1]
    if any(kept[rank, 0] < kept[rank, 1] < kept[rank, 2] for rank in seconds):
        found.add("growing memory")
    if max(seconds.values()) > 1.5 * median(seconds.values()):
        found.add("straggler")
    sizes = {(each["kind"], each["bytes"]) for each in run["transfers"]}
    if len({size for kind, size in sizes if kind in "FB"}) > 1:
        found.add("wide gradients")
    filled = sum(span["end"] - span["start"] for span in run["spans"] if span["kind"] in "FBU")
    if not found and filled / len(seconds) / max(span["end"] for span in run["spans"]) < 0.6:
        found.add("few micro-batches")
    return found.pop() if found else "nothing"
