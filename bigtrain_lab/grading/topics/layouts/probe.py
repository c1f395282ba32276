"""Layouts: products of tensors of which dimensions are cut along axes of ranks."""

from math import prod

NAME = "layouts"
LINE, THREE, BOTH = "n d, d f -> n f", {"rows": 3}, {"rows": 2, "columns": 4}
EQUATIONS = (
    LINE,
    "b s d, d h k -> b h s k",
    "b h s k, b h t k -> b h s t",
    "b e c d, e d f -> b e c f",
    "a b c, c d -> d",
)
AXES = (THREE, BOTH, {"rows": 3, "columns": 2}, {"x": 2, "y": 2, "z": 2})


def scenes(draw):
    for equation, layout, axes in (
        (LINE, {}, THREE),
        *((LINE, {dim: "rows"}, THREE) for dim in "dnf"),
        *((LINE, {a: "rows", b: "columns"}, BOTH) for a, b in ("nf", "fn", "nd", "df")),
        (LINE, {"n": "rows"}, BOTH),
        (LINE, {"n": "rows", "d": "columns"}, {"rows": 3, "columns": 1}),
        (LINE, {"heads": "columns", "d": "rows"}, BOTH),
        ("n d, d dh -> n dh", {"d": "rows", "dh": "columns"}, BOTH),
        ("batch width, width hidden -> batch hidden", {"width": "rows", "batch": "columns"}, BOTH),
        ("n d, d f -> f n", {"n": "rows", "f": "columns"}, BOTH),
        ("rows d, d f -> rows f", {"rows": "columns", "d": "rows"}, BOTH),
        ("b s k, b t k -> b s t", {"b": "rows"}, THREE),
        ("b s k, b t k -> b s t", {"s": "rows", "k": "columns"}, BOTH),
        ("n d, n d -> ", {"n": "rows", "d": "columns"}, BOTH),
        ("n d e, d f -> n f", {"e": "rows"}, THREE),
        ("n d, d f e -> n f", {"e": "rows"}, THREE),
        ("n d e, d e f -> n f", {"d": "rows", "e": "columns"}, BOTH),
        ("n m d, d f -> n m f", {"n": "rows", "m": "columns"}, BOTH),
    ):
        yield scene(draw, equation, layout, axes)
    sizes = [dict.fromkeys("ndf", size) for size in (6, 12)]
    calls = [[LINE, size, {dim: "rows"}, THREE] for size, dim in zip(sizes, "nd")]
    yield "two calls", {"calls": calls}
    calls = [[LINE, sizes[1], {"d": "rows"}, {"rows": ranks}] for ranks in (2, 4)]
    yield "two calls, on other ranks", {"calls": calls}
    for _ in range(12):
        equation, axes = draw.choice(EQUATIONS), draw.choice(AXES)
        cut = draw.sample(names_of(equation), min(len(names_of(equation)), len(axes)))
        yield scene(draw, equation, dict(zip(cut, draw.sample(list(axes), len(axes)))), axes)


def names_of(equation: str) -> list[str]:
    return list(dict.fromkeys(equation.replace("->", " ").replace(",", " ").split()))


def scene(draw, equation: str, layout: dict, axes: dict):
    """A call, with sizes that all axes together divide."""
    whole = prod(axes.values())
    names = names_of(equation)
    sizes = {dim: whole * draw.randint(2, 9) for dim in draw.sample(names, len(names))}
    where = ", ".join(f"{dim} along {axis}" for dim, axis in layout.items()) or "nothing"
    told = ", ".join(f"{axis} {ranks}" for axis, ranks in axes.items())
    return (
        f"{equation!r}, split: {where}; axes {told}",
        {"calls": [[equation, sizes, layout, axes]]},
    )


def shown(inputs: dict, came: dict) -> dict:
    """For each tensor the axes along which it is summed and the bytes that a rank sends for it.
    Along an axis of one rank an entry of no bytes may stand or not."""
    row, (*_, axes) = {}, inputs["calls"][-1]
    for name in ("Y", "dX", "dW"):
        own = sorted(
            (axis, size)
            for tensor, axis, size in came["rows"]
            if tensor == name and (size or axes.get(axis) != 1)
        )
        row[f"axes along which {name} is summed"] = ", ".join(axis for axis, _ in own) or "none"
        row[f"bytes of {name}"] = [size for _, size in own]
    return row | {"what was given": came["given"]}
