"""k micro-batches as one batch. A gradient is a sum over tokens; its terms may come one by one.

    large batch     g  = grad (L_1 + ... + L_k) / N
    accumulated     g  = sum_i grad (L_i / N)           k backwards add to .grad, then one update
    mean of means   g' = sum_i grad (L_i / n_i) / k     a token of micro-batch i counts N / (k n_i)

    L_i: summed loss of micro-batch i       n_i: its tokens       N = n_1 + ... + n_k

The first two are equal, up to rounding. The third is `(loss.mean() / k).backward()`, which is right
only if all n_i are equal. With 16, 32, 64 and 256 tokens, one of the first 16 counts 5.75 times,
and one of the last 256 counts 0.36 times. Late in training, gradients of tokens are mostly
independent noise. Then g' is wrong by about

    |g' - g| / |g| = sqrt(A/H - 1),   cosine sqrt(H/A)      A arithmetic, H harmonic mean of the n_i

and as noisy as k H tokens: 141 of those 368. Kish calls that the effective size of a weighted
sample (Kish 1992, Weighting for unequal P_i, J. Official Statistics 8).

N is needed before the first backward. So all micro-batches of a window (token ids, not activations)
are in memory together. The other way divides .grad by N after the last backward. Until then the
gradients are N times larger: under a loss scaler fp16 overflows at an N times smaller scale. And
each gradient is read and written once more. Take that way if N is known too late.

Memory: activations of one micro-batch, not k, and a gradient during the whole window.
Time: the same multiplications, in k smaller and less efficient pieces; one update instead of k.
Bytes sent: none.
Not equal to the large batch: what mixes samples, as batch norm (below) or in-batch negatives.

`update` is the whole idea in one loop.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice

from ..core.later import later, torch
from ..order.schedule import Action

with later():
    from . import loss_scaler
    from .guards import accumulate as guard

# -- what each micro-batch's summed loss is multiplied by ------------------------------------------


def token_weighted(tokens: Sequence[int]) -> list[float]:
    """Weigh every micro-batch by 1/N: the large batch's mean over tokens."""
    return [1 / sum(tokens)] * len(tokens)


def mean_of_means(tokens: Sequence[int]) -> list[float]:
    """Weigh micro-batch i by 1/(k n_i), the usual `loss.mean() / k`, for comparison."""
    return [1 / (len(tokens) * count) for count in tokens]


RULES = {"token-weighted": token_weighted, "mean of means": mean_of_means}


def token_counts(rule: Callable, tokens: Sequence[int]) -> list[float]:
    """Return how much a token of each micro-batch counts under a rule; 1 in the large batch."""
    tokens = guard.counted(tokens)
    return [factor * sum(tokens) for factor in rule(tokens)]


def noise_error(rule: Callable, tokens: Sequence[int]) -> float:
    """Return the expected |g' - g| / |g| of a rule, if gradients of tokens are independent noise.
    It is sqrt(N sum n_i f_i^2 - 1), where sum n_i f_i = 1."""
    tokens = guard.counted(tokens)
    spread = sum(tokens) * sum(count * factor**2 for count, factor in zip(tokens, rule(tokens))) - 1
    return math.sqrt(max(spread, 0.0))


# -- the technique ---------------------------------------------------------------------------------


def windows(micro_batches: Iterable, k: int) -> Iterator[tuple]:
    """Yield windows of k micro-batches. The last one has what is left: n make ceil(n / k)."""
    stream, k = iter(micro_batches), guard.whole_number(k)
    return iter(lambda: tuple(islice(stream, k)), ())


def accumulate(
    micro_batches: Iterable, k: int, loss_sum: Callable, tokens: Callable, optimizer, **options
) -> list[float]:
    """Make one update for every k micro-batches, the last from what is left. Return each update's
    loss, a mean over its tokens.

    loss_sum    micro-batch -> its summed loss, a scalar tensor with a graph
    tokens      micro-batch -> the number of tokens in that sum
    options     clip, scaler, rule, span: as for `update`

    For a learning-rate schedule, write the loop over `windows` and call `update` yourself.
    """
    return guard.some(
        [
            update(window, loss_sum, tokens, optimizer, **options)
            for window in windows(micro_batches, k)
        ]
    )


def update(
    window: Iterable,
    loss_sum: Callable,
    tokens: Callable,
    optimizer,
    *,
    clip: float | None = None,
    scaler=None,
    rule: Callable = token_weighted,
    span: Callable = lambda action: nullcontext(),
) -> float:
    """Step the optimizer once, by the gradient of the whole window. Return the window's loss.

    clip      largest norm of the whole gradient, above 0; None: no clipping
    scaler    torch.amp.GradScaler, DynamicLossScaler, or a MixedPrecision. Of the last give the
              object, not its .scaler, which steps masters but does not round them to weights
    rule      tokens of each micro-batch -> what each summed loss is multiplied by
    span      action -> context manager around it: F0 B0 F1 B1 ... U

    DistributedDataParallel and ZeRO 1 send gradients in a backward, and refuse the next one. Let
    `span` enter their no_sync() for each B but the last.

    A parameter that no micro-batch used keeps .grad None: the optimizer skips it.
    """
    window = tuple(window)
    weighted = guard.weighted(window, list(rule(guard.counted(window, tokens))))
    guard.refuse_update(clip, optimizer)
    # one that is not enabled changes nothing
    scaler = loss_scaler.DynamicLossScaler(enabled=False) if scaler is None else scaler
    optimizer.zero_grad()
    loss = 0.0
    for number, micro_batch, factor in weighted:
        with span(Action("F", 0, number)):
            part = guard.scalar(loss_sum(micro_batch), number) * factor
        with span(Action("B", 0, number)):
            scaler.scale(part).backward()  # frees the graph: the next forward finds it gone
        loss += part.detach()  # a number; a sum of `part`s themselves would keep k graphs
    with span(Action("U", 0, len(window) - 1)):
        scaler.unscale_(optimizer)  # once, and before the norm is taken
        if clip is not None:  # the sum, once: parts have other norms
            if hasattr(optimizer, "clip_grad_norm_"):
                optimizer.clip_grad_norm_(clip)
            else:
                torch.nn.utils.clip_grad_norm_(
                    [p for group in optimizer.param_groups for p in group["params"]], clip
                )
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return float(loss)


# -- what is not part of the equality --------------------------------------------------------------


def batch_norm_momentum(momentum: float, k: float) -> float:
    """Return 1 - (1 - m)^(1/k), the momentum of k small updates that forget as much as one of m.

    It is for batch norm's running statistics. A batch k times as large as that of m takes
    batch_norm_momentum(m, 1 / k): the statistics are then of as many samples.

    It corrects nothing else. In training each micro-batch is normalised by its own mean and
    variance. So outputs and gradients are not the large batch's. And the mean of k small variances
    lacks the variance between micro-batches.
    """
    guard.refuse_momentum(momentum, k)
    return 1 - (1 - momentum) ** (1 / k)
