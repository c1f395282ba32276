"""GPipe as a Schedule: all forwards, then all backwards, from the first or from the last.

    slots (F = 1, B = 2)   3 (m + p - 1)        live micro-batches on each rank   m
    idle share             (p - 1) / (m + p - 1)

Source: Huang et al. 2019, GPipe (arXiv:1811.06965), section 2.3.
"""

from ..one_f_one_b import probe as one_f_one_b

NAME, ALLOWS = "gpipe", one_f_one_b.ALLOWS


def scenes(draw):
    yield from (
        (f"{name} (p = {p}, m = {m})", {"ranks": p, "micro_batches": m})
        for name, p, m in (
            ("the picture", 4, 8),
            ("a long batch", draw.randint(5, 7), draw.randint(9, 13)),
            ("a short batch", draw.randint(5, 8), draw.randint(3, 4)),
            ("as many micro-batches as ranks", 4, 4),
            ("two ranks", 2, draw.randint(4, 6)),
            ("one micro-batch", draw.randint(2, 5), 1),
            ("one rank", 1, 2 * draw.randint(5, 8)),
        )
    )


def replay(inputs: dict, came: dict) -> tuple | None:
    """As 1F1B's; the backwards may begin with the last micro-batch too."""
    ranks, m = range(inputs["ranks"]), range(inputs["micro_batches"])
    rights = (
        [[f"{r}F{i}" for i in m] + [f"{r}B{i}" for i in backwards] for r in ranks]
        for backwards in (m, m[::-1])
    )
    return one_f_one_b.replayed(came["order"], *rights)


def shown(inputs: dict, came: dict) -> dict:
    row = one_f_one_b.shown(inputs, came)
    if "slots" in row:
        row["idle share"] = 1 - 3 * inputs["micro_batches"] / row["slots"]
    return row
