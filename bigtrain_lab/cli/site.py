"""The labs as static pages that play with no install: `bigtrain site`.

    index.html, a page a lab         with the first picture in it, made beforehand
    pipeline.run.html                a run of its defaults on real ranks, which plays from this file
    site.js, site.css                the player that JupyterLab shows, and controls
    worker.js, pyodide/, python.tar.xz  Python, and the library's own files
    kept.tar.xz                      dry runs of the settings that pages offer
    lessons/                         as they are read, with their outputs

Cost: minutes of dry runs, kept for the next build of the same sources.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from itertools import combinations, product
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import nbformat
from cyclopts import Parameter
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from .. import __version__
from ..core import Impossible, Knob, write_whole
from ..core.later import later
from ..core.words import counted, size
from ..experiments import Experiment
from ..experiments.known import predicted
from ..lesson import RELEASES, editions, translated
from ..runtime import kept
from ..view import live, table
from ..view.packed import LOOK
from ..view.page import asset, packed_text
from ..view.page import page as page_of_run
from ..view.player import Player

with later():
    from ..panel import controls

PACKAGE = Path(__file__).parents[1]
RUNTIME = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
UNUSED = {"grading", "course", "panel", "cli", "checks", "figures", "player", "__pycache__"}
# What these predict from is no dry run alone, but numpy too, or what torch draws: kept whole.
WHOLE = {"checkpoint", "plan", "translate"}
HERE = {"this-machine", "measured"}  # another machine in a browser
MOST, PAIRED = 8, 2  # positions of a slider, about; controls whose values are kept in pairs
NAMES = {"en": "English", "zh": "中文"}  # of the languages of lessons
FRONT, COUNTS = "micro_batches", (1, 2, 4, 8, 16, 32)  # of the lab `pipeline`


def site(
    directory: Path,
    *labs: Annotated[str, Parameter(help="only these; all without")],
    pyodide: Annotated[
        Path | None,
        Parameter(help="a folder with Python for browsers: docs/site.md says how to fill it"),
    ] = None,
) -> int:
    """Write labs and lessons as static pages; with --pyodide the labs predict in the browser."""
    if pyodide and (missing := [name for name in RUNTIME if not (pyodide / name).is_file()]):
        raise Impossible(f"{pyodide} has no {missing[0]}: docs/site.md says how to fill it.")
    chosen = {name: Experiment.named(name) for name in labs or Experiment.all()}
    (directory / "lessons").mkdir(parents=True, exist_ok=True)
    build = kept.made_by()[:16]
    os.environ["XDG_CACHE_HOME"] = str(kept.kept_in("kept").with_name(f"site-{build}"))
    for name, cls in chosen.items():
        make(cls)
        told = recorded(cls, directory)
        write_whole(directory / f"{name}.html", lab_page(cls, bool(pyodide), told))
        print(name, flush=True)
    shutil.make_archive(str(directory / "kept"), "xztar", kept.kept_in("kept").with_suffix(""))
    if pyodide:
        copy_python(pyodide, directory)
    write_whole(directory / "site.js", Player._esm + asset("stand_in.js") + asset("lab.js"))
    write_whole(directory / "site.css", style())
    write_whole(directory / "worker.js", asset("worker.js"))
    write_whole(directory / "offline.js", asset("offline.js").replace("$build", build))
    write_whole(directory / "index.html", front_page(chosen, lessons(directory / "lessons")))
    total = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    print(f"{size(total)}. To read it: python -m http.server --directory {directory}")
    return 0


# -- which settings a page offers, and what is kept for them ---------------------------------------


def offered(cls: type[Experiment]) -> list[dict[str, Any]]:
    """The controls of a page: the settings that the lab is about, at a few values each."""
    first = live.defaults(cls)
    rows = [
        {
            "name": name,
            "label": name.replace("_", "-"),
            "help": controls.told(knob),
            "kind": "yes"
            if isinstance(first[name], bool)
            else "choice"
            if knob.menu()
            else "range",
            "values": values(knob, cls.model_fields[name].annotation, first[name]),
            "value": first[name],
        }
        for name, knob in cls.knobs().items()
        if not knob.more
    ]
    return [row for row in rows if len(row["values"]) > 1]


def values(knob: Knob, kind: type, value) -> list:
    """Of a menu all; of whole numbers few or doublings; of others some."""
    if menu := knob.menu():
        return [each for each in menu if each not in HERE]
    if kind is int and knob.high - knob.low > MOST:
        return controls.doublings(int(knob.low), int(knob.high), value)
    found = sorted({value, *controls.nearby(knob, kind, value)})
    return sorted({value, *found[-1:], *found[:: -(-len(found) // MOST)]})


def settings(cls: type[Experiment]) -> Iterator[dict[str, Any]]:
    """The defaults, each other value of a control, and the first controls' values in pairs."""
    rows = offered(cls)
    yield {}
    for row in rows:
        yield from ({row["name"]: to} for to in row["values"] if to != row["value"])
    for one, other in combinations([] if cls.name in WHOLE else rows[:PAIRED], 2):
        for pair in product(one["values"], other["values"]):
            yield dict(zip((one["name"], other["name"]), pair))


def make(cls: type[Experiment]) -> None:
    """Keep what the predictions of these settings need."""
    tell = predicted if cls.name in WHOLE else predicted.__wrapped__
    for changed in settings(cls):
        asked = live.defaults(cls) | changed
        with suppress(Impossible):  # the page says why
            tell(cls, tuple(asked.items()), cls.members(asked))


