"""What can happen in a run: each kind of event is a tuple that begins (rank, lane, kind, name,
start); times are ticks.

The types say what a value may be, and `saved` holds JSON to them: an event that was read is as
good as one that was made here.
"""

from functools import cache
from typing import Annotated, Literal, NamedTuple, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter

TRACE_RANKS = 4096  # of a trace
Rank = Annotated[int, Field(ge=0, lt=TRACE_RANKS)]
Tick = Annotated[int, Field(ge=0, le=2**62)]
Bytes = Annotated[int, Field(ge=0, le=2**62)]
Lane = Annotated[str, Field(max_length=200)]  # a row of a picture is named after it

MEMORY_KINDS = (
    "weights",
    "master",
    "stashed",
    "gradients",
    "optimizer",
    "activations",
    "recomputed",
    "queued",
    "communication",
    "temporaries",
)

at_once = property(lambda event: event.start, doc="The end of an event that takes no time.")


class Span(NamedTuple):
    """A lane was busy with `name` ("2F0", several joined by "+"); `version` is the weight version
    it used."""

    rank: Rank
    lane: Lane
    kind: str
    name: str
    start: Tick
    end: Tick
    version: Tick | None = None


class Transfer(NamedTuple):
    """A message `name` left `src` at `start` and had wholly arrived at `rank` at `end`; told by the
    receiver."""

    rank: Rank
    lane: Lane
    kind: str
    name: str
    start: Tick
    end: Tick
    src: Rank
    bytes: Bytes


class Memory(NamedTuple):
    """From `start` on, `rank` holds `bytes` of `kind`. `inside` marks a reading between action
    boundaries."""

    rank: Rank
    lane: Lane
    kind: str
    name: str
    start: Tick
    bytes: Bytes
    inside: bool = False

    end = at_once


class Scalar(NamedTuple):
    """A number that a rank reported, such as a loss."""

    rank: Rank
    lane: Lane
    kind: str
    name: str
    start: Tick
    value: float

    end = at_once


class Histogram(NamedTuple):
    """Counts of a tensor's values between `edges` (one more edge than counts)."""

    rank: Rank
    lane: Lane
    kind: str
    name: str
    start: Tick
    edges: tuple[float, ...]
    counts: tuple[Bytes, ...]

    end = at_once


class Alive(NamedTuple):
    """One storage that was alive when `rank` held the most bytes. `name`: the operator that made
    it, or the weight it is; `module`: the path of the module that made it; `made`: the action in
    which; both "" where that is not known.
    """

    rank: Rank
    lane: Lane
    kind: str
    name: str
    start: Tick
    bytes: Bytes
    shape: tuple[Bytes, ...] = ()
    dtype: str = ""
    module: str = ""
    made: str = ""

    end = at_once


EVENTS = {cls.__name__.lower(): cls for cls in (Span, Transfer, Memory, Scalar, Histogram, Alive)}


def fields_of(event: type, timed: bool = True) -> dict[str, type]:
    """The types of an event's fields by name; without `timed`, its times may be null."""
    fields = get_type_hints(event, include_extras=True)
    return (
        fields
        if timed
        else {name: of | None if name in ("start", "end") else of for name, of in fields.items()}
    )


@cache
def saved(name: str) -> TypeAdapter:
    """What holds the line of an event in a saved trace to its types, as they are written: text is
    no number, and True none either. KeyError where there is no such event."""
    return TypeAdapter(
        tuple[Literal[name], *fields_of(EVENTS[name]).values()], config=ConfigDict(strict=True)
    )


def event_of(line: bytes, ranks: int):
    """The event of a saved trace's line; ValueError or KeyError where it holds none of a trace with
    so many ranks."""
    name, *fields = saved(named(line)).validate_json(line)
    return sound(EVENTS[name](*fields), ranks)


def named(line: bytes) -> str:
    """The text that a line of JSON begins with: ["span", ..."""
    return line[2 : line.index(b'"', 2)].decode() if line.startswith(b'["') else ""


def sound(event, ranks: int):
    """The event, whose fields fit together; ValueError where they do not."""
    if (
        (event.start is None) != (event.end is None)
        or event.start is not None
        and event.end < event.start
    ):
        raise ValueError("it ends before it starts")
    if event.rank >= ranks or isinstance(event, Transfer) and event.src >= ranks:
        raise ValueError(f"it is of a rank that a run of {ranks} does not have")
    if isinstance(event, Histogram) and len(event.edges) != len(event.counts) + 1:
        raise ValueError("a histogram has one edge more than counts")
    return event
