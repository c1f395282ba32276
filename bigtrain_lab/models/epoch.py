"""How long an epoch takes on several ranks, predicted from its time on one: what is computed is
shared, what is sent is added.

    epoch(N) = (epoch(1) - updates(1) step(1)) / N  +  updates(1) / N  step(N)

step(N) is simulated, layer by layer: the layers' times are in the proportions in which the
hardware's profile prices a dry run of them, and add up to the step(1) that was measured. Gradients
travel in buckets beside the backward, which is slower meanwhile. `assumed()` lists all that enters.
"""

from dataclasses import replace
from typing import NamedTuple

from ..core import PROFILES, Constant, Cost, Hardware
from ..order.schedule import Schedule
from ..order.simulate import simulate
from ..techniques.reducers import BUCKET_BYTES
from ..techniques.replica_plan import with_replicas
from .config import TranslatorConfig
from .translator_pieces import count, part, pieces_on_meta


class Epoch(NamedTuple):
    """A training on one rank: seconds of an epoch, its updates, the share of it that is training
    (the rest is evaluation, which sends nothing), and the pairs and the tokens of a sentence in a
    batch."""

    seconds: float
    updates: int
    training: float
    pairs: int
    tokens: int


PUBLISHED = Epoch(1200.0, 5530, 231 / 457, 32, 60)  # of the 93-million-parameter translator
PUBLISHED_ON_THREE_S = 430.0  # only compared with
RTX3090 = PROFILES["rtx3090-pcie"]


def assumed(alone: Epoch = PUBLISHED, hardware: Hardware = RTX3090) -> list[Constant]:
    """All that enters the prediction, with its source. Not among it: the seconds on three ranks.
    The share of training and the count of updates are those of the log of three."""
    told = (
        (
            "seconds on one rank",
            alone.seconds,
            "reported",
            (
                "20 minutes on one RTX 3090; what a "
                "pair takes is not predicted, since lengths are not told"
            ),
        ),
        (
            "updates on one rank",
            alone.updates,
            "derived",
            "1,844 updates of 3 x 32 pairs on three ranks; all pairs are shared evenly",
        ),
        (
            "share of training",
            alone.training,
            "reported",
            (
                "231 of 457 s in the log of an epoch on "
                "three ranks; loss and BLEU of held-out pairs are shared too, and send nothing"
            ),
        ),
        (
            "pairs of a batch",
            alone.pairs,
            "published",
            "32 a rank, on three ranks too: the batch is three times as large",
        ),
        (
            "tokens of a sentence",
            alone.tokens,
            "assumed",
            "1,920 words a batch; they only divide a step among layers, forward and backward",
        ),
        ("bytes of gradients", 4 * 93_255_680, "derived", "float32, no two matrices tied"),
        (
            "bytes of a bucket",
            BUCKET_BYTES,
            "published",
            "torch's DistributedDataParallel; a larger parameter has a bucket of its own",
        ),
        ("seconds of waiting for data or a slow rank", 0, "assumed", "none is told of"),
    )
    return [
        *(Constant("the translator's epoch", *each) for each in told),
        *(
            each
            for each in hardware.constants()
            if each.name in ("inside.bytes_per_s", "inside.alpha_s", "overlap_slowdown")
        ),
    ]


def on_ranks(
    ranks: int,
    alone: Epoch = PUBLISHED,
    hardware: Hardware = RTX3090,
    config: TranslatorConfig = TranslatorConfig(),
) -> float:
    """Seconds of the epoch on so many ranks."""
    step_s = alone.training * alone.seconds / alone.updates
    evaluated_s = (1 - alone.training) * alone.seconds
    trained_s = alone.updates * step(ranks, step_s, alone, hardware, config)
    return (evaluated_s + trained_s) / ranks


def step(
    ranks: int, step_s: float, alone: Epoch, hardware: Hardware, config: TranslatorConfig
) -> float:
    """Seconds of a step on so many ranks that takes `step_s` on one."""
    priced = layer_seconds(alone, hardware, config)
    longer = step_s / sum(map(sum, priced.values()))
    durations = {kind: [seconds * longer for seconds in each] for kind, each in priced.items()}
    cost = Cost(durations, **hardware.clock(1), **hardware.prices(ranks))
    pieces = pieces_on_meta(config)
    order = Schedule.of(
        " ".join([*(f"{at}F0" for at in pieces), *(f"{at}B0" for at in reversed(pieces))])
    )
    return simulate(with_replicas(order, 2, ranks, pieces, BUCKET_BYTES), cost).step_time


def layer_seconds(
    alone: Epoch, hardware: Hardware, config: TranslatorConfig
) -> dict[str, list[float]]:
    """Kind of action -> what each piece takes for a batch, by the hardware's profile alone."""
    config, shape = replace(config, padding=0), (alone.pairs, alone.tokens, alone.tokens)
    parts = [part(config, at, shape) for at in range(count(config))]
    return {kind: [each.seconds(kind, hardware, "float32") for each in parts] for kind in "FBU"}
