"""Loss scaling: multiply the loss by S, so that gradients too small for fp16 arrive above its smallest number; divide after.

    backward of S L       every gradient is S times as large, by the chain rule: a power of two costs no bit
    unscale               g = float32(S g) / S, in float32, where the division loses nothing
    step                  is skipped where any gradient is inf or nan: S was too large, or the loss itself broke
    update                S <- backoff S and streak <- 0 after a skip;  S <- growth S after `growth_interval` good steps in a row

So S stays just below what overflows. Clip between `unscale_` and `step`: a norm means nothing while S is in it.
Cost: two passes over the gradients, tensor by tensor (torch's kernel takes one), and one number from the device to the host.
Source: Micikevicius et al. 2018 (arXiv:1710.03740), section 3.2; the rule of S and its four numbers as torch.amp.GradScaler.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..core import Impossible
from ..runtime.group import Group


class DynamicLossScaler:
    """torch.amp.GradScaler's interface and, step for step, its numbers; state dicts may be exchanged with it.

    enabled          False: losses, steps and gradients pass through as they are
    half_gradients   let `unscale_` also divide gradients that are stored in float16: in float32, but the result goes back
                     into float16, where the small ones vanish after all. torch refuses; so do we unless asked.
    group            ranks that train one model and skip together: what one finds, all have found. None: this rank is alone
    """

    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True, *, half_gradients=False,
                 group=None):
        self._enabled, self.half_gradients = bool(enabled), half_gradients
        self._rule(growth_factor, backoff_factor, growth_interval)
        self._scale, self._streak = usable(init_scale), 0  # the streak: good steps since the last change
        self._found: dict[Optimizer, Tensor | bool] = {}  # unscaled since the last update -> whether any gradient was not finite
        self._stepped: set[Optimizer] = set()
        self.scaled = False  # whether any loss was
        self.group = None if group is None else Group.of(group)
        self.agreed: bool | None = None  # since the last update: what the ranks of the group found together

    def _rule(self, growth_factor: float, backoff_factor: float, growth_interval: int) -> None:
        if not (hasattr(growth_factor, "__float__") and hasattr(backoff_factor, "__float__") and growth_factor > 1 > backoff_factor > 0
                and hasattr(growth_interval, "__index__") and growth_interval >= 1):
            raise Impossible(f"{growth_factor=}, {backoff_factor=}, {growth_interval=}: the scale must "
                             "grow by a factor above 1, back off by one between 0 and 1, and wait a whole number of steps, at least 1 step.")
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, operator.index(growth_interval)

    def scale(self, loss):
        """S times the loss, in float32; losses in a list, a tuple or any other iterable likewise."""
        if not self._enabled:
            return loss
        if isinstance(loss, Iterable) and not isinstance(loss, (Tensor, Mapping, str)):
            scaled = map(self.scale, loss)
            return type(loss)(scaled) if isinstance(loss, (list, tuple)) else scaled
        if not isinstance(loss, Tensor):
            raise Impossible(f"The loss is {loss!r}, a {type(loss).__name__}: scale the tensor that has the graph, before .item().")
        refuse_double("The loss", loss)
        self.scaled = True
        return loss.float() * self._scale

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of this optimizer's parameters by S, in place, and note whether all were finite. Call it
        yourself to clip or to look at gradients; `step` does it otherwise."""
        if not self._enabled:
            return
        if optimizer in self._found:
            raise Impossible("These gradients were unscaled since the last update(): a second division would make them "
                             f"{self._scale:g} times too small. Call unscale_ once a step, before clipping.")
        if self.agreed is not None:
            raise Impossible("The ranks have agreed on this step, and another optimizer comes after it: step all at once, as mp.step(one, other), or "
                             "unscale_ each before the first step.")
        if self._found and held_by(self._found) & held_by([optimizer]):
            raise Impossible("Two optimizers hold one parameter, whose gradient would be divided twice: give each weight, a tied one too, to one.")
        if not (gradients := list(self._gradients(optimizer))):
            raise Impossible("None of the optimizer's parameters has a gradient: call scale(loss).backward() before, of a loss that depends on them.")
        if not self.scaled:
            raise Impossible(f"No loss was scaled yet, so dividing these gradients by {self._scale:g} would all but stop the training: call "
                             "scale(loss).backward() instead of loss.backward().")
        inverse = torch.tensor(self._scale, dtype=torch.float64).reciprocal().float()
        extremes = [torch.zeros((), device=gradients[0].device)]
        for values in (each for each in gradients if each.numel()):
            extremes += (each.to(extremes[0]) for each in torch.aminmax(values))  # inf and nan both show in a tensor's extremes
            values.mul_(inverse) if values.dtype == torch.float32 else values.copy_(values.float() * inverse)
        self._found[optimizer] = ~torch.stack(extremes).isfinite().all()

    def step(self, optimizer: Optimizer, *args, **kwargs):
        """optimizer.step(...), and what it returns; None, with every weight untouched, where a gradient was not finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if kwargs.get("closure") is not None or any(map(callable, args)):
            raise Impossible("step() was given a closure: it makes new gradients inside the optimizer, still S times too large and not looked "
                             "at. Use an optimizer that needs none, or train without a scaler (bf16 needs none).")
        if optimizer in self._stepped:
            raise Impossible("step() was called for this optimizer since the last update(): call update() once all optimizers have stepped.")
        if optimizer not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(optimizer)
        return None if self.skips(optimizer) else optimizer.step(*args, **kwargs)

    @property
    def learnt(self) -> set[torch.nn.Parameter]:
        """The parameters whose gradients were looked at, and divided, since the last update."""
        return held_by(self._found)

    @property
    def stepped(self) -> set[torch.nn.Parameter]:
        """The parameters of the optimizers that stepped, or skipped, since the last update."""
        return held_by(self._stepped)

    def agree(self, *optimizers: Optimizer) -> None:
        """Let every rank of the group find what any of them did. Each rank calls it once a step with all its optimizers, also
        one that has none, whose weights are frozen; `step` calls it for one optimizer. Nothing where there is no group."""
        if not self._enabled or self.group is None:
            return
        for optimizer in optimizers:
            if optimizer not in self._found:
                self.unscale_(optimizer)
        if self.agreed is not None:
            return
        found = [flag for flag in self._found.values() if isinstance(flag, Tensor)]
        own = torch.tensor(float(any(map(bool, self._found.values()))), device=found[0].device if found else self.group.device)
        self.agreed = bool(self.group.all_reduce(own, "max", name="found inf"))
        self._found = dict.fromkeys(self._found, self.agreed)

    def skips(self, optimizer: Optimizer) -> bool:
        """Between `unscale_` and `update`: whether this optimizer's step is skipped."""
        if not self._enabled:
            return False
        if optimizer not in self._found:
            raise Impossible("Whether this optimizer skips is not known: ask between unscale_(optimizer) or step(optimizer) and update().")
        self.agree()
        self._found[optimizer] = skipped = bool(self._found[optimizer])  # a number now: the device is waited for once
        return skipped

    def update(self, new_scale: float | None = None) -> None:
        """Once a step, after all optimizers: one that skipped makes the scale back off for all."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = usable(new_scale)
        elif not self._found and self.agreed is None:
            raise Impossible("update() before any step(): nothing was learnt about the scale. Call step(optimizer) first.")
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

    def get_growth_factor(self) -> float:
        return self.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        self._rule(new_factor, self.backoff_factor, self.growth_interval)

    def get_backoff_factor(self) -> float:
        return self.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        self._rule(self.growth_factor, new_factor, self.growth_interval)

    def get_growth_interval(self) -> int:
        return self.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        self._rule(self.growth_factor, self.backoff_factor, new_interval)

    def state_dict(self) -> dict:
        return {"scale": self._scale, "growth_factor": self.growth_factor, "backoff_factor": self.backoff_factor,
                "growth_interval": self.growth_interval, "_growth_tracker": self._streak} if self._enabled else {}

    def load_state_dict(self, state: dict) -> None:
        if not self._enabled:
            return
        if lacking := self.state_dict().keys() - state.keys():
            raise Impossible(f"The state lacks {', '.join(sorted(lacking))}: it was saved where scaling was off, or by something else. Start anew.")
        self._rule(state["growth_factor"], state["backoff_factor"], state["growth_interval"])
        self._scale, self._streak = usable(state["scale"]), state["_growth_tracker"]

    def _gradients(self, optimizer: Optimizer) -> Iterator[Tensor]:
        """The values of the gradients that are there; a parameter that the loss did not reach has none."""
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
            refuse_double("A gradient", parameter.grad)
            if parameter.grad.dtype == torch.float16 and not self.half_gradients:
                raise Impossible("A gradient is float16: divided by the scale it would vanish again. Keep float32 master weights, whose "
                                 "gradients are float32 (MixedPrecision does), or let the model stay in float32 under a policy.")
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()  # a sum of rows that each fit may overflow
            yield parameter.grad._values() if parameter.grad.is_sparse else parameter.grad


def held_by(optimizers: Iterable[Optimizer]) -> set[torch.nn.Parameter]:
    return {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


def in_float32(value: float) -> float:
    """The scale is a float32 number, as on a device."""
    return torch.tensor(value, dtype=torch.float32).item()


def usable(scale: float) -> float:
    """As a float32, in which 1e-50 is 0 and 1e39 is inf."""
    number = in_float32(float(scale)) if hasattr(scale, "__float__") else 0
    if not 0 < number < float("inf"):
        raise Impossible(f"A loss scale of {scale!r} scales nothing: take a positive number that float32 holds, such as 65536.")
    return number


def refuse_double(what: str, tensor: Tensor) -> None:
    if tensor.dtype == torch.float64:
        raise Impossible(f"{what} is float64, whose smallest number is 2^-1074: nothing underflows there and a loss scale does no "
                         "good. Train a float64 model without a scaler, or convert it with model.float().")
