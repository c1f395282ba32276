"""The panel: one look for every experiment, made from its knobs: controls, Run, three clocks over one player, a table."""

from .panel import Panel, show

__all__ = ["Panel", "show"]
