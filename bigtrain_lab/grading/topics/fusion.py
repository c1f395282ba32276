"""A fuser of one's own: groups of pointwise operators that move the fewest bytes.

Of an answer we show whether its groups can run, what they read and write when they run, and what
bytes it tells. The graphs are so small that a right answer may try every partition.
"""

import random
from collections.abc import Iterable

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong

RIGHT = """
def answer(operators, sizes, outputs):
    reads = {name: set(read) for name, read, _ in operators}
    free = [name for name, _, pointwise in operators if pointwise]
    alone = [[name] for name, _, pointwise in operators if not pointwise]

    def partitions(items):
        if not items:
            yield []
            return
        first, rest = items[0], items[1:]
        for groups in partitions(rest):
            yield [[first], *groups]
            for i, group in enumerate(groups):
                yield [*groups[:i], [first, *group], *groups[i + 1:]]

    def runs(groups):
        home = {name: i for i, group in enumerate(groups) for name in group}
        needs = [{home[r] for n in group for r in reads[n] if r in home} - {i} for i, group in enumerate(groups)]
        done = set()
        while len(done) < len(groups):
            ready = [i for i in range(len(groups)) if i not in done and needs[i] <= done]
            if not ready:
                return False
            done.update(ready)
        return True

    def moved(groups):
        total = 0
        for group in groups:
            inside = set(group)
            total += sum(sizes[r] for r in set().union(*(reads[n] for n in group)) - inside)
            outside = set().union(*(reads[n] for n in reads if n not in inside))
            total += sum(sizes[n] for n in group if n in outside or n in outputs)
        return total

    best = min((groups + alone for groups in partitions(free) if runs(groups + alone)), key=moved)
    return best, moved(best)
"""
IN_ORDER = """
def answer(operators, sizes, outputs):
    best = [None, float("inf")]

    def cost(home):
        read, written = set(), set(outputs)
        for name, reads, _ in operators:
            for value in reads:
                if home.get(value) != home[name]:
                    read.add((home[name], value))
                    written.add(value)
        return sum(sizes[v] for _, v in read) + sum(sizes[v] for v in written if v in home)

    def cyclic(home):
        after = {g: set() for g in home.values()}
        for name, reads, _ in operators:
            if name in home:
                after[home[name]] |= {home[v] for v in reads if v in home} - {home[name]}
        def reaches(g, target, seen):
            return any(h == target or h not in seen and not seen.add(h) and reaches(h, target, seen) for h in after[g])
        return any(reaches(g, g, set()) for g in after)

    def place(k, home, kinds):
        if cyclic(home):
            return
        if k == len(operators):
            if cost(home) < best[1]:
                best[:] = dict(home), cost(home)
            return
        name, _, pointwise = operators[k]
        for g, kind in enumerate(kinds):
            if pointwise and kind:
                place(k + 1, {**home, name: g}, kinds)
        place(k + 1, {**home, name: len(kinds)}, [*kinds, pointwise])

    place(0, {}, [])
    home = best[0]
    return tuple(tuple(n for n in home if home[n] == g) for g in set(home.values())), best[1]
"""
MERGES = """
import numpy as np

class Graph:
    def __init__(self, operators, sizes, outputs):
        self.names = [name for name, _, _ in operators]
        self.reads = {name: frozenset(reads) for name, reads, _ in operators}
        self.pointwise = {name for name, _, pointwise in operators if pointwise}
        self.sizes, self.outputs = sizes, set(outputs)

    def legal(self, groups):
        left, made = set(groups), set(v for v in self.sizes if v not in self.reads)
        while left:
            ready = [g for g in left if all(self.reads[n] <= made | g for n in g)]
            if not ready:
                return False
            for g in ready:
                left.remove(g)
                made |= g
        return True

    def bytes(self, groups):
        total = np.int64(0)
        for g in groups:
            others = set().union(*[self.reads[n] for n in self.names if n not in g])
            total += sum(self.sizes[v] for v in set().union(*[self.reads[n] for n in g]) - g)
            total += sum(self.sizes[n] for n in g & (others | self.outputs))
        return total

def answer(operators, sizes, outputs):
    graph = Graph(operators, sizes, outputs)
    start = frozenset(frozenset([name]) for name in graph.names)
    seen, queue = {start}, [start]
    for groups in queue:
        for a in groups:
            for b in groups:
                if a != b and a | b <= graph.pointwise:
                    merged = groups - {a, b} | {a | b}
                    if merged not in seen and graph.legal(merged):
                        seen.add(merged)
                        queue.append(merged)
    best = min(seen, key=graph.bytes)
    return [set(g) for g in best if len(g) > 1], graph.bytes(best)
"""
GROWTH = """
def answer(operators, sizes, outputs):
    number = {name: i for i, (name, _, _) in enumerate(operators)}
    n = len(operators)
    best = None
    labels = [0] * n
    def total(labels):
        moved = 0
        for value in sizes:
            readers = {labels[i] for i in range(n) if value in operators[i][1]}
            if value in number:
                readers.discard(labels[number[value]])
                moved += sizes[value] * (bool(readers) or value in outputs)
            moved += sizes[value] * len(readers)
        return moved
    def acyclic(labels):
        edges = {(labels[number[v]], labels[i]) for i in range(n) for v in operators[i][1] if v in number}
        edges = {(a, b) for a, b in edges if a != b}
        left = set(labels)
        while left:
            free = left - {b for a, b in edges if a in left}
            if not free:
                return False
            left -= free
        return True
    stack = [(1, [0])] if n else []
    while stack:
        k, labels = stack.pop()
        if k == n:
            if acyclic(labels) and (best is None or total(labels) < best[0]):
                best = total(labels), labels
            continue
        taken = {labels[i] for i in range(k) if not operators[i][2]}
        top = max(labels) + 1
        for label in range(top + 1):
            if label == top or operators[k][2] and label not in taken:
                stack.append((k + 1, labels + [label]))
    moved, labels = best
    return [[operators[i][0] for i in range(n) if labels[i] == g] for g in range(max(labels) + 1)], moved
"""
GREEDY = """
    groups = {start}
    while True:
        ways = {choice}
        if not ways:
            return groups + alone, moved(groups + alone)
        a, b = {pick}
        groups = [g for g in groups if g not in (a, b)] + [a + b]
"""
BEST = "    best = min((groups + alone for groups in partitions(free) if runs(groups + alone)), key=moved)\n    return best, moved(best)\n"
RUNS, KEY, ALL = (
    " if runs(groups + alone)",
    "key=moved",
    "groups + alone for groups in partitions(free)",
)
MERGE = "[(a, b) for a in groups for b in groups if a is not b and runs([g for g in groups + alone if g not in (a, b)] + [a + b]){also}]"
GAIN = (
    " and moved([g for g in groups + alone if g not in (a, b)] + [a + b]) < moved(groups + alone)"
)
LINKED = " and any(r in b for n in a for r in reads[n])"
SINGLES = "[[name] for name in free]"


