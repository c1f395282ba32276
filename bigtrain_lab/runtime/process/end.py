"""How a run ends: what exit codes mean, how long whoever watches waits, and the note (end.json)
that is kept of it."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from ...core import Impossible, write_whole
from ...core.files import clean_json, read_bounded
from ..failure.wait_graph import RankState
from ..record.kept import Index

FAILED, UNWRITABLE = 1, 74  # exit codes of a rank; any other one but 0 was the program's own doing
INTERRUPTED = "The run was interrupted."
LOOK_S = 0.1  # between looks at the ranks and their logs
VICTIMS_S = 5.0  # how long the rank that made victims may take to say so, or to end
STACKS_S = 10.0  # how long a dump of stacks may take at most, on a machine that is busy
NOTE, RESERVE, JOB = "end.json", "end.reserve", "job"
RESERVE_BYTES = 16 * 1024
BEGINNING = (
    "settings.json",
    "environment.json",
    RESERVE,
    JOB,  # under torchrun
)  # what a run's directory holds before any rank has begun


def within(limit_s: float, ready: Callable[[], object], look_s: float = 0.01) -> bool:
    """Look again and again until `ready()` is true, for so long at most; returns whether it was."""
    until = time.monotonic() + limit_s
    while not (found := bool(ready())) and time.monotonic() < until:
        time.sleep(look_s)
    return found


def reserve(directory: Path) -> None:
    """Take room for the note before the run fills the disk. Impossible where there is none."""
    write_whole(directory / RESERVE, " " * RESERVE_BYTES)


def forget(directory: Path) -> None:
    """Take back a run's directory in which nothing has happened."""
    with suppress(OSError):
        for name in BEGINNING:
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()


class End(NamedTuple):
    """How a run ended, or "running".

    state      "done", "failed" or "stopped"; `diagnosis` says why in the last two cases
    waits      what each rank was at, where it failed
    teller     of ranks that torchrun started, the one that tells all of it
    """

    state: Literal["running", "done", "failed", "stopped"]
    diagnosis: str | None = None
    waits: tuple[RankState, ...] = ()
    teller: Index | None = None

    def told(self) -> dict:
        """As JSON holds it."""
        return {**self._asdict(), "waits": [each._asdict() for each in self.waits]}

    @classmethod
    def noted(cls, directory: Path) -> "End | None":
        """What the run's directory keeps; None where there is no such note, or a damaged one, such
        as one with waits for ranks that it does not tell of."""
        try:
            end = TypeAdapter(cls, config=ConfigDict(strict=True)).validate_json(
                clean_json(read_bounded(directory / NOTE))
            )
        except (OSError, ValueError):
            return None
        ranks = [state.rank for state in end.waits]
        return (
            end
            if ranks == [*range(len(ranks))]
            and {rank for state in end.waits for rank in state.on} <= {*ranks}
            else None
        )

    def note(self, directory: Path, by: int = 0) -> "End":
        """Keep it unless another rank has, in one step that only one can do; how the run ended
        then. `by`: the rank that asks. On a disk that is full it is cut to the room that was
        reserved."""
        path = directory / NOTE
        own = path.with_name(f"end-{by}.json")
        try:
            (directory / RESERVE).unlink(missing_ok=True)
            try:
                write_whole(own, json.dumps(self.told()))
            except Impossible:
                # a letter takes 12 bytes at most
                short = self.diagnosis and self.diagnosis[: RESERVE_BYTES // 16]
                write_whole(own, json.dumps(self._replace(diagnosis=short, waits=()).told()))
            try:
                os.link(own, path)
            except FileExistsError:
                return End.noted(directory) or self
            except OSError:  # a disk without links
                own.replace(path)
        except (OSError, Impossible):
            return End.noted(directory) or self
        finally:
            with suppress(OSError):
                own.unlink()
        return self
