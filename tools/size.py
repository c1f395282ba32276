"""How large the house is, in statements: `python tools/size.py`, or `make size`.

A statement is an `ast.stmt` that is no docstring: neither line breaks nor comments change it. The
right answers of exercises are counted apart, since they are texts that students read.
"""

import ast
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RIGHT = "right answers of exercises"


def statements(file: Path) -> int:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    all_of_them = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    begins = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and ast.get_docstring(node, clean=False) is not None
    ]
    return len(all_of_them) - len(begins)


def wing(file: Path) -> str:
    """bigtrain_lab/order, tests/unit; a loose file is a wing of its own."""
    parts = file.relative_to(REPOSITORY).parts
    return RIGHT if "right" in parts else "/".join(parts[:2])


def sizes() -> Counter:
    """Wing -> statements, of the package and its tests."""
    found = Counter()
    for folder in ("bigtrain_lab", "tests"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            found[wing(file)] += statements(file)
    return found


def total(found: Counter, folder: str) -> int:
    return sum(count for name, count in found.items() if name.startswith(f"{folder}/"))


if __name__ == "__main__":
    counted = sizes()
    for name, count in sorted(counted.items(), key=lambda row: (row[0].split("/")[0], -row[1])):
        print(f"{count:7,}  {name}")
    for folder in ("bigtrain_lab", "tests"):
        print(f"{total(counted, folder):7,}  {folder}, whole")
