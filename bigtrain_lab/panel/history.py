"""The runs that are kept under runs/: what each was asked for, how it ended, and whether this library can take its settings."""

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from .. import report
from ..core import Impossible
from ..runtime import Run

FOLDER = Path("runs")  # where launch keeps them, in the notebook's folder
LISTED = 100


class Past(NamedTuple):
    """A run directory. `problem` says why it cannot be reopened; "" where it can."""

    directory: Path
    name: str
    started: str
    state: str
    told: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{when(self.started)}  {self.name}  {self.state}  {self.told}"


def when(started: str) -> str:
    """The start of a run by this machine's clock."""
    try:
        return datetime.fromisoformat(started).astimezone().strftime("%d %b %H:%M:%S")
    except ValueError:
        return "no time"


def listed(own: type, folder: Path = FOLDER) -> tuple[list[Past], int]:
    """(runs of this experiment, newest first, then the others, newest first; how many older ones are left out)."""
    found = [about(path, own) for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    found.sort(key=lambda past: (past.started, past.directory.name), reverse=True)
    found.sort(key=lambda past: past.name != own.name)  # stable
    return found[:LISTED], max(0, len(found) - LISTED)


def about(directory: Path, own: type) -> Past:
    """What a directory says of itself, without its events."""
    try:
        run = Run.open(directory)
        name, started, state = str(run.settings["name"]), str(run.settings["started"]), str(run.state)
    except (Impossible, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        why = sentence(directory, error)
        return Past(directory, directory.name, "", "damaged", why, why)
    try:
        return Past(directory, name, started, state, report.told_settings(own.restored(run.settings["settings"])) or "default settings")
    except Impossible as error:
        return Past(directory, name, started, state, f"cannot be reopened here: {error}", str(error))


def sentence(directory: Path, error: Exception) -> str:
    """Why a directory cannot be read."""
    return str(error) if isinstance(error, Impossible) else f"{directory} is damaged ({type(error).__name__}: {error}): run it again."
