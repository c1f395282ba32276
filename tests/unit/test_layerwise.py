"""LAMB against a literal transcription of its paper's algorithm, in float64."""

import numpy as np
import pytest
import torch

from bigtrain_lab.techniques.lamb import LAMB


def algorithm_2(x, gradients, lr, b1, b2, eps, decay, corrected=True, phi=lambda z: z, ratios=True):
    """Of one layer, line by line, in numpy."""
    m = v = np.zeros_like(x)
    for t, g in enumerate(gradients, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat, v_hat = (m / (1 - b1**t), v / (1 - b2**t)) if corrected else (m, v)
        r = m_hat / (np.sqrt(v_hat) + eps)
        size, step = np.sqrt(np.sum(x**2)), np.sqrt(np.sum((r + decay * x) ** 2))
        ratio = phi(size) / step if ratios and size > 0 and step > 0 else 1.0
        x = x - lr * ratio * (r + decay * x)
    return x


SHAPES = [(3, 5), (70_000,), (), (0, 4), (1,), (17, 3, 2), (200, 300)]  # 70,000 and 60,000: blocks


@pytest.mark.parametrize("seed", range(2))
def test_lamb_is_algorithm_2(seed):
    rng = np.random.default_rng(seed)
    shapes = SHAPES + [tuple(rng.integers(1, 30, rng.integers(1, 4))) for _ in range(5)]
    first = [rng.normal(size=shape) for shape in shapes] + [np.zeros(8)]  # a bias of zeros moves
    gradients = [[rng.normal(size=x.shape) * 10.0**rng.uniform(-3, 1) for x in first] for _ in range(100)]
    lr, b1, b2, eps, decay = 10**rng.uniform(-4, -1), rng.uniform(0.5, 0.95), rng.uniform(0.9, 0.9999), 1e-6, rng.uniform(0, 0.2)
    weights = [torch.nn.Parameter(torch.from_numpy(x.copy())) for x in map(np.asarray, first)]
    optimizer = LAMB(weights, lr, (b1, b2), eps, decay)
    for each in gradients:
        for weight, g in zip(weights, each):
            weight.grad = torch.from_numpy(np.asarray(g))
        optimizer.step()
    for number, (weight, x) in enumerate(zip(weights, first)):
        expected = algorithm_2(x, [each[number] for each in gradients], lr, b1, b2, eps, decay)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max(initial=0))
