"""Are data, column, row and 2-D slicing all one idea?

One product, Y[n, f] = X[n, d] W[d, f], forward and backward, under a layout: a dimension is split
along an axis of the ranks, or two along two. The collectives follow from the names of dimensions
(techniques/mesh_tensor.py), on real ranks as in the prediction. All values are whole numbers, so
small that every sum is exact in float32, in whatever order.
"""

from collections.abc import Iterable
from functools import cached_property
from math import prod
from typing import Any, ClassVar

from .. import techniques
from ..core import Mesh, Trace, knob, refuse, size
from ..core.later import torch
from ..order import MOST, Action, Compute, Plan, Together
from .experiment import Quantity
from .on_hardware import OnNodes, profiles

PRODUCT = "n d, d f -> n f"
DIMS = {"X": "n d", "W": "d f", "Y": "n f", "dX": "n d", "dW": "d f", "dY": "n f"}
MADE = {"Y": Action("F", 0, 0), "dX": Action("I", 0, 0), "dW": Action("W", 0, 0)}
KINDS = {"W": "weights", "X": "activations", "Y": "activations"}  # of memory; others are gradients
LAYOUTS = {  # -> the dimensions split along the first axis of the ranks, and along the second
    "split-n": "n",
    "split-f": "f",
    "split-d": "d",
    "split-n-f": "nf",
    "split-n-d": "nd",
    "split-d-f": "df",
    "duplicate": "",
}
ALSO = {
    "split-n": " (data parallel)",
    "split-f": " (tensor parallel, columns)",
    "split-d": " (tensor parallel, rows)",
}


