"""What a function uses beside its arguments, as far as that can be found from it: where its modules
and tensors are.

    a module            its weights and buffers, and those of the modules in it
    partial, method     what they are made of
    a function          the modules and tensors in its closure and among its defaults

Each is noted where it is when the function first runs, and is put there again while it runs another
time: a forward inside torch.func.functional_call, or on another version of the weights
(weight_versions.py), has others than its backward finds. What was changed in place cannot be put
back; that is for `conditions` to refuse. Globals are not looked at, nor attributes that are no
weights. Cost: a microsecond a module, and no bytes but while a graph is kept: then also the tensors
that were put in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType

from torch import Tensor, nn


def reached(fn, seen: frozenset[int] = frozenset()) -> Iterator[nn.Module | Tensor | CellType]:
    """The modules and tensors of a function, and the cells of its closure that hold one."""
    if isinstance(fn, nn.Module | Tensor):
        yield fn
        return
    seen, parts = seen | {id(fn)}, ()
    if isinstance(fn, partial):
        parts = fn.func, *fn.args, *fn.keywords.values()
    elif isinstance(fn, MethodType):
        parts = fn.__self__, fn.__func__
    elif isinstance(fn, FunctionType):
        cells = [cell for cell in fn.__closure__ or () if cell != CellType()]
        yield from (cell for cell in cells if isinstance(cell.cell_contents, nn.Module | Tensor))
        parts = (
            *(cell.cell_contents for cell in cells),
            *(fn.__defaults__ or ()),
            *(fn.__kwdefaults__ or {}).values(),
        )
    elif isinstance(fn, list | tuple) and fn and isinstance(fn[0], nn.Module):
        parts = fn
    for part in parts:
        if id(part) not in seen:  # a function may have itself in its closure
            yield from reached(part, seen)


class Beside:
    """Where what `fn` uses is now: `places`, (a module's weights or buffers by name, those of now);
    `cells`, (a cell, what it holds); `tensors`, those in closures, defaults and partials."""

    def __init__(self, fn: Callable | None):
        self.places: list[tuple[dict, dict]] = []
        self.cells: list[tuple[CellType, nn.Module | Tensor]] = []
        self.tensors: list[Tensor] = []
        for found in reached(fn):
            if isinstance(found, nn.Module):
                self.note(found)
            elif isinstance(found, Tensor):
                self.tensors.append(found)
            else:
                self.cells.append((found, found.cell_contents))

    def note(self, module: nn.Module) -> None:
        for own in (module._parameters, module._buffers):
            if own:
                self.places.append((own, dict(own)))
        for child in module._modules.values():
            if child is not None:
                self.note(child)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Inside, all is where it was noted; after it, where it was before."""
        moved = [
            (own, dict(own), noted)
            for own, noted in self.places
            if any(own.get(name) is not noted[name] for name in noted)
        ]
        held = [
            (cell, cell.cell_contents, noted)
            for cell, noted in self.cells
            if cell.cell_contents is not noted
        ]
        try:
            for own, _, noted in moved:
                own.update(noted)
            for cell, _, noted in held:
                cell.cell_contents = noted
            yield
        finally:
            for own, before, _ in moved:
                own.update(before)
            for cell, before, _ in held:
                cell.cell_contents = before
