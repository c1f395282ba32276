"""The text that defines an answer: what travels to its process, and what is marked.

Of the cells it takes the statements that bind the answer's name, those that bind what they name,
and so on: `import torch`, a helper, a constant. What nothing names stays behind, so a cell that
trains for an hour is not run again.
"""

import ast
import base64
import linecache
import re
import symtable
import sys
from collections.abc import Iterator
from typing import NamedTuple

from ..core import Impossible
from ..core.later import later
from ..runtime.failure import frames

with later():
    import cloudpickle


class Piece(NamedTuple):
    """A statement: its first line in its cell, and its text."""

    line: int
    text: str


class Statement(NamedTuple):
    """`whole`: what it binds is what it makes of it, whatever was bound before."""

    piece: Piece
    binds: set[str]
    needs: set[str]
    whole: bool


def text_of(answer) -> list[Piece]:
    """The pieces that define `answer`; one of an installed package is imported, and an object
    without a text travels by value. Impossible where it cannot travel."""
    home = sys.modules.get(getattr(answer, "__module__", None)) or sys.modules["__main__"]
    if is_installed(home):
        return [Piece(1, f"from {home.__name__} import {answer.__qualname__} as answer")]
    text = linecache.getlines(getattr(home, "__file__", None) or "", vars(home))
    cells = vars(home).get("In") or ["".join(text)]  # as IPython keeps what was run
    names = [name for name, thing in vars(home).items() if thing is answer]
    found = filter(None, (sliced(cells, name) for name in names))
    return next(found, None) or by_value(answer, home)


def is_installed(module) -> bool:
    file = getattr(module, "__file__", None)
    ours = module.__name__.partition(".")[0] == __name__.partition(".")[0]
    return module.__name__ != "__main__" and (ours or file is None or frames.is_foreign(file))


def by_value(answer, home) -> list[Piece]:
    cloudpickle.register_pickle_by_value(home)
    try:
        carried = base64.b64encode(cloudpickle.dumps(answer)).decode()
    except Exception as error:
        raise Impossible(
            f"The answer cannot travel to a process of its own ({type(error).__name__}: {error}): "
            "let it make open files, locks and widgets itself."
        ) from error
    finally:
        cloudpickle.unregister_pickle_by_value(home)
    return [
        Piece(1, f"import base64, pickle\nanswer = pickle.loads(base64.b64decode('{carried}'))")
    ]


def sliced(cells: list[str], name: str) -> list[Piece]:
    """The statements of these cells that define `name`, in their order, and `answer = name` at the
    end; [] where none binds it. Of a name that is bound anew, the earlier ones go."""
    statements = [each for cell in cells for each in statements_of(cell)]
    last = max((n for n, each in enumerate(statements) if name in each.binds), default=None)
    if last is None:
        return []
    wanted, chosen, seen = [(name, len(statements))], set(), set()
    while wanted:
        one, before = wanted.pop()
        for number in definitions(statements[:before], one):
            chosen.add(number)
            # a function looks its names up when it is called, so later ones count too
            new = statements[number].needs - seen
            seen |= new
            wanted += [(each, len(statements)) for each in new]
    return [
        *(statements[number].piece for number in sorted(chosen)),
        Piece(1, f"answer = {name}"),
    ]


def definitions(statements: list[Statement], name: str) -> Iterator[int]:
    """Where a name is bound last, whole, and what changes it afterwards."""
    for number in reversed(range(len(statements))):
        each = statements[number]
        if name in each.binds or "*" in each.binds:
            yield number
        if each.whole and name in each.binds and name not in each.needs:
            return


def statements_of(cell: str) -> list[Statement]:
    """The statements of a cell; none where it is no Python. Lines for IPython are left out."""
    cell = re.sub(r"^[%!?].*|^.*\?$", "", cell, flags=re.MULTILINE)
    try:
        tree = ast.parse(cell)
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in tree.body:
        decorated = [each.lineno for each in getattr(node, "decorator_list", ())]
        first = min([node.lineno, *decorated])
        text = "\n".join(cell.splitlines()[first - 1 : node.end_lineno])
        if not decorated:  # other statements may stand in its line
            text = ast.get_source_segment(cell, node)
        whole = not isinstance(node, (ast.If, ast.Try, ast.For, ast.While, ast.Match))
        table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
        found.append(Statement(Piece(first, text), binds(node, table), needs(node, table), whole))
    return found


def binds(node, table: symtable.SymbolTable) -> set[str]:
    """Names that a statement binds, "*" for those of a module, or whose object it changes
    (`a.b = c`, `a += b`)."""
    own = (each for each in table.get_symbols() if each.is_assigned() or each.is_imported())
    bound = {each.get_name() for each in own}
    for each in own_nodes(node):
        match each:
            case ast.alias(name="*"):
                bound.add("*")
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                while isinstance(each, (ast.Attribute, ast.Subscript)):
                    each = each.value
                bound |= {each.id} if isinstance(each, ast.Name) else set()
    return bound


def own_nodes(node) -> Iterator:
    """A statement's nodes, without those of functions and classes in it."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        for each in ast.iter_child_nodes(node):
            yield from own_nodes(each)


def needs(node, table: symtable.SymbolTable) -> set[str]:
    """Names that a statement looks up in its module, now or when its functions are called."""
    changed = (each.target for each in own_nodes(node) if isinstance(each, ast.AugAssign))
    found, tables = {each.id for each in changed if isinstance(each, ast.Name)}, [table]
    while tables:
        one = tables.pop()
        tables += one.get_children()
        found |= {
            each.get_name()
            for each in one.get_symbols()
            if each.is_referenced() and (each.is_global() or one is table)
        }
    return found
