"""Grids that are filled by hand: the order of a pipeline, the moves of a ring, the pieces of a
matrix. What cannot be is refused in a sentence at once, and the end is compared with the library's.

    order   F or B, what a rank runs next: it starts when its rank is free and what it needs is
            there. A micro-batch is alive on a rank from its forward to its backward.
    ring    the chunk that a rank sends to the next one in its next round, as it was when the round
            began. It is added to the other's, or takes the place of what is a part of it.
    pieces  the device that has the next of 4 x 4 pieces of W, in Y[n, f] = X[n, d] W[d, f]. Devices
            that share a row of pieces have a part of dX to sum, those that share a column one of Y.
"""

from itertools import islice, zip_longest

from ..core import Impossible, refuse, size
from ..experiments.layouts import Layouts
from ..order.collective import Collective, Move, Rounds, provenance, ranks_in
from ..order.schedule import Action, Schedule
from ..order.simulate import simulate
from ..techniques.layout_plan import Needed
from ..view.palette import IDLE, PHASE_NAMES, PHASES, ink, version
from . import widgets
from .controls import fixed

SLOTS = {"F": 1, "B": 2}
SLOT_PX, WIDE_PX, CELL_PX, SIDE = 18, 640, 46, 4  # of a slot, of all at most; pieces in a row
BOX = (
    '<span title="{}" style="display:inline-block;vertical-align:top;height:28px;width:{:.2f}px;'
    "line-height:28px;text-align:center;font-size:11px;"
    'box-shadow:inset 0 0 0 1px var(--jp-layout-color1);background:{};color:{}">{}</span>'
)


class ByHand(widgets.VBox):
    """A grid. `put(row, choice)`, or a button, fills the next cell of a row. `cells`: (row, what is
    in the cell), in the order of their being put; `rows`: the cells of each row.

    A subclass has the rules. `filled(row, choice)` is what a choice puts into the cell, or refuses
    it; `drawn(row)` is (text, colour, pixels, tooltip) of each cell; `result()` tells what was
    reached beside par, and is Impossible, saying what lacks, before the end."""

    def __init__(self, about: str, labels: list[str], colours: dict[str, str]):
        """`labels`: of the rows; `colours`: choice -> the colour of its button."""
        self.about, self.labels, self.colours, self.cells = about, labels, colours, []
        self.said, self._shown = widgets.HTML(), [widgets.HTML() for _ in labels]
        lines = [
            widgets.HBox(
                [
                    widgets.Label(label, layout=fixed("64px")),
                    *(self._button(row, choice) for choice in colours),
                    self._shown[row],
                ]
            )
            for row, label in enumerate(labels)
        ]
        back = widgets.Button(description="Take back", icon="undo", layout=fixed("110px"))
        back.on_click(lambda _: self.take_back())
        super().__init__([*lines, widgets.HBox([back, self.said])])
        self._draw()

    def _button(self, row: int, choice: str) -> widgets.Button:
        pressed = widgets.Button(
            description=choice,
            tooltip=f"{choice} into the next cell of {self.labels[row]}",
            layout=fixed("36px", padding="0"),
            style={"button_color": self.colours[choice], "text_color": ink(self.colours[choice])},
        )
        pressed.on_click(lambda _: self._press(row, choice))
        return pressed

    def _press(self, row: int, choice: str) -> None:
        try:
            self.put(row, choice)
        except Impossible as error:
            self._draw(f"<b>{error}</b>")

    def put(self, row: int, choice: str) -> None:
        """Fill the next cell of a row; Impossible where that cannot be."""
        refuse(
            (
                row not in range(len(self.labels)) or choice not in self.colours,
                f"{row} and {choice!r} stand in no row: give a row from 0 to"
                f" {len(self.labels) - 1}, and one of {', '.join(self.colours)}.",
            )
        )
        self.cells.append((row, self.filled(row, choice)))
        self._draw()

    def take_back(self) -> None:
        """Take back what was put last, if anything was."""
        del self.cells[-1:]
        self._draw()

    @property
    def rows(self) -> list[list]:
        return [[cell for at, cell in self.cells if at == row] for row in range(len(self.labels))]

    def _draw(self, refused: str = "") -> None:
        try:
            said = self.result()
        except Impossible as error:
            said = str(error)
        self.said.value = f'<span role="status">{refused or said}</span>'
        for row, shown in enumerate(self._shown):
            shown.value = "".join(
                BOX.format(told, px, colour or "none", ink(colour) if colour else "inherit", text)
                for text, colour, px, told in self.drawn(row)
            )

    def __repr__(self) -> str:
        return f"<ByHand: {self.about}>"


