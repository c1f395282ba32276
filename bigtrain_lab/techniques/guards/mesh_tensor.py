"""Equations and layouts that do not fit each other, refused before a rank waits for another."""

from . import refuse as refuse_any


def refuse_equation(equation: str) -> None:
    """Of which no product can be read."""
    left, arrow, right = equation.partition("->")
    inputs = [each.split() for each in left.split(",")]
    unmade = next((dim for dim in right.split() if dim not in sum(inputs, [])), None)
    twice = next(
        (dim for each in (*inputs, right.split()) for dim in each if each.count(dim) > 1), None
    )
    refuse_any(
        (
            not arrow or "->" in right or "," in right,
            f'{equation!r} is no equation of tensors: write it like "n d, d f -> n f".',
        ),
        (
            unmade,
            (
                f"The result of {equation!r} has a dimension {unmade!r} that no input has: "
                "leave it out."
            ),
        ),
        (
            twice,
            (
                f"A tensor of {equation!r} has the dimension {twice!r} twice: give each dimension "
                "of a tensor a name of its own."
            ),
        ),
    )


def refuse(product, sizes, layout, axes) -> None:
    """A layout that does not fit the sizes, the mesh, or a tensor. Of two dimensions that are cut
    along one axis, a rank would hold the diagonal only."""
    dims = dict.fromkeys(dim for each in product for dim in each)
    refuse_any(
        *(
            (
                dim not in sizes,
                f"Nobody says how long dimension {dim!r} is: add it to the sizes.",
            )
            for dim in dims
        )
    )
    for dim, axis in layout.items():
        refuse_any(
            (
                dim not in sizes,
                f"The layout cuts {dim!r}, which is no dimension: cut one of {', '.join(sizes)}.",
            ),
            (
                axis not in axes,
                f"The layout cuts {dim!r} along {axis!r}, and the mesh has no such "
                f"axis: name one of {', '.join(axes) or 'none'}.",
            ),
        )
        few = sizes[dim] // axes[axis] * axes[axis]
        refuse_any(
            (
                few != sizes[dim],
                f"Dimension {dim!r} of {sizes[dim]} cannot be cut into {axes[axis]} equal parts "
                f"along {axis!r}: make it {f'{few} or ' if few else ''}{few + axes[axis]}.",
            )
        )
    cut = [(dim, layout[dim]) for dim in dims if dim in layout]
    first = {axis: dim for dim, axis in reversed(cut)}
    refuse_any(
        *(
            (
                first[axis] != dim,
                f"The layout cuts both {first[axis]!r} and {dim!r} along {axis!r}, and they meet "
                "in one product: cut one of them along another axis.",
            )
            for dim, axis in cut
        )
    )


def sizes(product, parts, layout, axes) -> dict[str, int]:
    """The whole sizes of the dimensions, from this rank's parts."""
    *inputs, _ = product
    refuse_any(
        (
            len(parts) != len(inputs),
            f"There are {len(parts)} tensors for {len(inputs)} inputs: give one for each.",
        )
    )
    found: dict[str, tuple[int, int]] = {}
    for at, (dims, part) in enumerate(zip(inputs, parts)):
        refuse_any(
            (
                part.dim() != len(dims),
                f"Input {at} has {part.dim()} dimensions and the equation names "
                f"{len(dims)} ({' '.join(dims)}): name each of them.",
            )
        )
        for dim, size in zip(dims, part.shape):
            before, first = found.setdefault(dim, (size, at))
            refuse_any(
                (
                    before != size,
                    f"Dimension {dim!r} is {before} long in input {first} and {size} "
                    f"in input {at}: cut both by one layout.",
                )
            )
    return {dim: size * axes.get(layout.get(dim), 1) for dim, (size, _) in found.items()}


def refuse_relaid(part, dims, old, new, groups) -> None:
    """A tensor that is not of the old layout, or cannot be of the new one."""
    axes = {axis: group.size for axis, group in groups.items()}
    whole = sizes((dims, ()), [part], old, axes)
    for layout in (old, new):
        refuse((dims,), whole, {dim: axis for dim, axis in layout.items() if dim in dims}, axes)
