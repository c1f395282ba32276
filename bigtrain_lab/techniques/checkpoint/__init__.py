"""Recompute, in the order to read: `again` is the idea and checkpoint(fn), `chain` carries out a
plan of many layers, `inside` recomputes a part of a module only. `conditions` says what a rerun
depends on beside its arguments, `weigh` what layers weigh for a plan to choose by."""

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
