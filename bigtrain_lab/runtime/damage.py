"""What a run directory has lost since its run ended: a log cut off by a full disk or a broken copy, a file that is gone.

The log of a rank that was done ends with "@done". What comes before a lost line still counts, and nothing after it.
"""

from collections.abc import Sequence
from pathlib import Path

from ..core import Span
from .end import End
from .log import Log

SAID = {"damaged": "is damaged", "changed": "was changed after its run", "too long": "is too long to be read", "cut off": "is cut off", "missing": "is missing"}
UNFINISHED = "cut off", "missing"  # so are the logs of a run that was not done


def of(directory: Path, logs: Sequence[Log], ranks: int, done: bool) -> str | None:
    """What is not whole, in one sentence; None where all is. Of a run that was not done, only lost lines can be told."""
    told = [f"the log of rank {rank} {SAID[log.state]} {where_it_ends(log)}".rstrip() for rank, log in enumerate(logs)
            if log.state in SAID and (done or log.state not in UNFINISHED)]
    if done:
        told += [f"the result of rank {rank} is missing" for rank in range(ranks) if not (directory / f"result-{rank}.npz").exists()]
        told += [] if End.noted(directory) else ["the note of its end (end.json) is missing or damaged"]
    return f"{listed(told)}: what is whole is shown." if told else None


def where_it_ends(log: Log) -> str:
    """Behind which step of the rank nothing more can be read."""
    if log.state in ("missing", "changed"):
        return ""
    last = next((item.measured.name for item in reversed(log.items) if isinstance(getattr(item, "measured", None), Span)), None)
    return f"after {last}" if last else "before its first step"


def listed(told: list[str]) -> str:
    """The parts as the beginning of a sentence."""
    text = ", ".join(told[:-1]) + (" and " if told[:-1] else "") + told[-1]
    return text[0].upper() + text[1:]
