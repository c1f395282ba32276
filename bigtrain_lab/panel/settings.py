"""The controls of an experiment, and what each move of one asks for: the prediction, or the nearest
settings that can be."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import psutil

from ..core.family import is_typed
from ..core.overtaken import WANTED, Overtaken, go_on
from ..core.said import said
from ..order.plan import collector_paused
from . import widgets
from .controls import (
    CELL,
    FOUND,
    IDLE,
    WRONG,
    controls_of,
    leaves,
    mark,
    members,
    places,
    put,
    refresh,
)
from .nearest import Prediction, attempt, nearest

PATIENCE_S = (
    0.1  # a prediction that takes longer goes on in a thread, and what is shown is greyed meanwhile
)
# a call that takes so long may never end (a class typed in a cell can loop): the next one passes it
STUCK_S = 10.0
MOST = 100_000  # events of predictions ahead, some 30 MB
GRID = {
    "grid_template_columns": "repeat(auto-fit, minmax(164px, 1fr))",
    "grid_gap": "0 20px",
    "width": "auto",
    "overflow": "hidden",
}


class Settings(widgets.GridBox):
    """`.controls` by name: the first ones in this grid, the others in the grid `.more`, which is
    shown elsewhere.

    `answered(prediction or sentence, offer)` is called after each move, `waiting()` before it where
    the answer takes long; the offer is {setting: value} that mends what cannot be. `leaves`: what a
    hand can move, by its model's id.
    """

    looked: ClassVar["Settings | None"] = None  # of all panels of a kernel one keeps what it made

    def __init__(
        self,
        experiment,
        answered: Callable[[Prediction | str, dict], None],
        waiting: Callable[[], None],
        lock: threading.RLock,
    ):
        self._tell, self._tell_waiting, self._lock = answered, waiting, lock
        self._newest, self._asked, self._answered = Newest(), 0, 0
        self._quiet, self._moved, self._before, self._ahead = False, None, None, {}
        super().__init__([], layout=widgets.Layout(**GRID))
        self.add_class("btl-controls")
        self.more = widgets.GridBox([], layout=widgets.Layout(**GRID)).add_class("btl-controls")
        self.defaults = widgets.Button(
            description="Defaults", icon="undo", tooltip="the lab's default settings"
        )
        self.defaults.on_click(lambda _: self.set(**self.experiment_class().model_dump()))
        self.search = widgets.Text(placeholder="search these settings", layout=CELL).add_class(
            "btl-search"
        )
        self.search.observe(lambda change: self._find(change["new"]), "value")
        self.fit(experiment)

    def fit(self, experiment) -> None:
        """Controls for this experiment's class, at its values."""
        self.experiment = (
            experiment  # what its run kept, if it is of one, prices what the controls say
        )
        knobs = self.experiment_class.knobs()
        self.controls, self._members = controls_of(experiment), members(knobs)
        for name, made in self.controls.items():
            made.observe(lambda change, name=name: self._on_move(name, change), "value")
        first, others = (
            [self.controls[n] for n, k in knobs.items() if k.more == folded]
            for folded in (False, True)
        )
        self.children, self.more.children = first, [self.search, *others, self.defaults]
        self.search.value = ""
        self.leaves = {leaf.model_id: leaf for leaf in leaves(self) + leaves(self.more)}
        for leaf in self.leaves.values():
            # a move waits for one that another thread takes, before its value is to be seen
            leaf.set_state = partial(self._alone, type(leaf).set_state, leaf)

    def _alone(self, act: Callable, *given) -> None:
        with self._lock:
            act(*given)

    @property
    def experiment_class(self) -> type:
        return type(self.experiment)

    def _find(self, text: str) -> None:
        """Show of `more` the settings in whose help, name or range the text is, also those without
        effect."""
        text = text.strip().lower().replace("_", "-")
        (self.more.add_class if text else self.more.remove_class)("btl-searched")
        found = [
            name
            for name, made in self.controls.items()
            if text in f"{said(made.description)} {made.tooltip} {said(made.tooltip)}".lower()
        ]
        mark(self.controls, found if text else (), FOUND)

    def set(self, **settings) -> None:
        """Move controls, as a hand would, and predict once."""
        with self._lock:
            self._quiet, self._ahead = True, {}
            try:
                for name, value in settings.items():
                    put(self.controls[name], value)
                    self._moved = name
            finally:
                self._quiet = False
            self.predict()

    def take(self, moves: dict[str, dict]) -> None:
        """Move what a page has moved, the last move last: {id of a leaf's model: its state}."""
        for model_id, state in moves.items():
            if leaf := self.leaves.get(model_id):
                # set_state would echo it: over what the page has moved since, and not sent yet
                with leaf._lock_property(**state), leaf.hold_trait_notifications():
                    for name, value in state.items():
                        leaf.set_trait(name, value)

    def settle(self) -> None:
        """Wait until what the controls say is predicted, unless it takes very long."""
        if self.predicting:
            self.predict(STUCK_S)

    def read_menus(self) -> None:
        """Offer what the families now hold; predict again only where a class has been typed or
        changed. What was predicted ahead may be of others."""
        knobs, self._ahead = self.experiment_class.knobs(), {}
        now = members(knobs)
        if now == self._members:
            return
        self._members, self._quiet = now, True
        try:
            refresh(self.controls, knobs)
        finally:
            self._quiet = False
        self.predict(PATIENCE_S)

    def _on_move(self, name: str, change: dict) -> None:
        if not self._quiet:
            self._moved, self._before = name, change["old"]
            self.predict(PATIENCE_S)

    def predict(self, patience_s: float | None = None) -> None:
        """Predict what the controls say; what takes longer than `patience_s` comes later, unless a
        control moves on; without it, all that the lab says comes at once. Of several threads one
        asks at a time."""
        with self._lock:
            settings = {name: made.value for name, made in self.controls.items()}
            self._asked_of = settings
            first, moved = self.experiment, self._moved
            mark(self.controls, first.idle_settings(settings), IDLE)
            self._asked = asked = self._asked + 1

            def compute():
                ahead, key = self._ahead, tuple(settings.values())
                tried = ahead.get(key) or attempt(first, settings, whole=patience_s is None)
                if 0 < events(ahead) < 2 * MOST:  # a hand moves, and may come back
                    ahead[key] = tried
                refused = isinstance(tried, str)
                return asked, tried, refused and nearest(first, settings, moved, tried) or {}

            self._newest.ask(compute, self._on_answer, patience_s)
            if self.predicting:
                self._tell_waiting()

    @property
    def predicting(self) -> bool:
        """Whether what the controls say is still to be predicted, or they are being set."""
        return self._quiet or self._answered < self._asked

    def look_ahead(self) -> Iterator[Prediction]:
        """Predict the settings that a hand may ask for next, the likeliest first. Not while others
        need this machine, and not of a class typed in a cell, which may print or never end."""
        with self._lock:
            go_on()  # else a cell may have changed what settings mean
            if Settings.looked not in (None, self):
                Settings.looked._ahead = {}
            Settings.looked = self
            first, now, before = self.experiment, self._asked_of, self._ahead
            own = tuple(now.values())
            self._ahead = made = {own: before[own]} if own in before else {}
        if any(map(is_typed, first.members(now))):
            return
        for name, value in self._likely(now):
            go_on()
            if events(made) > MOST or psutil.getloadavg()[0] > os.cpu_count() + 1:
                return
            asked = now | {name: value}
            key = tuple(asked.values())
            found = made[key] = before.get(key) or attempt(first, asked, whole=False)
            if not isinstance(found, str):
                yield found

    def _likely(self, now: dict[str, Any]) -> list[tuple[str, Any]]:
        """(slider in sight, value): where its last move began, as far again, then, the nearest
        first, what lies beside that, where it stands, or at its ends."""
        found = []
        for name in (name for name in now if self.controls[name] in self.children):
            # none of a menu: it may have this machine, which is measured when it is chosen
            values = sorted({now[name], *places(self.controls[name])})
            last, at, moved = len(values) - 1, values.index(now[name]), name == self._moved
            began = values.index(self._before) if moved and self._before in values else at
            onward = 2 * at - began
            for i, value in enumerate(values):
                apart = min(abs(i - onward), abs(i - at), 1 + i, 1 + last - i)
                found.append((i != began, apart, not moved, abs(i - onward), name, value))
        return [each[-2:] for each in sorted(found) if each[-1] != now[each[-2]]]

    @collector_paused()
    def _on_answer(self, answer: tuple[int, Prediction | str, dict]) -> None:
        with self._lock:
            self._answered, tried, offer = answer
            mark(self.controls, offer, WRONG)
            self._tell(tried, offer)


