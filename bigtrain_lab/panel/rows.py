"""A table whose rows are pressed: the rivals side by side, the runs that are kept."""

from collections.abc import Callable
from pathlib import Path

import anywidget
import traitlets

from ..view.spoken import Spoken


class Rows(Spoken, anywidget.AnyWidget):
    """`pressed(row, what)` is called for the row that was pressed, and what of it: "" for the row
    itself, else the data-do of a cell. `seen()`, where a browser shows it."""

    _esm = Path(__file__).with_name("rows.js").read_text(encoding="utf-8")
    html = traitlets.Unicode("").tag(sync=True)
    waiting = traitlets.Bool(False).tag(sync=True)

    def __init__(self, pressed: Callable[[int, str], None], seen=lambda: None, **traits):
        super().__init__(**traits)
        self.on_msg(
            lambda _, told, buffers: (
                pressed(told["row"], told.get("do", "")) if "row" in told else seen()
            )
        )
