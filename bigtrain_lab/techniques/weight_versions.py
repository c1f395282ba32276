"""Weight stashing: a stage's weights as numbered values, each kept while a computation still needs it.

    version v = the weights after v updates;   newest = v of the last update;   y = stage(w_v, x)

An update that finds the newest version still in use leaves it alone and makes a new value beside it; otherwise it writes
in place. Without stashing it always writes in place, and a backward then meets other weights than its forward did.
Memory: as many copies as versions in use, p - s on stage s of PipeDream.
Source: Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.3.
"""

from collections import Counter

from torch import Tensor, nn


class WeightVersions:
    """The versions of one stage's weights. The module's parameters are always the newest."""

    def __init__(self, module: nn.Module, stashing: bool = True):
        self.module, self.stashing, self.newest = module, stashing, 0
        self.held: dict[int, dict[str, Tensor]] = {}
        self.uses: Counter = Counter()  # version -> computations to come that need it
        self.refresh()

    def refresh(self) -> None:
        """Take the newest version from the module, whose parameters its owner may have replaced between two steps."""
        self.parameters = dict(self.module.named_parameters())
        self.summing = self.parameters  # the weights that hold the gradient so far
        self.held[self.newest] = leaves(self.parameters)
        names = {parameter: name for name, parameter in self.parameters.items()}  # a tied one has one name, and many places
        self.places = [(owner._parameters, key, names[parameter]) for owner in self.module.modules()
                       for key, parameter in owner._parameters.items() if parameter is not None]

    def __getitem__(self, version: int) -> dict[str, Tensor]:
        """The weights of a version by name: leaf tensors that gradients may be taken at."""
        return self.held[version]

    def call(self, weights: dict[str, Tensor], *arguments) -> Tensor:
        """The stage's output as a function of its weights: torch.func.functional_call, whose search of the module (a tenth
        of a small stage's forward) is done once a step."""
        try:
            for place, key, name in self.places:
                place[key] = weights[name]
            return self.module(*arguments)
        finally:
            for place, key, name in self.places:
                place[key] = self.parameters[name]

    def sum_gradients_on(self, weights: dict[str, Tensor]) -> None:
        """Gradients add up over an update, whichever versions they are taken at: the sum so far moves to these weights."""
        if weights is not self.summing:
            for name, weight in self.summing.items():
                weights[name].grad, weight.grad = weight.grad, None
            self.summing = weights

    def in_use(self, version: int) -> bool:
        return self.stashing and self.uses[version] > 0

    def release(self, version: int) -> None:
        """One use of the version is over; one that is neither needed nor the newest is dropped."""
        self.uses[version] -= 1
        if version != self.newest and not self.in_use(version):
            if self.held.pop(version, None) is self.summing:
                self.sum_gradients_on(self.parameters)

    def update(self, optimizer=None) -> None:
        """The next version: by the optimizer, or in the user's own way after `Pipeline.step` where there is none."""
        old = self.newest
        self.sum_gradients_on(self.parameters)
        if optimizer is not None:
            if self.in_use(old):
                for parameter in self.parameters.values():
                    parameter.data = parameter.data.clone()
            optimizer.step()
            optimizer.zero_grad()
        self.newest = old + 1
        self.held[self.newest] = leaves(self.parameters)
        if not self.in_use(old):
            del self.held[old]

    def stashed(self) -> dict[str, Tensor]:
        """The tensors of all versions but the newest, by name and version."""
        return {f"{name}, version {version}": tensor for version, weights in self.held.items() if version != self.newest
                for name, tensor in weights.items()}

    def gradients(self) -> dict[str, Tensor]:
        """What has been summed since the last update, by the weights' names."""
        return {name: weight.grad for name, weight in self.summing.items() if weight.grad is not None}


def leaves(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """The parameters as a value: leaf tensors of their own on the same storage. (`.data`: a write in place later goes
    unnoticed by autograd, as it must to show what training without stashing does.)"""
    return {name: p.data.requires_grad_(p.requires_grad) for name, p in parameters.items()}
