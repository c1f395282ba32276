"""How right a dry run of a training step is, and what it costs: no speed of a step, but bytes
counted on meta tensors.

Beside it torch's MemTracker, which runs the step: for real, and (fake) without computing anything.
"""

import random
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from bigtrain_lab.experiments.memory import MemoryExperiment, peak_of
from bigtrain_lab.models import (
    GPT,
    GPTConfig,
    TranslatorConfig,
    cross_entropy,
    gpt_steps,
    mlp_steps,
    translator_parameters,
    translator_steps,
)
from bigtrain_lab.runtime import Ledger

from .measure import alternating, row

SIZES, ROUNDS = 20, 3
LARGE, BATCH = GPTConfig(layers=4, width=256, heads=8, sequence=64, vocabulary=2048), 8
SMALLEST = {
    "SIZES": 1,
    "ROUNDS": 1,
    "LARGE": GPTConfig(layers=1, width=8, heads=1, sequence=4),
    "BATCH": 1,
}


def gpts():
    for seed in range(SIZES):
        draw = random.Random(seed)
        heads = draw.choice([1, 2, 4])
        config = GPTConfig(
            layers=draw.randint(1, 4),
            width=heads * draw.randint(4, 16),
            heads=heads,
            sequence=draw.randint(4, 48),
            vocabulary=draw.randint(50, 2000),
            tied=draw.random() < 0.3,
        )
        batch = draw.randint(1, 8)
        model, ids = GPT(config), torch.randint(config.vocabulary, (batch, config.sequence))
        yield model, ids, ids, (gpt_steps(config, batch), gpt_steps(config, batch, watched=False))


def mlps():
    for seed in range(SIZES):
        draw = random.Random(seed)
        sizes, batch = (
            [draw.randint(4, 200) for _ in range(draw.randint(2, 6))],
            draw.randint(1, 200),
        )
        layers = [
            layer
            for inner, outer in zip(sizes, sizes[1:])
            for layer in (torch.nn.Linear(inner, outer), torch.nn.ReLU())
        ][:-1]
        inputs, targets = torch.randn(batch, sizes[0]), torch.randint(sizes[-1], (batch,))
        yield (
            torch.nn.Sequential(*layers),
            inputs,
            targets,
            (mlp_steps(sizes, batch), mlp_steps(sizes, batch, watched=False)),
        )


def two_steps(model, inputs, targets, optimizer, between=lambda: None):
    for step in range(2):
        if step:
            between()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def by_ledger(model, inputs, targets) -> int:
    optimizer = torch.optim.Adam(model.parameters())
    with Ledger(model, optimizer) as ledger:
        two_steps(model, inputs, targets, optimizer)
    return ledger.peak_bytes


def by_tracker(model, inputs, targets) -> int:
    """Without the inputs, which it counts as soon as it meets a view of them, and the account never
    does."""
    optimizer, tracker, given = (
        torch.optim.Adam(model.parameters()),
        MemTracker(),
        {inputs, targets},
    )
    tracker.track_external(model, optimizer, *given)
    with tracker:
        two_steps(model, inputs, targets, optimizer, between=tracker.reset_mod_stats)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return next(count for kind, count in peak.items() if str(kind).endswith("Total")) - sum(
        tensor.nbytes for tensor in given
    )


def by_allocator(model, inputs, targets) -> int:
    """What torch's own allocator had handed out at most, as its profiler heard."""
    optimizer = torch.optim.Adam(model.parameters())
    held = [sum(weight.nbytes for weight in model.parameters())]
    with torch.profiler.profile(profile_memory=True) as profile:
        two_steps(model, inputs, targets, optimizer)
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held.append(held[-1] + event.nbytes())
    return max(held)


def tracked(fake: bool) -> int:
    with FakeTensorMode() if fake else nullcontext():
        ids = torch.zeros(BATCH, LARGE.sequence, dtype=torch.long)
        return by_tracker(GPT(LARGE), ids, ids)


def rows():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    table = []
    try:
        for name, cases in (("transformers", gpts), ("MLPs", mlps)):
            ledger, tracker, allocator = [], [], []
            for model, inputs, targets, (watched, alone) in cases():
                ledger.append(abs(watched.peak_bytes - by_ledger(model, inputs, targets)))
                tracker.append(abs(by_tracker(model, inputs, targets) / watched.peak_bytes - 1))
                allocator.append(abs(by_allocator(model, inputs, targets) - alone.peak_bytes))
            table += [
                row(
                    f"{SIZES} {name}, Adam: largest difference of the dry run's peak from the"
                    " ledger's",
                    max(ledger),
                    "B",
                    at_most=0,
                ),
                row(
                    f"{SIZES} {name}, Adam: largest difference of MemTracker's peak from the dry"
                    " run's",
                    100 * max(tracker),
                    "%",
                    at_most=1,
                ),
                row(
                    f"{SIZES} {name}, Adam: largest difference of the allocator's peak, unobserved,"
                    " from the dry run's",
                    max(allocator),
                    "B",
                ),
            ]
        asked = MemoryExperiment()
        with tempfile.TemporaryDirectory() as folder:
            run = asked.run(directory=Path(folder) / "run")
            run.wait(timeout=300)
            measured = run.trace("measured")
        for step in range(2):
            table.append(
                row(
                    f"experiment memory, step {step + 1}: measured less predicted peak",
                    peak_of(measured, step) - asked.account.peak_of(step),
                    "B",
                    at_most=0,
                )
            )
        deep, began = asked.replace(layers=24), time.process_time()
        deep.predict()
        table.append(
            row(
                "experiment memory, 24 layers: processor time of the first prediction",
                1000 * (time.process_time() - began),
                "ms",
            )
        )
        translator = TranslatorConfig()
        account = translator_steps(translator, 30, 64, 64)
        table += [
            row("the translator: parameters", translator_parameters(translator), ""),
            *(
                row(
                    f"the translator, 1,920 target words: peak of step {step + 1}",
                    account.peak_of(step) / 1e6,
                    "MB",
                )
                for step in range(2)
            ),
        ]
        took = alternating(
            ROUNDS,
            account=lambda: gpt_steps(LARGE, BATCH),
            fake=lambda: tracked(True),
            real=lambda: tracked(False),
        )
        table += [
            row("two steps of 4 layers of width 256: the dry run", 1000 * took["account"], "ms"),
            row(
                "the same under MemTracker with fake tensors, over the dry run",
                took["fake"] / took["account"],
                "times",
            ),
            row(
                "the same under MemTracker with real tensors, over the dry run",
                took["real"] / took["account"],
                "times",
            ),
        ]
    finally:
        torch.set_num_threads(threads)
    return table
