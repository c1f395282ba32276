"""Which module is at work: a path such as "layers.3.mlp.up", in the forward by its call, in the
backward by the forward's numbers.

Module.__call__ is wrapped while a ledger looks on. Torch's forward hooks would not do: a call that
a BaseException ends, as an interrupt does or a recompute that has all it needs, runs none of them.

Autograd numbers its nodes as the forward makes them (torch's sequence numbers), so the module of a
node that runs in the backward is the one that was at work when its number was given: a search in
the list of (number, path) that the forward left. A module gets its path from the first module above
it that was called by itself; where the names of that one's weights are known
("layers.3.norm.weight" for its "norm.weight"), they say where it stands in its model.
"""

import weakref
from bisect import bisect_right
from collections.abc import Callable

import torch
from torch import nn

from .saved import replaced

LONGEST = 20_000  # module calls that are remembered for the backward


class Places:
    """`path`: of the module whose forward runs now, "" outside of all.

    weight_name   tensor -> the name that it is known by, or ""
    """

    def __init__(self, weight_name: Callable[[torch.Tensor], str] = lambda tensor: ""):
        self.path = ""
        self._weight_name = weight_name
        self._paths: dict[
            int, tuple[weakref.ref, str]
        ] = {}  # by id: a module may define its own equality
        self._numbers: list[int] = []
        self._places: list[str] = []

    def following(self):
        """A context in which `path` is kept."""
        self.path = ""
        return replaced(nn.Module, "__call__", self._calling)

    def name(self, root: nn.Module, prefix: str = "") -> None:
        """Name a module and all within it."""
        for name, module in root.named_modules():
            path = f"{prefix}.{name}" if prefix and name else prefix or name or type(root).__name__
            self._paths[id(module)] = (weakref.ref(module), path)

    def of_node(self) -> str:
        """The path of the module whose forward made the autograd node that runs now; "" where that
        is not known."""
        node = torch._C._current_autograd_node()
        at = bisect_right(self._numbers, node._sequence_nr()) if node is not None else 0
        return self._places[at - 1] if at else ""

    def _calling(self, original):
        def __call__(module, *args, **kwargs):
            before = self.path
            self._move(self._path_of(module))
            try:
                return original(module, *args, **kwargs)
            finally:
                self._move(before)

        return __call__

    def _path_of(self, module: nn.Module) -> str:
        found = self._paths.get(id(module))
        if found is None or found[0]() is not module:
            self._name_anew(module)
            found = self._paths[id(module)]
        return found[1]

    def _move(self, path: str) -> None:
        self.path = path
        number = torch._C._autograd._get_sequence_nr()
        if self._numbers and self._numbers[-1] >= number:
            if self._numbers[-1] == number:  # nothing was recorded there
                self._places[-1] = path
            # else a backward recomputes in a thread of its own, as on CUDA: numbers are a thread's
            # own
            return
        self._numbers.append(number)
        self._places.append(path)
        if len(self._numbers) > LONGEST:
            del self._numbers[: LONGEST // 2], self._places[: LONGEST // 2]

    def _name_anew(self, root: nn.Module) -> None:
        for name, weight in root.named_parameters():
            known = self._weight_name(weight)
            if known.endswith(name):
                return self.name(root, known[: -len(name)].rstrip("."))
        self.name(root, f"{self.path}.{type(root).__name__}" if self.path else "")
