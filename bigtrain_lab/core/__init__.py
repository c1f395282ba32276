"""Values only, no torch: families, knobs, traces, meshes, lanes, costs and hardware."""

from .available import available_bytes
from .cost import Cost
from .events import MEMORY_KINDS, Alive, Histogram, Memory, Scalar, Span, Transfer
from .family import Family
from .files import write_whole
from .hardware import Hardware
from .impossible import Impossible
from .knob import Knob, knob
from .lane import FREE, Lane, Link
from .mesh import Mesh
from .trace import CLOCKS, Trace

__all__ = [
    "Alive",
    "CLOCKS",
    "FREE",
    "MEMORY_KINDS",
    "Cost",
    "Family",
    "Hardware",
    "Histogram",
    "Impossible",
    "Knob",
    "Lane",
    "Link",
    "Memory",
    "Mesh",
    "Scalar",
    "Span",
    "Trace",
    "Transfer",
    "available_bytes",
    "knob",
    "write_whole",
]