class OrderByHand(ByHand):
    """A pipeline's order; a cell is (action, the slot at which it ends)."""

    def __init__(self, ranks: int = 4, micro_batches: int = 8):
        self.par = Schedule.named("1f1b")(ranks, micro_batches)
        super().__init__(
            f"{ranks} ranks, {micro_batches} micro-batches",
            [f"rank {rank}" for rank in range(ranks)],
            {kind: PHASES[kind] for kind in SLOTS},
        )

    @property
    def ends(self) -> dict[Action, int]:
        """Action -> the slot at which it ends."""
        return dict(cell for _, cell in self.cells)

    def filled(self, rank: int, kind: str) -> tuple[Action, int]:
        ends, own = self.ends, dict(self.rows[rank])
        action = Action(kind, rank, sum(each.kind == kind for each in own))
        refuse(
            (
                action.micro_batch == self.par.micro_batches,
                f"Rank {rank} has run all its {PHASE_NAMES[kind]}s: choose another rank, or"
                f" {'B' if kind == 'F' else 'F'}.",
            )
        )
        for need in (needs := self.par.needs(action)):
            refuse(
                (
                    need not in ends,
                    f"Rank {rank} cannot run {kind}{action.micro_batch} yet: it needs"
                    f" {need.kind}{need.micro_batch} of rank {need.stage}. Let that run first.",
                )
            )
        begins = max((ends[each] for each in [*own, *needs]), default=0)
        return action, begins + SLOTS[kind]

    @property
    def schedule(self) -> Schedule:
        """The order; Impossible while it lacks an action."""
        refuse(
            (
                len(self.cells) < 2 * self.par.ranks * self.par.micro_batches,
                f"{max(self.ends.values(), default=0)} slots so far; not complete: each rank runs"
                " each micro-batch forward, F, and backward, B.",
            )
        )
        return Schedule.of(
            *(" ".join(str(action) for action, _ in row) for row in self.rows), name="by hand"
        )

    def result(self) -> str:
        mine, par = (simulate(each, SLOTS) for each in (self.schedule, self.par))
        (own, most), (least, few) = (
            (plan.makespan, max(map(plan.peak_live, range(plan.ranks)))) for plan in (mine, par)
        )
        return (
            f"<b>{own:g} slots, {mine.bubble():.1%} idle, at most {most} alive on a rank.</b> Par:"
            f" {least:g} slots and {few} alive."
        )

    def drawn(self, row: int):
        px = min(SLOT_PX, WIDE_PX / max(self.ends.values(), default=1))
        free = [0, *(end for _, end in self.rows[row])]
        for now, ((kind, _, of), end) in zip(free, self.rows[row]):
            told = f"{PHASE_NAMES[kind]} of micro-batch {of}, slots {end - SLOTS[kind]} to {end}"
            yield "", IDLE, px * (end - SLOTS[kind] - now), "idle"
            yield of, PHASES[kind], px * SLOTS[kind], told