def copy_python(pyodide: Path, directory: Path) -> None:
    """The browser's Python, the wheels that lie beside it, and the library; the worker reads in
    made.json what to unpack where."""
    (directory / "pyodide").mkdir(exist_ok=True)
    wheels = sorted(pyodide.glob("*.whl"))
    for source in (*map(pyodide.joinpath, RUNTIME), *wheels):
        shutil.copy(source, directory / "pyodide")
    with TemporaryDirectory() as library:
        shutil.copytree(
            PACKAGE, library, ignore=shutil.ignore_patterns(*UNUSED), dirs_exist_ok=True
        )
        shutil.make_archive(str(directory / "python"), "xztar", library)
    about = {
        "env": {kept.MADE_BY: kept.made_by(), "XDG_CACHE_HOME": "/kept", "HOME": "/home/pyodide"},
        "archives": [
            *((f"pyodide/{wheel.name}", "/library") for wheel in wheels),
            ("python.tar.xz", "/library/bigtrain_lab"),
            ("kept.tar.xz", "/kept/bigtrain_lab/kept"),
        ],
    }
    write_whole(directory / "made.json", json.dumps(about))


# -- pages -----------------------------------------------------------------------------------------


def page(title: str, heading: str, below: str = "", **told: Any) -> str:
    """A page around a lab's controls and picture. `told`: what lab.js reads."""
    data = json.dumps({"look": LOOK, **told}).replace("<", "\\u003c")
    return Template(asset("lab.html")).substitute(
        version=__version__, title=escape(title), heading=heading, below=below, data=data
    )


def made_of(lab: str, *asked: dict[str, Any]) -> dict[str, str]:
    """Settings, as lab.js names them -> their prediction, packed."""
    return {
        json.dumps(sorted(changed.items()), separators=(",", ":")): packed_text(
            live.answered(lab, json.dumps(changed)).encode()
        )
        for changed in asked
    }


def recorded(cls: type[Experiment], directory: Path) -> str:
    """Run the lab's defaults on real ranks, and write the page that plays it. Returns the link to
    it, or why there is none."""
    asked = cls()
    try:
        with TemporaryDirectory() as runs:
            run = asked.run(directory=Path(runs) / cls.name)
            run.wait()
            played = page_of_run({"predicted": asked.predict(), **run.traces()}, asked, run)
    except Impossible as error:
        return f"<p>No run was recorded: {escape(str(error))}</p>"
    write_whole(directory / f"{cls.name}.run.html", played)
    return (
        f'<p><a href="{cls.name}.run.html">Play what {counted(asked.ranks, "real rank")} did with'
        " the defaults.</a></p>"
    )


def lab_page(cls: type[Experiment], python: bool, below: str) -> str:
    heading = f'<h1>{escape(cls.question)}</h1><p class="btl-about" id="btl-about"></p>'
    told = {"name": cls.name, "controls": offered(cls), "made": made_of(cls.name, {})}
    return page(f"{cls.name}: {cls.question}", heading, below, python=python, **told)


def front_page(labs: dict[str, type[Experiment]], lessons: dict[str, list[tuple[str, str]]]) -> str:
    """What this is in a moving picture, one question and one slider; then the labs and lessons."""
    cls = Experiment.named("pipeline")
    slider = next(row for row in offered(cls) if row["name"] == FRONT) | {"values": COUNTS}
    asked = ({FRONT: count} if count != slider["value"] else {} for count in COUNTS)
    below = Template(asset("front.html")).substitute(
        labs="".join(
            f'<li><a href="{name}.html"><b>{escape(each.question)}</b><span>{name}</span></a></li>'
            for name, each in labs.items()
        ),
        lessons="".join(
            f"<h3>{NAMES[language]}</h3>"
            f'<ol class="btl-lessons" lang="{language}">{listed(told)}</ol>'
            for language, told in lessons.items()
        ),
    )
    told = {"name": cls.name, "controls": [slider], "made": made_of(cls.name, *asked)}
    heading = asset("front_heading.html")
    return page("How large models are trained", heading, below, plays=True, alone=True, **told)


def listed(lessons: list[tuple[str, str]]) -> str:
    return "".join(f'<li><a href="lessons/{file}">{title}</a></li>' for file, title in lessons)


def lessons(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Write the lessons as they are read. Returns language -> (file, title) of each."""
    release = next(each for each in RELEASES if each.is_dir())
    shutil.copytree(release / "pictures", folder / "pictures", dirs_exist_ok=True)
    exporter, frame = HTMLExporter(template_name="basic"), Template(asset("lesson.html"))
    ends = {"en": ".html"} | {each: f".{each}.html" for each in editions(release)}
    found = {language: [] for language in ends}
    for path, (language, end) in product(sorted(release.glob("*.ipynb")), ends.items()):
        edition = release / language / f"{path.stem}.md"
        body, _ = exporter.from_notebook_node(translated(nbformat.read(path, 4), edition))
        body = re.sub(r'href="(\w+)\.ipynb', rf'href="\1{end}', body)
        body = re.sub(r'<a href="\.\./[^"]*">(.*?)</a>', r"\1", body)  # files of a clone
        title = re.sub("<[^>]*>|¶", "", re.search(r"<h1.*?</h1>", body, re.DOTALL)[0])
        links = (f'<a href="{path.stem}{ends[to]}" lang="{to}">{NAMES[to]}</a>' for to in ends)
        write_whole(
            folder / f"{path.stem}{end}",
            frame.substitute(language=language, title=title, body=body, links=" ".join(links)),
        )
        found[language].append((f"{path.stem}{end}", title))
    return found


def style() -> str:
    """The look of JupyterLab's panel, of a page around it, and of code."""
    panel = (PACKAGE / "panel" / "frame.css").read_text(encoding="utf-8")
    code = HtmlFormatter(style="friendly").get_style_defs(".highlight")
    return "".join([asset("page.css"), Player._css, table.STYLE, panel, asset("lab.css"), code])