def in_place_of_search(text: str) -> tuple[tuple[str, str], ...]:
    return ((BEST, text),)


def greedy(also: str, pick: str = "ways[0]", start: str = SINGLES) -> tuple[tuple[str, str], ...]:
    return in_place_of_search(GREEDY.format(start=start, choice=MERGE.format(also=also), pick=pick))


MORE = "Another grouping moves fewer bytes: compare the bytes of whole partitions, since a merge can forbid a better one later."
OUTSIDE = "A value that an operator outside of the group reads was not counted as written: its second user finds it only in memory."
INSIDE = "Values inside a group were counted as read: they touch no memory."
PER_READER = "A value that several operators of one group read was counted several times: a group reads it once."
RETURN = "return the groups and the bytes that they move, as in ([['a', 'b'], ['c']], 24)."


class FusionTopic(Topic):
    name = "fusion"
    allows = ("bigtrain_lab.core", "bigtrain_lab.words")
    forbids = (
        "bigtrain_lab.techniques.fusion.best_groups",
        "bigtrain_lab.techniques.fusion.fuse",
        "bigtrain_lab.techniques.fusion.moved_bytes",
    )
    hints = (
        "What does a group read from memory, and what must it write there? Which values does nobody outside ever see?",
        "A partition is legal where its groups can run one after another, each once what it reads is there, and where every "
        "reduction is alone. With so few operators you can try them all.",
        "Put the first operator alone, or into each group of every partition of the others. Keep the partitions that run, and take "
        "the one with the fewest bytes: of each group the distinct values read from outside, and its own that somebody outside reads "
        "or that are results.",
    )
    right = {
        "every partition": RIGHT,
        "placed in order": IN_ORDER,
        "merged in all orders": MERGES,
        "labels": GROWTH,
        "leaves out those alone": RIGHT.replace(
            "return best, moved(best)", "return [g for g in best if len(g) > 1], moved(best)"
        ),
    }
    wrong = {
        "nothing": Wrong(f"There are no groups: {RETURN}", in_place_of_search("    return None\n")),
        "only the groups": Wrong(
            f"You returned groups without their bytes: {RETURN}",
            (("return best, moved(best)", "return best"),),
        ),
        "only the bytes": Wrong(
            f"There are no groups: {RETURN}", (("return best, moved(best)", "return moved(best)"),)
        ),
        "fuses_across_reduction": Wrong(
            "A reduction shares a group: softmax's sum must end before its division starts. Leave reductions alone.",
            (
                ("in operators if pointwise]", "in operators]"),
                ("in operators if not pointwise]", "in []]"),
            ),
        ),
        "drops_second_user": Wrong(
            OUTSIDE, (("if n in outside or n in outputs", "if n in outputs"),)
        ),
        "cycle_between_groups": Wrong(
            "Two of your groups wait for each other: A needs B and B needs A, so neither can start.",
            ((RUNS, ""),),
        ),
        "counts_inside_reads": Wrong(INSIDE, ((" - inside)", ")"),)),
        "direct cycles only": Wrong(
            "Some of your groups wait for each other in a circle: follow what a group needs through all others.",
            (
                (
                    "        done = set()\n",
                    "        return not any(i in needs[j] and j in needs[i] for i in range(len(groups)) for j in range(i))\n",
                ),
            ),
        ),
        "all alone": Wrong(
            "You fused nothing: operators that share values belong into one group.",
            in_place_of_search(
                "    best = [[name] for name in free] + alone\n    return best, moved(best)\n"
            ),
        ),
        "forgets results": Wrong(
            "A result of the graph was not counted as written: it must be in memory, even if a group reads it too.",
            ((" or n in outputs", ""),),
        ),
        "writes everything": Wrong(
            "Values that only their own group reads were counted as written: they never reach memory.",
            (
                (
                    "        total += sum(sizes[n] for n in group if n in outside or n in outputs)",
                    "        total += sum(sizes[n] for n in group)",
                ),
            ),
        ),
        "once a reader": Wrong(
            PER_READER,
            (
                (
                    "sum(sizes[r] for r in set().union(*(reads[n] for n in group)) - inside)",
                    "sum(sizes[r] for n in group for r in reads[n] - inside)",
                ),
            ),
        ),
        "a result twice": Wrong(
            "A result that another group reads was counted as written twice: it is written once, for both.",
            (
                (
                    "if n in outside or n in outputs)",
                    "if n in outside) + sum(sizes[n] for n in group if n in outputs)",
                ),
            ),
        ),
        "counts tensors": Wrong(
            "You counted values, not bytes: add up their sizes.",
            (("    reads = {", "    sizes = dict.fromkeys(sizes, 1)\n    reads = {"),),
        ),
        "only writes": Wrong(
            "What groups read was not counted: reading takes as long as writing.",
            (
                (
                    "total += sum(sizes[r] for r in set().union(*(reads[n] for n in group)) - inside)",
                    "pass",
                ),
            ),
        ),
        "only reads": Wrong(
            "What groups write was not counted: a value that somebody outside needs is written first.",
            (("total += sum(sizes[n] for n in group if n in outside or n in outputs)", "pass"),),
        ),
        "inputs are free": Wrong(
            "The graph's inputs were not counted: each group that needs one reads it from memory.",
            (("- inside)", "- inside if r in reads)"),),
        ),
        "inputs once": Wrong(
            "A value that two groups read was counted once: each group reads it anew.",
            (
                ("        total = 0\n", "        total, known = 0, set()\n"),
                ("- inside)", "- inside - known)"),
                (
                    "            outside = set()",
                    "            known |= set().union(*(reads[n] for n in group))\n            outside = set()",
                ),
            ),
        ),
        "reductions are free": Wrong(
            "A reduction reads and writes too: count the groups of one operator as well.",
            (
                (
                    "return best, moved(best)",
                    "return best, moved([g for g in best if g not in alone])",
                ),
            ),
        ),
        "bytes before": Wrong(
            "You told the bytes of single operators: tell those of your groups.",
            (("return best, moved(best)", "return best, moved([[name] for name in reads])"),),
        ),
        "bytes saved": Wrong(
            "You told the bytes that are saved: tell those that your groups still move.",
            (
                (
                    "return best, moved(best)",
                    "return best, moved([[name] for name in reads]) - moved(best)",
                ),
            ),
        ),
        "fewest groups": Wrong(MORE, ((KEY, "key=len"),)),
        "neighbours in the list": Wrong(
            "Only neighbours in the list were fused: their order there is one of many, and says nothing.",
            in_place_of_search(
                "    groups = []\n    for name, _, pointwise in operators:\n        if pointwise and groups and groups[-1][0] in free:\n            groups[-1].append(name)\n"
                "        else:\n            groups.append([name])\n    return groups, moved(groups)\n"
            ),
        ),
        "chains": Wrong(
            "Only an operator and its reader were fused: two that read the same value save bytes as well.",
            greedy(LINKED),
        ),
        "single readers": Wrong(
            "A value with two readers stopped the fusion: both readers may share its group.",
            greedy(
                LINKED
                + " and all(sum(r in reads[m] for m in reads) == 1 for n in a for r in reads[n] if r in b)"
            ),
        ),
        "first merge": Wrong(MORE, greedy(GAIN)),
        "greediest merge": Wrong(
            MORE,
            greedy(
                GAIN,
                "min(ways, key=lambda way: moved([g for g in groups + alone if g not in way] + [way[0] + way[1]]))",
            ),
        ),
        "last merge": Wrong(MORE, greedy("", "ways[-1]")),
        "first fit": Wrong(
            MORE,
            in_place_of_search(
                "    groups = []\n    for name in free:\n        for i, g in enumerate(groups):\n            left = [[n] for n in free if n != name and not any(n in h for h in groups)]\n"
                "            if runs([*groups[:i], g + [name], *groups[i + 1:], *left, *alone]):\n                groups[i] = g + [name]\n                break\n"
                "        else:\n            groups.append([name])\n    return groups + alone, moved(groups + alone)\n"
            ),
        ),
        "by level": Wrong(
            "Only operators of equal depth were fused: a chain saves the most.",
            in_place_of_search(
                "    depth = {}\n    for name, read, _ in operators:\n        depth[name] = 1 + max((depth.get(r, 0) for r in read), default=0)\n"
                "    best = [[n for n in free if depth[n] == d] for d in sorted({depth[n] for n in free})] + alone\n    return best, moved(best)\n"
            ),
        ),
        "a first output only": Wrong(
            "Only the first of the graph's results was counted as written: all of them are.",
            (("n in outputs)", "n in outputs[:1])"),),
        ),
        "drops an operator": Wrong(
            "The groups that you told of and their bytes do not fit together: tell the bytes of all operators, grouped or not.",
            (
                (
                    "return best, moved(best)",
                    "return [g for g in best if len(g) > 1], moved([g for g in best if len(g) > 1])",
                ),
            ),
        ),
        "an operator twice": Wrong(
            "An operator is in two groups: it would run twice, so name each once.",
            (("return best, moved(best)", "return best + [best[0][:1]], moved(best)"),),
        ),
        "names values": Wrong(
            "A group names what is no operator: only operators are grouped, never inputs.",
            (
                (
                    "return best, moved(best)",
                    "return [[*g, *(r for r in sorted(reads[g[0]]) if r not in reads)] for g in best], moved(best)",
                ),
            ),
        ),
        "remembers": Wrong(
            "A later graph got an earlier one's groups: begin anew in each call.",
            (
                (
                    "def answer(operators, sizes, outputs):\n",
                    "KNOWN = {}\ndef answer(operators, sizes, outputs):\n    key = len(operators)\n    if key not in KNOWN:\n"
                    "        KNOWN[key] = found(operators, sizes, outputs)\n    return KNOWN[key]\ndef found(operators, sizes, outputs):\n",
                ),
            ),
        ),
    }

    @staticmethod
    def probe(answer, draw):
        def scene(what, operators, outputs):
            operators = [
                (name, tuple(reads.split()), pointwise) for name, reads, pointwise in operators
            ]
            values = [
                *dict.fromkeys(value for name, reads, _ in operators for value in (*reads, name))
            ]
            return as_scene(
                answer, what, operators, {value: draw.randint(2, 9) for value in values}, outputs
            )

        yield scene("a chain of two", [("a", "x", True), ("b", "a", True)], ["b"])
        yield scene(
            "a value that is a result too", [("a", "x", True), ("b", "a", True)], ["a", "b"]
        )
        yield scene(
            "one value read twice inside",
            [("a", "x", True), ("b", "a x", True), ("c", "a b x", True)],
            ["c"],
        )
        yield scene("two readers of one input", [("a", "x", True), ("b", "x", True)], ["a", "b"])
        yield scene(
            "two readers of an inner value",
            [("a", "x", True), ("b", "a", True), ("c", "a y", True), ("d", "b c", True)],
            ["d"],
        )
        yield scene(
            "a reduction at the end", [("a", "x", True), ("b", "a", True), ("s", "b", False)], ["s"]
        )
        yield scene(
            "a result that a reduction reads", [("a", "x", True), ("s", "a", False)], ["a", "s"]
        )
        yield scene(
            "softmax",
            [
                ("m", "x", False),
                ("a", "x m", True),
                ("e", "a", True),
                ("s", "e", False),
                ("y", "e s", True),
            ],
            ["y"],
        )
        yield scene(
            "a reduction beside a chain",
            [("a", "x", True), ("s", "a", False), ("b", "a y", True), ("c", "b s", True)],
            ["c"],
        )
        yield scene(
            "two reductions in turn",
            [
                ("a", "x", True),
                ("s", "a", False),
                ("b", "s", True),
                ("t", "b", False),
                ("c", "a t", True),
            ],
            ["c"],
        )
        yield scene(
            "the other way round",
            [
                ("b", "y", True),
                ("a", "x", True),
                ("s", "b", False),
                ("c", "s x", True),
                ("t", "a", False),
                ("d", "t y", True),
            ],
            ["c", "d"],
        )
        for seed in (
            draw.choice(LAST),
            *(seed for hard in (FIRST, CIRCLES, GREEDIEST) for seed in draw.sample(hard, 2)),
        ):
            operators, sizes, outputs = graph(seed)
            names = draw.sample("abcdefghijkl", 12)
            other = dict(zip([name for name, *_ in operators], names))
            operators = [
                (other[name], tuple(other.get(value, value) for value in reads), pointwise)
                for name, reads, pointwise in operators
            ]
            unit = draw.randint(1, 4)
            yield as_scene(
                answer,
                f"a graph of {len(operators)} operators",
                operators,
                {other.get(value, value): unit * size for value, size in sizes.items()},
                [other[value] for value in outputs],
            )


