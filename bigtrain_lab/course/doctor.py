"""Prove on this machine that an assignment can be handed out: its answer key gets all points on
three seeds, what is handed out does not, and its cells are whole."""

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from ..doctor import Finding
from ..grading.box import fence
from ..grading.text import sliced
from .grade import NO_NBGRADER, played
from .submissions import Source, asked_for, faults, sources

MEND = "grade on Linux 5.13 or newer, or in a container that you throw away."


def machine() -> Iterator[Finding]:
    """What of the fence holds here, and whether there is a gradebook."""
    yield from (
        Finding("ok", "fence", f"an answer cannot reach {what}.")
        if kept
        else Finding("warn", "fence", f"an answer can reach {what} on this machine", MEND)
        for what, kept in fence().items()
    )
    yield (
        Finding("ok", "nbgrader", "installed: marks go into its gradebook.")
        if find_spec("nbgrader")
        else Finding("warn", "nbgrader", NO_NBGRADER)
    )


def findings(folder: Path, cores: int, assignments: tuple[str, ...] = ()) -> Iterator[Finding]:
    """On this machine, then on each notebook in source/, as soon as it is known."""
    yield from machine()
    found = asked_for(sources(folder), assignments)
    broken = {each.path: list(faults(each)) for each in found}
    yield from (
        Finding("fail", path.stem, fault) for path, told in broken.items() for fault in told
    )
    tasks = {
        (source.path.stem, exercise.topic, which): (exercise.topic, pieces)
        for source in found
        if not broken[source.path]
        for exercise in source.exercises
        for which, pieces in pieces_of(source, exercise).items()
    }
    yield from (Finding(*judged(*task, marked)) for task, marked in played(tasks, cores))


def pieces_of(source: Source, exercise) -> dict[str, list]:
    """The answer key of an exercise, and the start that is handed out."""
    code = [cell.source for cell in source.cells if cell.kind == "code"]
    own = source.text(exercise.id)
    start = [source.start(exercise.id) if text == own else text for text in code]
    return {"key": sliced(code, exercise.answer), "start": sliced(start, exercise.answer)}


def judged(notebook: str, topic: str, which: str, marked) -> tuple[str, str, str]:
    """A level, a name and a sentence."""
    if isinstance(marked, str):
        return "fail", notebook, f"{topic}: the check of the {which} failed: {marked}."
    wrong = " ".join(chain(*marked.findings.values()))
    level, told = {
        ("start", False): ("fail", "what is handed out is right already."),
        ("start", True): ("ok", "what is handed out is not right yet."),
        ("key", False): ("ok", "the key gets all points on three seeds."),
        ("key", True): ("fail", f"the key is not right: {wrong}"),
    }[which, bool(marked.findings)]
    return level, notebook, f"{topic}: {told}"
