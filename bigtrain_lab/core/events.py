"""What can happen in a run: each kind of event is a tuple that begins (rank, lane, kind, name, start); times are ticks."""

from typing import NamedTuple

MEMORY_KINDS = ("weights", "master", "stashed", "gradients", "optimizer", "activations", "recomputed", "queued", "communication",
                "temporaries")

at_once = property(lambda event: event.start, doc="The end of an event that takes no time.")


class Span(NamedTuple):
    """A lane was busy with `name` ("2F0", several joined by "+"); `version` is the weight version it used."""

    rank: int
    lane: str
    kind: str
    name: str
    start: int
    end: int
    version: int | None = None


class Transfer(NamedTuple):
    """A message `name` left `src` at `start` and had wholly arrived at `rank` at `end`; told by the receiver."""

    rank: int
    lane: str
    kind: str
    name: str
    start: int
    end: int
    src: int
    bytes: int


class Memory(NamedTuple):
    """From `start` on, `rank` holds `bytes` of `kind`. `inside` marks a reading between action boundaries."""

    rank: int
    lane: str
    kind: str
    name: str
    start: int
    bytes: int
    inside: bool = False

    end = at_once


class Scalar(NamedTuple):
    """A number that a rank reported, such as a loss."""

    rank: int
    lane: str
    kind: str
    name: str
    start: int
    value: float

    end = at_once


class Histogram(NamedTuple):
    """Counts of a tensor's values between `edges` (one more edge than counts)."""

    rank: int
    lane: str
    kind: str
    name: str
    start: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    end = at_once


class Alive(NamedTuple):
    """One storage that was alive when `rank` held the most bytes. `name`: the operator that made it, or the weight it is;
    `module`: the path of the module that made it; `made`: the action in which; both "" where that is not known."""

    rank: int
    lane: str
    kind: str
    name: str
    start: int
    bytes: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    module: str = ""
    made: str = ""

    end = at_once


EVENTS = {cls.__name__.lower(): cls for cls in (Span, Transfer, Memory, Scalar, Histogram, Alive)}


def event_of(name: str, values: list):
    """An event from its JSON array."""
    return EVENTS[name](*(tuple(v) if isinstance(v, list) else v for v in values))
