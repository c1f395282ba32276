"""The structure is a rule: imports point one way, heavy libraries stay where they belong, files begin with their idea."""

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "bigtrain_lab"
# Each may import only those before it.
ORDER = [
    "orphan",
    "core",
    "words",
    "partition",
    "formats",
    "schedule",
    "schedules",
    "collective",
    "collectives",
    "plan",
    "pipelined_ring",
    "explain",
    "holdings",
    "rates",
    "simulate",
    "recompute",
    "recompute_search",
    "recompute_optimum",
    "recomputes",
    "recompute_compared",
    "runtime",
    "techniques",
    "recipe",
    "dry_run",
    "rehearsal",
    "models",
    "data",
    "translation",
    "tracking",
    "figures",
    "player",
    "experiments",
    "checks",
    "grading",
    "report",
    "panel",
    "page",
    "doctor",
    "cli",
]
# techniques know no model and models no technique, so their order is only a convention
MAY_IMPORT = {
    "torch": {
        "runtime",
        "techniques",
        "models",
        "data",
        "recipe",
        "dry_run",
        "translation",
        "tracking",
        "grading",
        "experiments",
        "doctor",
    },
    "sacrebleu": {"data"},
    "plotly": {"figures", "panel"},
    "ipywidgets": {"panel"},
    "anywidget": {"player"},
}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)
SCRIPTS = sorted(p for ending in ("js", "css") for p in PACKAGE.rglob(f"*.{ending}"))


def part_of(path: Path) -> str:
    inside = path.relative_to(PACKAGE).parts
    return inside[0].removesuffix(".py")


@cache
def imports(path: Path, top_only=False) -> list[str]:
    """Absolute dotted names of what the file imports; `top_only`: when the file itself is imported."""
    tree = ast.parse(path.read_text())
    package = ("bigtrain_lab", *path.relative_to(PACKAGE).parts[:-1])
    found = []
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def test_imports_point_down():
    wrong = []
    for path in FILES:
        part = part_of(path)
        if part in ("__init__", "__main__"):
            continue
        assert part in ORDER, f"{part} has no place in the order of imports"
        below = {"__version__", *ORDER[: ORDER.index(part) + 1]}
        wrong += [
            f"{path.relative_to(PACKAGE)} imports {name}, which lies above it"
            for name in imports(path)
            if name.startswith("bigtrain_lab.") and name.split(".")[1] not in below
        ]
    assert wrong == []


def test_heavy_libraries_stay_where_they_belong():
    """And each is imported somewhere, else its rule guards nothing."""
    for library, allowed in MAY_IMPORT.items():
        users = {part_of(p) for p in FILES for name in imports(p) if name.split(".")[0] == library}
        assert users and users <= allowed, library


def test_files_begin_with_their_idea():
    for path in FILES + SCRIPTS:
        text = path.read_text(encoding="utf-8")
        header = (
            ast.get_docstring(ast.parse(text)) if path.suffix == ".py" else text.startswith("/*")
        )
        assert header or not text, f"{path.relative_to(PACKAGE)} does not begin with its idea"


def test_text_is_read_and_written_as_utf_8():
    """In whatever locale a machine runs: the pages and the player hold more than ASCII."""
    for path in FILES:
        for call in (
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        ):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            binary = any(
                isinstance(word, ast.Constant) and "b" in str(word.value) for word in call.args[1:2]
            )
            if (
                name in ("read_text", "write_text")
                and isinstance(call.func, ast.Attribute)
                or isinstance(call.func, ast.Name)
                and name == "open"
                and not binary
            ):
                assert "encoding" in {word.arg for word in call.keywords}, (
                    f"{path.relative_to(PACKAGE)}, line {call.lineno}: name the encoding"
                )


@pytest.mark.slow
def test_ranks_never_import_what_only_a_notebook_needs():
    """A rank unpickles its experiment: that must not pull in plotly or widgets."""
    import subprocess
    import sys

    code = (
        "import sys, bigtrain_lab.experiments.pipeline, bigtrain_lab.runtime;"
        "print([m for m in ('plotly', 'ipywidgets', 'anywidget', 'IPython') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.slow
def test_a_panel_s_first_prediction_leaves_little_to_the_collector():
    """All libraries are there before a panel takes them out of its sight; else each full collection walks over 100,000 objects."""
    import subprocess
    import sys

    code = (
        "import gc, bigtrain_lab.panel; from bigtrain_lab.experiments import Experiment;"
        "Experiment.named('pipeline')().predict(); print(len(gc.get_objects()))"
    )
    assert (
        int(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout
        )
        < 20_000
    )  # 2,406


def test_the_runtime_s_modules_import_in_no_circle():
    runtime = {
        f"bigtrain_lab.runtime.{p.stem}": p
        for p in FILES
        if part_of(p) == "runtime" and p.stem != "__init__"
    }
    edges = {
        name: {
            other
            for found in imports(path)
            for other in runtime
            if found == other or found.startswith(other + ".")
        }
        for name, path in runtime.items()
    }
    while leaves := {name for name, targets in edges.items() if not targets & edges.keys()}:
        edges = {name: targets for name, targets in edges.items() if name not in leaves}
    assert not edges, f"these import each other: {sorted(edges)}"
