"""The checks of a scaler and of a policy: silent on right ones, however written, and on each known mistake the sentence that names it."""

import math
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bigtrain_lab.checks import policy_findings, scaler_findings
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler, Policy

RIGHT = """
class Scaler:
    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        self.value, self.up, self.down, self.interval = init_scale, growth_factor, backoff_factor, growth_interval
        self.streak, self.found = 0, {}

    def scale(self, loss):
        return loss * self.value

    def unscale_(self, optimizer):
        bad = False
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad /= self.value
                    bad = bad or not p.grad.isfinite().all()
        self.found[optimizer] = bad

    def step(self, optimizer):
        if optimizer not in self.found:
            self.unscale_(optimizer)
        if not self.found[optimizer]:
            optimizer.step()

    def update(self):
        if any(self.found.values()):
            self.value, self.streak = self.value * self.down, 0
        else:
            self.streak += 1
            if self.streak == self.interval:
                self.value, self.streak = self.value * self.up, 0
        self.found = {}

    def get_scale(self):
        return self.value

    def state_dict(self):
        return {"value": self.value, "streak": self.streak}

    def load_state_dict(self, state):
        self.value, self.streak = state["value"], state["streak"]
"""
DIVIDE, FINITE, GROUPS, STEP = "p.grad /= self.value", "bad = bad or not p.grad.isfinite().all()", "for group in optimizer.param_groups:", "            optimizer.step()\n"
BACKOFF, GROW, FORGET = "self.value, self.streak = self.value * self.down, 0", "self.value, self.streak = self.value * self.up, 0", "        self.found = {}\n\n    def get"
SAVED, LOADED, PRESENT = '{"value": self.value, "streak": self.streak}', 'self.value, self.streak = state["value"], state["streak"]', "if p.grad is not None:"
SKIPS, UNSCALED, COUNT = "if not self.found[optimizer]:", "if optimizer not in self.found:", "            self.streak += 1\n"


def changed(*changes: tuple[str, str]):
    """The right scaler with these pieces of its text replaced."""
    text = RIGHT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    names = {"torch": torch, "math": math}
    exec(text, names)
    return names["Scaler"]


