"""The numbers of lesson 01: how far each rule is from the large batch, what Adam hides, and what k
pieces cost in time.

T1 is the storyboards' model: a byte-level GPT, 4 layers, width 128, 4 heads, sequence 128, batch
16, AdamW 1e-3, float32, Python's help text, 300 steps. Its errors are medians of draws of one
window, with the least and the greatest. The lab is `bigtrain predict accumulate` as it stands, in
float64.
"""

from statistics import median

import torch

from bigtrain_lab.checks.parity import relative_errors
from bigtrain_lab.data import help_text
from bigtrain_lab.experiments.accumulate import Accumulate, compared, counting as tokens_of, mean
from bigtrain_lab.models import GPT, GPTConfig, cross_entropy
from bigtrain_lab.techniques.accumulate import (
    accumulate,
    mean_of_means,
    noise_error,
    token_counts,
    update,
)
from bigtrain_lab.techniques.one_process import Sample

from .measure import alternating, row

T1 = GPTConfig(layers=4, width=128, heads=4, sequence=128)
WIDE = (
    (1, 16),
    (1, 32),
    (1, 64),
    (2, 128),
)  # sequences and their length: 16, 32, 64 and 256 tokens
NEAR = ((2, 96), (2, 101), (2, 107), (2, 112))
STEPS, DRAWS = 300, 9
SMALLEST = {
    "T1": GPTConfig(layers=1, width=8, heads=1, sequence=128),
    "steps": 1,
    "draws": 1,
    "rounds": 1,
}


def rows(steps: int = STEPS, draws: int = DRAWS, rounds: int = 5):
    return [
        *closed_forms(),
        *trained_model(steps, draws),
        *lab(),
        *equality(),
        *hidden(),
        *times(rounds),
    ]


def closed_forms():
    counts = token_counts(mean_of_means, [n * length for n, length in WIDE])
    for name, window in (("16, 32, 64, 256", WIDE), ("192, 202, 214, 224", NEAR)):
        yield row(
            f"{name} tokens: error of the mean of means, tokens as noise",
            100 * noise_error(mean_of_means, [n * m for n, m in window]),
            "%",
        )
    yield row("16, 32, 64, 256 tokens: a token of the first counts", counts[0], "times")
    yield row("16, 32, 64, 256 tokens: a token of the last counts", counts[-1], "times")


def trained(steps: int):
    """T1 in training: the model before each step and after the last one, with the batch that comes
    next."""
    text, model = help_text(), GPT(T1, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps + 1):
        inputs, targets = batch = text.batch(0, step, 0, 16, T1.sequence)
        yield model, batch
        if step < steps:
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()


def trained_model(steps: int, draws: int):
    """T1 at its start and after its training."""
    text = help_text()
    for step, (model, (inputs, targets)) in enumerate(trained(steps)):  # noqa: B007
        if step in (0, steps):
            for name, window in (("wide", WIDE), ("near", NEAR)):
                told = [
                    compared(
                        model,
                        [cut(text, draw, number, *each) for number, each in enumerate(window)],
                    )
                    for draw in range(draws)
                ]
                errors = sorted(100 * each["error, mean of means"] for each in told)
                for what, value in (
                    ("median", median(errors)),
                    ("least", errors[0]),
                    ("greatest", errors[-1]),
                ):
                    yield row(
                        f"T1 after {step} steps, {name} window: error of the mean of means, {what}",
                        value,
                        "%",
                    )
                yield row(
                    f"T1 after {step} steps, {name} window: cosine, median",
                    median(each["cosine, mean of means"] for each in told),
                    "",
                )
                yield row(
                    f"T1 after {step} steps, {name} window: error of the token-weighted rule,"
                    " greatest",
                    100 * max(each["error, token-weighted"] for each in told),
                    "%",
                    at_most=1e-2,
                )
    yield row(f"T1 after {steps} steps: loss", cross_entropy(model(inputs), targets).item(), "")


def start(asked: Accumulate):
    """The lab's model and its optimizer."""
    model = asked.recipe.model(0)
    return model, asked.recipe.optimizer(model.parameters())


def summed(model, sample: Sample) -> torch.Tensor:
    return mean(model(sample.inputs), sample.targets, "sum")


def counting(sample: Sample) -> int:
    return tokens_of(sample.targets)


