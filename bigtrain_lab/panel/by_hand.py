"""A pipeline schedule put together by hand: choose what each rank runs next, and see when it runs.

An action starts when its rank is free and what it needs is there; a forward takes one slot, a
backward two. A micro-batch is alive on a rank from its forward to its backward. What cannot run yet
is refused in a sentence.
"""

from ..core import Impossible
from ..order.schedule import Action, Schedule
from ..order.simulate import simulate
from ..view.palette import PHASES
from . import widgets
from .controls import fixed

SLOTS = {"F": 1, "B": 2}
WORDS = {"F": "forward", "B": "backward"}
SLOT_PX, WIDE_PX = 18, 640  # of a slot, while so many pixels hold the whole
BAR = "position:relative;height:24px;background:var(--jp-layout-color2)"
BOX = (
    "position:absolute;top:1px;height:22px;line-height:22px;text-align:center;font-size:11px;"
    "color:#111;box-sizing:border-box;border:1px solid #fff"
)


class ByHand(widgets.VBox):
    """An order that grows by `put(rank, kind)`, or by its buttons. `ends`: action -> the slot at
    which it ends, in the order of their being put; `schedule`: all of it, once it is complete."""

    def __init__(self, ranks: int = 4, micro_batches: int = 8):
        self.par = Schedule.named("1f1b")(ranks, micro_batches)
        self.ends: dict[Action, int] = {}
        self.said = widgets.HTML()
        self._rows = [widgets.HTML(layout=widgets.Layout(flex="1 1 auto")) for _ in range(ranks)]
        rows = [
            widgets.HBox(
                [widgets.Label(f"rank {rank}"), *(self._button(rank, kind) for kind in SLOTS), row]
            )
            for rank, row in enumerate(self._rows)
        ]
        back = widgets.Button(description="Take back", icon="undo", layout=fixed("110px"))
        back.on_click(lambda _: self.take_back())
        super().__init__([*rows, widgets.HBox([back, self.said])])
        self._draw("Choose what each rank runs: F a forward, B a backward.")

    def _button(self, rank: int, kind: str) -> widgets.Button:
        pressed = widgets.Button(
            description=kind,
            tooltip=f"rank {rank}: the next {WORDS[kind]}",
            layout=fixed("36px"),
            style={"button_color": PHASES[kind]},
        )
        pressed.on_click(lambda _: self._press(rank, kind))
        return pressed

    def _press(self, rank: int, kind: str) -> None:
        try:
            self.put(rank, kind)
        except Impossible as error:
            self._draw(f"<b>{error}</b>")

    def put(self, rank: int, kind: str) -> None:
        """Let `rank` run its next forward, "F", or backward, "B"; Impossible where it cannot."""
        if rank not in range(self.par.ranks) or kind not in SLOTS:
            raise Impossible(
                f"Rank {rank} and {kind!r} stand in no row: give a rank from 0 to"
                f" {self.par.ranks - 1}, and F or B."
            )
        own = [action for action in self.ends if action.stage == rank]
        action = Action(kind, rank, sum(each.kind == kind for each in own))
        if action.micro_batch == self.par.micro_batches:
            raise Impossible(
                f"Rank {rank} has run all its {WORDS[kind]}s: choose another rank, or"
                f" {'B' if kind == 'F' else 'F'}."
            )
        needs = self.par.needs(action)
        for need in needs:
            if need not in self.ends:
                raise Impossible(
                    f"Rank {rank} cannot run {kind}{action.micro_batch} yet: it needs"
                    f" {need.kind}{need.micro_batch} of rank {need.stage}. Let that run first."
                )
        begins = max((self.ends[each] for each in [*own, *needs]), default=0)
        self.ends[action] = begins + SLOTS[kind]
        self._draw(self._told())

    def take_back(self) -> None:
        """Take back what was put last, if anything was."""
        if self.ends:
            self.ends.popitem()
        self._draw(self._told())

    @property
    def complete(self) -> bool:
        return len(self.ends) == 2 * self.par.ranks * self.par.micro_batches

    @property
    def schedule(self) -> Schedule:
        """The order; Impossible while it lacks an action."""
        if not self.complete:
            raise Impossible("The order is not complete: each rank runs each micro-batch twice.")
        texts = (
            " ".join(str(action) for action in self.ends if action.stage == rank)
            for rank in range(self.par.ranks)
        )
        return Schedule.of(*texts, name="by hand")

    def _told(self) -> str:
        if not self.complete:
            return f"{max(self.ends.values(), default=0)} slots so far."
        mine, par = (simulate(each, SLOTS) for each in (self.schedule, self.par))
        (own, most), (least, few) = (
            (plan.makespan, max(map(plan.peak_live, range(plan.ranks)))) for plan in (mine, par)
        )
        return (
            f"<b>{own:g} slots, {mine.bubble():.1%} idle, at most {most} alive on a rank.</b> Par:"
            f" {least:g} slots and {few} alive."
        )

    def _draw(self, said: str) -> None:
        px = min(SLOT_PX, WIDE_PX / max(self.ends.values(), default=1))
        self.said.value = f'<span role="status">{said}</span>'
        for rank, row in enumerate(self._rows):
            boxes = "".join(
                f'<span title="{WORDS[kind]} of micro-batch {of}, slots {end - SLOTS[kind]} to'
                f' {end}" style="{BOX};background:{PHASES[kind]};width:{px * SLOTS[kind]:.2f}px;'
                f'left:{px * (end - SLOTS[kind]):.2f}px">{of}</span>'
                for (kind, stage, of), end in self.ends.items()
                if stage == rank
            )
            row.value = f'<div style="{BAR}" role="img" aria-label="rank {rank}">{boxes}</div>'

    def __repr__(self) -> str:
        return f"<ByHand: {self.par.ranks} ranks, {self.par.micro_batches} micro-batches>"


def by_hand(ranks: int = 4, micro_batches: int = 8) -> ByHand:
    """A schedule to be put together by hand, as the value of a cell."""
    return ByHand(ranks, micro_batches)
