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
    for what, kept in fence().items():
        yield (
            Finding("ok", "fence", f"an answer cannot reach {what}.")
            if kept
            else Finding("warn", "fence", f"an answer can reach {what} on this machine", MEND)
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
    for path, told in broken.items():
        yield from (Finding("fail", path.stem, fault) for fault in told)
    tasks = {}
    for source in (each for each in found if not broken[each.path]):
        for exercise in source.exercises:
            key, start = pieces_of(source, exercise)
            tasks[source.path.stem, exercise.topic, "key"] = exercise.topic, key
            tasks[source.path.stem, exercise.topic, "start"] = exercise.topic, start
    for (notebook, topic, which), marked in played(tasks, cores):
        yield Finding(*judged(notebook, topic, which, marked))


def pieces_of(source: Source, exercise) -> tuple[list, list]:
    """The answer key of an exercise, and what is handed out."""
    code = [cell.source for cell in source.cells if cell.kind == "code"]
    own = source.text(exercise.id)
    start = [source.start(exercise.id) if text == own else text for text in code]
    return sliced(code, exercise.answer), sliced(start, exercise.answer)


def judged(notebook: str, topic: str, which: str, marked) -> tuple[str, str, str]:
    """A level, a name and a sentence."""
    if isinstance(marked, str):
        return "fail", notebook, f"{topic}: the check of the {which} failed: {marked}."
    right = not marked.findings
    if which == "start":
        if right:
            return "fail", notebook, f"{topic}: what is handed out is right already."
        return "ok", notebook, f"{topic}: what is handed out is not right yet."
    if not right:
        return (
            "fail",
            notebook,
            f"{topic}: the key is not right: {' '.join(chain(*marked.findings.values()))}",
        )
    return "ok", notebook, f"{topic}: the key gets all points on three seeds."
