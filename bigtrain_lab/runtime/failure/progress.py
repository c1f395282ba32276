"""Whether a run goes on, by what its ranks log, print and compute: one rule for whoever watches it.

works       a log or an output has grown since the last look, or a rank has used its processor
            (pulse.py)
deadlock    nothing was written, and twice the logs say the same knot of waits (waits.py):
            certain, without a time limit
hangs       nobody has logged, printed or computed for the stall limit; where a process is
            stopped, for STOPPED_S
"""

import os
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path

from ...core.words import ranks
from ..process.end import FAILED, VICTIMS_S, End
from ..process.pulse import STOPPED, WITHIN_S, Pulse
from . import diagnose
from .diagnose import Exit
from .wait_graph import Doing

STOPPED_S = 5.0  # a process that somebody has stopped does not go on by itself
COUNT_S = 0.5  # between two counts of what the ranks have computed
LONG_S = 2.0  # what a rank has been at for so long is said
# a rank that has computed for so long without a word is asked for its line, again and again
LINE_S = 120.0


class Progress:
    """Follows the ranks' logs in the job's directory, and their processes.

    stall_s   the stall limit
    pulses    rank -> its process, of those that can be seen from here; more may come
    told      the name and suffix of a file of each rank that grows too while it goes on
    """

    def __init__(
        self,
        job,
        stall_s: float,
        pulses: Mapping[int, Pulse],
        told: tuple[str, str] = ("rank", "log"),
    ):
        self._directory, self._record = Path(job.directory), job.record
        self._stall_s, self._pulses = stall_s, pulses
        self._logs, self._outputs = (
            [job.file(kind, rank, suffix) for rank in range(job.mesh.size)]
            for kind, suffix in (("events", "jsonl"), told)
        )
        self._doings = [Doing(self._directory, rank) for rank in range(job.mesh.size)]
        self.begin()
        self._computed: dict[
            int, tuple[int, float]
        ] = {}  # rank -> its beats, and since when it has them
        self._busy: dict[
            int, float
        ] = {}  # rank that computes for long -> since when it has logged nothing
        self._asked: dict[int, float] = {}  # rank -> when it was last asked for its line

    def begin(self) -> None:
        """Nobody has had time to work yet, or since a pause."""
        self._worked = self._looked = time.monotonic()
        self._failing = inf  # since when a rank has ended without finishing
        self._counted = self._written = self._seen = self._suspected = None
        # bytes of each log, and since when it has them
        self._logged = [(0, self._worked)] * len(self._logs)
        self.now = ""  # what takes long at present, in words

    def doings(self) -> list[Doing]:
        """What each rank is at, as its log says now."""
        for doing in self._doings:
            doing.follow()
        return self._doings

    def kept(self) -> dict[int, str]:
        """What keeps a process from going on, by rank: those that are stopped, or wait for a
        disk."""
        return {
            rank: kept for rank, pulse in sorted(self._pulses.items()) if (kept := pulse.kept())
        }

    def ended(self, exits: Mapping[int, Exit]) -> dict[int, Exit]:
        """Of ranks that have ended, or said that they failed: one that failed earlier may take
        longer to end."""
        return {doing.rank: Exit(FAILED, 0) for doing in self.doings() if doing.raised} | exits

    def failed(
        self, diagnosis: str, exits: Mapping[int, Exit], kept: Mapping[int, str] | None = None
    ) -> End:
        """The end of a run that failed so, with what each rank was at; `exits`: who has ended."""
        if not self._record:
            return End("failed", diagnosis)
        return End(
            "failed",
            diagnosis,
            tuple(
                diagnose.states(
                    self._directory,
                    self.doings(),
                    self.ended(exits),
                    self.kept() if kept is None else kept,
                )
            ),
        )

    def failure(
        self, exits: Mapping[int, Exit], hold: Callable[[], None], everybody: bool = False
    ) -> End | None:
        """The end of a run in which a process ended without finishing, which may be `everybody`;
        None as long as the rank that made victims may still say so, or end. `hold` keeps the others
        where they are, so that no picture shows more than is told."""
        exits = self.ended(exits)
        self._failing = min(self._failing, time.monotonic())
        late = time.monotonic() - self._failing > VICTIMS_S
        if not (everybody or late or diagnose.culprit_of(self._directory, self._doings, exits)[1]):
            return None
        kept = self.kept()
        hold()
        return self.failed(diagnose.failure(self._directory, self.doings(), exits), exits, kept)

    def trouble(self, ask_for_stacks: Callable[[], None]) -> str | None:
        """The diagnosis of a run that will not go on by itself; None where it may. Called at each
        look. Ranks are asked for their stacks before it is written."""
        at, logs = time.monotonic(), [size(path) for path in self._logs]
        if at - self._looked > WITHIN_S:  # this process was stopped itself, perhaps with its ranks
            self._worked = at
        self._looked = at
        self._logged = [
            was if was[0] == bytes_now else (bytes_now, at)
            for was, bytes_now in zip(self._logged, logs)
        ]
        if self._counted is None or at - self._counted >= COUNT_S:
            self._count(at)
        if (written := (logs, [size(path) for path in self._outputs])) != self._written:
            self._written, self._worked, self._suspected = written, at, None
            return None
        suspected, self._suspected = self._suspected, diagnose.deadlock(self.doings())
        if self._suspected and self._suspected == suspected:  # with nothing written between
            ask_for_stacks()
            return self._suspected + diagnose.lines(self._directory, self._doings)
        if at - self._worked > min(self._stall_s, STOPPED_S):
            self._count(at)
            kept = self.kept()
            limit_s = min(self._stall_s, STOPPED_S) if STOPPED in kept.values() else self._stall_s
            if at - self._worked > limit_s:
                ask_for_stacks()
                return diagnose.hang(self._directory, self.doings(), limit_s, kept)
        return None

    def _count(self, at: float) -> None:
        """Note who has computed since the last count, and put into words what takes long."""
        beats = {rank: pulse.count() for rank, pulse in list(self._pulses.items())}
        self._computed = {
            rank: was if (was := self._computed.get(rank, (0, at)))[0] == count else (count, at)
            for rank, count in beats.items()
        }
        if beats != self._seen:
            self._seen, self._worked = beats, at
        self._counted, self.now = at, self._in_words(at)

    def _in_words(self, at: float) -> str:
        """Who computes, for how long, and in what: of ranks that have logged nothing for a
        while."""
        busy = {}  # rank -> since when
        for doing, (_, since) in zip(self.doings(), self._logged):
            beats, beaten = self._computed.get(doing.rank, (0, 0.0))
            if beats and max(since, at - 2 * WITHIN_S) <= beaten and at - since >= LONG_S:
                busy[doing.rank] = since
        self._busy = busy
        if not busy:
            return ""
        lines = {
            rank: (
                f" at {line}"
                if self._asked.get(rank, 0.0) > since
                and (line := diagnose.line_of(self._directory, self._doings[rank]))
                else ""
            )
            for rank, since in busy.items()
        }
        if not any(doing.main.span for doing in self._doings):
            verb = "have" if len(busy) > 1 else "has"
            return (
                f"the model is being built: {ranks(busy)} {verb} computed for"
                f" {at - min(busy.values()):.0f} s{next(iter(lines.values()))}"
            )
        return "; ".join(
            f"rank {rank} has computed for {at - since:.0f}"
            f" s{self._doings[rank].main.place or ' before its first action'}{lines[rank]}"
            for rank, since in busy.items()
        )

    def endless(self) -> list[int]:
        """The ranks to ask for their lines now, which `now` tells: they may be in a loop without an
        end, or have much to do."""
        at = self._looked
        found = [
            rank
            for rank, since in self._busy.items()
            if at - max(since, self._asked.get(rank, 0.0)) >= LINE_S
        ]
        self._asked |= dict.fromkeys(found, at)
        return found


def size(path: Path) -> int:
    """Bytes of a file, 0 where there is none. Opened, since a shared disk tells the true size to
    nobody else."""
    try:
        with open(path, "rb") as file:
            return file.seek(0, os.SEEK_END)
    except OSError:
        return 0
