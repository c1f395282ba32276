"""Values only, no torch: families, knobs, traces, meshes, lanes, costs and hardware."""

from .available import available_bytes
from .cost import COLLECTIVES, Cost, Inside
from .events import MEMORY_KINDS, Alive, Histogram, Memory, Scalar, Span, Transfer
from .family import ByFields, Family
from .files import write_whole
from .formats import DTYPES
from .grouped import grouped
from .hardware import PROFILES, TICKS_PER_SECOND, Constant, Hardware, Wire
from .impossible import Impossible, refuse
from .knob import Knob, knob
from .lane import FREE, Lane, Link
from .mesh import Mesh
from .peak import Peak, followed, over_step, peak, readings
from .trace import CLOCKS, Trace
from .words import UNITS, by_kind, counted, duration, number, prefix, ranks, size

__all__ = [
    "Alive",
    "CLOCKS",
    "COLLECTIVES",
    "DTYPES",
    "FREE",
    "MEMORY_KINDS",
    "ByFields",
    "Constant",
    "Cost",
    "Family",
    "Hardware",
    "Histogram",
    "Impossible",
    "Inside",
    "Knob",
    "Lane",
    "Link",
    "Memory",
    "Mesh",
    "Scalar",
    "Span",
    "Trace",
    "Transfer",
    "PROFILES",
    "TICKS_PER_SECOND",
    "Wire",
    "Peak",
    "followed",
    "grouped",
    "over_step",
    "peak",
    "readings",
    "UNITS",
    "by_kind",
    "counted",
    "duration",
    "number",
    "prefix",
    "ranks",
    "size",
    "available_bytes",
    "knob",
    "refuse",
    "write_whole",
]
