"""A lane of a rank: a thread with a process group of its own that runs what is launched on it,
first in, first out.

    handle = lane.launch(lambda group: group.all_reduce(bucket), "bucket 0")
    ...                             # the program goes on meanwhile
    handle.wait()                   # returns the sum

On the modelled clock a launched function starts at max(lane's time, issuer's time), and wait()
moves the waiter to its end: the rules of CUDA's streams. Without a recorder a lane is the thread
alone. On a GPU all lanes of a rank share its default stream.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

import torch


class LaneFailed(RuntimeError):
    """A function on a lane raised; `__cause__` is its exception."""


class Signal(Future):
    """A time, or None without a modelled clock, that one lane posts once and for which others wait;
    `by`: the lane that posts it."""

    post, arrived = Future.set_result, Future.result

    def __init__(self, by: str):
        super().__init__()
        self.by = by


class Launched:
    """What was launched on a lane. `wait()` returns the function's result, or raises its failure
    in a sentence."""

    def __init__(self, lane: "LaneRunner", name: str, number: int, timed: bool):
        self.lane, self.name, self._timed = lane, name, timed
        self.signal = f"{name} (launch {number})" if name else f"launch {number}"
        self._end, self._result = Signal(lane.name), None

    def wait(self):
        self.lane.group.after(self.signal, self._end.by, self._end.arrived)
        if self.lane.error and self._result is None:
            self.lane.told = True
            raise self.lane.error
        return self._result[0]

    def settle(self) -> None:
        """Return when it is done, or has failed; no modelled clock moves."""
        self._end.arrived()

    def run(self, function: Callable) -> None:
        """On the lane's thread."""
        try:
            if not self.lane.error:
                self._result = (function(self.lane.group),)
        except BaseException as error:  # noqa: B902  (whoever waits raises it)
            self.lane.error = self.lane.group.failed(error, self.lane.name, self.name)
        end = self.lane.group.post(self.signal)
        self._end.post(end if self._timed else 0)


class LaneRunner:
    """The lane `name`; `group` is what its functions talk through, and nobody else. After a
    failure nothing more is run."""

    def __init__(self, group, name: str):
        self.group, self.name = group, name
        self.error: BaseException | None = None
        self.told = False  # whether somebody has met the error
        self._queue: SimpleQueue = SimpleQueue()
        self._count = 0
        self._thread: threading.Thread | None = None

    def launch(self, function: Callable, name: str = "", timed: bool = True) -> Launched:
        """Run `function(group)` on the lane, after what was launched before; returns at once.
        Not `timed`: neither the launch nor a wait for it moves a modelled clock, as of a plan,
        which says by itself what waits for what."""
        launched = Launched(self, name, self._count, timed)
        gradients = torch.is_grad_enabled()
        self.group.issue(
            begin_of(self.name, self._count),
            lambda issued: self._queue.put((launched, function, issued if timed else 0, gradients)),
        )
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(self._count,), daemon=True)
            self._thread.start()
        self._count += 1
        return launched

    def finish(self) -> None:
        """Return when all that was launched is done, what it sent is taken, and the lane writes no
        more to the log. Raises the lane's failure unless a wait() did."""
        if self._thread is None:
            return
        last = self.launch(lambda group: group.finish(), "the end", timed=False)
        self._queue.put(None)
        ending, self._thread = self._thread, None
        if not self.told:
            last.wait()
            ending.join()

    def _run(self, number: int) -> None:
        if self.group.device.type == "cuda":
            torch.cuda.set_device(self.group.device)
        self.group.enter()
        taken = []

        def take() -> int | None:
            if (launch := self._queue.get()) is None:
                raise SystemExit  # of this thread
            taken[:] = launch
            return taken[2]

        while True:
            if self.error:  # the log keeps what the lane was at when it failed
                take()
            else:
                self.group.after(begin_of(self.name, number), "compute", take, idle=True)
            launched, function, _, gradients = taken
            with torch.set_grad_enabled(gradients):
                launched.run(function)
            taken.clear()  # what the function keeps alive goes with it
            del launched, function
            number += 1


def begin_of(lane: str, number: int) -> str:
    """The signal for which an idle lane waits."""
    return f"{lane} {number}"
