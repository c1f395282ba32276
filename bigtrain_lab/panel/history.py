"""The runs that are kept under runs/: what each was asked for, and how it ended.

Two small files of a run are read, of the newest runs only; no experiment is made and no event read
before a run is chosen.
"""

import re
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from ..core import Impossible, refuse
from ..core.files import printable
from ..experiments import Experiment
from ..runtime import Run
from ..view import report

FOLDER = Path("runs")  # where launch keeps them, in the notebook's folder
LISTED = 100
STAR = "starred"  # an empty file in the run's directory
NUMBERS, MOST = "numbers.txt", 300  # what a run answered, and letters of it that are read
WIDE = 90  # letters of settings in a line of the list, which a laptop shows whole
LAST_S = 4e9  # a file may claim any time
NAMED = "%Y%m%dT%H%M%SZ"  # how launch begins the name of a directory that nobody named


class Past(NamedTuple):
    """A run directory; `told` is the settings that are not the defaults, or why it cannot be
    reopened."""

    directory: Path
    name: str
    started: str
    state: str
    told: str

    @property
    def starred(self) -> bool:
        return (self.directory / STAR).exists()

    @property
    def numbers(self) -> str:
        with (
            suppress(OSError),
            open(self.directory / NUMBERS, encoding="utf-8", errors="replace") as file,
        ):
            return file.read(MOST)
        return ""

    def star(self) -> None:
        """Give it a star, or take it away: what has one stands first."""
        if self.starred:
            (self.directory / STAR).unlink()
        else:
            (self.directory / STAR).touch()

    def delete(self) -> None:
        """Remove the directory; refused while the run goes on."""
        refuse(
            (
                self.state == "running",
                f"The run in {self.directory} goes on: stop it, then delete it.",
            )
        )
        shutil.rmtree(self.directory)


def note(directory: Path, rows: list[report.Row]) -> None:
    """Write the answers of a run into its directory."""
    told = "; ".join(f"{row.quantity} {row.modelled}" for row in rows if row.modelled)
    with suppress(OSError):  # its directory may be gone
        (directory / NUMBERS).write_text(told, encoding="utf-8")


def table_of(runs: list[Past], older: int) -> str:
    """A row each, pressed to reopen it; `older` ones are left out."""
    if not runs:
        return '<p class="btl-soft">There are no runs in runs/ yet: press Run.</p>'
    rows = "".join(
        f'<tr data-row="{at}" tabindex="0"><td data-do="star" title="star: stands first">'
        f"{'★' if past.starred else '☆'}</td><td>{escape(when(past.started))}</td>"
        f"<td>{escape(printable(past.name))}</td><td>{escape(printable(past.state))}</td>"
        f"<td>{escape(printable(shorten(past.told, WIDE, placeholder=' ...')))}</td>"
        f"<td>{escape(printable(past.numbers))}</td>"
        '<td data-do="delete" data-sure="sure?" title="delete its directory">delete</td></tr>'
        for at, past in enumerate(runs)
    )
    left = f"{older} older runs are not listed: bigtrain show DIRECTORY opens each." * bool(older)
    heads = "".join(
        f"<th>{head}</th>"
        for head in ("", "began", "lab", "ended", "settings beside defaults", "numbers", "")
    )
    return (
        f'<div class="btl-rivals btl-past"><table><thead><tr>{heads}</tr></thead><tbody>{rows}'
        f'</tbody></table><p class="btl-soft">{left}</p></div>'
    )


def when(started: str) -> str:
    """The start of a run by this machine's clock."""
    try:
        return datetime.fromisoformat(started).astimezone().strftime("%d %b %H:%M:%S")
    except ValueError:
        return "no time"


def listed(own: type) -> tuple[list[Past], int]:
    """(what has a star, then runs of this experiment, then the others, newest first each; how many
    older ones are left out)."""
    paths = [path for path in FOLDER.iterdir() if path.is_dir()] if FOLDER.is_dir() else []
    paths.sort(
        key=lambda path: (f"-{own.name}-" in path.name, began(path)), reverse=True
    )  # what is left out is not even opened
    found = [about(path, own) for path in paths[:LISTED]]
    found.sort(key=lambda past: (past.started, past.directory.name), reverse=True)
    found.sort(key=lambda past: (not past.starred, past.name != own.name))  # stable
    return found, len(paths) - len(found)


def began(directory: Path) -> str:
    """When a run began, by the name of its directory; of one that was named by hand, when a file
    last came into it."""
    if re.match(r"\d{8}T\d{6}Z", directory.name):
        return directory.name
    return datetime.fromtimestamp(min(max(0, directory.stat().st_mtime), LAST_S), UTC).strftime(
        NAMED
    )


def about(directory: Path, own: type) -> Past:
    """What a directory says of itself in its settings and the note of its end."""
    try:
        settings = (run := Run.open(directory)).settings
    except Impossible as error:
        return Past(directory, directory.name, "", "damaged", str(error))
    return Past(
        directory,
        settings["name"],
        settings["started"],
        run.state,
        differing(settings["settings"], own),
    )


def differing(settings: dict, own: type) -> str:
    """The settings that differ from the defaults, by the experiment's class alone: to make one may
    take a measurement."""
    try:
        fields = (
            own
            if settings.get("experiment") == own.name
            else Experiment.named(str(settings.get("experiment")))
        ).model_fields
    except Impossible as error:
        return f"cannot be reopened here: {error}"
    return (
        ", ".join(
            f"{name.replace('_', '-')} {report.setting(settings[name])}"
            for name, field in fields.items()
            if name in settings and settings[name] != field.get_default()
        )
        or "default settings"
    )
