"""Recompute, in the order to read.

again        the idea, and checkpoint(fn)
chain        a plan for many layers
inside       recompute of a part of a module
conditions   what a rerun depends on beside its arguments
weigh        bytes and work of each layer, for a plan to choose by
"""

from .again import checkpoint, checkpoint_by_function
from .chain import checkpoint_sequential, recomputed
from .inside import selective
from .weigh import weigh

__all__ = [
    "checkpoint",
    "checkpoint_by_function",
    "checkpoint_sequential",
    "recomputed",
    "selective",
    "weigh",
]
