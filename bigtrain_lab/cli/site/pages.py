"""The pages: a lab, the run of its defaults, and the front page."""

import json
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any

from nbconvert.filters import markdown2html
from pygments.formatters import HtmlFormatter

from ... import __version__
from ...core import Impossible, counted, write_whole
from ...experiments import Experiment
from ...grading.box import WALL_S
from ...grading.in_page import EXERCISES
from ...grading.likeness import Topic
from ...view import live, table
from ...view.packed import LOOK
from ...view.page import asset, packed_text, page as page_of_run
from ...view.player import Player
from .lessons import NAMES, listed
from .python import PACKAGE
from .settings import offered

FRONT, COUNTS = "micro_batches", (1, 2, 4, 8, 16, 32)  # of the lab `pipeline`


def page(title: str, heading: str, below: str = "", **told: Any) -> str:
    """A page around a lab's controls and picture. `told`: what lab.js reads."""
    return Template(asset("lab.html")).substitute(
        version=__version__,
        title=escape(title),
        heading=heading,
        below=below,
        data=json.dumps({"look": LOOK, **told}).replace("<", "\\u003c"),
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
    return page(
        f"{cls.name}: {cls.question}",
        heading,
        below,
        python=python,
        name=cls.name,
        controls=offered(cls),
        made=made_of(cls.name, {}),
    )


def front_page(
    labs: dict[str, type[Experiment]],
    exercises: list[tuple[str, str]],
    lessons: dict[str, list[tuple[str, str]]],
) -> str:
    """What this is in a moving picture, one question and one slider; then all other pages."""
    cls = Experiment.named("pipeline")
    slider = next(row for row in offered(cls) if row["name"] == FRONT) | {"values": COUNTS}
    asked = ({FRONT: count} if count != slider["value"] else {} for count in COUNTS)
    below = Template(asset("front.html")).substitute(
        labs=cards((f"{name}.html", escape(each.question)) for name, each in labs.items()),
        exercises=cards(exercises),
        lessons="".join(
            f"<h3>{NAMES[language]}</h3>"
            f'<ol class="btl-lessons" lang="{language}">{listed(told)}</ol>'
            for language, told in lessons.items()
        ),
    )
    return page(
        "How large models are trained",
        asset("front_heading.html"),
        below,
        plays=True,
        alone=True,
        name=cls.name,
        controls=[slider],
        made=made_of(cls.name, *asked),
    )


def cards(linked: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f'<li><a href="{file}"><b>{title}</b><span>{Path(file).stem}</span></a></li>'
        for file, title in linked
    )


def exercises(directory: Path) -> list[tuple[str, str]]:
    """Write the exercises that Python in a browser can check. Returns (file, title) of each."""
    frame, found = Template(asset("exercise.html")), []
    for name in EXERCISES:
        topic = Topic.named(name)
        asked = markdown2html(topic.asked)
        title = re.search(r"<h1.*?>(.*?)(<a|</h1>)", asked)[1]
        hints = "".join(
            f"<details><summary>Hint {number}</summary>{markdown2html(hint)}</details>"
            for number, hint in enumerate(topic.hints, 1)
        )
        write_whole(
            directory / f"exercise-{name}.html",
            frame.substitute(
                title=title,
                asked=asked,
                start=escape(topic.start),
                hints=hints,
                data=json.dumps({"name": name, "patience_s": WALL_S}),
            ),
        )
        found.append((f"exercise-{name}.html", title))
    return found


def style() -> str:
    """The look of JupyterLab's panel, of a page around it, and of code."""
    panel = (PACKAGE / "panel" / "frame.css").read_text(encoding="utf-8")
    code = HtmlFormatter(style="friendly").get_style_defs(".highlight")
    return "".join([asset("page.css"), Player._css, table.STYLE, panel, asset("lab.css"), code])
