"""Which all-reduces a product of two named tensors needs under a layout, and for its gradients.

    a dimension that the result does not name, cut along an axis of N ranks:
    one all-reduce of the result's own part along that axis, 2 (N - 1) / N of it sent by each rank

Of an answer we show, for Y, dX and dW, the axes and the bytes. One right answer multiplies small
matrices rank by rank, and looks which sums make the parts those of the whole product.
Source: Shazeer et al. 2018, Mesh-TensorFlow (arXiv:1811.02084), section 4.
"""

import copy
from collections.abc import Mapping

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong

RIGHT = """
def answer(equation, sizes, layout, axes):
    left, right = equation.split("->")
    x, w = (each.split() for each in left.split(","))
    y = right.split()
    found = []
    for name, made, factors in (("Y", y, x + w), ("dX", x, y + w), ("dW", w, y + x)):
        part = 4
        for dim in made:
            part *= sizes[dim] // axes[layout[dim]] if dim in layout else sizes[dim]
        for dim in dict.fromkeys(factors):
            if dim not in made and dim in layout:
                axis = layout[dim]
                found.append((name, axis, 2 * (axes[axis] - 1) * part // axes[axis]))
    return found
"""
SETS = """
from fractions import Fraction
from math import prod

def answer(equation, sizes, layout, axes):
    x, w, y = (tuple(each.split()) for each in equation.replace("->", ",").split(","))
    cut = lambda dim: axes.get(layout.get(dim), 1)
    def sums(name, made, *others):
        for dim in set().union(*others) - set(made):
            if cut(dim) > 1:
                elements = prod(sizes[d] // cut(d) for d in made)
                yield (name, layout[dim]), Fraction(2 * (cut(dim) - 1), cut(dim)) * 4 * elements
    return dict([*sums("Y", y, x, w), *sums("dX", x, y, w), *sums("dW", w, x, y)])
"""
AXIS_BY_AXIS = """
import numpy as np

def answer(equation, sizes, layout, axes):
    inputs, _, y = equation.partition("->")
    x, _, w = inputs.partition(",")
    tensors = {"dX": x.split(), "dW": w.split(), "Y": y.split()}
    for axis, n in axes.items():
        dims = [dim for dim, each in layout.items() if each == axis and any(dim in t for t in tensors.values())]
        if not dims:
            continue
        for name, dims_of in tensors.items():
            if dims[0] not in dims_of:
                share = np.prod([n_of(dim, layout, axes) for dim in dims_of])
                yield name, axis, np.prod([sizes[dim] for dim in dims_of]) / share * 4 * 2 * (n - 1) / n

def n_of(dim, layout, axes):
    return axes[layout[dim]] if dim in layout else 1
"""
OURS = """
from bigtrain_lab.techniques.mesh_tensor import collectives

def answer(equation, sizes, layout, axes):
    sizes = {**dict.fromkeys(layout, axes and max(axes.values()) or 1), **sizes}
    return [(each.result, each.axis, each.sent_bytes)
            for each in collectives(equation, sizes, layout, axes, names=("Y", "dX", "dW"))]
"""
BRUTE = """
import itertools, torch

def answer(equation, sizes, layout, axes):
    x, w, y = (each.split() for each in equation.replace("->", ",").split(","))
    dims = list(dict.fromkeys(x + w))
    small = {dim: axes.get(layout.get(dim), 1) for dim in dims}
    code = lambda names: "".join(chr(97 + dims.index(dim)) for dim in names)
    draw = torch.Generator().manual_seed(1)
    value = lambda names: torch.rand([small[dim] for dim in names], generator=draw, dtype=torch.float64)
    a, b, g = value(x).requires_grad_(), value(w).requires_grad_(), value(y)
    whole = torch.einsum(f"{code(x)},{code(w)}->{code(y)}", a, b)
    whole.backward(g)
    places = [dict(zip(axes, at)) for at in itertools.product(*map(range, axes.values()))]
    def part(tensor, names, at):
        for k, dim in enumerate(names):
            if dim in layout:
                tensor = tensor.narrow(k, at[layout[dim]], 1)
        return tensor.detach()
    found = []
    for name, made, right in (("Y", y, whole), ("dX", x, a.grad), ("dW", w, b.grad)):
        own = []
        for at in places:
            p, q = part(a, x, at).requires_grad_(), part(b, w, at).requires_grad_()
            out = torch.einsum(f"{code(x)},{code(w)}->{code(y)}", p, q)
            out.backward(part(g, y, at))
            own.append({"Y": out.detach(), "dX": p.grad, "dW": q.grad}[name])
        wide = [axis for axis, n in axes.items() if n > 1]
        for summed in itertools.chain.from_iterable(itertools.combinations(wide, k) for k in range(len(wide) + 1)):
            alike = lambda at, other: all(other[a] == at[a] for a in axes if a not in summed)
            sums = [sum(one for one, other in zip(own, places) if alike(at, other)) for at in places]
            if all(torch.allclose(one, part(right, made, at)) for one, at in zip(sums, places)):
                break
        size = 4
        for dim in made:
            size = size * sizes[dim] // small[dim]
        found += [(name, axis, 2 * (axes[axis] - 1) * size / axes[axis]) for axis in summed]
    return found
"""
PRODUCTS = '(("Y", y, x + w), ("dX", x, y + w), ("dW", w, y + x))'
PART = "sizes[dim] // axes[layout[dim]] if dim in layout else sizes[dim]"
SUMMED, LOOP = "if dim not in made and dim in layout:", "        for dim in dict"
SENT, FACTORS = "2 * (axes[axis] - 1) * part // axes[axis]", "dict.fromkeys(factors)"
APPEND = f"found.append((name, axis, {SENT}))"

