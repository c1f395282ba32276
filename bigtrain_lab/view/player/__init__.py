"""The player: one canvas that gets a whole trace once, as bytes, and plays it in the browser
without the kernel.

Schedule above, messages between its rows, memory by kind below, one time axis and one playhead
through all; a click on a rank's peak lists what was alive then. Playing, stepping, scrubbing and
zooming are local to the browser (player.js, player_picture.js, player_peak.js), so a busy kernel
does not stop them. Of a collective, player_chunks.js shows each chunk on its way in place of
memory.
"""

from pathlib import Path

import anywidget
import traitlets

from ...core import Trace
from ..packed import pack
from ..spoken import Spoken, look

HERE = Path(__file__).parent


class Player(Spoken, anywidget.AnyWidget):
    """Shows a trace. `limit_bytes` draws the device's memory as a dashed line; `height` in pixels,
    None to fit the ranks; `opens_at`: the tick at which the playhead stands first, None: the
    end."""

    _esm = "".join(
        (HERE / name).read_text(encoding="utf-8")
        for name in (
            "player_words.js",
            "player_picture.js",
            "player_chunks.js",
            "player_peak.js",
            "player_save.js",
            "player.js",
        )
    )
    _css = (HERE / "player.css").read_text(encoding="utf-8")
    data = traitlets.Bytes(b"").tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)
    live = traitlets.Bool(False).tag(sync=True)
    look = traitlets.Dict().tag(sync=True)
    limit_bytes = traitlets.Int(None, allow_none=True).tag(sync=True)
    height = traitlets.Int(None, allow_none=True).tag(sync=True)
    opens_at = traitlets.Int(None, allow_none=True).tag(sync=True)
    # how wide a panel is, in a browser; until it has told: a laptop's cell beside the list of files
    room = traitlets.Int(900).tag(sync=True)
    # ids of the models of a panel's controls, whose moves a press brings with it
    controls = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(
        self,
        trace: Trace | None = None,
        limit_bytes: int | None = None,
        height: int | None = None,
        **traits,
    ):
        super().__init__(limit_bytes=limit_bytes, height=height, look=look(), **traits)
        self.show(trace)

    def show(
        self,
        trace: Trace | None,
        note: str = "",
        live: bool = False,
        step_ends: tuple[int, ...] | None = None,
        whole: Trace | None = None,
        pinned: Trace | None = None,
        plan: Trace | None = None,
    ) -> None:
        """Replace the trace, in one message. A `note` greys it and says why; without a trace the
        note stands alone.

        `live`: the trace still grows, and the playhead stays at its end. `step_ends`: of a part of
        a trace, where its steps end in the whole, whose peaks are marked. `pinned`: a trace whose
        rows stand under those of this one, on one time axis. `plan`: a trace whose boxes stay
        behind those of this one, pale.
        """
        with self.hold_sync():
            self.live = live
            self.data = pack(trace, step_ends, whole, pinned, plan) if trace is not None else b""
            self.note = note

    def play(self) -> None:
        """Play from the start."""
        self.send({"do": "play"})
