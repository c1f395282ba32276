"""`bigtrain course`: build assignments, prove them before they are handed out, grade a class."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from .screen import screen, tell_findings

app = App(
    name="course",
    help="Assignments on nbgrader: build them, prove them, grade what was handed in.",
    version_flags=[],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
Folder = Annotated[Path, Parameter(help="the course folder, as nbgrader has it")]
Only = Annotated[
    tuple[str, ...],
    Parameter(
        help="by how its name begins: 05; may be given again", negative="", show_default=False
    ),
]
Cores = Annotated[int | None, Parameter(help="how many answers to play at once; all cores")]


@app.command
def build(
    folder: Annotated[Path, Parameter(help="the course folder, as nbgrader has it")] = Path("."),
    *,
    assignment: Only = (),
    student: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", help="a student's id, for a copy with other numbers; may be given again"
        ),
    ] = (),
) -> int:
    """Make the assignments: what students get, and the instructor's copies with the answers."""
    from ..course.build import build

    for path in build(folder, assignment, student):
        print(path)
    return 0


@app.command
def grade(
    folder: Folder = Path("."),
    *,
    source: Annotated[
        Path | None,
        Parameter(help="the instructor's notebook; those of source/ in the folder"),
    ] = None,
    assignment: Only = (),
    cores: Cores = None,
) -> int:
    """Grade all submissions in a folder: each answer's text in a box, on three seeds.

    What was graded and has not changed is not graded again.
    """
    from ..course.grade import grade

    console = screen()
    done = grade(folder, source, assignment, cores, track)
    for sheet in done.sheets:
        console.print(f"{sheet.name}: {sheet.points:g} of {sheet.of:g} points.", soft_wrap=True)
        for defect in sheet.defects:
            console.print(f"    {defect}", soft_wrap=True)
    if done.changes:
        console.print("Marks that changed:", style="bold")
        console.print(*done.changes, sep="\n", soft_wrap=True)
    console.print(*done.notes, sep="\n", soft_wrap=True)
    console.print(
        f"Answers played: {done.played:,}. Marks are in {folder / 'marks'}, pages in"
        f" {folder / 'feedback'}.",
        soft_wrap=True,
    )
    return 0


@app.command
def doctor(folder: Folder = Path("."), *, assignment: Only = (), cores: Cores = None) -> int:
    """Prove each assignment in source/ on this machine before it is handed out: one line each."""
    from ..course.doctor import findings

    return tell_findings(findings(folder, cores or os.cpu_count() or 1, assignment))


def track(done: Iterable, total: int) -> Iterable:
    """Pass on what is done, with a bar and the time left on a terminal."""
    from rich import progress

    errors = screen(stderr=True)
    return progress.track(
        done,
        f"{total} answers",
        total,
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
