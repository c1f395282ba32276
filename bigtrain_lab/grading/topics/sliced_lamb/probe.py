"""LAMB whose parameters lie on several ranks: norms are those of whole parameters.

    |x|^2 = sum over ranks of |piece|^2      of duplicates, which all ranks hold, one rank's
    x <- x - lr min(|x|, 10) / |u| u         one message a step: two numbers a parameter

With phi(z) = z a norm that counts twice, in |x| and in |u|, would cancel; with min(z, 10) it shows.
Source: You et al. 2019 (arXiv:1904.00962), Algorithm 2.
"""

NAME, NEAR = "sliced-lamb", 1e-12


def scenes(draw):
    some, many = draw.choice((0.02, 0.1, 0.3)), draw.choice((3, 4))
    six = ["rows", "norm", "columns", "zeros", "half zeros", "large"]
    for name, ranks, parts, steps, decay in (
        ("one rank, one step, no decay", 1, ["rows", "large", "small"], 1, 0.0),
        ("one rank, one step", 1, ["rows", "norm"], 1, some),
        ("one rank, three steps", 1, ["rows", "norm"], 3, some),
        ("one rank, zeros", 1, ["rows", "zeros"], 2, some),
        ("one rank, no gradient but zeros", 1, ["rows", "still"], 2, 0.0),
        ("one rank, no decay and a gradient of 1e-12", 1, ["rows", "faint"], 2, 0.0),
        ("one rank, decay alone, which asks for a ratio of 50", 1, ["rows", "still"], 2, 0.02),
        ("two ranks, one piece each", 2, ["rows"], 1, some),
        (f"{many} ranks, pieces", many, ["rows", "columns", "zeros"], 2, some),
        (f"{many} ranks, duplicates", many, ["rows", "norm"], 2, some),
        ("two ranks, one of which has zeros", 2, ["rows", "half zeros", "norm"], 2, some),
        (
            "two ranks, a parameter without a gradient",
            2,
            ["columns", "unreached", "norm", "rows"],
            2,
            some,
        ),
        (
            "two ranks, parameters without a gradient now and then",
            2,
            ["norm at times", "at times", "first's at times"],
            8,
            some,
        ),
        ("three ranks, six parameters", 3, six, 2, some),
        ("100 steps on two ranks", 2, ["rows", "norm"], 100, some),
    ):
        settings = {
            "lr": draw.choice((0.01, 0.02, 0.05)),
            "betas": [draw.choice((0.8, 0.9)), draw.choice((0.99, 0.999))],
            "eps": draw.choice((1e-6, 1e-5)),
            "weight_decay": decay,
        }
        common = {
            "parts": parts,
            "shape": [draw.choice((2, 3, 5)) * ranks for _ in range(2)],
            "seed": draw.randrange(2**31),
            "steps": steps,
            "settings": settings,
        }
        yield name, common, [{"own_seed": draw.randrange(2**31)} for _ in range(ranks)]


def shown(common: dict, own: list[dict], came: list[dict], ranks) -> dict:
    """Each parameter, or its pieces, on all ranks; and what was sent beyond what is needed."""
    row = {f"parameter {part!r}": [rank[part] for rank in came] for part in common["parts"]}
    steps, numbers = common["steps"], sum(size for *_, size in ranks.seen[0]) / 8
    return row | {
        "messages a step beyond one": max(0, len(ranks.seen[0]) / steps - 1),
        "numbers a step beyond two a parameter": max(0, numbers / steps - 2 * len(common["parts"])),
    }
