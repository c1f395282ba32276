"""`bigtrain course`: assignments for a class."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

course = App(name="course", help="Assignments for a class: notebooks to hand out, and their key.")


@course.command
def build(
    folder: Annotated[Path, Parameter(help="the course's folder, as nbgrader has it")] = Path(
        "course"
    ),
    *,
    assignment: Annotated[str, Parameter(help="one alone, by how its name begins: 05")] = "",
    student: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", help="a student's id, for a copy with numbers of their own; repeat it"
        ),
    ] = (),
) -> int:
    """Make the assignments: what students get, and the instructor's copies with the answers."""
    from ..course.build import build as make

    for path in make(folder, assignment, student):
        print(path)
    return 0
