"""The panel: one look for every experiment, made from its knobs: controls, Run, three clocks over
one player, a table."""

import gc

from ..train.dry_run import wake
from .by_hand import OrderByHand as by_hand, PiecesByHand, RingByHand
from .panel import Panel, show

__all__ = ["Panel", "PiecesByHand", "RingByHand", "by_hand", "show"]

wake()  # the first prediction would import as much again
# The libraries imported above are hundreds of thousands of objects that stay until the kernel ends.
# Out of the collector's sight, they no longer make one slider move in ten wait a third of a second
# for a full collection.
gc.collect()
gc.freeze()
