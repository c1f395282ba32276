"""A training that ranks evaluate together, that ends by one decision and can be taken up again.

    loss     sum over ranks and micro-batches of the words' losses / all their words
    BLEU     of counts that are added up; each held-out sentence is scored once
    end      rank 0's decision, which all take         last.pt, best.pt   whole at any moment

Source: Papineni et al. 2002, section 2; Post 2018 (arXiv:1804.08771); rename in POSIX.1-2017.
"""

NAME, NEAR = "spread-evaluation", 1e-5  # an answer may count words, and smooth, in float32
ALLOWS, WRITES = ("bigtrain_lab.data.bleu",), True
HELD_OUT, WINDOWS, FILES = 13, 2, ("best.pt", "last.pt")
GRADIENT, EPOCHS = "gradient of the first update", "epochs"


def scenes(draw):
    """Each life of a run: what is the same on all ranks. The seventh and eighth saves and
    renames are those of an epoch that is better than all before and after it."""
    many, lives = (
        draw.randint(3, 4),
        dict.fromkeys(("kill_epoch", "kill_save", "kill_rename", "asked")),
    )
    for name, ranks, *killed in (
        ("1 rank, the first gradient", 1, {"asked": GRADIENT}),
        ("1 rank, rates and epochs", 1, {"asked": EPOCHS}),
        ("1 rank", 1),
        (f"{many} ranks", many),
        ("1 rank, killed in its third save", 1, {"kill_save": 3}, {"reads": True}),
        ("1 rank, killed in its fourth save", 1, {"kill_save": 4}, {"reads": True}),
        ("1 rank, killed before its fourth rename", 1, {"kill_rename": 4}, {"reads": True}),
        ("2 ranks, killed after 3 epochs and started again", 2, {"kill_epoch": 3}, {}),
        ("1 rank, killed after 5 epochs and started again", 1, {"kill_epoch": 5}, {}),
        ("1 rank, ended and started again", 1, {}, {}),
        ("1 rank, killed in its seventh save and started again", 1, {"kill_save": 7}, {}),
        ("1 rank, killed in its eighth save and started again", 1, {"kill_save": 8}, {}),
        ("1 rank, killed before its eighth rename and started again", 1, {"kill_rename": 8}, {}),
    ):
        common = {"seed": draw.randrange(2**31), "held_out": HELD_OUT, "windows": WINDOWS}
        own = [{"own_seed": draw.randrange(2**31)} for _ in range(ranks)]
        first, *again = [common | lives | life for life in killed or [{}]]
        yield name, first, own, *again


def shown(common: dict, own: list[dict], came: list[dict], ranks) -> dict:
    files = came[0]["files"].items()
    if "epochs" not in came[0]:  # read after a save that was cut off
        return {f"{name} after it": "whole" if "names" in file else file for name, file in files}
    if common["asked"] == GRADIENT:
        return {GRADIENT: came[0]["gradient"]}
    row = {} if common["kill_save"] or common["kill_rename"] else evaluated(came)
    if common["asked"] == EPOCHS:
        return row
    row["weights at the end"] = [each["weights"] for each in came]
    for name, file in files:
        whole = "names" in file
        row[f"names in {name}"] = file["names"] if whole else file
        row[f"weights in {name}"] = file["numbers"] if whole else file
    return row


def evaluated(came: list[dict]) -> dict:
    epochs, ranks = max(1, len(came[0]["epochs"])), len(came)
    scored = [each["scored"] / epochs for each in came]
    return {
        "epochs whose windows were asked for": [each["epochs"] for each in came],
        "rates of the first updates": came[0]["rates"][: WINDOWS + 2],
        "how many sentences are scored an epoch": sum(scored),
        "how many by one rank beyond its share": max(0, max(scored) - -(-HELD_OUT // ranks)),
        "BLEU [rank] [epoch]": [each["scores"] for each in came],
        "forwards in evaluation mode": [each["not in training mode"] for each in came],
        "forwards past the wrapper": [each["past the wrapper"] for each in came],
        "ranks beside rank 0 that save": [n for n in range(1, ranks) if came[n]["saves"]],
    }