class RingByHand(ByHand):
    """A ring all-reduce; a cell is the move of a rank in a round."""

    def __init__(self, ranks: int = 4):
        self.par = Collective.named("ring")(ranks)
        super().__init__(
            f"a ring of {ranks} ranks",
            [f"rank {rank}" for rank in range(ranks)],
            {str(chunk): version(chunk) for chunk in range(ranks)},
        )

    @property
    def rounds(self) -> Rounds:
        return [[*filter(None, moves)] for moves in zip_longest(*self.rows)]

    @property
    def held(self) -> list[list[list[int]]]:
        """What each rank's chunks hold at the start and after each round."""
        return [*islice(provenance(self.par, self.rounds), len(self.rounds) + 1)]

    def filled(self, rank: int, chunk: str) -> Move:
        number, to = len(self.rows[rank]), (rank + 1) % self.par.ranks
        refuse(
            (
                len(self.rows[rank - 1]) < number,
                f"Rank {rank} cannot send in round {number + 1} yet: what comes to it in round"
                f" {number} is not placed. Let rank {(rank - 1) % self.par.ranks} send first.",
            )
        )
        coming, there = (self.held[number][each][int(chunk)] for each in (rank, to))
        lost, twice = there & ~coming, ranks_in(there & coming)
        if lost and twice:
            raise Impossible(
                f"Rank {to} has the gradient of rank {twice[0]} in its chunk {chunk} already, and"
                " would count it twice: send another chunk."
            )
        return Move(rank, to, int(chunk), reduce=bool(lost))

    def result(self) -> str:
        whole = sum(len(ranks_in(has)) == self.par.ranks for own in self.held[-1] for has in own)
        return (
            f"<b>{len(self.rounds)} rounds, and {whole} of {self.par.ranks**2} sums are whole.</b>"
            f" Par: {len(self.par.checked)} rounds."
        )

    def drawn(self, row: int):
        for chunk, has in enumerate(map(ranks_in, self.held[-1][row])):
            colour = version(chunk) if len(has) == self.par.ranks else IDLE
            yield "".join(map(str, has)), colour, CELL_PX, f"chunk {chunk}: the gradients it holds"
        yield "sends", "", CELL_PX, "in each round; with + it is added, else it takes the place"
        for _, to, chunk, reduce in self.rows[row]:
            yield f"{'+' * reduce}{chunk}", version(chunk), CELL_PX, f"chunk {chunk} to rank {to}"


class PiecesByHand(ByHand):
    """W in pieces on devices; a cell is a device."""

    def __init__(self, n: int = 4096, d: int = 2048, f: int = 2048):
        self.sizes = {"n": n, "d": d, "f": f}
        self.par = ", ".join(
            f"{lab.layout} {size(SIDE * sum(each.sent_bytes for each in lab.needed))}"
            for lab in (Layouts(layout=f"split-{dims}", **self.sizes) for dims in ("d", "f", "d-f"))
        )
        super().__init__(
            f"{SIDE} x {SIDE} pieces on {SIDE} devices",
            [f"row {row}" for row in range(SIDE)],
            {str(device): version(device) for device in range(SIDE)},
        )

    def filled(self, row: int, device: str) -> str:
        refuse(
            (
                SIDE in (len(self.rows[row]), [own for _, own in self.cells].count(device)),
                f"Row {row} or device {device} is full: each takes {SIDE} pieces.",
            )
        )
        return device

    def result(self) -> str:
        needed = [
            Needed(result, f"{way} {at}", devices, 4 * self.sizes["n"] * self.sizes[dim] // SIDE)
            for result, dim, way, lines in (
                ("dX", "d", "row", self.rows),
                ("Y", "f", "column", zip_longest(*self.rows)),
            )
            for at, line in enumerate(lines)
            if (devices := len({*line} - {None})) > 1
        ]
        told = "; ".join(
            f"{each.name}: {size(each.sent_bytes)} by each of {each.ranks}" for each in needed
        )
        sent = size(sum(each.ranks * each.sent_bytes for each in needed))
        refuse((len(self.cells) < SIDE**2, f"The devices send {sent} so far.<br>{told}"))
        return f"<b>The devices send {sent} in all.</b> The library's: {self.par}.<br>{told}"

    def drawn(self, row: int):
        for device in (self.rows[row] + [""] * SIDE)[:SIDE]:
            yield device, self.colours.get(device, IDLE), CELL_PX, "a piece of W"