# Graphs on which a search that looks at one merge at a time misses the best grouping, or passes a long circle
LAST = [
    61,
    77,
    126,
    181,
    252,
    273,
    286,
    288,
    323,
    326,
    367,
    389,
    395,
    403,
    406,
    407,
    418,
    428,
    446,
    462,
]
FIRST = [13, 15, 26, 39, 47, 61, 73, 91, 113, 117, 129, 163, 172, 189, 215, 234, 238, 253, 269, 290]
CIRCLES = [
    123,
    126,
    189,
    228,
    250,
    273,
    321,
    382,
    407,
    478,
    496,
    538,
    618,
    621,
    704,
    746,
    774,
    800,
    820,
    990,
]
GREEDIEST = [
    13,
    15,
    24,
    197,
    290,
    321,
    618,
    670,
    746,
    875,
    1054,
    1284,
    1293,
    1303,
    1321,
    1466,
    1475,
    1576,
    1668,
    1731,
]


def graph(seed: int):
    """Operators, sizes and results of a random graph of 5 to 7 pointwise operators and up to 3 reductions."""
    draw = random.Random(seed)
    pointwise = [True] * draw.randint(5, 6) + [False] * draw.randint(1, 3)
    draw.shuffle(pointwise)
    values, operators = ["x", "y"], []
    for k, kind in enumerate(pointwise):
        reads = draw.sample(values[-5:], draw.randint(1, 2) if kind else 1)
        operators.append((f"t{k}", tuple(reads), kind))
        values.append(f"t{k}")
    used = {value for _, reads, _ in operators for value in reads}
    return (
        operators,
        {value: draw.randint(1, 9) for value in values},
        [name for name, *_ in operators if name not in used],
    )


