"""Loss scaling: multiply the loss by S, so that gradients too small for fp16 arrive above its
smallest number; divide after.

    backward of S L    every gradient is S times as large, by the chain rule; a power of two costs
                       no bit
    unscale            g = float32(S g) / S, in float32, where the division loses nothing
    step               is skipped where a gradient is inf or nan: S was too large, or the loss broke
    update             after a skip: S <- backoff S
                       after `growth_interval` good steps in a row: S <- growth S

So S stays just below what overflows. Clip between `unscale_` and `step`: a norm means nothing while
S is in it. Cost: two passes over the gradients, tensor by tensor (torch's kernel takes one), and
one number from the device to the host. Source: Micikevicius et al. 2018 (arXiv:1710.03740), section
3.2; the rule of S and its four numbers as torch.amp.GradScaler.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import copy

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..runtime.talk.group import Group
from .guards import loss_scaler as guard


class DynamicLossScaler:
    """Loss scaler with the methods that a loop calls of torch.amp.GradScaler and, step for step,
    its numbers; state dicts may be exchanged with it.

    enabled          False: losses, steps and gradients pass through as they are
    half_gradients   let `unscale_` also divide gradients that are stored in float16: in float32,
                     but the result goes back into float16, where the small ones vanish after all.
                     torch refuses; so do we unless asked.
    group            ranks that train one model and skip together: what one finds, all have found.
                     None: this rank is alone
    """

    def __init__(
        self,
        init_scale=65536.0,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        enabled=True,
        *,
        half_gradients=False,
        group=None,
    ):
        self._enabled, self.half_gradients = bool(enabled), half_gradients
        self.growth_factor, self.backoff_factor, self.growth_interval = guard.rule(
            growth_factor, backoff_factor, growth_interval
        )
        # S, and the good steps since its last change
        self._scale, self._streak = guard.usable(init_scale), 0
        # unscaled since the last update -> whether any of its gradients was not finite
        self._found: dict[Optimizer, Tensor | bool] = {}
        self._stepped: set[Optimizer] = set()
        self.scaled = False  # whether scale() was ever called
        self.group = None if group is None else Group.of(group)
        # whether any rank of the group found one, since the last update
        self.agreed: bool | None = None

    def scale(self, loss):
        """Multiply the loss by S, in float32; losses in a list, a tuple or any other iterable
        likewise."""
        if not self._enabled:
            return loss
        if isinstance(loss, Iterable) and not isinstance(loss, (Tensor, Mapping, str)):
            scaled = map(self.scale, loss)
            return type(loss)(scaled) if isinstance(loss, (list, tuple)) else scaled
        guard.refuse_format("The loss", loss)
        self.scaled = True
        return loss.float() * self._scale

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of this optimizer's parameters by S, in place, and note whether all
        were finite. Call it yourself to clip or to look at gradients; `step` does it otherwise."""
        if not self._enabled:
            return
        if hasattr(optimizer, "replicas"):  # it reduces gradients on request, in parts
            optimizer.finish_gradient_synchronization()
            self.group = self.group or optimizer.replicas.group
        own, gradients = held_by([optimizer]), list(self._gradients(optimizer))
        guard.refuse_unscale(self, optimizer in self._found, own, gradients)
        inverse = torch.tensor(self._scale, dtype=torch.float64).reciprocal().float()
        extremes = [torch.zeros((), device=gradients[0].device)]  # inf and nan show in them
        for values in (each for each in gradients if each.numel()):
            extremes += (each.to(extremes[0]) for each in torch.aminmax(values))
            (
                values.mul_(inverse)
                if values.dtype == torch.float32
                else values.copy_(values.float() * inverse)
            )
        self._found[optimizer] = ~torch.stack(extremes).isfinite().all()

    def step(self, optimizer: Optimizer, *args, **kwargs):
        """Call optimizer.step(...) and return its result; None, with every weight untouched, where
        a gradient was not finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        guard.refuse_step(optimizer in self._stepped, args, kwargs)
        if optimizer not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(optimizer)
        return None if self.skips(optimizer) else optimizer.step(*args, **kwargs)

    @property
    def learnt(self) -> set[torch.nn.Parameter]:
        """Parameters whose gradients were unscaled since the last update."""
        return held_by(self._found)

    @property
    def stepped(self) -> set[torch.nn.Parameter]:
        """Parameters of the optimizers that stepped, or skipped, since the last update."""
        return held_by(self._stepped)

    def among(self, group) -> "DynamicLossScaler":
        """Return a copy of this scaler that agrees with the ranks of a group; itself if it has a
        group already, or if the group is one rank."""
        if self.group is not None or (group := Group.of(group)).size == 1:
            return self
        other = copy(self)
        other.group, other._found, other._stepped = group, {}, set()
        return other

    def agree(self, *optimizers: Optimizer) -> None:
        """If one rank found inf or nan, all skip. Each rank calls it once a step
        with all its optimizers, also one that has none, whose weights are frozen; `step` calls it
        for one optimizer. It does nothing where there is no group."""
        if not self._enabled or self.group is None:
            return
        for optimizer in optimizers:
            if optimizer not in self._found:
                self.unscale_(optimizer)
        if self.agreed is not None:
            return
        found = [flag for flag in self._found.values() if isinstance(flag, Tensor)]
        own = torch.tensor(
            float(any(map(bool, self._found.values()))),
            device=found[0].device if found else self.group.device,
        )
        self.agreed = bool(self.group.all_reduce(own, "max", name="found inf") > 0)
        self._found = dict.fromkeys(self._found, self.agreed)

    def skips(self, optimizer: Optimizer) -> bool:
        """True where this optimizer's step is skipped; asked between `unscale_` and `update`."""
        if not self._enabled:
            return False
        self.agree()
        # a number now: the device is waited for once
        self._found[optimizer] = skipped = bool(self._found[optimizer])
        return skipped

    def update(self, new_scale: float | None = None) -> None:
        """Once a step, after all optimizers: one that skipped makes the scale back off for all."""
        if not self._enabled:
            return
        guard.refuse_update(new_scale is not None or self._found or self.agreed is not None)
        if new_scale is not None:
            self._scale = guard.usable(new_scale)
        elif self.agreed or any(map(self.skips, self._found)):
            self._scale, self._streak = in_float32(self._scale * self.backoff_factor), 0
        else:
            self._streak += 1
            if self._streak == self.growth_interval:
                grown, self._streak = in_float32(self._scale * self.growth_factor), 0
                self._scale = grown if grown < float("inf") else self._scale
        self._found, self._stepped, self.agreed = {}, set(), None

    def get_scale(self) -> float:
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict:
        return (
            {
                "scale": self._scale,
                "growth_factor": self.growth_factor,
                "backoff_factor": self.backoff_factor,
                "growth_interval": self.growth_interval,
                "_growth_tracker": self._streak,
            }
            if self._enabled
            else {}
        )

    def load_state_dict(self, state: dict) -> None:
        if not self._enabled:
            return
        self.growth_factor, self.backoff_factor, self.growth_interval = guard.rule(
            state["growth_factor"], state["backoff_factor"], state["growth_interval"]
        )
        self._scale, self._streak = guard.usable(state["scale"]), state["_growth_tracker"]

    def _gradients(self, optimizer: Optimizer) -> Iterator[Tensor]:
        """Yield the gradients' values; a parameter that the loss did not reach has none."""
        for parameter in (
            p for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ):
            if parameter.grad.is_sparse:  # a sum of rows that each fit may overflow
                parameter.grad = parameter.grad.coalesce()
            yield (
                parameter.grad._values()
                if parameter.grad.is_sparse
                else parameter.grad.as_subclass(Tensor)
            )


def held_by(optimizers: Iterable[Optimizer]) -> set[torch.nn.Parameter]:
    return {
        p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
    }


def in_float32(value: float) -> float:
    """Round to float32, as the scale on a device."""
    return torch.tensor(value, dtype=torch.float32).item()
