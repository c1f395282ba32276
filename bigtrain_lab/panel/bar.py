"""The run bar above the picture, and the foot below it with its tabs.

They know widgets only: what a press does is the panel's business.
"""

from html import escape

from ..core.files import printable
from . import widgets
from .controls import fixed
from .history import Past
from .rows import Rows

SHUT, OPEN = "none", None  # of a layout's display
AUTO = widgets.Layout(width="auto")
WHY, NUMBERS, MORE, HISTORY, COMMAND = (
    "Why?",
    "Numbers",
    "more settings",
    "History",
    "Copy command",
)
TOLD = (
    "why it takes as long as it does",
    "predicted, modelled and measured, side by side",
    "the other settings",
    "the runs kept under runs/: reopen, star or delete them",
    "copy the same run for a shell, and show it for torchrun",
)
PAUSE = "Pause", "pause", "keep the processes where they are; they hold their memory"
RESUME = "Resume", "play", "let the processes go on"
SINCE = {"settings": "with other settings", "order": "of an earlier order"}


def button(text: str, icon: str, tooltip: str, width: str, kind: type = widgets.Button, **more):
    return kind(description=text, icon=icon, tooltip=tooltip, layout=fixed(width, **more))


class Bar(widgets.HBox):
    """Run, Pause, Stop, Pin and Unpin, and the status, which is shown elsewhere."""

    def __init__(self):
        self._end = None
        self.run = button("Run", "play", "start the real processes", "150px").add_class("btl-run")
        self.run.button_style = "primary"
        self.pause = button("Pause", "", "", "94px")
        self.stop = button("Stop", "stop", "end the processes now", "76px")
        self.pin = button(
            "Pin", "thumb-tack", "keep what is shown, to compare with", "74px"
        ).add_class("btl-pin")
        self.unpin = button(
            "Unpin", "times", "compare with nothing any more", "84px", display=SHUT
        ).add_class("btl-unpin")
        self.status = widgets.HTML(layout=widgets.Layout(flex="0 1 auto", min_width="0"))
        super().__init__(
            [self.unpin, self.run, self.pause, self.stop, self.pin],
            layout=widgets.Layout(flex="0 0 auto"),
        )

    def enable(
        self, impossible: bool, runs: bool, predicting: bool, running: bool, paused: bool
    ) -> None:
        """Which buttons can be pressed now, and whether a run goes on."""
        self.run.disabled = impossible or predicting or running or not runs
        self.pause.disabled = self.stop.disabled = not running
        self.pause.description, self.pause.icon, self.pause.tooltip = RESUME if paused else PAUSE
        self.pin.disabled = impossible or predicting

    def tell(
        self, text: str, title: str = "", ended: bool = False, share: float | None = None
    ) -> None:
        """Show what goes on, in a line, with the `share` of it that is done; or how a run
        `ended`."""
        self._end = (text, title) if ended else None
        self._say(text, title, share)

    def date(self, stale: str, only_predicted: str = "") -> None:
        """Where nothing runs, say why these settings do not, and of how a run ended what has
        changed since: "settings", "order", or nothing."""
        if self.stop.disabled:
            text, title = self._end or ("", "")
            ended = f"the last run, {SINCE[stale]}: {text}" if stale and text else text
            self._say(
                (
                    f"{only_predicted.rstrip('.')}; {ended}"
                    if only_predicted and ended
                    else only_predicted or ended
                ),
                title,
            )

    def _say(self, text: str, title: str, share: float | None = None) -> None:
        bar = f'<progress value="{share:.3f}" max="1"></progress>' if share is not None else ""
        self.status.value = (
            '<div class="btl-status" role="status"'
            f' title="{escape(printable(title))}">{bar}{escape(printable(text))}</div>'
            if text
            else ""
        )


class Foot(widgets.VBox):
    """Below the picture, one tab in view, in a frame that keeps its height: why, the numbers, the
    other settings, the runs that are kept, the commands.

    `opened(tab)` is told of each press; `choose` is given the Past that was pressed and what of it,
    `copy` the text to be copied.
    """

    def __init__(self, more: widgets.Widget, opened, choose, copy):
        self._copy = copy
        self.why, self.numbers = widgets.HTML(), widgets.HTML()
        self.lines = widgets.VBox([]).add_class("btl-commands")
        self.past = Rows(lambda row, what: choose(self.runs[row], what))
        self.runs: list[Past] = []
        self._panes = {
            WHY: self.why,
            NUMBERS: self.numbers,
            MORE: more,
            HISTORY: self.past,
            COMMAND: self.lines,
        }
        for pane in self._panes.values():
            pane.layout.width = "auto"
        self.tabs = widgets.ToggleButtons(
            options=list(self._panes), tooltips=TOLD, style={"button_width": "auto"}
        ).add_class("btl-tabs")
        self.tabs.observe(lambda change: (self._fit(), opened(change["new"])), "value")
        self._fit()
        super().__init__(
            [self.tabs, widgets.VBox([*self._panes.values()]).add_class("btl-pane")],
            layout=AUTO,
        )

    def _fit(self) -> None:
        for name, pane in self._panes.items():
            pane.layout.display = OPEN if name == self.tabs.value else SHUT

    def write(self, commands: dict[str, str]) -> None:
        """The commands, if there are any, each with a button that copies it."""
        self.texts = list(commands.values())
        if len(self.lines.children) != len(commands):
            self.lines.children = [self._line(at) for at in range(len(commands))]
        for row, (label, text) in zip(self.lines.children, commands.items()):
            row.children[0].tooltip = f"copy: {label}"
            row.children[1].value = (
                f'<div class="btl-command"><span>{escape(label)}</span>'
                f"<code>{escape(text)}</code></div>"
            )

    def _line(self, at: int) -> widgets.HBox:
        pressed = button("", "copy", "", "32px")
        pressed.on_click(lambda _: self.copy(at))
        return widgets.HBox(
            [pressed, widgets.HTML(layout=widgets.Layout(flex="1 1 auto", min_width="0"))],
            layout=AUTO,
        )

    def copy(self, at: int = 0) -> None:
        """Copy a command, if there is one."""
        if self.texts:
            self._copy(self.texts[at])