DOUBLED = "An all-reduce where no split dimension was summed over: it adds up what is whole, or belongs to other rows."
BYTES = "Wrong bytes for the right sums: in a ring each rank sends 2 (N - 1) / N of its part, of 4 bytes a number."
ALONE = (
    "A dimension of one input alone is summed over too: look at each that the result does not name."
)
AXIS = "Of two axes that must be summed you give one: each has an all-reduce of its own."
ORDER = (
    "Right for n d, d f -> n f alone: which dimensions are summed over follows from their names."
)


def but(*changes: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return changes


class Layouts(Topic):
    name = "layouts"
    hints = (
        "Y[n, f] sums over d. If each rank has a part of d, what does its Y lack?",
        "dX[n, d] is a product as well: of dY[n, f] and W[d, f]. Which dimension does it sum over? And dW?",
        "For Y, dX and dW alike: take the dimensions of the other two tensors that this one lacks; each that is "
        "cut costs one all-reduce of this one's own part, along its axis.",
    )
    right = {
        "three products": RIGHT,
        "sets and fractions": SETS,
        "axis by axis": AXIS_BY_AXIS,
        "ours": OURS,
        "brute force": BRUTE,
    }
    wrong = {
        name: Wrong(sentence, changes)
        for name, sentence, changes in (
            (
                "contracts_without_sum",
                "d is split and summed over: your Y is a partial sum, so all-reduce it.",
                but((PRODUCTS, '(("dX", x, y + w), ("dW", w, y + x))')),
            ),
            ("sums_everything", DOUBLED, but((SUMMED, "if dim in layout:"))),
            (
                "every axis",
                DOUBLED,
                but(
                    (f"for dim in {FACTORS}", "for axis in axes"),
                    (SUMMED, "if True:"),
                    ("axis = layout[dim]", "pass"),
                ),
            ),
            (
                "forward_only",
                "dX and dW need collectives too: each is a product that sums over something.",
                but((PRODUCTS, '(("Y", y, x + w),)')),
            ),
            (
                "no dX",
                "dX sums over f: where f is split, it needs an all-reduce.",
                but((PRODUCTS, '(("Y", y, x + w), ("dW", w, y + x))')),
            ),
            (
                "no dW",
                "dW sums over n: where n is split, as in data parallel, it needs an all-reduce.",
                but((PRODUCTS, '(("Y", y, x + w), ("dX", x, y + w))')),
            ),
            (
                "duplicates",
                "You sum along each axis that does not split a tensor: duplicates are whole, so do not sum them.",
                but(
                    (f"for dim in {FACTORS}", "for axis in axes"),
                    (SUMMED, "if axis not in [layout.get(dim) for dim in made]:"),
                    ("axis = layout[dim]", "pass"),
                ),
            ),
            (
                "of duplicates",
                "Along an axis that splits nothing each rank has the whole gradient: do not sum it.",
                but(
                    (
                        "    return found",
                        "    return found + [(name, axis, 8 * (n - 1)) for name in ('dX', 'dW') for axis, n in axes.items()\n"
                        "                    if n > 1 and not any(layout.get(dim) == axis for dim in x + w + y)]",
                    )
                ),
            ),
            (
                "swapped",
                "dX and dW are exchanged: dX[n, d] sums over f, dW[d, f] over n.",
                but((PRODUCTS, '(("Y", y, x + w), ("dW", x, y + w), ("dX", w, y + x))')),
            ),
            (
                "whole tensors",
                "You send whole tensors: each rank sums its part of the result only.",
                but((PART, "sizes[dim]")),
            ),
            (
                "divided by all",
                "You divide by all ranks: only the axes that split this tensor divide its part.",
                but(
                    (PART, "sizes[dim]"),
                    (LOOP, f"        for n in axes.values():\n            part //= n\n{LOOP}"),
                ),
            ),
            ("half an all-reduce", BYTES, but((SENT, "(axes[axis] - 1) * part // axes[axis]"))),
            ("twice the part", BYTES, but((SENT, "2 * part"))),
            ("the part", BYTES, but((SENT, "part"))),
            ("to each other", BYTES, but((SENT, "(axes[axis] - 1) * part"))),
            ("numbers", "You count numbers: a float32 has 4 bytes.", but(("part = 4", "part = 1"))),
            (
                "8 bytes",
                "You count 8 bytes a number: a float32 has 4.",
                but(("part = 4", "part = 8")),
            ),
            (
                "of all ranks",
                "The ring has the ranks of one axis, not of the whole mesh: take N from that axis.",
                but(
                    (SENT, "2 * (n - 1) * part // n"),
                    (LOOP, f"        n = __import__('math').prod(axes.values())\n{LOOP}"),
                ),
            ),
            (
                "parts of the inputs",
                "You send the inputs' parts: what is summed is the result's part.",
                but(("for dim in made:", "for dim in dict.fromkeys(factors):")),
            ),
            (
                "of dY",
                "The gradients' sums have Y's bytes: dX is as large as X, dW as W.",
                but(("for dim in made:", "for dim in y:")),
            ),
            (
                "of each twice",
                "A dimension that two factors share is summed over once: you give two all-reduces of it.",
                but((FACTORS, "factors")),
            ),
            (
                "letters",
                "Names are words: d is not a part of dh. Compare whole words.",
                but((SUMMED, 'if dim not in " ".join(made) and dim in layout:')),
            ),
            (
                "one letter a name",
                "Names are words of any length: split at blanks.",
                but(
                    ("(each.split() for each in", '(list(each.replace(" ", "")) for each in'),
                    ("right.split()", 'list(right.replace(" ", ""))'),
                    ("else sizes[dim]", "else sizes.get(dim, 1)"),
                ),
            ),
            (
                "shared is summed",
                "A dimension of both inputs that Y names too is a batch: nothing sums over it.",
                but(
                    (
                        SUMMED,
                        'if dim in layout and (dim in x and dim in w if name == "Y" else dim not in made):',
                    )
                ),
            ),
            (
                "only shared",
                ALONE,
                but(
                    (
                        SUMMED,
                        'if dim not in made and dim in layout and (name != "Y" or dim in x and dim in w):',
                    )
                ),
            ),
            (
                "only of dY",
                ALONE,
                but(
                    (SUMMED, 'if dim not in made and dim in layout and (name == "Y" or dim in y):')
                ),
            ),
            (
                "no place for dY",
                ALONE,
                but(
                    (PRODUCTS, '(("Y", y, x + w), ("dX", x, w), ("dW", w, x))'),
                    (SUMMED, 'if dim not in made and dim in layout and (name == "Y" or dim in y):'),
                ),
            ),
            (
                "by position",
                ORDER,
                but((PRODUCTS, '(("Y", y, x[-1:]), ("dX", x, y[-1:]), ("dW", w, y[:1]))')),
            ),
            (
                "of n, d, f",
                ORDER,
                but((PRODUCTS, '(("Y", y, ["d"]), ("dX", x, ["f"]), ("dW", w, ["n"]))')),
            ),
            ("first axis", AXIS, but((APPEND, f"{APPEND}\n                break"))),
            (
                "by tensor",
                AXIS,
                but(
                    (
                        "return found",
                        "return list({name: (name, *rest) for name, *rest in found}.values())",
                    )
                ),
            ),
            (
                "axes together",
                "You take two axes as one ring: give an all-reduce along each.",
                but(
                    (
                        LOOP,
                        "        every = [layout[d] for d in dict.fromkeys(factors) if d not in made and d in layout]\n"
                        "        n = 1\n        for axis in every:\n            n *= axes[axis]\n"
                        f"        found += [(name, every[0], 2 * (n - 1) * part // n)] * bool(every)\n{LOOP}",
                    ),
                    (APPEND, "pass"),
                ),
            ),
            (
                "another axis",
                "The sum runs along another axis than the one that splits the dimension: see the layout.",
                but(("axis = layout[dim]", "axis = next(iter(axes))")),
            ),
            (
                "the whole layout",
                "The layout has dimensions that are not in this product: nothing sums over them here.",
                but((f"for dim in {FACTORS}", "for dim in layout")),
            ),
            (
                "needs all",
                "A dimension that is not in the layout stopped your answer: it is whole on each rank.",
                but((PART, "sizes[dim] // axes[layout[dim]]")),
            ),
            (
                "keeps",
                "A second call gives what the first gave as well: begin with an empty list in each.",
                but(("layout, axes):", "layout, axes, found=[]):"), ("    found = []\n", "")),
            ),
            (
                "remembers",
                "A second call gives what the first gave: the layout may be another one.",
                but(
                    (
                        "    left, right =",
                        "    kept = vars(answer).setdefault('kept', {})\n"
                        "    if equation in kept:\n        return kept[equation]\n    left, right =",
                    ),
                    ("    found = []", "    found = kept[equation] = []"),
                ),
            ),
            (
                "changes the layout",
                "The caller's layout is changed: copy it before you take from it.",
                but(("    return found", "    layout.clear()\n    return found")),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        def scene(equation, layout, axes, told=""):
            names = list(dict.fromkeys(equation.replace("->", " ").replace(",", " ").split()))
            whole = 1
            for ranks in axes.values():
                whole *= ranks
            sizes = {dim: whole * draw.randint(2, 9) for dim in draw.sample(names, len(names))}
            where = ", ".join(f"{dim} along {axis}" for dim, axis in layout.items()) or "nothing"
            name = f"{equation!r}, split: {where}; axes {', '.join(f'{axis} {n}' for axis, n in axes.items())}{told}"
            return Scene(name, lambda: shown(answer, equation, sizes, layout, axes))

        line, four, both = "n d, d f -> n f", {"rows": 4}, {"rows": 2, "columns": 4}
        yield scene(line, {}, four)
        for dim in "dnf":
            yield scene(line, {dim: "rows"}, four)
        for first, second in (("n", "f"), ("f", "n"), ("n", "d"), ("d", "f")):
            yield scene(line, {first: "rows", second: "columns"}, both)
        yield scene(line, {"n": "rows"}, both, ", of which one splits nothing")
        yield scene(line, {"n": "rows", "d": "columns"}, {"rows": 3, "columns": 1})
        yield scene(line, {"heads": "columns", "d": "rows"}, both)
        yield scene("n d, d dh -> n dh", {"d": "rows", "dh": "columns"}, both)
        yield scene(
            "batch width, width hidden -> batch hidden", {"width": "rows", "batch": "columns"}, both
        )
        yield scene("n d, d f -> f n", {"n": "rows", "f": "columns"}, both)
        yield scene("b s k, b t k -> b s t", {"b": "rows"}, four)
        yield scene("b s k, b t k -> b s t", {"s": "rows", "k": "columns"}, both)
        yield scene("n d e, d f -> n f", {"e": "rows"}, four)
        yield scene("n d, d f e -> n f", {"e": "rows"}, four)
        yield scene("n d e, d e f -> n f", {"d": "rows", "e": "columns"}, both)
        yield scene("n m d, d f -> n m f", {"n": "rows", "m": "columns"}, both)
        yield Scene(
            "two calls",
            lambda: [
                shown(answer, line, dict.fromkeys("ndf", size), {dim: "rows"}, four)
                for size, dim in ((8, "n"), (16, "d"))
            ][1],
        )
        for _ in range(12):
            equation = draw.choice(
                (
                    line,
                    "b s d, d h k -> b h s k",
                    "b h s k, b h t k -> b h s t",
                    "b e c d, e d f -> b e c f",
                    "a b c, c d -> d",
                )
            )
            axes = draw.choice(
                ({"rows": 4}, both, {"rows": 3, "columns": 2}, {"x": 2, "y": 2, "z": 2})
            )
            names = sorted(set(equation.replace("->", " ").replace(",", " ").split()))
            yield scene(
                equation,
                dict(
                    zip(
                        draw.sample(names, min(len(names), len(axes))),
                        draw.sample(list(axes), len(axes)),
                    )
                ),
                axes,
            )


def shown(answer, equation: str, sizes: dict, layout: dict, axes: dict) -> dict:
    """For each tensor the axes along which it is summed and the bytes that a rank sends for it."""
    given = copy.deepcopy((sizes, layout, axes))
    found = answer(equation, *given)
    rows = [(*key, value) for key, value in found.items()] if isinstance(found, Mapping) else found
    try:
        rows = [(str(name), str(axis), float(size)) for name, axis, size in rows]
    except (TypeError, ValueError):
        raise Refused(
            "Your answer is no list of (tensor, axis, bytes): return one, such as "
            "[('Y', 'rows', 96)], or an empty one."
        ) from None
    if unknown := [name for name, *_ in rows if name not in ("Y", "dX", "dW")]:
        raise Refused(f"Your answer sums {unknown[0]!r}: call the tensors 'Y', 'dX' and 'dW'.")
    told = {}
    for name in ("Y", "dX", "dW"):
        own = [(axis, size) for tensor, axis, size in rows if tensor == name and size]
        told[f"axes along which {name} is summed"] = (
            ", ".join(sorted(axis for axis, _ in own)) or "none"
        )
        told[f"bytes of {name}"] = sum(size for _, size in own)
    return told | {"what was given": "as it was" if given == (sizes, layout, axes) else "changed"}
