"""The script that grows through the course: train.py as a lesson leaves it.

    python examples/script.py 06 > train.py

Lesson 01 has the whole of it as its diff. Each other lesson's diff names in its first line the
lesson whose script it changes. All diffs up to there are applied here, as `patch` would.
"""

import json
import re
import sys
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def diff_of(lesson: str) -> tuple[str, list[str]]:
    """The lesson whose script this one's diff changes, and the diff: of each hunk its first line's
    number in that script, and its lines."""
    cells = [
        cell
        for path in NOTEBOOKS.glob(f"{lesson}_*.ipynb")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    found = re.search(r"```diff\n--- train.py\tlesson (\d+)\n.*\n((?s:.*?))```", prose)
    if not found:
        sys.exit(f"No lesson {lesson!r} changes the script: give two digits, 01 to 15 or 18.")
    return found[1], re.split(r"^@@ -(\d+).*\n", found[2], flags=re.MULTILINE)[1:]


def script(lesson: str) -> list[str]:
    """The lines of train.py after a lesson; "00": before lesson 01. ValueError where a diff does
    not apply."""
    if lesson == "00":
        return [line[1:] for line in diff_of("01")[1][1].splitlines() if line[0] in " -"]
    before, hunks = diff_of(lesson)
    old, new, at = script(before), [], 0
    for first, changes in zip(hunks[::2], hunks[1::2]):
        new += old[at : int(first) - 1]
        at = int(first) - 1
        for sign, line in ((change[0], change[1:]) for change in changes.splitlines()):
            if sign != "+":
                if old[at] != line:
                    raise ValueError(f"lesson {lesson}: line {at + 1} is {old[at]!r}, not {line!r}")
                at += 1
            if sign != "-":
                new.append(line)
    return new + old[at:]


if __name__ == "__main__":
    print(*script(sys.argv[1]), sep="\n") if sys.argv[1:] else print(__doc__)
