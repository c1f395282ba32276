"""Are data, column, row and 2-D slicing all one idea?

One product, Y[n, f] = X[n, d] W[d, f], forward and backward, under a layout: which dimension is split along which axis of the
ranks. The collectives follow from the names of the dimensions (techniques/mesh_tensor.py), on real ranks as in the prediction.
All values are whole numbers, so small that every sum is exact in float32, in whatever order.
"""

from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any, ClassVar

import torch

from ..core import Cost, Impossible, Mesh, Trace, knob
from ..core.hardware import TICKS_PER_SECOND, Hardware
from ..holdings import MOST
from ..plan import Compute, Plan, Together
from ..schedule import Action
from ..simulate import simulate
from ..techniques.mesh_tensor import collectives, einsum, laid_out, part_shape
from ..words import duration, size
from .experiment import Quantity
from .on_hardware import OnHardware, profiles

PRODUCT = "n d, d f -> n f"
MATRICES = {"X": "n d", "W": "d f", "Y": "n f"}
MADE = {"Y": "F", "dX": "I", "dW": "W"}  # each product's result -> the kind of its action
LAYOUTS = {  # -> the dimensions that are split, along the first axis of the ranks and along the second
    "split-n": ("n",), "split-f": ("f",), "split-d": ("d",), "split-n-f": ("n", "f"), "split-n-d": ("n", "d"),
    "split-d-f": ("d", "f"), "duplicate": ()}
ALSO = {"split-n": "data parallel", "split-f": "columns of W", "split-d": "rows of W", "duplicate": "nothing is split"}
AXES = "rows", "columns"  # of the mesh