def events(ahead: dict[tuple, Prediction | str]) -> int:
    """Of all these predictions; another thread may add to them."""
    return sum(len(each.trace) for each in [*ahead.values()] if isinstance(each, Prediction))


class Newest:
    """The newest of several calls: an answer to an earlier one is worth nothing.

    A call that is over soon is answered in the caller's own thread. A long one is left to a daemon
    thread, and the kernel goes on. A newer one silences it, so it gives up at its next step, and of
    those that wait for its end only the newest begins. `ask` from any thread.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._last: threading.Event | None = None  # the end of the newest call

    def ask(
        self,
        compute: Callable[[], Any],
        then: Callable[[Any], None],
        patience_s: float | None = None,
    ) -> None:
        """Compute, which must not raise, then call `then(answer)`: later, where that takes longer
        than `patience_s`."""
        over, answer, left = threading.Event(), [], threading.Event()
        with self._lock:
            before, self._last = self._last, over

        def work():
            if before:
                before.wait(STUCK_S)
            WANTED.set(lambda: over is self._last)
            with suppress(Overtaken):
                go_on()
                answer.append(compute())
            with self._lock:
                over.set()
                late = left.is_set() and over is self._last
            if late and answer:
                then(*answer)

        threading.Thread(target=work, daemon=True, name="bigtrain_lab prediction").start()
        over.wait(patience_s)
        with self._lock:
            left.set()
            soon = over.is_set() and over is self._last
        if soon and answer:
            then(*answer)
