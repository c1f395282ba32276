"""What some training steps of this library's models hold, storage by storage, by a dry run; and
their weights by name.

    loss = cross_entropy(model(inputs), targets)
    loss.backward(); optimizer.step(); optimizer.zero_grad()

again and again with the loss in the same variable, as actions 0F0 0B0 0U0 0F1 ... Nothing is
computed and no weight is made, so a model may be larger than the machine. Inputs and targets are
the caller's and are left out. Two steps tell all: the optimizer's state is born in the first
update. A torch that nobody observes (`watched=False`) holds a little less.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from bigtrain_lab.core import refuse
from bigtrain_lab.order.plan import SLICES
from bigtrain_lab.order.schedule import Action
from bigtrain_lab.runtime.memory import owned
from bigtrain_lab.techniques.sliced_model import sliced
from bigtrain_lab.techniques.tensor_parallel import vocab_parallel_cross_entropy
from bigtrain_lab.train.dry_run import META, Account, Held, account

from ..runtime.devices import built
from ..train.optimizer import Optimizer
from .blocks import cross_entropy
from .config import GPTConfig, TranslatorConfig, format_of, require_counts
from .dropout import Noise
from .gpt import GPT, GPTStage, gpt_slices
from .translator import Translator


def gpt_steps(
    config: GPTConfig, batch: int, optimizer: str = "adam", steps: int = 2, watched: bool = True
) -> Account:
    """The GPT of this library on `batch` samples of `config.sequence` tokens, with its dropout."""
    require_counts(batch=batch)
    return training(
        lambda: GPT(config),
        ids(batch, config.sequence),
        lambda model, x, step: cross_entropy(model(x, Noise(0, step, 0)), x),
        optimizer,
        steps,
        watched,
    )


def mlp_steps(
    sizes: Sequence[int],
    batch: int,
    optimizer: str = "adam",
    dtype: torch.dtype = torch.float32,
    steps: int = 2,
    bias: bool = True,
    watched: bool = True,
) -> Account:
    """Linear layers of the widths `sizes`, with ReLU between, under cross-entropy on the last."""
    require_counts(batch=batch)
    format_of(dtype)
    refuse(
        (
            len(sizes) < 2,
            f"An MLP of the widths {tuple(sizes)} has no layer: give at least two, as (16, 64, "
            "10).",
        )
    )
    for size in sizes:
        require_counts(**{"a width": size})
    x = torch.empty(batch, sizes[0], dtype=dtype, device=META)
    targets = torch.empty(batch, dtype=torch.int64, device=META)

    def layers():
        each = [
            layer
            for inner, outer in zip(sizes, sizes[1:])
            for layer in (nn.Linear(inner, outer, bias, dtype=dtype), nn.ReLU())
        ]
        return nn.Sequential(*each[:-1])

    return training(
        layers,
        (x, targets),
        lambda model, x, y, step: cross_entropy(model(x), y),
        optimizer,
        steps,
        watched,
    )


def translator_steps(
    config: TranslatorConfig,
    samples: int,
    source: int,
    target: int,
    optimizer: str = "adam",
    steps: int = 2,
    watched: bool = True,
) -> Account:
    """The translator on pairs of `source` and `target` tokens a sample."""
    require_counts(samples=samples, source=source, target=target)
    return training(
        lambda: Translator(config),
        (*ids(samples, source), *ids(samples, target)),
        lambda model, x, y, step: cross_entropy(model(x, y), y),
        optimizer,
        steps,
        watched,
    )


def peak_bytes(
    model: GPTConfig | Sequence[int],
    batch: int,
    optimizer: str = "adam",
    dtype: torch.dtype = torch.float32,
    steps: int = 2,
) -> int:
    """Most bytes alive together in the first `steps` training steps. `model`: a GPTConfig, which
    says its own dtype, or the widths of an MLP, as (16, 64, 10); `batch` samples. Impossible for an
    optimizer that is in no menu."""
    run = (
        gpt_steps(model, batch, optimizer, steps)
        if isinstance(model, GPTConfig)
        else mlp_steps(model, batch, optimizer, dtype, steps)
    )
    return run.peak_bytes


def training(
    make: Callable[[], nn.Module],
    given: tuple,
    loss_of: Callable,
    optimizer: str,
    steps: int,
    watched: bool,
) -> Account:
    """The account of training make() by loss_of(model, *given, step)."""
    require_counts(steps=steps)
    rule = Optimizer.named(optimizer)

    def program(rank):
        model = built(make, rank.device)
        update = rule.make(model.parameters(), 0.1)
        rank.watch(lambda: owned.of((model, update)) | {"inputs": given})
        for step in range(steps):
            with rank.span(Action("F", 0, step)):
                loss = loss_of(model, *given, step)
            with rank.span(Action("B", 0, step)):
                loss.backward()
            with rank.span(Action("U", 0, step)):
                update.step()
                update.zero_grad()

    return account(program, unobserved=not watched)


def saved_bytes(
    config: GPTConfig,
    first: int,
    last: int,
    batch: int,
    slices: int = 1,
    sequence: bool = False,
    forward: Callable = lambda stage, *given: stage(*given),
) -> list[Held]:
    """The storages that autograd keeps after the forward of a stage, the slice [first, last) of the
    model's pieces, and of the loss on the last stage; without weights and without what the stage
    was given. Of one rank of `slices` that share each layer, and with `sequence` the tokens.
    `forward` calls the stage, as a Recipe's recompute does."""
    require_counts(batch=batch)
    x = targets = ids(batch, config.sequence)[0]
    if first:
        x = torch.empty(
            batch,
            config.sequence // slices if sequence else config.sequence,
            config.width,
            dtype=config.torch_dtype,
            device=META,
            requires_grad=True,
        )

    def program(rank):
        stage, group = built(lambda: GPTStage(config, first, last), rank.device), rank.group(SLICES)
        if slices > 1:
            stage = sliced(stage, gpt_slices(config), group, sequence)
        rank.watch(lambda: owned.of([stage]) | {"inputs": (x, targets)})
        with rank.span(Action("F", 0, 0)):
            y = forward(stage, x, Noise(0, 0, 0))
            if last == config.pieces:
                y = (
                    vocab_parallel_cross_entropy(y, targets, group)
                    if slices > 1
                    else cross_entropy(y, targets)
                )

    counted = account(program, slices=slices)
    end = counted.moments.index(("0F0", "end"))
    return [row for row in counted.rows if row.kind == "activations" and row.born <= end < row.dies]


def ids(batch: int, tokens: int) -> tuple[torch.Tensor]:
    return (torch.empty(batch, tokens, dtype=torch.int64, device=META),)
