"""How long an epoch takes on several ranks, predicted from its time on one: what is computed is
shared, what is sent is added.

    epoch(N) = (epoch(1) - updates(1) step(1)) / N  +  updates(1) / N  step(N)

step(N) is simulated, layer by layer: the layers' times are in the proportions in which the
hardware's profile prices a dry run of them, and add up to the step(1) that was measured. Gradients
travel in buckets beside the backward, which is slower meanwhile. `assumed()` lists all that enters.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core import Cost
from ..core.hardware import PROFILES, TICKS_PER_SECOND, Constant, Hardware
from ..order.schedule import Action, Schedule
from ..order.simulate import simulate
from ..runtime.devices import built
from ..runtime.kept import kept
from ..techniques.replica_plan import with_replicas
from ..train.dry_run import META, Work, dry_run
from .blocks import cross_entropy
from .translator import Translator, TranslatorConfig


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
BUCKET_BYTES = 25 * 2**20
RTX3090 = PROFILES["rtx3090-pcie"]


def assumed(alone: Epoch = PUBLISHED, hardware: Hardware = RTX3090) -> list[Constant]:
    """All that enters the prediction, with its source. Not among it: the seconds on three ranks.
    The share of training and the count of updates are those of the log of three."""
    told = (
        (
            "seconds on one rank",
            alone.seconds,
            "published",
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
            "published",
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
            "fitted",
            "1,920 words a batch; they only divide a step among layers, forward and backward",
        ),
        ("bytes of gradients", 4 * 93_255_680, "derived", "float32, no two matrices tied"),
        (
            "bytes of a bucket",
            BUCKET_BYTES,
            "published",
            "torch's DistributedDataParallel; a larger parameter has a bucket of its own",
        ),
        ("seconds of waiting for data or a slow rank", 0, "fitted", "none is told of"),
    )
    of_links = ("inside.bytes_per_s", "inside.alpha_s", "overlap_slowdown")
    return [
        *(Constant("the translator's epoch", *each) for each in told),
        *(each for each in hardware.constants() if each.name in of_links),
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
    layers = pieces(built(lambda: Translator(config), META))
    priced = {
        kind: [work.seconds(hardware, "float32", tensors) for work, tensors in works]
        for kind, works in layer_works(config, alone.pairs, alone.tokens).items()
    }
    longer = step_s / sum(map(sum, priced.values()))
    durations = {kind: [seconds * longer for seconds in each] for kind, each in priced.items()}
    cost = Cost(durations, unit="s", ticks_per_unit=TICKS_PER_SECOND, **hardware.prices(ranks))
    modules = {at: module for at, (module, _) in enumerate(layers)}
    order = Schedule.of(
        " ".join([*(f"{at}F0" for at in modules), *(f"{at}B0" for at in reversed(modules))])
    )
    return simulate(with_replicas(order, 2, ranks, modules, BUCKET_BYTES), cost).step_time


def pieces(model: Translator) -> list[tuple[nn.Module, Callable]]:
    """The translator as a chain: each piece's module, and (state, source, target) -> state, a tuple
    of what is encoded and decoded so far; of the last piece the loss."""

    def embed(table, ids):
        return table(ids) + model.positions[: ids.shape[1]]

    def loss(state, _, target):
        return (cross_entropy(model.logits(model.decoder_norm(state[1])), target),)

    return [
        (model.source, lambda _, source, target: (embed(model.source, source),)),
        *((layer, lambda state, *_, layer=layer: (layer(state[0]),)) for layer in model.encoder),
        (model.encoder_norm, lambda state, *_: (model.encoder_norm(state[0]),)),
        (model.target, lambda state, source, target: (*state, embed(model.target, target))),
        *(
            (layer, lambda state, *_, layer=layer: (state[0], layer(state[1], state[0])))
            for layer in model.decoder
        ),
        (nn.ModuleList([model.decoder_norm, model.logits]), loss),
    ]


@kept
def layer_works(
    config: TranslatorConfig, pairs: int, tokens: int
) -> dict[str, list[tuple[Work, int]]]:
    """Kind of action -> what each piece does for a batch, and how many tensors it updates."""

    def program(rank):
        model = built(partial(Translator, config), META)
        source = target = torch.empty(pairs, tokens, dtype=torch.int64, device=META)
        states: list[tuple[Tensor, ...]] = [()]
        outputs, layers = [], pieces(model)
        for at, (_, forward) in enumerate(layers):
            with rank.span(Action("F", at, 0)):
                outputs.append(forward(states[-1], source, target))
            states.append(tuple(each.detach().requires_grad_() for each in outputs[-1]))
        for at, (module, _) in reversed([*enumerate(layers)]):
            made = [y for y in outputs[at] if y.grad_fn is not None]
            dy = [torch.ones_like(y) for y in made]
            with rank.span(Action("B", at, 0)):
                torch.autograd.backward(made, dy)
            counts[at] = len([*module.parameters()])
            optimizer = torch.optim.Adam(module.parameters())
            with rank.span(Action("U", at, 0)):
                optimizer.step()

    counts: dict[int, int] = {}
    actions = dry_run(program).actions
    return {
        kind: [
            (actions[f"{at}{kind}0"].work, counts[at] if kind == "U" else 1)
            for at in sorted(counts)
        ]
        for kind in "FBU"
    }
