"""Of several predictions only the newest counts: one that nobody waits for any more gives up at its
next step."""

from collections.abc import Callable
from contextvars import ContextVar

# of a thread: whether anybody waits for what it computes
WANTED: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)


class Overtaken(BaseException):
    """Nobody waits for the result any more. No error, so nothing that catches errors goes on."""


def go_on() -> None:
    """Overtaken where nobody waits for what this thread computes."""
    if not WANTED.get()():
        raise Overtaken
