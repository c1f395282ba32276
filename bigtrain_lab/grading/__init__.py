"""Graders: an answer is right when it behaves as a right one, and is told which known mistake it
behaves like when it does not (likeness.py). An exercise is a folder in topics/.

In a notebook's kernel both servers start with the import, so that a first check need not wait.
"""

import sys

from .. import offered

__all__, __getattr__, __dir__ = offered(
    __name__,
    {
        "likeness": (
            "Marked",
            "Step",
            "Topic",
            "Verdict",
            "Wrong",
            "check",
            "hint",
            "marks",
            "playing",
            "warm",
        ),
    },
)

if "ipykernel" in sys.modules:
    from .likeness import warm

    warm()
