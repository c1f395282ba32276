"""`bigtrain course`: assignments for a class."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(
    name="course",
    help="Assignments on nbgrader: build them, prove them, grade what was handed in.",
    version_flags=[],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


@app.command
def build(
    folder: Annotated[Path, Parameter(help="the course folder, as nbgrader has it")] = Path("."),
    *,
    assignment: Annotated[str, Parameter(help="one alone, by how its name begins: 05")] = "",
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
