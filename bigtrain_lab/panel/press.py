"""A press of Run or Pin, once all moves are in.

A browser sends the moves of a slider one at a time: the next one waits until the kernel has answered the last, so a press may
overtake the place where the slider was let go. A press therefore asks the player in the browser for an echo, which comes
behind all that was still to be sent, and acts when it is there and the last move is predicted.
"""

import asyncio
from collections.abc import Callable

ECHO_S = 60.0  # a page that was closed does not answer: then the press counts as it stands


class Press:
    """`.now(act)` at a press, `.settled()` after each prediction; `act()` is called when `ready()`, once for presses that came together.

    A player says that it is drawn by an echo of 0; until one has, a press waits for no echo. A page that is busy may take
    seconds to answer, and a kernel that works off its moves as long: an early end of the wait would take other settings.
    """

    def __init__(self, player, ready: Callable[[], bool]):
        self._player, self._ready, self._asked, self._drawn = player, ready, 0, False
        self._open: dict[Callable[[], object], int] = {}  # what was pressed -> the echo that is still to come
        self._wanted: list[Callable[[], object]] = []  # of which only the prediction is
        player.on_msg(lambda _, content, buffers: self._echo(content.get("echo")))

    def now(self, act: Callable[[], object]) -> None:
        self._asked += 1
        self._open[act] = self._asked
        if self._drawn:
            asyncio.get_running_loop().call_later(ECHO_S, self._echo, self._asked)
            self._player.send({"do": "echo", "text": self._asked})
        else:
            self._echo(self._asked)

    def _echo(self, asked: int | None) -> None:
        """All that was sent before that press is in. Each view of the panel answers: the first one counts."""
        self._drawn = self._drawn or asked == 0
        for act in [act for act, number in self._open.items() if number == asked]:
            del self._open[act]
            self._wanted.append(act)
            self.settled()

    def settled(self) -> None:
        """A prediction may have come."""
        while self._wanted and self._ready():
            self._wanted.pop(0)()
