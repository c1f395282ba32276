"""Fusion: whether an answer's groups can run, what they read and write, and what bytes it tells.

The graphs are so small that a right answer may try every partition.
"""

import random

NAME = "fusion"
ALLOWS = ("bigtrain_lab.core", "bigtrain_lab.core.words")
FORBIDS = tuple(
    f"bigtrain_lab.techniques.fusion.{name}" for name in ("best_groups", "fuse", "moved_bytes")
)
# Seeds of graphs: where a search that makes one merge at a time misses the fewest bytes, and where
# the fewest bytes of all are of groups that wait for each other in a long circle.
GREEDY = 618, 1284, 1668, 1887, 3254
CIRCLES = 126, 189, 228, 250, 273, 321, 382, 407, 478, 496


def scenes(draw):
    for what, text, outputs in (
        ("a chain of two", "a: x, b: a", "b"),
        ("a chain of nine", ", ".join(map(": ".join, zip("abcdefghi", "xabcdefgh"))), "i"),
        ("a value that is a result too", "a: x, b: a", "a b"),
        ("one value read twice inside", "a: x, b: a x, c: a b x", "c"),
        ("two readers of one input", "a: x, b: x", "a b"),
        ("a value that nobody reads", "a: x, b: x", "b"),
        ("two readers of an inner value", "a: x, b: a, c: a y, d: b c", "y d"),
        ("a reduction at the end", "a: x, b: a, !s: b b", "s"),
        ("a result that a reduction reads", "a: x, !s: a", "a s"),
        ("softmax", "!m: x, a: x m, e: a, !s: e, y: e s", "y"),
        ("softmax, a value inside returned too", "!m: x, a: x m, e: a, !s: e, y: e s", "y e"),
        ("a reduction beside a chain", "a: x, !s: a, b: a y, c: b s", "c"),
        ("two reductions in turn", "a: x, !s: a, b: s, !t: b, c: a t", "c"),
        ("the other way round", "b: y, a: x, !s: b, c: s x, !t: a, d: t y", "c d"),
    ):
        operators = []
        for each in text.split(", "):
            name, _, reads = each.partition(":")
            operators.append((name.strip("!"), reads.split(), name[0] != "!"))
        sizes = {value: draw.randint(2, 9) for value in values(operators)}
        yield scene(what, operators, sizes, outputs.split())
    large = {"x": 2**24 + 1, "a": 8, "b": 4}  # which float32 does not hold
    yield scene("a chain of large values", [("a", ["x"], True), ("b", ["a"], True)], large, ["b"])
    for seed in (*draw.sample(GREEDY, 2), *draw.sample(CIRCLES, 2)):
        operators, sizes, outputs = graph(seed, draw.sample("abcdefghijkl", 12))
        unit = draw.randint(1, 4)
        sizes = {value: unit * size for value, size in sizes.items()}
        yield scene(f"a graph of {len(operators)} operators", operators, sizes, outputs)


def values(operators: list) -> list[str]:
    return [*dict.fromkeys(value for name, reads, _ in operators for value in (*reads, name))]


def graph(seed: int, names: list[str]):
    """Operators, sizes and results of a random graph: 5 or 6 pointwise operators, 1 to 3
    reductions."""
    draw = random.Random(seed)
    pointwise = [True] * draw.randint(5, 6) + [False] * draw.randint(1, 3)
    draw.shuffle(pointwise)
    there, operators = ["x", "y"], []
    for name, kind in zip(names, pointwise):
        operators.append((name, draw.sample(there[-5:], draw.randint(1, 2) if kind else 1), kind))
        there.append(name)
    used = {value for _, reads, _ in operators for value in reads}
    sizes = {value: draw.randint(1, 9) for value in there}
    return operators, sizes, [name for name, *_ in operators if name not in used]


def scene(what: str, operators: list, sizes: dict, outputs: list):
    told = "; ".join(
        f"{name} reads {' '.join(reads)}{'' if pointwise else ' (reduction)'}"
        for name, reads, pointwise in operators
    )
    weighs = " ".join(f"{value} {size}" for value, size in sizes.items())
    return (
        f"{what}: {told}; results {' '.join(outputs)}; bytes {weighs}",
        {"operators": operators, "sizes": sizes, "outputs": outputs},
    )


def shown(inputs: dict, came: dict) -> dict:
    """Whether the groups can run; if so, what they move, operators in no group on their own."""
    operators, sizes, groups = inputs["operators"], inputs["sizes"], came["groups"]
    home = {name: name for name, *_ in operators}
    home |= {name: at for at, group in enumerate(groups) for name in group}
    if fault := why_not(operators, groups, home):
        return {"how the groups run": fault}
    read = {
        (home[name], value)
        for name, reads, _ in operators
        for value in reads
        if home.get(value) != home[name]
    }
    written = home.keys() & {*inputs["outputs"], *(value for _, value in read)}
    moved = sum(sizes[value] for _, value in read) + sum(map(sizes.get, written))
    return {
        "how the groups run": "to the end",
        "bytes that they move": moved,
        "bytes told": came["told"],
    }


def why_not(operators: list, groups: list[list[str]], home: dict) -> str:
    """Why the groups cannot run; "" where they can."""
    pointwise = {name: kind for name, _, kind in operators}
    named = [name for group in groups for name in group]
    if not set(named) <= pointwise.keys():
        return "not at all, a name is no operator"
    if len(set(named)) < len(named):
        return "an operator twice"
    if any(len(group) > 1 and not all(map(pointwise.get, group)) for group in groups):
        return "not at all, a reduction ends after all its group has begun"
    needs = {place: set() for place in home.values()}
    for name, reads, _ in operators:
        needs[home[name]] |= {home[value] for value in reads if value in home} - {home[name]}
    while ready := {place for place, needed in needs.items() if not needed & needs.keys()}:
        needs = {place: needed for place, needed in needs.items() if place not in ready}
    return "groups wait for each other in a circle" * bool(needs)
