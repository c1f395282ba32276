"""k micro-batches as one batch: a gradient is a sum over tokens, so its terms may be made one after
the other.

    large batch    g = grad (L_1 + ... + L_k) / N        L_i summed loss of micro-batch i, n_i its
                                                         tokens, N = n_1 + ... + n_k
    accumulated    g = sum_i grad (L_i / N)              backward() adds to .grad: k of them, then
                                                         one optimizer step
    mean of means  g'= sum_i grad (L_i / n_i) / k        each token of micro-batch i counts N / (k
                                                         n_i) times what it should

The first two are equal, up to rounding. The third is what `(loss.mean() / k).backward()` does, and
is right only where all n_i are equal: with 16, 32, 64 and 256 tokens a token of the first counts
5.75 times, one of the last 0.36 times. Where the gradients of tokens are mostly independent noise,
as late in training, it is then wrong by about

    |g' - g| / |g| = sqrt(A/H - 1),   cosine sqrt(H/A)      A arithmetic, H harmonic mean of the n_i

and as noisy as k H tokens: 141 of those 368 (Kish 1992, Weighting for unequal P_i, J. Official
Statistics 8: the size that a weighted sample is worth).

N is needed before the first backward, so a window's micro-batches (token ids, not activations) are
held together. The other way divides .grad by N after the last backward; under a loss scaler its
gradients are N times larger meanwhile and overflow fp16 so much earlier, and all gradients are read
and written once more. Take it where the counts come too late.

Cost   memory: activations of one micro-batch, not k; a gradient that lives through the window.
       time: the same multiplications, in k smaller and so less efficient pieces, but one update
       instead of k. No bytes are sent.
Not the same as the large batch   whatever looks across samples: batch norm (below), a loss with
                                  in-batch negatives.

`update` is the whole idea in one loop.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice

from ..core.later import later
from ..order.schedule import Action

with later():
    import torch

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
    """Return |g' - g| / |g| to expect of a rule whose tokens' weights sum to 1, if tokens are
    independent noise: sqrt(N sum n_i f_i^2 - 1)."""
    tokens = guard.counted(tokens)
    spread = sum(tokens) * sum(count * factor**2 for count, factor in zip(tokens, rule(tokens))) - 1
    return math.sqrt(max(spread, 0.0))


# -- the technique ---------------------------------------------------------------------------------


def windows(micro_batches: Iterable, k: int) -> Iterator[tuple]:
    """Yield k micro-batches at a time; the last window holds what is left: ceil(n / k) windows of n
    micro-batches."""
    stream, k = iter(micro_batches), guard.whole_number(k)
    return iter(lambda: tuple(islice(stream, k)), ())


def accumulate(
    micro_batches: Iterable, k: int, loss_sum: Callable, tokens: Callable, optimizer, **options
) -> list[float]:
    """Make one update for every k micro-batches, the last from as many as are left. Returns each
    update's loss, a mean over its tokens.

    loss_sum    micro-batch -> its summed loss, a scalar tensor with a graph
    tokens      micro-batch -> how many tokens that sum is over
    options     clip, scaler, rule, span: as for `update`

    A loop of your own over `windows` and `update` does the same, with room for a learning-rate
    schedule.
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
    """One optimizer step by the gradient of all the window's micro-batches; its loss, weighted as
    the rule says.

    clip      largest norm of the whole gradient, above 0; None: it is not clipped
    scaler    a loss scaler with torch's methods: torch.amp.GradScaler, DynamicLossScaler, or a
              MixedPrecision: that object itself and not its .scaler, which steps the masters but
              does not round them to the weights
    span      action -> context manager around it: F0 B0 F1 B1 ... U

    A parameter that no micro-batch used keeps .grad None, so that the optimizer passes it by, as
    after the large batch.
    """
    window = tuple(window)
    weighted = guard.weighted(window, list(rule(guard.counted(window, tokens))))
    guard.refuse_update(clip, optimizer)
    scaler = (
        loss_scaler.DynamicLossScaler(enabled=False) if scaler is None else scaler
    )  # which passes all on as it is
    optimizer.zero_grad()
    loss = 0.0
    for number, micro_batch, factor in weighted:
        with span(Action("F", 0, number)):
            part = guard.scalar(loss_sum(micro_batch), number) * factor
        with span(Action("B", 0, number)):
            scaler.scale(part).backward()  # frees the graph: the next forward finds it gone
        loss += part.detach()  # a number; a sum of `part`s themselves would hold k graphs
    with span(Action("U", 0, len(window) - 1)):
        scaler.unscale_(optimizer)  # once, and before the norm is taken
        if clip is not None:
            clip_by = getattr(
                optimizer,
                "clip_grad_norm_",
                partial(torch.nn.utils.clip_grad_norm_, parameters(optimizer)),
            )
            clip_by(clip)  # the sum, once: parts have other norms
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return float(loss)


def parameters(optimizer) -> list:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# -- what is not part of the equality --------------------------------------------------------------


def batch_norm_momentum(momentum: float, k: float) -> float:
    """Return 1 - (1 - m)^(1/k): k small updates of batch norm's running statistics forget as much
    of the past as one large. So a batch k times as large as that of m takes batch_norm_momentum(m,
    1 / k), and remembers as many samples.

    It corrects only that. In training each micro-batch is still normalised by its own mean and
    variance, so that outputs and gradients are not the large batch's; and the mean of k small
    variances lacks the variance between micro-batches.
    """
    guard.refuse_momentum(momentum, k)
    return 1 - (1 - momentum) ** (1 / k)
