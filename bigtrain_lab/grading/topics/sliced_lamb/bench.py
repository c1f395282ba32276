"""LAMB on pieces: steps on one rank, which holds pieces of most parameters and all of some."""

from ...trainings import Refused, drawn

NORMS = {"rows": 8.0, "columns": 13.0, "norm": 9.0, "large": 400.0, "small": 0.3}  # around 10
DUPLICATES = "norm", "unreached"


def play(answer, group, parts, shape, seed, steps, settings) -> dict:
    """This rank's parameters after the steps. `parts`: their names, which say what they are."""
    shapes = [shape] * len(parts) * (1 + steps)
    wholes = iter(drawn({"seed": seed, "shapes": shapes}))
    mine = {part: piece(part, first(part, next(wholes), group), group) for part in parts}
    shapes = {part: p.shape for part, p in mine.items()}
    pieces = [part not in DUPLICATES for part in parts]
    optimizer = answer([p.requires_grad_() for p in mine.values()], pieces, group, **settings)
    for _ in range(steps):
        for part, p in mine.items():
            gradient = next(wholes) * 0.1 * (part != "still")
            p.grad = None if part == "unreached" else piece(part, gradient, group)
        optimizer.step()
    if shapes != {part: p.shape for part, p in mine.items()}:
        raise Refused(
            f"Rank {group.rank}'s parameters have another shape after the step: change their"
            " numbers in place."
        )
    return {part: p.tolist() for part, p in mine.items()}


def first(part, whole, group):
    """A parameter as it begins; "half zeros" are zeros on rank 0."""
    whole = whole * NORMS.get(part, 6.0) / whole.norm()
    zeros = {"zeros": len(whole), "half zeros": len(whole) // group.size}
    whole[: zeros.get(part, 0)] = 0
    return whole


def piece(part, whole, group):
    """What this rank holds of it."""
    if part in DUPLICATES:
        return whole.clone()
    return whole.chunk(group.size, int(part == "columns"))[group.rank].clone()
