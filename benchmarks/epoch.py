"""The translator's epoch on three RTX 3090, predicted from that on one, beside the reported one;
and how far each assumption matters."""

from dataclasses import replace

from bigtrain_lab.models import TranslatorConfig
from bigtrain_lab.models.epoch import (
    PUBLISHED,
    PUBLISHED_ON_THREE_S,
    RTX3090,
    assumed,
    layer_seconds,
    on_ranks,
    step,
)

from .measure import row


def rows():
    found, alone_s = on_ranks(3), PUBLISHED.training * PUBLISHED.seconds / PUBLISHED.updates
    priced_s = sum(map(sum, layer_seconds(PUBLISHED, RTX3090, TranslatorConfig()).values()))
    other = {
        "sentences of 20 tokens": on_ranks(3, PUBLISHED._replace(tokens=20)),
        "sentences of 100 tokens": on_ranks(3, PUBLISHED._replace(tokens=100)),
        "an epoch that is all training": on_ranks(3, PUBLISHED._replace(training=1.0)),
        "kernels as fast beside the all-reduce": on_ranks(
            3, hardware=replace(RTX3090, overlap_slowdown=1.0)
        ),
        "kernels slower by 1.3 beside it": on_ranks(
            3, hardware=replace(RTX3090, overlap_slowdown=1.3)
        ),
        "a link of 6 GB/s": on_ranks(
            3, hardware=replace(RTX3090, inside=replace(RTX3090.inside, bytes_per_s=6e9))
        ),
    }
    return [
        row("epoch on three ranks, predicted", found, "s"),
        row("epoch on three ranks, reported", PUBLISHED_ON_THREE_S, "s"),
        row("off by", 100 * abs(found / PUBLISHED_ON_THREE_S - 1), "%", at_most=10),
        row("speed-up, predicted", PUBLISHED.seconds / found, "times"),
        row("speed-up, reported", PUBLISHED.seconds / PUBLISHED_ON_THREE_S, "times"),
        row("a training step on one rank, reported", 1000 * alone_s, "ms"),
        row("the same as the profile alone would price it (not used)", 1000 * priced_s, "ms"),
        row(
            "a training step on three ranks, predicted",
            1000 * step(3, alone_s, PUBLISHED, RTX3090, TranslatorConfig()),
            "ms",
        ),
        *(row(f"predicted with {what}", seconds, "s") for what, seconds in other.items()),
        *(
            row(f"assumed: {each.name} ({each.tag}: {each.source})", each.value, "")
            for each in assumed()
        ),
    ]
