"""An optimizer by its name, as the menus of all labs offer it: one file in optimizers/, or a class
typed in a notebook.

    class Adafactor(Optimizer):
        name = "adafactor"

        @staticmethod
        def make(weights, rate):
            return torch.optim.Adafactor(weights, rate)

Any torch.optim.Optimizer will do whose step() needs no closure. What it keeps, and whether it looks
across the elements of a tensor, is found by its steps on a small one, and not declared.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial

from ..core import Family, Impossible
from ..core.later import compiler_asleep, later, torch
from ..runtime.kept import kept

with later():
    from ..techniques.guards import optimizers as guard


class Optimizer(Family, ABC, family="bigtrain_lab.train.optimizers"):
    """Subclass, set `name`, write `make`."""

    @staticmethod
    @abstractmethod
    def make(weights: Iterable, rate: float) -> "torch.optim.Optimizer":
        """The optimizer of these weights, or groups of them."""

    @classmethod
    def at(cls, rate: float) -> "Callable[[Iterable], torch.optim.Optimizer]":
        """Weights -> the optimizer of them at a rate."""
        return partial(cls.make, rate=rate)

    @classmethod
    @kept
    @compiler_asleep()
    def moments(cls) -> float:
        """Numbers that it keeps of each weight: 0 by SGD, 1 by momentum, 2 by Adam. A count of
        steps is none."""
        weight = torch.nn.Parameter(torch.ones(8, 8))
        weight.grad = torch.ones_like(weight)
        try:
            rule = cls.make([weight], rate=0.1)
            rule.step()
        except Exception as error:
            raise Impossible(
                f"The optimizer {cls.name} cannot step a matrix by its gradient"
                f" ({type(error).__name__}: {error}): write make(weights, rate) so that step()"
                " needs nothing else."
            ) from error
        kept = [each for each in rule.state[weight].values() if torch.is_tensor(each)]
        return sum(each.numel() for each in kept if each.dim()) / weight.numel()

    @classmethod
    @kept
    @compiler_asleep()
    def element_wise(cls) -> bool:
        """Whether it steps each weight by itself, so that a rank may step a part of a tensor."""
        weight = torch.nn.Parameter(torch.ones(4, 6))
        return not guard.looks_across(cls.make([weight], 0.1), 0, weight, None)

    @classmethod
    @kept
    @compiler_asleep()
    def steps_parts(cls) -> bool:
        """Whether ranks may step parts: element by element, or as LAMB and LARS do, which sum their
        norms among the ranks."""
        return cls.element_wise() or hasattr(cls.make([torch.ones(2)], 0.1), "among")
