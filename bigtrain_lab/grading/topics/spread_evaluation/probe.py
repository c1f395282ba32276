"""A training that ranks evaluate together, that ends by one decision and can be taken up again.

    loss     sum over ranks and micro-batches of the words' losses / all their words
    BLEU     of counts that are added up; each held-out sentence is scored once
    end      rank 0's decision, which all take         last.pt, best.pt   whole at any moment

Source: Papineni et al. 2002, section 2; Post 2018 (arXiv:1804.08771); rename in POSIX.1-2017.
"""

NAME, NEAR = "spread-evaluation", 1e-5  # an answer may count words, and smooth, in float32


def scenes(draw):
    seed, many = draw.randrange(2**31), draw.randint(3, 4)
    for name, ranks, killed_before, killed_in_save in (
        ("1 rank", 1, None, None),
        (f"{many} ranks", many, None, None),
        ("1 rank, killed in its third save", 1, None, 3),
        ("1 rank, killed in its fourth save", 1, None, 4),
        ("2 ranks, killed after 3 epochs and started again", 2, 3, None),
        ("1 rank, killed after 5 epochs and started again", 1, 5, None),
        ("1 rank, ended and started again", 1, 99, None),
    ):
        yield (
            name,
            {
                "ranks": ranks,
                "seed": seed,
                "held_out": 13,
                "windows": 2,
                "killed_before": killed_before,
                "killed_in_save": killed_in_save,
            },
        )


def shown(inputs: dict, came: dict) -> dict:
    files = came["files"].items()
    if inputs["killed_in_save"]:
        return {f"{name} after it": "whole" if "names" in file else file for name, file in files}
    epochs = max(1, len(came["epochs"][0]))
    each = [came["scored"].count(rank) / epochs for rank in range(inputs["ranks"])]
    row = {
        "rates of the first updates": came["rates"][: inputs["windows"] + 2],
        "weights at the end": came["weights"],
        "epochs trained": came["epochs"],
        "sentences scored an epoch": sum(each),
        "by one rank beyond its share": max(
            0, max(each) - -(-inputs["held_out"] // inputs["ranks"])
        ),
        "BLEU of each epoch": came["scores"],
        "ranks that save": came["savers"],
    }
    for name, file in files:
        whole = "names" in file
        row[f"names in {name}"] = file["names"] if whole else file
        row[f"numbers in {name}"] = file["numbers"] if whole else file
    return row