def as_scene(answer, what: str, operators: list, sizes: dict, outputs: list) -> Scene:
    told = "; ".join(
        f"{name} reads {' '.join(reads)}{'' if pointwise else ' (reduction)'}"
        for name, reads, pointwise in operators
    )
    return Scene(
        f"{what}: {told}; results {' '.join(outputs)}; bytes {' '.join(f'{value} {size}' for value, size in sizes.items())}",
        lambda: shown(answer, operators, sizes, outputs),
    )


def shown(answer, operators: list, sizes: dict, outputs: list) -> dict:
    """Whether the groups can run, what they move, and what the answer told."""
    found = answer(
        [(name, list(reads), pointwise) for name, reads, pointwise in operators],
        dict(sizes),
        list(outputs),
    )
    try:
        groups, told = found
        groups, told = [[str(name) for name in group] for group in groups], float(told)
    except (TypeError, ValueError):
        kind = (
            "nothing"
            if found is None
            else "a number"
            if isinstance(found, (int, float)) or not isinstance(found, Iterable)
            else "groups alone"
        )
        return {"what was returned": kind}
    how = faults(operators, groups)
    if how:
        return {"how the groups run": how}
    return {
        "how the groups run": "to the end",
        "bytes that they move": moved(operators, sizes, outputs, groups),
        "bytes told": told,
    }


