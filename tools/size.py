"""How large the house is, in statements: `make size`, or `python tools/size.py [REVISION]`, which
puts what it was beside it.

A statement is an `ast.stmt` that is no docstring: neither line breaks nor comments change it. The
right answers of exercises are counted apart, since they are texts that students read.
"""

import ast
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from io import BytesIO
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = ("bigtrain_lab", "tests")
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
    """bigtrain_lab/order, tests/unit; all loose files of a folder are one wing."""
    folder, *inside = file.parts
    if "right" in inside:
        return RIGHT
    return f"{folder}/{inside[0]}" if len(inside) > 1 else f"{folder}, loose files"


def sizes(repository: Path = REPOSITORY) -> Counter:
    """Wing -> statements, of the package and its tests."""
    found = Counter()
    for folder in FOLDERS:
        for file in (repository / folder).rglob("*.py"):
            found[wing(file.relative_to(repository))] += statements(file)
    return found


def sizes_at(revision: str) -> Counter:
    """The same of a revision in the history."""
    packed = subprocess.run(
        ["git", "archive", revision, *FOLDERS], cwd=REPOSITORY, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        tarfile.open(fileobj=BytesIO(packed)).extractall(folder, filter="data")
        return sizes(Path(folder))


def total(found: Counter, folder: str) -> int:
    return sum(count for name, count in found.items() if name.startswith(folder))


def table(columns: dict[str, Counter]) -> str:
    """In Markdown: a wing a row, the largest of today first, and the sums."""
    names, last = {name for found in columns.values() for name in found}, [*columns.values()][-1]
    rows = [(name, *(found[name] for found in columns.values())) for name in names]
    rows.sort(key=lambda row: (row[0].split("/")[0].split(",")[0], -last[row[0]], row[0]))
    rows += [
        (f"**{folder}**", *(total(found, folder) for found in columns.values()))
        for folder in FOLDERS
    ]
    heads = ["statements", *columns]
    lines = [heads, ["---", *["--:"] * len(columns)]]
    lines += [[name, *(f"{count:,}" for count in counts)] for name, *counts in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    before = {revision: sizes_at(revision) for revision in sys.argv[1:]}
    print(table(before | {"now": sizes()}))
