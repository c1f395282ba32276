"""The checks of a scaler and of a policy: silent on right ones, and on each known mistake the sentence that names it."""

import pytest
import torch

from bigtrain_lab.checks import policy_findings, scaler_findings
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler, Policy

pytestmark = pytest.mark.usefixtures("one_thread")


class NoUnscale(DynamicLossScaler):
    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass


class DividesTwice(DynamicLossScaler):
    def step(self, optimizer):
        self._found.pop(optimizer, None)
        return super().step(optimizer)


class UnscalesInHalf(DynamicLossScaler):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.copy_(p.grad.half())


class Steps(DynamicLossScaler):
    """Steps on what `ignored` says is no reason to skip."""

    ignored = staticmethod(lambda values: True)

    def unscale_(self, optimizer):
        values = torch.cat([p.grad for group in optimizer.param_groups for p in group["params"]])
        super().unscale_(optimizer)
        if self.ignored(values):
            self._found[optimizer] = torch.tensor(False)


class OnlyNan(Steps):
    ignored = staticmethod(lambda values: not values.isnan().any())


class OnlyInf(Steps):
    ignored = staticmethod(lambda values: not values.isinf().any())


class NeverGrows(DynamicLossScaler):
    def update(self):
        self._streak = 0
        super().update()


class KeepsStreak(DynamicLossScaler):
    def update(self):
        streak, skipped = self._streak, any(map(self.skips, self._found))
        super().update()
        self._streak = streak if skipped else self._streak


class NeverBacksOff(DynamicLossScaler):
    def update(self):
        scale = self._scale
        super().update()
        self._scale = max(scale, self._scale)


class OneForAll(DynamicLossScaler):
    """Keeps one verdict: any optimizer's inf stops all that step later."""

    def skips(self, optimizer):
        return any(bool(found) for found in self._found.values())


class ForgetsStreak(DynamicLossScaler):
    def state_dict(self):
        return super().state_dict() | {"_growth_tracker": 0}


class BacksOffTwice(DynamicLossScaler):
    """Right wherever one optimizer steps; two that skip together count twice."""

    def update(self):
        skipped = sum(map(self.skips, self._found))
        super().update()
        self._scale *= self.backoff_factor ** max(0, skipped - 1)


@pytest.mark.parametrize("mistake, sentence", [
    (NoUnscale, "exactly 1,024 times too large"), (DividesTwice, "step divided again"), (UnscalesInHalf, "fp16 sends the small gradients back to zero"),
    (Steps, "gradient of inf: skip the step when any gradient is not finite, inf as well as nan"), (OnlyNan, "inf as well as nan"), (OnlyInf, "nan as well as inf"),
    (NeverBacksOff, "multiply it by backoff_factor"), (NeverGrows, "6 good steps and the scale did not double"), (KeepsStreak, "must set the growth count to 0"),
    (OneForAll, "for each optimizer"), (ForgetsStreak, "growth count in the state dict"),
    (BacksOffTwice, "Compare your rule"),
    (lambda **given: DynamicLossScaler(**given | {"growth_interval": 2}), "with growth_interval=3 it must be"),
    (lambda **given: None, "raised AttributeError"),
], ids=lambda each: getattr(each, "__name__", ""))
def test_a_scaler_s_mistake_is_named(mistake, sentence):
    finding, = scaler_findings(mistake)
    assert sentence in finding


def test_right_scalers_have_no_findings():
    assert scaler_findings(DynamicLossScaler) == [] == scaler_findings(lambda **given: torch.amp.GradScaler("cpu", **given))


class Wrong(Policy):
    def __init__(self, rules):
        super().__init__(torch.float16)
        self.rule |= rules


@pytest.mark.parametrize("rules, sentence", [
    ({"softmax": torch.float16}, "exp above 11.09 is inf in fp16"), ({"exp": torch.float16}, "exp above 11.09"), ({"sum": torch.float16}, "70,000 ones"),
    ({"matmul": torch.float32}, "nothing is gained"), ({"cross_entropy": torch.float16}, "A loss came out in float16"),
    ({"layer_norm": torch.float16}, "a norm in float16"), ({"add": torch.float16}, "take the widest"),
], ids=str)
def test_a_policy_s_mistake_is_named(rules, sentence):
    finding, = policy_findings(lambda dtype: Wrong(rules))
    assert sentence in finding


class CastsIds(Policy):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in self.casts:
            args = tuple(a.half() if isinstance(a, torch.Tensor) and not a.is_floating_point() else a for a in args)
        return super().__torch_function__(func, types, args, kwargs)


@pytest.mark.parametrize("name, sentence", [("sum", "Ids were cast"), ("cross_entropy", "Under your policy torch raised")])
def test_casting_ids_or_labels_is_named(name, sentence):
    finding, = policy_findings(type("Casts", (CastsIds,), {"casts": (name,)}))
    assert sentence in finding


def test_the_library_s_policy_has_no_findings_and_none_at_all_has_one():
    assert policy_findings(Policy) == []
    assert "exp above 11.09" in policy_findings(lambda dtype: Wrong(dict.fromkeys(("softmax", "exp"), torch.float16)))[0]
    assert "nothing is gained" in policy_findings(lambda dtype: torch.no_grad())[0]
