"""LAMB on pieces: steps on one rank, which holds pieces of most parameters and all of some."""

from ...trainings import drawn, refuse

NORMS = {"rows": 8.0, "columns": 13.0, "norm": 13.0, "large": 400.0, "small": 3e-7}  # around 10
SCALES = {"still": 0, "faint": 1e-11}  # of gradients
DUPLICATES = "norm", "unreached", "norm at times"
# Of four steps, those in which it has a gradient.
REACHED = {"unreached": (), "at times": (2,), "norm at times": (1, 2), "first's at times": (3,)}


def play(answer, group, parts, shape, seed, own_seed, steps, settings) -> dict:
    """This rank's parameters after the steps. `parts`: their names, which say what they are.
    Duplicates are of `seed`; of its own this rank alone draws its pieces."""
    draws = {
        part: iter(
            drawn(
                {
                    "seed": (seed if part in DUPLICATES else own_seed) + number,
                    "shapes": [shape_of(part, shape, group)] * (1 + steps),
                }
            )
        )
        for number, part in enumerate(parts)
    }
    mine = {part: first(part, next(draws[part]), group) for part in parts}
    shapes = {part: p.shape for part, p in mine.items()}
    held = {part: p.detach() for part, p in mine.items()}  # as views of a flat buffer would be
    pieces = [part not in DUPLICATES for part in parts]
    optimizer = answer([p.requires_grad_() for p in mine.values()], pieces, group, **settings)
    for step in range(steps):
        for part, p in mine.items():
            gradient = next(draws[part]) * 0.1 * SCALES.get(part, 1)
            if step % 4 not in REACHED.get(part, (0, 1, 2, 3)):
                p.grad = None
            elif p.grad is None:
                p.grad = gradient
            else:  # as where gradients are zeroed in place
                p.grad.copy_(gradient)
        optimizer.step()
    refuse(
        (
            shapes != {part: p.shape for part, p in mine.items()},
            f"Rank {group.rank}'s parameters have another shape after the step: change their"
            " numbers in place.",
        )
    )
    return {part: p.tolist() for part, p in held.items()}


def shape_of(part, whole: list[int], group) -> list[int]:
    """Of what a rank holds; of "first's at times", only the first does."""
    rows, columns = whole
    if part in DUPLICATES:
        return [columns] if part == "norm" else whole
    if part == "columns":
        return [rows, columns // group.size]
    rows = rows // group.size if part != "first's at times" or not group.rank else 0
    return [rows] if part == "zeros" else [rows, columns]


def first(part, drawn, group):
    """A parameter as it begins; "half zeros" are zeros on rank 0. Later ranks hold more of its
    norm."""
    share = 2 * (group.rank + 1) / (group.size * (group.size + 1))
    norm = NORMS.get(part, 6.0) * (1 if part in DUPLICATES else share**0.5)
    zeros = part == "zeros" or part == "half zeros" and group.rank == 0
    return drawn * (0 if zeros else norm / drawn.norm())
