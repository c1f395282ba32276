"""The clocks of a rank: virtual lanes that a Cost advances, and the wall.

Virtual time knows only the program's order and the Cost (core/lane.py holds its rules), so it is
the same on every machine and in every run. Wall time is the system's monotonic clock, one for all
processes, from the run's zero.
"""

import time
from collections import defaultdict
from collections.abc import Callable

import torch

from ...core import Cost, Lane

CPU = torch.device("cpu")


class Clock:
    """`cost` None: the wall only; lanes stay where they are and nothing is sent along with
    messages. A GPU works on while its program goes on, so the wall is read once `device` has done
    what it was asked for. `pauses()`: the nanoseconds that the wall leaves out."""

    def __init__(
        self,
        cost: Cost | None,
        zero_ns: int,
        device: torch.device = CPU,
        pauses: Callable[[], int] = int,
    ):
        self.cost, self._zero_ns, self._device, self._pauses = cost, zero_ns, device, pauses
        self._lanes = defaultdict(Lane)

    @property
    def modelled(self) -> bool:
        return self.cost is not None

    def wall(self) -> int:
        """Nanoseconds since the run began, pauses left out."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        paused = None
        while paused != self._pauses():  # else a pause came between the two readings
            paused, now = self._pauses(), time.monotonic_ns()
        return now - self._zero_ns - paused

    def lane(self, name: str) -> Lane:
        return self._lanes[name]

    def now(self, lane: str) -> int | None:
        """The lane's ticks; None when the modelled clock is off."""
        return self._lanes[lane].now if self.modelled else None

    def compute(
        self, lane: str, step, rank: int, beside: bool = False, part: int | None = None
    ) -> tuple:
        """Advance a lane by what the step costs, or a part of it; (start, end) in ticks."""
        if not self.modelled:
            return None, None
        asked = step, rank, beside
        return self._lanes[lane].compute(
            self.cost.duration(*asked) if part is None else self.cost.parts(*asked)[part]
        )

    def wait(self, lane: str, until: int | None) -> None:
        """Let the lane not go on before a time that another one has posted."""
        if self.modelled:
            self._lanes[lane].wait(until)