def moved(operators: list, sizes: dict, outputs: list, groups: list[list[str]]) -> int:
    """What is read and written, operators in no group on their own."""
    home = {name: name for name, *_ in operators} | {
        name: k for k, group in enumerate(groups) for name in group
    }
    read = {
        (home[name], value)
        for name, reads, _ in operators
        for value in reads
        if home.get(value) != home[name]
    }
    return sum(sizes[value] for _, value in read) + sum(
        sizes[name] for name in home if name in outputs or name in {v for _, v in read}
    )


def faults(operators: list, groups: list[list[str]]) -> str:
    """Why the groups cannot run; "" where they can."""
    pointwise = {name: kind for name, _, kind in operators}
    named = [name for group in groups for name in group]
    if not set(named) <= pointwise.keys():
        return "not at all, a name is no operator"
    if len(set(named)) < len(named):
        return "an operator twice"
    if any(len(group) > 1 and not all(pointwise[name] for name in group) for group in groups):
        return "not at all, a reduction ends after all its group has begun"
    home = {name: name for name in pointwise} | {
        name: k for k, group in enumerate(groups) for name in group
    }
    needs = {place: set() for place in home.values()}
    for name, reads, _ in operators:
        needs[home[name]] |= {home[value] for value in reads if value in home} - {home[name]}
    while ready := {place for place, needed in needs.items() if not needed & needs.keys()}:
        needs = {place: needed for place, needed in needs.items() if place not in ready}
    circle = (
        ""
        if not needs
        else "two of them wait for each other"
        if any(a in needs[b] and b in needs[a] for a in needs for b in needs)
        else "they wait in a circle"
    )
    return circle
