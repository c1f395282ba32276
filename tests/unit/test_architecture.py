"""What import-linter cannot say of the structure: files begin with their idea, ranks stay light."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from bigtrain_lab.experiments import Experiment
from tools import size

# In statements, as `make size` counts them. Each may only fall: lower it with what you delete. The
# naive versions, references of tests, went from the tests into the lectures.
MOST = {"bigtrain_lab": 27_184, "bigtrain_lab/grading": 3_499, "tests": 12_397}
PACKAGE = Path(__file__).parents[2] / "bigtrain_lab"
FILES = sorted(p for p in PACKAGE.rglob("*.py") if not {"__pycache__", "right"} & {*p.parts})
SCRIPTS = sorted(p for ending in ("js", "css") for p in PACKAGE.rglob(f"*.{ending}"))


@cache
def imports(path: Path, top_only=False) -> list[str]:
    """Absolute dotted names of what the file imports; `top_only`: when the file itself is
    imported."""
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


def test_the_house_grows_no_heavier():
    found = size.sizes()
    for folder in ("bigtrain_lab", "tests"):
        found[folder] = size.total(found, folder)
    assert {name: found[name] for name in MOST if found[name] > MOST[name]} == {}


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
def test_what_predicts_needs_no_torch():
    """In a fresh process that cannot import it: every file of these wings, what the command line
    tells of labs, of each lab the prediction that another made, and the same again from the dry
    runs alone. The batches of `translate` are drawn by torch."""
    asked = [["predict", name] for name in Experiment.all()]
    wings = "core", "order", "view", "experiments", "cli"
    files = [path for path in FILES if path.relative_to(PACKAGE).parts[0] in wings]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]
    tell = f"[main(each) for each in {asked}];"
    anew = f"[main(each) for each in {asked} if each[1] != 'translate']"
    told = output_of("from bigtrain_lab.cli import main;" + tell + anew)
    found = output_of(
        "import sys; sys.modules['torch'] = None; from importlib import import_module;"
        f"[import_module(name.removesuffix('.__init__')) for name in {names}];"
        "from bigtrain_lab.cli import main;"
        "print(main(['list']), main(['run', 'pipeline', '--help']), main(['run', 'pipelin']));"
        f"{tell} from bigtrain_lab.experiments import known; anew = known.predicted.__wrapped__;"
        f"anew.__wrapped__ = known.predicted = anew; {anew}"
    )
    assert "\n0 0 2\n" in found and found.endswith(told)


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_ranks_never_import_what_only_a_notebook_needs():
    """A rank unpickles its experiment: that must not pull in plotly or widgets."""
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
    """All libraries are there before a panel takes them out of its sight; else each full collection
    walks over 100,000 objects."""
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
        ".".join(("bigtrain_lab", *p.relative_to(PACKAGE).with_suffix("").parts)): p
        for p in FILES
        if p.is_relative_to(PACKAGE / "runtime") and p.stem != "__init__"
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
