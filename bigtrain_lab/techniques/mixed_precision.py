"""Mixed precision: compute in 16 bits, update in 32. Half the bytes move; masters keep all digits.

    master w (float32) --round--> w (half) --forward (softmax, norms, losses in float32)--> loss
        ^                                                                                | x S
        +-- optimizer (float32) <-- g = float32(S g) / S <-- gradients (half) <-- backward (half)

Three safeguards, each against one loss of 16 bits. A level may lack some, to show their purpose.

    policy    operators that need range or long sums run in float32 (precision_policy.py)
    scaling   S lifts gradients above fp16's smallest number, 2^-24 (loss_scaler.py). bf16 has
              float32's range
    masters   w + step is computed in float32. In half w, a step below half a unit in the last place
              changes nothing. A unit is 2^-10 of w in fp16, 2^-7 in bf16: bf16 needs masters more

A half weight's gradient moves to its master, where gradients add up in float32. A stand-in in the
weight's .grad refuses all use (prepared_model.py).

Bytes a weight with Adam: in float32 4 + 4 (gradient) + 8. Mixed: 2 + 4 (master) + 4 + 8, and 2 more
for a half gradient. Weights and optimizer need slightly more memory. Activations need half. A saved
training state grows by masters and S.

Without masters the optimizer's state is half too, as torch makes it. In fp16 Adam's eps below 2^-25
(3e-8) is 0. A squared gradient below that is 0 too, and 0 / 0 is nan. In bf16 0.999 v rounds back
to v, so the second moment never forgets.

    mp = MixedPrecision("fp16")
    model = mp.prepare(model)               # on its device, in float32, before the optimizer
    optimizer = torch.optim.Adam(mp.parameters(), lr=1e-3)
    with mp:
        loss = cross_entropy(model(ids), labels)
    mp.backward(loss / k)                   # k times to accumulate: gradients add up in float32
    mp.unscale_(optimizer)                  # to clip; step() does it otherwise
    torch.nn.utils.clip_grad_norm_(mp.parameters(), 1.0)
    mp.step(optimizer); mp.update(); optimizer.zero_grad()
                                            # several optimizers: step each, then update

Source: Micikevicius et al. 2018 (arXiv:1710.03740), sections 3.1 to 3.3.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..runtime.memory import owned
from .guards import mixed_precision as guard
from .loss_scaler import DynamicLossScaler, held_by
from .precision_levels import AS_IT_IS, LEVELS, Level
from .precision_policy import Policy
from .prepared_model import ToMaster, adapt
from .shards import COPIES, CUTS, STEPPED, home_of

__all__ = ["LEVELS", "DynamicLossScaler", "Level", "MixedPrecision", "Policy"]
# Their few weights, and their running statistics, stay float32: the policy runs them in float32.
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def naive_mixed_training(
    model, loss_of, batches, optimizer_class, half=torch.float16, scale=2.0**16, **kwargs
):
    """Train a float32 model with half weights, float32 masters and a scaled loss. Return the loss
    of each batch. loss_of(model, batch) returns a float32 loss, of float32 outputs. `scale` is
    halved after an overflow, and never grown here."""
    masters = [nn.Parameter(weight.detach().clone()) for weight in model.parameters()]
    optimizer, losses = optimizer_class(masters, **kwargs), []
    model.to(half)
    for batch in batches:
        loss = loss_of(model, batch)
        (scale * loss).backward()
        for weight, master in zip(model.parameters(), masters):
            master.grad, weight.grad = weight.grad.float() / scale, None
        if all(master.grad.isfinite().all() for master in masters):
            optimizer.step()
            for weight, master in zip(model.parameters(), masters):
                weight.data.copy_(master)
        else:  # an overflow: skip the step, and lift the gradients less
            scale /= 2
        losses.append(loss.item())
    return losses


class MixedPrecision:
    """Training of one model at a level. The policy is in force inside `with mp:`.

    level    a name in LEVELS, a Level of your own, or None: the model stays as it is
    scaler   a DynamicLossScaler in place of the default, at a level that scales
    group    ranks that train one model and so skip steps together, for the default scaler. A
             scaler of your own has a group of its own

    A copy, as by copy.deepcopy or pickle, has no model and no masters. To resume, save
    state_dict().
    """

    def __init__(
        self,
        level: str | Level | None = "fp16",
        scaler: DynamicLossScaler | None = None,
        group=None,
    ):
        self.level = guard.level_of(AS_IT_IS if level is None else level, scaler, group)
        self.policy = Policy(self.level.dtype) if self.level.policy else nullcontext()
        self.scaler = (
            (scaler or DynamicLossScaler(half_gradients=not self.level.masters, group=group))
            if self.level.scaling
            else None
        )
        self.moves: dict[nn.Parameter, ToMaster] = {}  # half weight -> the way to its master
        self.model: nn.Module | None = None
        self._zero_has_masters = False

    def __reduce__(self):
        return MixedPrecision, (self.level,)

    def __enter__(self):
        self._round()
        self.policy.__enter__()
        return self

    def __exit__(self, *error):
        return self.policy.__exit__(*error)

    def prepare(self, model: nn.Module, masters: bool = True, rounded: bool = True) -> nn.Module:
        """Round the model's weights to half, keep their float32 values as masters, and return the
        model. Tied weights stay tied; frozen ones get no master. Under a policy, buffers (running
        statistics, position tables) stay float32.

        masters   False: ZeRO keeps masters, in shards
        rounded   False: stage 3 of ZeRO rounds what it gathers
        """
        guard.refuse_model(model, self.model is not None, self.level is not AS_IT_IS)
        if self.level is AS_IT_IS:
            self.model = model
            return model
        self.model, self._zero_has_masters = model, not masters
        norms = (
            {
                p
                for m in model.modules()
                if isinstance(m, NORMS)
                for p in m.parameters(recurse=False)
            }
            if self.level.policy
            else ()
        )
        for weight in (
            p
            for p in model.parameters()
            if rounded
            and self.level.rounded
            and p.is_floating_point()
            and p not in norms
            and self.level.dtype != p.dtype
        ):
            whole, weight.data = weight.data, weight.data.to(self.level.dtype)
            if self.level.masters and masters and weight.requires_grad:
                self._give_master(weight, whole)
        if not self.level.policy:
            for buffer in (b for b in model.buffers() if b.is_floating_point()):
                buffer.data = buffer.data.to(self.level.dtype)
        adapt(model, self)
        return model

    @property
    def masters(self) -> dict[nn.Parameter, nn.Parameter]:
        """Half weight -> its float32 master."""
        return {weight: moves.master for weight, moves in self.moves.items()}

    def _give_master(self, weight: nn.Parameter, whole: Tensor | None = None) -> None:
        master = home_of("", weight, whole).stepped
        CUTS[master] = CUTS.get(weight)
        if weight in COPIES:
            COPIES[master] = True
        self.moves[weight] = ToMaster(weight, master)
        STEPPED[weight], guard.PREPARED[master] = master, ref(self)

    def _lacks_master(self, weight: Tensor) -> bool:
        return (
            self.level.masters
            and not self._zero_has_masters
            and weight.dtype == self.level.dtype != torch.float32
            and weight not in self.moves
        )

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield what the optimizer updates, by the weights' names: masters, and the weights that
        need none. Clip and zero the gradients of these. A weight that was frozen in prepare() and
        is not now gets its master here, from its rounded value."""
        self.settle()
        for name, weight in self.model.named_parameters():
            if weight.requires_grad:
                if self._lacks_master(weight):
                    self._give_master(weight)
                yield name, STEPPED.get(weight, weight)

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for _, parameter in self.named_parameters()]

    def scale(self, loss: Tensor) -> Tensor:
        self._update_scale_if_stepped()
        return self.scaler.scale(loss) if self.scaler else loss

    def backward(self, loss: Tensor, **kwargs) -> None:
        """Run the backward of the scaled loss. The policy is in force for what torch's checkpoint
        reruns in it; this library's restores the policy itself."""
        with self:
            torch.autograd.backward(self.scale(loss), **kwargs)

    def settle(self) -> None:
        """Drop the gradients of masters whose weights' stand-ins were cleared."""
        for weight, moves in self.moves.items():
            moves.settle(weight)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by S, to clip or to read them; at most once a step. Do nothing if no
        loss is scaled."""
        self.settle()
        if self.scaler:
            self.scaler.unscale_(optimizer)

    @torch.no_grad()
    def step(self, *optimizers: Optimizer) -> bool:
        """Update the masters, then round them to the weights. Return False if an inf or nan made
        any optimizer skip. With a group, each rank calls it once with all its optimizers, even if
        it has none."""
        half = any(p in self.moves or self._lacks_master(p) for p in held_by(optimizers))
        guard.refuse_step(self, half)
        self.settle()
        self._round()
        if self.scaler:
            self.scaler.agree(*optimizers)
        for optimizer in optimizers:
            self.scaler.step(optimizer) if self.scaler else optimizer.step()
        skipping = [each for each in optimizers if self.scaler and self.scaler.skips(each)]
        # an optimizer may write to p.data, which torch does not count
        self._round(held_by(optimizers) - held_by(skipping))
        return not (skipping or self.scaler and self.scaler.agreed)

    def update(self) -> None:
        """Change the scale by what the steps found. Call it after the last optimizer's step, since
        gradients of one backward have one scale. A loop may leave it out, as Apex's loops do: then
        the next `scale` or `state_dict` changes the scale.
        """
        if self.scaler and (self.scaler.learnt or self.scaler.agreed is not None):
            self.scaler.update()

    def _update_scale_if_stepped(self) -> None:
        """Change the scale in a loop that does not call update(). It waits until each gradient of
        the model has had its step. One that has not is still multiplied by the old scale."""
        if (
            self.scaler
            and ((stepped := self.scaler.stepped) or self.scaler.agreed is not None)
            and all(p.grad is None or p in stepped for p in self.parameters())
        ):
            self.scaler.update()

    @torch.no_grad()
    def _round(self, stepped=()) -> None:
        """Round each master that was stepped, by any optimizer, to its weight. First copy to the
        master what was written to the half weight in place, as by nn.init. Elements that were not
        written keep their digits. `stepped`: masters to round in any case."""
        for weight, moves in self.moves.items():
            master, (master_seen, weight_seen) = moves.master, moves.seen
            if master_seen == master._version and weight_seen != weight._version:
                rounded = weight == master.to(weight.dtype)
                master.copy_(torch.where(rounded, master, weight.float()))
            if master_seen != master._version or master in stepped:
                weight.copy_(master)
            moves.seen = master._version, weight._version

    def state_dict(self) -> dict:
        """Return the masters and the scaler, which model.state_dict() and optimizer.state_dict()
        lack to resume exactly."""
        self._update_scale_if_stepped()
        names = {p: name for name, p in self.model.named_parameters()}
        return {
            "masters": {names[weight]: master.detach() for weight, master in self.masters.items()},
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        own, scales = self.state_dict()["masters"], self.scaler is not None
        guard.refuse_state(own, scales, state)
        for name, master in own.items():  # which shares its storage
            master.copy_(state["masters"][name])
        self._round()
        if scales:
            self.scaler.load_state_dict(state["scaler"])

    def holdings(self, *optimizers: Optimizer) -> dict[str, dict[str, Tensor]]:
        """Return all tensors of the training now, by kind of memory and name. A master has its
        weight's name."""
        return owned.named({"": self.model}, optimizers, self.masters)
