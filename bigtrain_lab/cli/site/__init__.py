"""The labs as static pages that play with no install: `bigtrain site`.

    settings   which settings a page offers, and which of them are made beforehand
    python     Python for a browser, and what the predictions of these settings need
    pages      a lab, the run of its defaults, an exercise, the front page
    lessons    as they are read, with their outputs

Cost: a run of each lab; with Python minutes of dry runs, kept for the next build of the same
sources.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...core import size, write_whole
from ...experiments import Experiment
from ...runtime import kept
from ...view.page import asset
from ...view.player import Player
from . import lessons, pages, python


def site(
    directory: Path,
    *labs: Annotated[str, Parameter(help="only these; all without")],
    pyodide: Annotated[
        Path | None,
        Parameter(help="a folder with Python for browsers: docs/site.md says how to fill it"),
    ] = None,
) -> int:
    """Write labs and lessons as static pages; with --pyodide the labs predict in the browser."""
    if pyodide:
        python.refuse_incomplete(pyodide)
    chosen = {name: Experiment.named(name) for name in labs or Experiment.all()}
    (directory / "lessons").mkdir(parents=True, exist_ok=True)
    build = kept.made_by()[:16]
    used = python.made(chosen, build) if pyodide else {}
    for name, cls in chosen.items():
        write_whole(
            directory / f"{name}.html",
            pages.lab_page(cls, bool(pyodide), pages.recorded(cls, directory)),
        )
        print(name, flush=True)
    exercises = pages.exercises(directory) if pyodide else []
    if pyodide:
        python.put(pyodide, used, directory)
    write_whole(directory / "site.js", Player._esm + asset("stand_in.js") + asset("lab.js"))
    for script in ("exercise.js", "lesson.js"):
        write_whole(directory / script, asset(script))
    write_whole(directory / "site.css", pages.style())
    write_whole(directory / "offline.js", asset("offline.js").replace("$build", build))
    read = lessons.lessons(directory / "lessons")
    write_whole(directory / "index.html", pages.front_page(chosen, exercises, read))
    total = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    print(f"{size(total)}. To read it: python -m http.server --directory {directory}")
    return 0