class Layouts(OnHardware):
    name: ClassVar[str] = "layouts"
    question: ClassVar[str] = "Are these all one idea?"
    figures: ClassVar[tuple[str, ...]] = ("timeline", "layouts")

    layout: str = knob("split-n", "dimensions that are split over the ranks; the others are duplicated", choices=LAYOUTS)
    ranks: int = knob(4, f"devices; up to {MOST} run on one machine, more are predicted", low=1, high=64)
    n: int = knob(4096, "samples: rows of X and Y", low=4, high=65536, logarithmic=True)
    d: int = knob(1024, "inputs of the layer: columns of X, rows of W", low=4, high=65536, logarithmic=True)
    f: int = knob(4096, "outputs of the layer: columns of W and Y", low=4, high=65536, logarithmic=True)
    hardware: str = knob("rtx3090-pcie", "what the modelled clock charges for products and collectives", choices=lambda: profiles()[1:])
    node_size: int = knob(8, "ranks in a node; links between nodes are slower", low=1, high=64)
    rows: int = knob(2, "where two dimensions are split: ranks along the axis of the first", low=1, high=64, more=True)
    swapped: bool = knob(False, "where two dimensions are split: neighbours share the first axis, not the second", more=True)
    seed: int = knob(0, "seed of the matrices", low=0, high=2**31 - 1, more=True)

    steps: ClassVar[int] = 1

    def model_post_init(self, facts):
        super().model_post_init(facts)
        self.needed  # noqa: B018  (raises Impossible)

    @classmethod
    def idle_settings(cls, settings: dict[str, Any]) -> set[str]:
        alone = {"rows", "swapped"} if len(LAYOUTS.get(settings["layout"], ())) < 2 else set()
        return super().idle_settings(settings) | alone

    # -- what the settings mean -----------------------------------------------------------------------------

    @cached_property
    def mesh(self) -> Mesh:
        if len(LAYOUTS[self.layout]) < 2:
            return Mesh(rows=self.ranks)
        if self.ranks % self.rows:
            raise Impossible(f"{self.ranks} ranks have no {self.rows} equal rows: take rows that divide the ranks, such as 1 or {self.ranks}.")
        axes = {"rows": self.rows, "columns": self.ranks // self.rows}
        return Mesh(**dict(reversed(axes.items()) if self.swapped else axes))

    @property
    def split(self) -> dict[str, str]:
        """Dimension -> the axis of the ranks that cuts it."""
        return dict(zip(LAYOUTS[self.layout], AXES))

    @property
    def sizes(self) -> dict[str, int]:
        return {"n": self.n, "d": self.d, "f": self.f}

    @cached_property
    def needed(self) -> list:
        """The collectives, in their order."""
        return collectives(PRODUCT, self.sizes, self.split, dict(self.mesh.axes), names=tuple(MADE))

    @cached_property
    def profile(self) -> Hardware:
        return replace(super().profile, node_size=self.node_size)

    @property
    def lowered(self) -> Plan:
        """Three products, each followed by the sums of its result."""
        lanes = {}
        for rank in range(self.ranks):
            lanes[rank, "compute"] = ops = []
            for result, kind in MADE.items():
                ops.append(Compute((Action(kind, 0, 0),)))
                ops += [Together(each.name, "all_reduce", each.bytes, self.mesh.peers(rank, each.axis))
                        for each in self.needed if each.result == result]
        return Plan(lanes, self.ranks)

    def part_bytes(self, matrix: str) -> int:
        """Of what a rank holds of X, W, Y or of a gradient."""
        dims = MATRICES[matrix.removeprefix("d")].split()
        return 4 * prod(part_shape(dims, self.sizes, self.split, dict(self.mesh.axes)))

    def cost(self) -> Cost:
        flops = 2 * prod(part_shape("ndf", self.sizes, self.split, dict(self.mesh.axes)))
        kept = (("weights", self.part_bytes("W")), ("activations", self.part_bytes("X")), ("gradients", self.part_bytes("dY")))
        made = {Action(kind, 0, 0): (("activations" if kind == "F" else "gradients", self.part_bytes(result)),) for result, kind in MADE.items()}
        return self.misfortune.priced(Cost(
            dict.fromkeys("FIW", self.profile.seconds(flops, 0, "float32", 1)), changes=made, resident=dict.fromkeys(range(self.ranks), kept),
            unit="s", ticks_per_unit=TICKS_PER_SECOND, capacity_bytes=self.capacity_bytes, **self.profile.prices(self.ranks)))

    def simulated(self) -> Trace:
        return simulate(self.lowered, self.cost())

    def predict(self) -> Trace:
        return replace(self.simulated(), settings=self.told)

    # -- reality --------------------------------------------------------------------------------------------

    @property
    def values(self) -> tuple[torch.Tensor, ...]:
        """X, W, and the gradient of Y: whole numbers from -4 to 3."""
        draw = torch.Generator().manual_seed(self.seed)
        return tuple(torch.randint(-4, 4, [self.sizes[dim] for dim in dims.split()], generator=draw, dtype=torch.int8) for dims in MATRICES.values())

    def program(self, rank) -> dict[str, Any]:
        groups = {axis: rank.group(axis) for axis, _ in self.mesh.axes}
        cut = partial(laid_out, old={}, new=self.split, groups=groups)
        held = {name: cut(whole, dims).float() for (name, dims), whole in zip({"X": "n d", "W": "d f", "dY": "n f"}.items(), self.values)}
        rank.watch(lambda: {"weights": [held["W"]], "activations": [held["X"], held.get("Y")],
                            "gradients": [held[each] for each in ("dY", "dX", "dW") if each in held]})
        results = iter(MADE.items())

        def multiply(letters: str, *factors: torch.Tensor) -> torch.Tensor:
            result, kind = next(results)
            with rank.span(Action(kind, 0, 0)):
                held[result] = torch.einsum(letters, *factors).contiguous()
            return held[result]

        x, w = held["X"].requires_grad_(), held["W"].requires_grad_()
        einsum(PRODUCT, x, w, layout=self.split, groups=groups, names=tuple(MADE), multiply=multiply).backward(held["dY"])
        return self.totals(rank.index, lambda result, box: held[result])

    def box(self, matrix: str, rank: int) -> tuple[slice, ...]:
        """The rows and the columns of a matrix that lie on a rank."""
        at, dims = self.mesh.coords(rank), MATRICES[matrix.removeprefix("d")].split()
        lengths = part_shape(dims, self.sizes, self.split, dict(self.mesh.axes))
        places = [at.get(self.split.get(dim), 0) for dim in dims]
        return tuple(slice(place * long, (place + 1) * long) for place, long in zip(places, lengths))

    def totals(self, rank: int, part) -> dict[str, Any]:
        """The sums of the rows and of the columns of each result's part, exact in float64."""
        found = {}
        for result in MADE:
            box = self.box(result, rank)
            own = part(result, box).detach().double()
            name = f"{result}[{', '.join(f'{each.start}:{each.stop}' for each in box)}]"
            found |= {f"{name} row sums": own.sum(1).numpy(), f"{name} column sums": own.sum(0).numpy()}
        return found

    def reference(self) -> dict[str, Any]:
        x, w, dy = (whole.float() for whole in self.values)
        whole = {"Y": x @ w, "dX": dy @ w.T, "dW": x.T @ dy}
        return {name: each for rank in range(self.ranks) for name, each in self.totals(rank, lambda result, box: whole[result][box]).items()}

    def run(self, **options):
        if self.ranks > MOST:
            raise Impossible(f"{self.ranks} ranks are predicted only: run at most {MOST}.")
        return super().run(**options)

    # -- what is told ---------------------------------------------------------------------------------------

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (Quantity("bytes sent a rank, forward", "B", lambda t: sent(t)[0]), Quantity("bytes sent a rank, backward", "B", lambda t: sent(t)[1]),
                Quantity("time", "s", lambda t: t.makespan), Quantity("memory of a rank", "B", lambda t: max(map(t.peak_bytes, range(t.ranks)))))

    @cached_property
    def compared(self) -> dict[str, list]:
        """Layout -> [bytes sent forward, backward, time, memory], of those that are possible."""
        found = {}
        for name in LAYOUTS:
            try:
                trace = self.replace(layout=name, fault="none").simulated()
            except Impossible:
                continue
            found[name] = [*sent(trace), trace.makespan, trace.peak_bytes(0)]
        return found

    @property
    def facts(self) -> dict[str, Any]:
        boxes = {matrix: [[(each.start, each.stop) for each in self.box(matrix, rank)] for rank in range(self.ranks)] for matrix in MATRICES}
        return {**super().facts, "layout": self.layout, "compared": self.compared, "boxes": boxes, "sizes": self.sizes}

    @property
    def relief(self) -> str:
        return "A layout that splits more, more ranks, or smaller n, d, f would need less on each device."

    def describe(self) -> str:
        also = ALSO.get(self.layout)
        cuts = ", ".join(f"{dim} by {dict(self.mesh.axes)[axis]}" for dim, axis in self.split.items())
        return f"Y[n, f] = X[n, d] W[d, f], {f'split {cuts}' if cuts else 'the same on every rank'}{f' ({also})' if also and cuts else ''}"

    def explain(self, trace: Trace) -> list[str]:
        over = {axis: dim for dim, axis in self.split.items()}
        told = [f"{each.result} sums over {over[each.axis]}, of which each rank has 1 of {each.ranks} parts: an all-reduce of {size(each.bytes)} along {each.axis}."
                for each in self.needed]
        if trace.clock != "measured" and len(self.compared) > 1:
            best = min(self.compared, key=lambda name: self.compared[name][2])
            told.append(f"The fastest layout here is {best}: {duration(self.compared[best][2], 's')}.")
        return told + super().explain(trace)


def sent(trace: Trace) -> tuple[int, int]:
    """Most bytes that a rank sent: forward, backward."""
    def most(forward: bool) -> int:
        return max(sum(t.bytes for t in trace.transfers(rank) if t.name.startswith("sum of Y ") == forward) for rank in range(trace.ranks))
    return most(True), most(False)
