"""Weight stashing: a stage's weights as numbered versions, each kept while a computation needs it.

    version v     the weights after v updates; the newest is that of the last update
    forward       y = stage(w_v, x)
    gradient      dL/dw_v is added to the module's own parameter, whatever v is

If the newest version is in use, an update copies it and writes to the copy. Otherwise it writes in
place. Without stashing it always writes in place, so a backward may find newer weights than its
forward.
Memory: as many copies as versions in use, p - s on stage s of PipeDream.
Source: Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.3.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AtVersion(torch.autograd.Function):
    """Parameter with the value of one of its versions: the gradient is the parameter's own."""

    @staticmethod
    def forward(ctx, parameter, value):
        return value.data  # autograd does not notice a write in place, which happens unstashed

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class WeightVersions:
    """Versions of one stage's weights. The module's parameters are always the newest."""

    def __init__(self, module: nn.Module, stashing: bool = True, first: int = 0):
        """Begin with version `first`, the module's weights."""
        self.module, self.stashing, self.newest = module, stashing, first
        self.held: dict[int, dict[str, Tensor]] = {}
        self.uses: Counter = Counter()  # version -> number of later computations that need it
        self.refresh()

    def refresh(self) -> None:
        """Take the newest version from the module, whose parameters may have been replaced."""
        self.parameters = dict(self.module.named_parameters())
        self.held[self.newest] = values(self.parameters)
        names = {parameter: name for name, parameter in self.parameters.items()}
        self.places = [
            (owner._parameters, key, names[parameter])  # a tied one has several
            for owner in self.module.modules()
            for key, parameter in owner._parameters.items()
            if parameter is not None
        ]

    def __getitem__(self, version: int) -> dict[str, Tensor]:
        """Return the weights of a version by name, for `placed`."""
        return {
            name: AtVersion.apply(self.parameters[name], value)
            for name, value in self.held[version].items()
        }

    @contextmanager
    def placed(self, weights: dict[str, Tensor]) -> Iterator[None]:
        """Put weights into the module: around a forward, and around its backward, in which
        torch.utils.checkpoint runs the forward again. torch.func.functional_call searches the
        module in each call, a tenth of a small stage's forward; this once a step."""
        try:
            for place, key, name in self.places:
                place[key] = weights[name]
            yield
        finally:
            for place, key, name in self.places:
                place[key] = self.parameters[name]

    def in_use(self, version: int) -> bool:
        return self.stashing and self.uses[version] > 0

    def release(self, version: int) -> None:
        """End one use of the version. Free it if it has no other and is not the newest."""
        self.uses[version] -= 1
        if version != self.newest and not self.in_use(version):
            self.held.pop(version, None)

    def update(self, optimizer) -> None:
        """Make the next version, by the optimizer."""
        old = self.newest
        if self.in_use(old):
            for parameter in self.parameters.values():
                parameter.data = parameter.data.clone()
        optimizer.step()
        optimizer.zero_grad()
        self.newest = old + 1
        self.held[self.newest] = values(self.parameters)
        if not self.in_use(old):
            del self.held[old]

    def stashed(self) -> dict[str, Tensor]:
        """Return the tensors of all versions but the newest, by name and version."""
        return {
            f"{name}, version {version}": tensor
            for version, weights in self.held.items()
            if version != self.newest
            for name, tensor in weights.items()
        }


def values(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.data for name, parameter in parameters.items()}
