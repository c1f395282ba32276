"""The check of an update in mixed precision: silent on right ones, and on each known mistake the sentence that names it."""

import pytest
import torch

from bigtrain_lab.checks import update_findings
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler

pytestmark = pytest.mark.usefixtures("one_thread")


def updated(*, divide=True, in_half=False, finite=lambda g: g.isfinite().all(), clip_scaled=False, clips=True, copy="down", clears=True,
            clears_skipped=True, grows=True, resets=True, backoff=0.5, late=0):
    """The right update, with the mistake that is asked for."""
    def update(weights, masters, optimizer, scale, streak, growth_interval, clip):
        for weight, master in zip(weights, masters):
            master.grad = (weight.grad / scale).float() if in_half else weight.grad.float() / (scale if divide and not clip_scaled else 1)
        if not all(finite(m.grad) for m in masters):
            if clears_skipped:
                for weight in weights:
                    weight.grad = None
            return scale * backoff, 0 if resets else streak
        if clips:
            torch.nn.utils.clip_grad_norm_(masters, clip)
        if clip_scaled:
            for master in masters:
                master.grad /= scale
        optimizer.step()
        for weight, master in zip(weights, masters):
            if copy == "down":
                weight.data.copy_(master.data)
            elif copy == "up":
                weight.data.copy_(master.data)
                master.data.copy_(weight.data)
            if clears:
                weight.grad = None
        streak += 1
        return (2 * scale, 0) if grows and streak == growth_interval + late else (scale, streak)
    return update


@pytest.mark.parametrize("mistake, sentence", [
    (dict(divide=False), "exactly 1,024 times too large"),
    (dict(in_half=True), "fp16 sends the small gradients back to zero"),
    (dict(copy="up"), "you copy the wrong way"),
    (dict(copy="none"), "did not follow their masters"),
    (dict(clears=False), "the half gradients of the first were still there"),
    (dict(clips=False), "were not clipped"),
    (dict(clip_scaled=True), "You clipped the scaled gradient"),
    (dict(finite=lambda g: True), "A gradient was inf and the masters moved: skip"),
    (dict(finite=lambda g: not g.isnan().any()), "inf as well as nan"),
    (dict(finite=lambda g: not g.isinf().any()), "A gradient was nan and the masters moved"),
    (dict(backoff=1), "halve it"),
    (dict(resets=False), "must set the growth count to 0"),
    (dict(clears_skipped=False), "After a skipped step the next one is lost too"),
    (dict(grows=False), "6 good steps and the scale did not double"),
    (dict(late=1), "with growth_interval=3 it must be 2,048"),
], ids=lambda value: value if isinstance(value, str) else "".join(value))  # two processes must agree on the names
def test_a_mistake_is_named(mistake, sentence):
    finding, = update_findings(updated(**mistake))
    assert sentence in finding


def test_a_right_update_has_no_findings():
    assert update_findings(updated()) == []


def test_the_library_has_no_findings():
    """An update by the library's scaler, told the scale and the streak."""
    def update(weights, masters, optimizer, scale, streak, growth_interval, clip):
        scaler = DynamicLossScaler(scale, growth_interval=growth_interval)
        scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": streak})
        scaler.scale(torch.ones(()))  # the check brings gradients of a scaled loss
        for weight, master in zip(weights, masters):
            master.grad, weight.grad = weight.grad.float(), None
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(masters, clip)
        scaler.step(optimizer)
        scaler.update()
        for weight, master in zip(weights, masters):
            weight.data.copy_(master.data)
        return scaler.get_scale(), scaler.state_dict()["_growth_tracker"]

    assert update_findings(update) == []


@pytest.mark.parametrize("update, sentence", [
    (lambda *given: 1 / 0, "raised ZeroDivisionError"),
    (lambda *given: None, "returned None: return the pair"),
    (lambda weights, masters, optimizer, scale, streak, *rest: (scale, streak), "The masters did not move"),
])
def test_what_is_no_update_is_told(update, sentence):
    finding, = update_findings(update)
    assert sentence in finding
