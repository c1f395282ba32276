"""The run bar: Run, Stop, Pin, History, Copy command, more settings; below it the status, the
commands, the past runs.

It knows widgets only: what a press does is the panel's business.
"""

import asyncio
from collections.abc import Callable
from html import escape

import ipywidgets as widgets

from ..core.files import printable
from .controls import fixed
from .history import Past

ECHO_S = 60.0  # a page that was closed does not answer: then the press counts as it stands
SHUT, OPEN = "none", None  # of a layout's display
ROWS = 3, 8  # of the list of runs: at least, at most
SINCE = {"settings": "with other settings", "order": "of an earlier order"}


def button(text: str, icon: str, tooltip: str, width: str, kind: type = widgets.Button, **more):
    return kind(description=text, icon=icon, tooltip=tooltip, layout=fixed(width, **more))


class Bar(widgets.VBox):
    """Its parts are attributes. `choose` is given the Past that was chosen, `copy` the text to be
    copied."""

    def __init__(self, choose, copy):
        self._copy, self._end = copy, None
        self.run = button("Run", "play", "start the real processes", "150px")
        self.run.button_style = "success"
        self.stop = button("Stop", "stop", "end the processes now", "76px")
        self.stop.disabled = True
        self.pin = button(
            "Pin", "thumb-tack", "keep what is shown, to compare with", "74px"
        ).add_class("btl-pin")
        self.unpin = button(
            "Unpin", "times", "compare with nothing any more", "84px", display=SHUT
        ).add_class("btl-unpin")
        self.history = button(
            "History",
            "history",
            "list the runs kept under runs/, and reopen one",
            "104px",
            widgets.ToggleButton,
        )
        self.command = button(
            "Copy command",
            "copy",
            "copy the same run for a shell, and show it for torchrun",
            "154px",
            widgets.ToggleButton,
        )
        self.more = button(
            "more settings", "sliders", "show the other settings", "140px", widgets.ToggleButton
        )
        self.status = widgets.HTML(
            layout=widgets.Layout(width="auto", min_height="18px", margin="0 2px")
        )
        self.lines = widgets.VBox([], layout=widgets.Layout(display=SHUT, width="auto")).add_class(
            "btl-commands"
        )
        self.past = widgets.Select(rows=ROWS[0], layout=widgets.Layout(width="auto")).add_class(
            "btl-history"
        )
        self.past.tooltip = "choose a run to reopen it"
        self.past.observe(lambda change: choose(change["new"]) if change["new"] else None, "value")
        self.about_past = widgets.HTML(layout=widgets.Layout(width="auto"))
        self._list = widgets.VBox(
            [self.past, self.about_past],
            layout=widgets.Layout(display=SHUT, width="auto", margin="2px"),
        )
        row = widgets.HBox(
            [self.run, self.stop, self.pin, self.unpin, self.history, self.command, self.more],
            layout=widgets.Layout(width="auto", overflow="hidden", margin="2px 0 0"),
        )
        super().__init__(
            [row, self.status, self.lines, self._list],
            layout=widgets.Layout(width="auto", overflow="hidden"),
        )

    def enable(self, impossible: bool, runs: bool, predicting: bool, running: bool) -> None:
        """Which buttons can be pressed now."""
        self.run.disabled = impossible or predicting or running or not runs
        self.stop.disabled = not running
        self.pin.disabled = impossible or predicting
        self.past.disabled = running

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

    def write(self, commands: dict[str, str], copy: bool = False) -> None:
        """While Copy command is pressed: show the commands, if there are any, each with a button
        that copies it; `copy` the first."""
        if not (commands and self.command.value):
            self.lines.layout.display = SHUT
            return
        if copy:
            self._copy(next(iter(commands.values())))
        if len(self.lines.children) != len(commands):
            self.lines.children = [
                widgets.HBox(
                    [
                        button("", "copy", "", "32px"),
                        widgets.HTML(layout=widgets.Layout(flex="1 1 auto", min_width="0")),
                    ],
                    layout=widgets.Layout(width="auto"),
                )
                for _ in commands
            ]
            for row in self.lines.children:
                row.children[0].on_click(lambda pressed: self._copy(self._texts[pressed]))
        self._texts = {
            row.children[0]: text for row, text in zip(self.lines.children, commands.values())
        }
        for row, (label, text) in zip(self.lines.children, commands.items()):
            row.children[0].tooltip = f"copy: {label}"
            row.children[1].value = (
                f'<div class="btl-command"><span>{escape(label)}</span>'
                f"<code>{escape(text)}</code></div>"
            )
        self.lines.layout.display = OPEN

    def list_past(self, runs: list[Past], older: int) -> None:
        """Show the list, nothing chosen."""
        self.past.value = None  # first: where something is chosen, new options choose their first
        self.past.options = [(str(past), past) for past in runs]
        self.past.rows = min(max(ROWS[0], len(runs)), ROWS[1])
        left = (
            f"{older} older runs are not listed: bigtrain show DIRECTORY opens each. "
            if older
            else ""
        )
        self.about_past.value = (
            f'<div class="btl-soft">{left}Choose a run to reopen it, without processes.</div>'
            if runs
            else '<div class="btl-soft">There are no runs in runs/ yet: press Run.</div>'
        )
        self._list.layout.display = OPEN

    def shut_past(self) -> None:
        self._list.layout.display = SHUT


class Press:
    """A press of Run or Pin, once all moves are in: `.now(act)` at a press, `.settled()` after each
    prediction; `act()` is called when `ready()`, once for presses that came together.

    A browser sends the moves of a slider one at a time: the next one waits until the kernel has
    answered the last, so a press may overtake the place where the slider was let go. A press
    therefore asks the player in the browser for an echo, which comes behind all that was still to
    be sent, and acts when it is there and the last move is predicted.

    A player says that it is drawn by an echo of 0; until one has, a press waits for no echo. A page
    that is busy may take seconds to answer, and a kernel that works off its moves as long: an early
    end of the wait would take other settings.
    """

    def __init__(self, player, ready: Callable[[], bool]):
        self._player, self._ready, self._asked, self._drawn = player, ready, 0, False
        self._open: dict[
            Callable[[], object], int
        ] = {}  # what was pressed -> the echo that is still to come
        self._wanted: list[Callable[[], object]] = []  # of which only the prediction is
        player.on_msg(lambda _, content, buffers: self._echo(content.get("echo")))

    def now(self, act: Callable[[], object]) -> None:
        self._asked += 1
        self._open[act] = self._asked
        if self._drawn:
            asyncio.get_running_loop().call_later(ECHO_S, self._echo, self._asked)
            self._player.send({"do": "echo", "text": self._asked})
        else:
            self._echo(self._asked)

    def _echo(self, asked: int | None) -> None:
        """All that was sent before that press is in. Each view of the panel answers: the first one
        counts."""
        self._drawn = self._drawn or asked == 0
        for act in [act for act, number in self._open.items() if number == asked]:
            del self._open[act]
            self._wanted.append(act)
            self.settled()

    def settled(self) -> None:
        """A prediction may have come."""
        while self._wanted and self._ready():
            self._wanted.pop(0)()