def cut(text, draw: int, number: int, sequences: int, length: int):
    """A micro-batch of sequences of this length, padded to the model's."""
    inputs, targets = text.batch(1000 + draw, 0, number, sequences, T1.sequence)
    return Sample(inputs, targets.masked_fill(torch.arange(T1.sequence) >= length, -100))


def lab():
    """The error at the lab's first update and over its last ten of fifty."""
    asked = Accumulate(dtype="float64")
    model, optimizer = start(asked)
    errors = []
    for number in range(50):
        batch = [asked.micro_batch(4 * number + i) for i in range(4)]
        errors.append(100 * compared(model, batch)["error, mean of means"])
        update(batch, lambda each: summed(model, each), counting, optimizer)
    yield row(
        "the lab's model: error to expect of the mean of means",
        100 * noise_error(mean_of_means, asked.tokens()),
        "%",
    )
    yield row("the lab's model, first update: error of the mean of means", errors[0], "%")
    yield row(
        "the lab's model, updates 41 to 50: error of the mean of means, mean",
        sum(errors[-10:]) / 10,
        "%",
    )


def equality():
    """Against the large batch, for every k from 1 to 7 over 10 micro-batches."""
    for clip in (0.0, 0.25):
        worst = 0.0
        for k in range(1, 8):
            asked = Accumulate(
                dtype="float64", accumulation=k, optimizer="momentum", learning_rate=0.1, clip=clip
            )
            model, optimizer = start(asked)
            accumulate(
                [asked.micro_batch(n) for n in range(10)],
                k,
                lambda each, model=model: summed(model, each),
                counting,
                optimizer,
                clip=clip or None,
            )
            expected = {name: value for name, value in asked.reference().items() if name != "loss"}
            worst = max(
                worst,
                *relative_errors(
                    {name: p.detach() for name, p in model.named_parameters()}, expected
                ).values(),
            )
        yield row(
            f"10 micro-batches, k from 1 to 7{', clipped' if clip else ''}: worst relative error of"
            " a weight against the large batch",
            worst,
            "",
            at_most=1e-12,
        )


def hidden():
    """A linear model after 50 updates whose means were added and never divided by k."""
    for name, make in (
        ("Adam", lambda p: torch.optim.Adam(p, 1e-2)),
        ("SGD", lambda p: torch.optim.SGD(p, 1e-2)),
    ):
        right, wrong = (
            linear(make, rule) for rule in (mean_of_means, lambda tokens: [1 / n for n in tokens])
        )
        yield row(
            f"{name}, linear model, 50 updates without the division by k = 4: weights off by",
            100 * float((wrong - right).norm() / right.norm()),
            "%",
        )


def linear(make, rule) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    teacher, student = (
        torch.randn(16, 16, generator=draw, dtype=torch.float64) / 4 for _ in range(2)
    )
    student.requires_grad_()
    samples = [torch.randn(8, 16, generator=draw, dtype=torch.float64) for _ in range(200)]
    accumulate(
        samples,
        4,
        lambda x: (x @ student - x @ teacher).square().sum(),
        len,
        make([student]),
        rule=rule,
    )
    return student.detach()


def times(rounds: int):
    """Four pieces beside the large batch, and `update` beside the loop that one would write."""
    asked = Accumulate(sequences=8, spread=1.0)
    model, optimizer = start(asked)
    batch = [asked.micro_batch(n) for n in range(4)]
    whole = [
        Sample(
            torch.cat([each.inputs for each in batch]), torch.cat([each.targets for each in batch])
        )
    ]

    def ours(window=batch):
        update(window, lambda each: summed(model, each), counting, optimizer, clip=1.0)

    def loop():
        total = sum(map(counting, batch))
        for each in batch:
            (summed(model, each) / total).backward()
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    ours(), loop(), ours(whole)  # the first call of each is slower
    taken = alternating(rounds * 4, ours=ours, loop=loop, whole=lambda: ours(whole))
    yield row(
        "an update from 4 pieces of 8 sequences: time beside the same loop by hand",
        taken["ours"] / taken["loop"],
        "",
        at_most=1.1,
    )
    yield row(
        "an update from 4 pieces of 8 sequences: time beside one pass of 32",
        taken["ours"] / taken["whole"],
        "",
    )