class Layouts(OnNodes):
    name: ClassVar[str] = "layouts"
    question: ClassVar[str] = "Are these all one idea?"
    figures: ClassVar[tuple[str, ...]] = ("rivals", "timeline", "layouts")
    rivals_by: ClassVar[str] = "layout"
    answers: ClassVar[tuple[str, ...]] = (
        "time",
        "memory of a rank",
        "bytes sent a rank, backward",
    )
    must_exist: ClassVar[tuple[str, ...]] = ("needed",)

    layout: str = knob(
        "split-n",
        "dimensions that are split over the ranks; others are duplicated",
        choices=LAYOUTS,
    )
    ranks: int = knob(
        4,
        f"devices; up to {MOST} run on one machine, more are predicted",
        low=1,
        high=64,
        logarithmic=True,
    )
    n: int = knob(4096, "rows of X and Y", low=4, high=65536, logarithmic=True, unit="samples")
    d: int = knob(
        1024, "columns of X, rows of W", low=4, high=65536, logarithmic=True, unit="inputs"
    )
    f: int = knob(4096, "columns of W and Y", low=4, high=65536, logarithmic=True, unit="outputs")
    rows: int = knob(
        2,
        "where two dimensions are split: ranks along the axis of the first",
        low=1,
        high=64,
        more=True,
    )
    swapped: bool = knob(
        False,
        "where two dimensions are split: neighbours share the first axis, not the second",
        more=True,
    )
    varied: ClassVar[dict] = {
        "node_size": {},
        "rows": {},
        "swapped": {},
        "hardware": {
            "default": "rtx3090-pcie",
            "help": "what the modelled clock charges for products and sums",
            "choices": lambda: profiles()[1:],
        },
    }

    steps: ClassVar[int] = 1

    unused: ClassVar[tuple] = (
        ("layout", lambda name: len(LAYOUTS.get(name, "")) < 2, {"rows", "swapped"}),
    )

    # -- what the settings mean -------------------------------------------------------------------

    @cached_property
    def mesh(self) -> Mesh:
        if len(LAYOUTS[self.layout]) < 2:
            return Mesh(rows=self.ranks)
        refuse(
            (
                self.ranks % self.rows,
                f"{self.ranks} ranks have no {self.rows} equal rows: take rows that "
                f"divide the ranks, such as 1 or {self.ranks}.",
            )
        )
        axes = {"rows": self.rows, "columns": self.ranks // self.rows}
        return Mesh(**dict(reversed(axes.items()) if self.swapped else axes))

    @property
    def split(self) -> dict[str, str]:
        """Dimension -> the axis of the ranks that cuts it."""
        return dict(zip(LAYOUTS[self.layout], ("rows", "columns")))

    @property
    def sizes(self) -> dict[str, int]:
        return {"n": self.n, "d": self.d, "f": self.f}

    def part(self, dims) -> tuple[int, ...]:
        """Of a tensor of these dimensions, what a rank has."""
        return techniques.layout_plan.part_shape(dims, self.sizes, self.split, dict(self.mesh.axes))

    def box(self, matrix: str, rank: int) -> tuple[slice, ...]:
        """The rows and the columns of a matrix that lie on a rank."""
        at, dims = self.mesh.coords(rank), DIMS[matrix].split()
        places = [at.get(self.split.get(dim), 0) for dim in dims]
        return tuple(
            slice(place * long, (place + 1) * long) for place, long in zip(places, self.part(dims))
        )

    @cached_property
    def needed(self) -> list:
        """The collectives, in their order."""
        return techniques.layout_plan.collectives(
            PRODUCT, self.sizes, self.split, dict(self.mesh.axes), names=tuple(MADE)
        )

    @property
    def lowered(self) -> Plan:
        """Three products, each followed by the sums of its result."""
        lanes = {}
        for rank in range(self.ranks):
            lanes[rank, "compute"] = ops = []
            for result, action in MADE.items():
                ops.append(Compute((action,)))
                ops += [
                    Together(each.name, "all_reduce", each.bytes, self.mesh.peers(rank, each.axis))
                    for each in self.needed
                    if each.result == result
                ]
        return Plan(lanes, self.ranks)

    def held(self, *matrices: str) -> tuple[tuple[str, int], ...]:
        """(kind of memory, bytes of a rank's part) of each."""
        return tuple(
            (KINDS.get(matrix, "gradients"), 4 * prod(self.part(DIMS[matrix].split())))
            for matrix in matrices
        )

    def bytes_held(self) -> dict[str, dict]:
        return {
            "changes": {action: self.held(result) for result, action in MADE.items()},
            "resident": dict.fromkeys(range(self.ranks), self.held("X", "W", "dY")),
        }

    def durations(self) -> dict[str, float]:
        return dict.fromkeys(
            "FIW", self.profile.seconds(2 * prod(self.part("ndf")), 0, "float32", 1)
        )

    # -- reality ----------------------------------------------------------------------------------

    @property
    def values(self) -> "dict[str, torch.Tensor]":
        """X, W, and the gradient of Y: whole numbers from -4 to 3."""
        draw = torch.Generator().manual_seed(self.seed)
        return {
            matrix: torch.randint(
                -4,
                4,
                [self.sizes[dim] for dim in DIMS[matrix].split()],
                generator=draw,
                dtype=torch.int8,
            )
            for matrix in ("X", "W", "dY")
        }

    def program(self, rank) -> dict[str, Any]:
        groups = {axis: rank.group(axis) for axis, _ in self.mesh.axes}
        own = {
            matrix: techniques.mesh_tensor.laid_out(
                whole, DIMS[matrix], {}, self.split, groups
            ).float()
            for matrix, whole in self.values.items()
        }
        rank.watch(
            lambda: {
                kind: [own[matrix] for matrix in own if KINDS.get(matrix, "gradients") == kind]
                for kind in ("weights", "activations", "gradients")
            }
        )
        products = iter(MADE.items())

        def multiply(letters: str, *factors: "torch.Tensor") -> "torch.Tensor":
            result, action = next(products)
            with rank.span(action):
                own[result] = torch.einsum(letters, *factors).contiguous()
            return own[result]

        techniques.mesh_tensor.einsum(
            PRODUCT,
            own["X"].requires_grad_(),
            own["W"].requires_grad_(),
            layout=self.split,
            groups=groups,
            names=tuple(MADE),
            multiply=multiply,
        ).backward(own["dY"])
        return self.totals(rank.index, lambda result, box: own[result])

    def reference(self) -> dict[str, Any]:
        x, w, dy = (whole.float() for whole in self.values.values())
        whole = {"Y": x @ w, "dX": dy @ w.T, "dW": x.T @ dy}
        return {
            name: sums
            for rank in range(self.ranks)
            for name, sums in self.totals(rank, lambda result, box: whole[result][box]).items()
        }

    def totals(self, rank: int, part) -> dict[str, Any]:
        """The sums of the rows and of the columns of each result's part, exact in float64."""
        found = {}
        for result in MADE:
            box = self.box(result, rank)
            own = part(result, box).detach().double()
            name = f"{result}[{', '.join(f'{each.start}:{each.stop}' for each in box)}]"
            found[f"{name} row sums"] = own.sum(1).numpy()
            found[f"{name} column sums"] = own.sum(0).numpy()
        return found

    # -- what is told -----------------------------------------------------------------------------

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("bytes sent a rank, forward", "B", lambda t: sent(t, forward=True)),
            Quantity("bytes sent a rank, backward", "B", lambda t: sent(t, forward=False)),
            Quantity("time", "s", lambda t: t.makespan),
            Quantity("memory of a rank", "B", lambda t: max(map(t.peak_bytes, range(t.ranks)))),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What the figure draws of this layout: (start, stop) of rows and columns of each matrix on
        each rank."""
        return {
            **super().facts,
            "layout": self.layout,
            "boxes": {
                matrix: [
                    [(each.start, each.stop) for each in self.box(matrix, rank)]
                    for rank in range(self.ranks)
                ]
                for matrix in "XWY"
            },
            "sizes": self.sizes,
        }

    def rivals(self) -> dict[str, dict[str, Any]]:
        return {f"{name}{ALSO.get(name, '')}": {"layout": name} for name in LAYOUTS}

    relief: ClassVar[str] = (
        "A layout that splits more, more ranks, or smaller n, d, f would need less on each device."
    )

    def describe(self) -> str:
        axes = dict(self.mesh.axes)
        cuts = ", ".join(f"{dim} by {axes[axis]}" for dim, axis in self.split.items())
        return (
            f"Y[n, f] = X[n, d] W[d, f], {f'split {cuts}' if cuts else 'whole on every rank'}"
            f"{ALSO.get(self.layout, '')}"
        )

    def why(self, trace: Trace) -> Iterable[str]:
        yield "One idea: one product, cut along n, d or f. What is summed over a cut is sent."
        over = {axis: dim for dim, axis in self.split.items()}
        yield from (
            f"{each.result} sums over {over[each.axis]}, of which each rank has 1 of "
            f"{each.ranks} parts: an all-reduce of {size(each.bytes)} along {each.axis}."
            for each in self.needed
        )


def sent(trace: Trace, forward: bool) -> int:
    """Most bytes that a rank sent forward, or backward."""
    return max(
        sum(t.bytes for t in trace.transfers(rank) if t.name.startswith("sum of Y ") == forward)
        for rank in range(trace.ranks)
    )
