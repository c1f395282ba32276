"""Mutants of right answers, one small change each, and which of them a probe lets pass.

Caught: differs from every right answer in some scene of some seed. Equivalent: passes, and wrong.md
lists it with its reason. Missed: passes, and nobody has said why: the probe lacks a scene.
Mutation finds edges and tolerances; mistakes that need another idea it does not find.
"""

import ast
import copy
import math
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from bigtrain_lab.grading import Topic, known
from bigtrain_lab.grading.folder import EQUIVALENT
from bigtrain_lab.grading.likeness import enough, first_difference

SEEDS = (1, 2, 3)
CPU_S = 4  # beyond what the right answers take, of a mutant that does not end
FLIPS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq, ast.GtE),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}


def ways(node) -> Iterator[tuple]:
    """What can be changed at a node: (in words, what stands there instead: a node or a list of
    statements)."""

    def but(**fields):
        new = copy.deepcopy(node)
        vars(new).update(fields)
        return new

    def plus(part, by):
        return ast.BinOp(part, ast.Add(), ast.Constant(by))

    match node:
        case ast.Compare(ops=[op, *rest]):
            yield from (("comparison", but(ops=[flip(), *rest])) for flip in FLIPS[type(op)])
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp():
            yield from (("operator", but(op=flip())) for flip in FLIPS.get(type(node.op), ()))
        case ast.UnaryOp():
            yield "sign", node.operand
        case ast.Constant(value=bool()):
            yield "constant", but(value=not node.value)
        case ast.Constant(value=int() | float()):
            yield from (("constant", but(value=node.value + by)) for by in (1, -1))
        case ast.Constant(value="mean" | "sum" | "max"):
            yield "constant", but(value={"mean": "sum", "sum": "mean", "max": "sum"}[node.value])
        case ast.Call(func=ast.Attribute(value=inner), args=[], keywords=[]):
            yield "call left out", inner
        case ast.Call(args=args, keywords=keywords):
            yield from (
                ("swapped", but(args=[*args[:at], args[at + 1], args[at], *args[at + 2 :]]))
                for at in range(len(args) - 1)
            )
            yield from (
                (
                    "keyword dropped",
                    but(keywords=[other for other in keywords if other is not each]),
                )
                for each in keywords
            )
            yield from [("last argument dropped", but(args=args[:-1]))] * (len(args) > 1)
        case ast.Slice():
            yield from (
                ("slice", but(**{end: plus(getattr(node, end), 1)}))
                for end in ("lower", "upper")
                if getattr(node, end)
            )
        case ast.Subscript(slice=ast.Name() | ast.Attribute() | ast.BinOp()):
            yield "index", but(slice=plus(node.slice, -1))
        case ast.IfExp():
            yield "branches swapped", but(body=node.orelse, orelse=node.body)
        case ast.comprehension(ifs=[_, *_]):
            yield "condition dropped", but(ifs=[])
        case ast.If():
            yield from (("always", node.body), ("never", node.orelse or [ast.Pass()]))
        case ast.For() | ast.While():
            yield "first round only", but(body=[*node.body, ast.Break()])
        case ast.With():
            yield "context dropped", node.body
        case ast.FunctionDef(decorator_list=[_, *_]):
            yield "decorator dropped", but(decorator_list=[])
        case ast.Expr(value=ast.Constant()):
            return  # a docstring
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Return():
            yield "statement dropped", [ast.Pass()]


def sites(tree):
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            for at, each in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(each, ast.AST):
                    yield parent, name, at, each


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, what was changed, the mutant's text), each text once."""
    seen = {ast.unparse(ast.parse(text))}
    for number, (_, _, _, node) in enumerate(sites(ast.parse(text))):
        for way in range(len(list(ways(node)))):
            tree = ast.parse(text)
            parent, name, at, node = list(sites(tree))[number]
            what, new = list(ways(node))[way]
            held = getattr(parent, name)
            if isinstance(held, list):
                held[at : at + 1] = new if isinstance(new, list) else [new]
            else:
                setattr(parent, name, new)
            changed = ast.unparse(ast.fix_missing_locations(tree))
            if changed not in seen:
                seen.add(changed)
                yield (
                    getattr(node, "lineno", 0),
                    f"{what}: {ast.unparse(node).splitlines()[0]}",
                    changed,
                )


class Tally(NamedTuple):
    """Of a topic: how many mutants were made, and those that passed."""

    made: int
    equivalent: list[str]
    missed: list[str]


def tally(topic: type[Topic]) -> Tally:
    """Mutate every right answer of a topic that has a folder."""
    reasons, made, equivalent, missed = listed(topic), 0, [], []
    for name, text in topic.right.items():
        every = {str(number): each for number, each in enumerate(mutants(text))}
        left = {number: mutant for number, (_, _, mutant) in every.items()}
        for seed in SEEDS:
            left = {number: left[number] for number in passing(topic, left, seed)}
        made += len(every)
        for number in left:
            line, change, _ = every[number]
            listed_one = (name, change) in reasons
            (equivalent if listed_one else missed).append(f"`{name}`, line {line}: `{change}`")
    return Tally(made, equivalent, missed)


def listed(topic: type[Topic]) -> set[tuple[str, str]]:
    """(right answer, change) of the mutants that wrong.md calls equivalent."""
    text = (topic.folder / "wrong.md").read_text(encoding="utf-8").partition(EQUIVALENT)[2]
    return set(re.findall(r"^\* `(.+?)`: `(.+?)`: ", text, flags=re.MULTILINE))


def passing(topic: type[Topic], texts: dict[str, str], seed: int) -> list[str]:
    """Names of the answers that no scene of this seed tells from a right one."""
    began = time.perf_counter()
    rights, left, through = topic.rights(seed), dict(texts), []
    cpu_s = CPU_S + math.ceil(time.perf_counter() - began)
    while left:  # anew after one that ended the process
        shown = known.rows(topic, seed, left, partial(enough, rights, 10**9, 0), cpu_s=cpu_s)
        through += [name for name, rows in shown.items() if first_difference(rows, rights) is None]
        left = {name: text for name, text in left.items() if name not in shown}
    return through