MISTAKES = {
    # the division
    "does not scale": ("of 3 it gave 3, not 3072", ("return loss * self.value", "return loss")),
    "scales by its own": ("of 3 it gave 196608, not 3072", ("= init_scale, growth", "= 65536.0, growth")),
    "never divides": ("exactly 1,024 times too large", (DIVIDE, "pass")),
    "divides where asked alone": ("exactly 1,024 times too large", (f"        {UNSCALED}\n            self.unscale_(optimizer)\n        {SKIPS}", "        if True:")),
    "divides twice": ("step divided again", (UNSCALED, "if True:")),
    "multiplies": ("moved its weight by 131072", (DIVIDE, "p.grad *= self.value")),
    "divides in half": ("fp16 sends the small gradients back to zero", (DIVIDE, "p.grad.copy_((p.grad.half() / self.value).float())")),
    "divides the first parameter": ("every parameter", (PRESENT, "if p.grad is not None and p is optimizer.param_groups[0]['params'][0]:")),
    "divides the first group": ("in every group", (GROUPS, "for group in optimizer.param_groups[:1]:")),
    "expects a gradient": ("With a parameter that has no gradient your scaler raised AttributeError", (PRESENT, "if True:"), (DIVIDE, "p.grad.div_(self.value)")),
    "remembers what was unscaled": ("In the second step a gradient of 0.125 moved its weight by 128", (FORGET, "\n    def get")),
    "refuses a second time": ("In the second step your scaler raised RuntimeError", (FORGET, "\n    def get"),
                              ("        bad = False\n", "        if optimizer in self.found: raise RuntimeError('twice')\n        bad = False\n")),
    # skipping
    "never steps": ("A good step moved nothing", (STEP, "            pass\n")),
    "never skips": ("gradient of inf: skip the step when any gradient is not finite, inf as well as nan", (SKIPS, "if True:")),
    "skips nan alone": ("inf as well as nan", (FINITE, "bad = bad or p.grad.isnan().any()")),
    "skips inf alone": ("nan as well as inf", (FINITE, "bad = bad or p.grad.isinf().any()")),
    "skips no -inf": ("gradient of -inf: skip", (FINITE, "bad = bad or (p.grad.isnan() | (p.grad == math.inf)).any()")),
    "looks at the first number": ("every number of every parameter", (FINITE, "bad = bad or not p.grad[:1].isfinite().all()")),
    "looks at the last parameter": ("every number of every parameter", (FINITE, "bad = not p.grad.isfinite().all()")),
    "looks at the mean of absolutes below 1e4": ("1,024,000 was no good step", (FINITE, "bad = bad or not p.grad.abs().mean() < 999")),
    "looks in half": ("1,024,000 was no good step", (DIVIDE, "half = p.grad.half(); " + DIVIDE), (FINITE, "bad = bad or not half.isfinite().all()")),
    "sets inf to 0": ("The weights moved after a gradient of inf", (FINITE, "p.grad.nan_to_num_(0, 0, 0)")),
    "steps with zeros": ("optimizer.step() was called with zeros", (STEP, STEP + "        else:\n            for p in (p for g in optimizer.param_groups for p in g['params']):\n"
                                                                 "                p.grad = torch.zeros_like(p)\n            optimizer.step()\n")),
    "steps with None": ("so do not call it where you skip", (STEP, STEP + "        else:\n            optimizer.zero_grad(); optimizer.step()\n")),
    "skips for ever": ("After a skipped step a gradient of 0.125 moved its weight by 0,", (SKIPS, "self.stopped = getattr(self, 'stopped', False) or self.found[optimizer]\n"
                                                                                        "        if not self.stopped:")),
    "does not back off": ("multiply it by backoff_factor", (BACKOFF, "self.streak = 0")),
    # growing
    "never grows": ("6 good steps and the scale did not grow", (GROW, "pass")),
    "grows early": ("and begin to count anew", ("self.streak == self.interval", "self.streak == self.interval - 1")),
    "grows on and on": ("must be [1.0, 1.0, 2.0, 2.0, 2.0, 4.0]", ("self.streak == self.interval", "self.streak >= self.interval"), (GROW, "self.value *= self.up")),
    "doubles": ("multiply it by growth_factor, not by a number of your own", (GROW, "self.value, self.streak = self.value * 2, 0")),
    "halves": ("With backoff_factor=0.25 a skipped step took the scale from 1,024 to 512", (BACKOFF, "self.value, self.streak = self.value * 0.5, 0")),
    "backs off by 1 / growth": ("Compare your rule", (BACKOFF, "self.value, self.streak = self.value / self.up if self.value < 2e6 else self.value * self.down / 2, 0")),
    "keeps the streak": ("must set the growth count to 0", (BACKOFF, "self.value *= self.down")),
    "counts in step": ("count in update(), once for all optimizers", (COUNT, ""), (STEP, STEP + "            self.streak += 1\n")),
    "waits for 3 steps": ("Compare your rule", ("self.streak == self.interval", "self.streak == 3")),
    "grows to 65,536 at most": ("Compare your rule", (GROW, "self.value, self.streak = min(self.value * self.up, 65536.0), 0")),
    "backs off to 1 at least": ("Compare your rule", (BACKOFF, "self.value, self.streak = max(self.value * self.down, 1.0), 0")),
    # several optimizers
    "keeps one verdict": ("keep what you found for each optimizer", (SKIPS, "if not any(self.found.values()):")),
    "keeps the last verdict": ("update() backs off once", ("if any(self.found.values()):", "if list(self.found.values())[-1]:")),
    "backs off in step": ("change the scale in update(), not before", ("if any(self.found.values()):", "if False:"),
                          (STEP, STEP + "        else:\n            self.value, self.streak = self.value * self.down, -1\n")),
    "backs off twice": ("Both of two optimizers skipped and the scale is 256", (BACKOFF, "self.value, self.streak = self.value * self.down ** sum(map(bool, self.found.values())), 0")),
    # saving
    "forgets the scale": ("keep the scale in the state dict", (SAVED, '{"value": 1024.0, "streak": self.streak}')),
    "forgets the streak": ("growth count in the state dict", (SAVED, '{"value": self.value, "streak": 0}')),
    "loads a long streak": ("growth count in the state dict", (LOADED, "self.value, self.streak = state['value'], self.interval - 1")),
    "loads nothing": ("keep the scale in the state dict", (LOADED, "pass")),
    "saves itself": ("as a number of its own", (SAVED, "self.__dict__"), (LOADED, "self.__dict__.update(state)")),
    "is none": ("raised AttributeError", ("class Scaler:", "Scaler = lambda **given: None\nclass Other:")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_scaler_s_mistake_is_named(name):
    sentence, *changes = MISTAKES[name]
    finding, = scaler_findings(changed(*changes))
    assert sentence in finding


OTHERWISE = {
    "as it stands": (),
    "multiplies by the inverse": ((DIVIDE, "p.grad.mul_(1 / self.value)"),),
    "makes new gradients": ((DIVIDE, "p.grad = p.grad / self.value"),),
    "holds tensors": (("= init_scale, growth", "= torch.tensor(float(init_scale)), growth"),),
    "saves tensors": ((SAVED, '{"value": torch.tensor(self.value), "streak": torch.tensor(self.streak)}'),),
    "sums": ((FINITE, "bad = bad or not p.grad.double().sum().isfinite()"),),
    "looks before it divides": ((f"{DIVIDE}\n                    {FINITE}", f"{FINITE}\n                    {DIVIDE}"),),
    "keys by id": ((UNSCALED, "if id(optimizer) not in self.found:"), (SKIPS, "if not self.found[id(optimizer)]:"), ("self.found[optimizer] = bad", "self.found[id(optimizer)] = bad")),
    "counts by the remainder": (("self.streak == self.interval", "self.streak % self.interval == 0"), (GROW, "self.value *= self.up")),
    "counts down": (("self.streak, self.found = 0, {}", "self.streak, self.found = growth_interval, {}"), (COUNT, "            self.streak -= 1\n"),
                    ("self.streak == self.interval", "self.streak == 0"), (BACKOFF, "self.value, self.streak = self.value * self.down, self.interval"),
                    (GROW, "self.value, self.streak = self.value * self.up, self.interval")),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_right_scaler_has_no_findings(name):
    assert scaler_findings(changed(*OTHERWISE[name])) == []


def test_the_library_s_scaler_and_torch_s_have_no_findings():
    assert scaler_findings(DynamicLossScaler) == [] == scaler_findings(lambda **given: torch.amp.GradScaler("cpu", **given))


# -- policies -------------------------------------------------------------------------------------------------------------


class Plain(TorchFunctionMode):
    """A right policy in a few lines."""

    low = {"matmul", "mm", "bmm", "einsum", "linear", "conv1d", "conv2d"}
    full = {"exp", "softmax", "log_softmax", "log", "pow", "sum", "mean", "norm", "layer_norm", "cross_entropy", "mse_loss"}

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def cast(self, value, dtype):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64:
            return value.to(dtype)
        return value

    def wanted(self, name):
        return self.dtype if name in self.low else torch.float32 if name in self.full else None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        dtype = self.wanted(getattr(func, "__name__", ""))
        return self.call(func, args, kwargs or {}, dtype) if dtype else func(*args, **(kwargs or {}))

    def call(self, func, args, kwargs, dtype):
        return func(*(self.cast(each, dtype) for each in args), **{name: self.cast(each, dtype) for name, each in kwargs.items()})


class Double(Plain):
    """What is delicate in float64, and then float32."""

    def call(self, func, args, kwargs, dtype):
        if dtype == torch.float32 and all(not isinstance(each, torch.Tensor) or each.dtype != torch.float64 for each in args):
            found = super().call(func, args, kwargs, torch.float64)
            return found.to(dtype) if found.is_floating_point() else found
        return super().call(func, args, kwargs, dtype)


class Widens(Plain):
    """All that is no product in float32: slow, and safe."""

    def wanted(self, name):
        return super().wanted(name) or (torch.float32 if name in ("add", "mul", "div", "tanh", "relu", "gelu") else None)


@contextmanager
def patching(dtype, undo=lambda error: True):
    """The functions of torch replaced, and put back."""
    plain = Plain(dtype)
    owners = [(owner, name) for owner in (torch, torch.Tensor, F) for name in plain.low | plain.full if hasattr(owner, name)]
    owners += [(torch.Tensor, "__matmul__"), (torch.Tensor, "__pow__")]
    patches = []
    for owner, name in owners:
        def stand_in(*args, func=getattr(owner, name), to=plain.wanted(name.strip("_")), **kwargs):
            return plain.call(func, args, kwargs, to)
        patches.append(patch.object(owner, name, stand_in))
    for each in patches:
        each.start()
    error = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for each in patches if undo(error) else ():
            each.stop()


@pytest.mark.parametrize("make", [Policy, Plain, Double, Widens, patching], ids=lambda make: make.__name__)
def test_a_right_policy_has_no_findings(make):
    assert policy_findings(make) == []


def without(*names, low=Plain.low, full=Plain.full):
    return type("Wrong", (Plain,), {"low": set(low) - set(names), "full": set(full) - set(names)})


class Rounds(Plain):
    """These, too, in 16 bits."""

    rounded = ()

    def wanted(self, name):
        return self.dtype if name in self.rounded or not self.rounded and name not in self.full else super().wanted(name)


class OneType(Plain):
    def __init__(self, dtype):
        super().__init__(torch.float16)


class CastsDouble(Plain):
    def cast(self, value, dtype):
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class CastsDoubleWhereDelicate(Plain):
    def cast(self, value, dtype):
        return super().cast(value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float64 and dtype == torch.float32 else value, dtype)


class CastsIds(Plain):
    def cast(self, value, dtype):
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype == torch.int64 and value.numel() == 1 else super().cast(value, dtype)


class CastsLabels(Plain):
    def cast(self, value, dtype):
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype == torch.int64 else super().cast(value, dtype)


class CastsNoKeywords(Plain):
    def call(self, func, args, kwargs, dtype):
        return func(*(self.cast(each, dtype) for each in args), **kwargs)


class CastsResults(Plain):
    def call(self, func, args, kwargs, dtype):
        return self.cast(func(*(self.cast(each, torch.float32) for each in args), **kwargs), dtype)


class WidensResults(Plain):
    def call(self, func, args, kwargs, dtype):
        return func(*args, **kwargs).to(dtype) if dtype == torch.float32 else super().call(func, args, kwargs, dtype)


class Detaches(Plain):
    def cast(self, value, dtype):
        return super().cast(value, dtype).detach() if isinstance(value, torch.Tensor) else value


class DetachesWhereDelicate(Plain):
    def call(self, func, args, kwargs, dtype):
        found = super().call(func, args, kwargs, dtype)
        return found.detach() if dtype == torch.float32 else found


class NoGrad(Plain):
    def call(self, func, args, kwargs, dtype):
        with torch.no_grad():
            return super().call(func, args, kwargs, dtype)


class Narrowest(Plain):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("add", "mul") and any(isinstance(each, torch.Tensor) and each.dtype == self.dtype for each in args):
            args = [self.cast(each, self.dtype) for each in args]
        return super().__torch_function__(func, types, args, kwargs)


class Swallows(Plain):
    def __exit__(self, *error):
        super().__exit__(*error)
        return True


class CastsIdsInProducts(Plain):
    def call(self, func, args, kwargs, dtype):
        return func(*(each.to(dtype) if isinstance(each, torch.Tensor) and each.dtype == torch.int64 and dtype != torch.float32 else self.cast(each, dtype)
                      for each in args), **{name: self.cast(each, dtype) for name, each in kwargs.items()})


@pytest.mark.parametrize("make, sentence", [
    (without(*Plain.low - {"matmul"}), "torch.mm, stayed in float32: nothing is gained"), (without("linear"), "F.linear, stayed"), (without("bmm"), "torch.bmm, stayed"),
    (without("conv1d"), "F.conv1d, stayed"), (without("conv2d"), "F.conv2d, stayed"), (without("einsum"), "torch.einsum, stayed"),
    (without(*Plain.low), "x @ y, stayed"), (lambda dtype: torch.no_grad(), "x @ y, stayed"),
    (OneType, "came out in float16 under a policy of bfloat16: cast to the type that you are given"),
    (CastsResults, "computed in float32 and rounded after: nothing is gained"), (WidensResults, "float32, computed in 16 bits: exp above 11.09"),
    (CastsDouble, "x @ y of float64 matrices came out in float16: leave float64 alone"),
    (CastsDoubleWhereDelicate, "x.exp() of float64 numbers came out in float32: leave float64 alone"),
    (Detaches, "x @ y lost its graph"), (NoGrad, "x @ y lost its graph"), (DetachesWhereDelicate, "x.exp() lost its graph"), (CastsNoKeywords, "keywords too"),
    (without("exp"), "x.exp() of float16 numbers came out in float16: exp above 11.09 is inf in fp16"), (without("softmax"), "F.softmax of float16"),
    (without("log_softmax"), "F.log_softmax of float16"), (without("log"), "torch.log of float16"), (without("pow"), "x ** 2 of float16"),
    (without("sum"), "a sum of 70,000 ones is inf"), (without("mean"), "x.mean() of float16 numbers"), (without("norm"), "x.norm() of float16"),
    (without("layer_norm"), "F.layer_norm of float16 numbers came out in float16: it sums many terms"), (without("cross_entropy"), "F.cross_entropy of float16"),
    (without("mse_loss"), "F.mse_loss of float16"),
    (type("Wrong", (Rounds,), {"rounded": ("mul",)}), "x * y of float32 numbers came out in float16: products of matrices alone are rounded"),
    (Rounds, "of float32 numbers came out in float16"), (type("Wrong", (Rounds,), {"rounded": ("embedding",)}), "F.embedding of float32"),
    (Narrowest, "x + y of float16 and float32 came out in float16: take the widest"),
    (CastsIds, "Ids were cast"), (CastsLabels, "Under your policy torch raised"),
    (lambda dtype: patching(dtype, undo=lambda error: error is None), "undo in __exit__, or in finally"), (Swallows, "An error inside the with block was swallowed"), (CastsIdsInProducts, "Ids were cast"),
    (lambda dtype: patching(dtype, undo=lambda error: False), "After the with block the policy is still in force"),
], ids=lambda each: each if isinstance(each, str) else "")
def test_a_policy_s_mistake_is_named(make, sentence):
    try:
        finding, = policy_findings(make)
    finally:
        patch.stopall()
    assert sentence in finding


def test_the_library_s_policy_with_one_rule_changed_is_found():
    class Wrong(Policy):
        def __init__(self, dtype):
            super().__init__(dtype)
            self.rule |= {"add": dtype}

    assert "x + y of float32 numbers came out in float16" in policy_findings(Wrong)[0]
