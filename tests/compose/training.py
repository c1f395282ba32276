"""One training of chosen ingredients: `alone`, a plain loop of torch; `by_recipe`, on ranks: stages
of a pipeline, replicas, whole or in parts, and slices."""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from bigtrain_lab import Group, Impossible, Mesh, Rank, Recipe, Schedule
from bigtrain_lab.models import GPTConfig, GPTStage, gpt_slices, split, tied_weights
from bigtrain_lab.techniques import (
    LAMB,
    MixedPrecision,
    checkpoint_sequential,
    one_process,
    vocab_parallel_cross_entropy,
)
from bigtrain_lab.techniques.accumulate import token_weighted
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler
from bigtrain_lab.train import train

from .ingredients import ONE_RANK, ZERO

RANKS, MICRO_BATCHES, ROWS = 2, 4, 2
IGNORED = -100  # a target that cross_entropy leaves out
LEVELS = {"bf16": "bf16", "fp16 with scaler": "fp16"}
CLIP = 0.05  # below every norm that was seen
SGD, Adam = (  # tried once, by the tests of ZeRO, and not in each of these trainings
    type(kind.__name__, (kind,), {"element_wise": True})
    for kind in (torch.optim.SGD, torch.optim.Adam)
)
OPTIMIZERS = {
    None: lambda p: SGD(p, 0.1),
    "SGD momentum": lambda p: SGD(p, 0.2, momentum=0.9),
    "Adam": lambda p: Adam(p, 1e-2, eps=1e-4),
    "LAMB": lambda p: LAMB(p, 1e-2, eps=1e-4, clip_norm=1.0),
}


class Stage(GPTStage):
    """A slice of the GPT that runs its pieces by a recompute plan."""

    plan = None

    def forward(self, x, *context):
        return (
            super().forward(x, *context)
            if self.plan is None
            else checkpoint_sequential(list(self.layers.values()), self.plan, x)
        )


class Setting:
    """What both ways of training share: sizes, data, which weights are frozen."""

    def __init__(self, chosen: Mapping[str, str]):
        self.chosen = chosen
        whole = "1f1b" if "weights" in chosen else "interleaved"  # of one stage, or of two
        self.schedule = (
            Schedule.named(whole)(1, MICRO_BATCHES)
            if chosen["pipeline"] == ONE_RANK
            else Schedule.named(chosen["pipeline"])(RANKS, MICRO_BATCHES)
        )
        self.level = LEVELS.get(chosen.get("precision"))
        self.config = GPTConfig(
            layers=4,
            width=16,
            heads=2,
            sequence=6,
            vocabulary=12,
            tied="weights" in chosen,
            dtype=torch.float32 if self.level else torch.float64,
        )
        self.slices = split(self.config, self.schedule.stages)
        self.optimizer = OPTIMIZERS[chosen.get("optimizer")]
        # Windows of two calls and a short last one; or an update, and one that finds what it left;
        # where the scaler skips the first, until it has grown.
        updates = 4 if self.level == "fp16" else 2
        self.windows = [[0, 1], [2]] if "accumulation" in chosen else [[n] for n in range(updates)]

    def frozen(self, name: str) -> bool:
        """The whole first stage, and the norms and the tied copy elsewhere."""
        _, last = self.slices[0]
        tied = self.config.tied and name.endswith("logits.weight")
        is_first = int(name.split(".")[1]) < last
        return "frozen" in self.chosen and (is_first or "norm" in name or tied)

    def samples(self, call: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of ids and targets, of which each micro-batch counts another number."""
        draw = torch.Generator().manual_seed(call)
        ids = torch.randint(11, (MICRO_BATCHES * ROWS, 7), generator=draw)
        targets = ids[:, 1:].clone()
        if "accumulation" in self.chosen:
            share = torch.linspace(0, 0.8, len(targets)).unsqueeze(1)
            targets[torch.rand(targets.shape, generator=draw) < share] = IGNORED
        return ids[:, :-1].contiguous(), targets

    def tokens(self, call: int) -> list[int]:
        return [int((part != IGNORED).sum()) for part in self.samples(call)[1].chunk(MICRO_BATCHES)]

    def weights(self, window: list[int]) -> list[float] | None:
        """What each micro-batch's loss is multiplied by: 1/N where it is a sum over tokens."""
        if "accumulation" in self.chosen:
            return token_weighted([n for call in window for n in self.tokens(call)])

    def loss_fn(self, logits, targets):
        return cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
            reduction="sum" if "accumulation" in self.chosen else "mean",
        )

    def freeze(self, model, fired: Counter) -> None:
        for name, weight in model.named_parameters():
            weight.requires_grad_(not self.frozen(named(name)))
            if "hooks" in self.chosen and weight.requires_grad:
                weight.register_hook(lambda gradient: gradient * 0.5)
                weight.register_post_accumulate_grad_hook(
                    lambda _, name=named(name): fired.update([name])
                )

    def scaler(self, group=None):
        """Of fp16. The first step overflows, later ones let the scale grow."""
        if self.level == "fp16":
            return DynamicLossScaler(
                2.0**40, backoff_factor=2.0**-26, growth_interval=2, group=group
            )

    def prepare(self, model):
        """Freeze, hook, and prepare for mixed precision: (the policy's context, the precision,
        calls of each hook)."""
        self.freeze(model, fired := Counter())
        if not self.level:
            return nullcontext(), None, fired
        mp = MixedPrecision(self.level, self.scaler())
        mp.prepare(model)
        return mp, mp, fired


def named(name: str) -> str:
    """A weight's name in the whole model, of one in a list of stages."""
    return "layers." + name.partition("layers.")[2]


def found(setting: Setting, model, mp, losses, fired, whole=None) -> dict[str, np.ndarray]:
    """`whole`: the weights of a model that is sliced."""
    masters = {} if mp is None else mp.masters
    named_weights = model.named_parameters() if whole is None else whole.items()
    weights = {named(name): masters.get(p, p).detach() for name, p in named_weights}
    weights = {name: (p.float() if mp else p.clone()).numpy() for name, p in weights.items()}
    if setting.config.tied and (
        isinstance(model, GPTStage) or setting.schedule.stages == 1
    ):  # which has one matrix where several stages have two
        embedding, output = tied_weights(setting.config, 2)["embedding"].values()
        weights[output] = weights[embedding]
        fired |= {output: fired[embedding]} if embedding in fired else {}
    counts = {f"calls of the hook of {name}": np.array(float(fired[name])) for name in fired}
    scale = {"scale": np.array(mp.scaler.get_scale())} if mp and mp.scaler else {}
    return weights | counts | scale | ({"loss": np.array(losses)} if losses else {})


def alone(chosen: Mapping[str, str]) -> dict[str, np.ndarray]:
    setting = Setting(chosen)
    if setting.schedule.asynchronous:
        return alone_and_late(setting)
    model = GPTStage(setting.config, 0, setting.config.pieces)
    policy, mp, fired = setting.prepare(model)
    parameters = [p for p in (mp or model).parameters() if p.requires_grad]
    optimizer, losses = setting.optimizer(parameters), []
    for window in setting.windows:
        weights = iter(setting.weights(window) or [])
        for call in window:
            for ids, targets in zip(*(part.chunk(MICRO_BATCHES) for part in setting.samples(call))):
                with policy:
                    loss = setting.loss_fn(model(ids), targets)
                    weight = next(weights, None)
                    part = loss / MICRO_BATCHES if weight is None else loss * weight
                    (mp.scale(part) if mp else part).backward()
                losses.append(loss.item())
        if mp:
            mp.unscale_(optimizer)
        if "clipping" in chosen:
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        mp.step(optimizer) if mp else optimizer.step()
        if mp:
            mp.update()
        optimizer.zero_grad()
    return found(setting, model, mp, losses, fired)


def alone_and_late(setting: Setting) -> dict[str, np.ndarray]:
    """PipeDream's published recurrence. A hook that halves each gradient is half the rate."""
    samples = [
        one_process.Sample(*sample)
        for (call,) in setting.windows
        for sample in zip(*(part.chunk(MICRO_BATCHES) for part in setting.samples(call)))
    ]

    def optimizer(parameters):
        learnt = [p for p in parameters if p.requires_grad]
        return (
            torch.optim.SGD(learnt, 0.05)
            if "hooks" in setting.chosen
            else setting.optimizer(learnt or [torch.zeros(0)])
        )

    stages = [GPTStage(setting.config, *each) for each in setting.slices]
    for stage in stages:
        for name, weight in stage.named_parameters():
            weight.requires_grad_(not setting.frozen(name))
    training = one_process.delayed(stages, samples, setting.loss_fn, optimizer)
    fired = Counter({name: len(samples) for name in training.weights if "hooks" in setting.chosen})
    counts = {f"calls of the hook of {name}": np.array(float(fired[name])) for name in fired}
    weights = {name: weight.numpy() for name, weight in training.weights.items()}
    return weights | counts | {"loss": np.array(training.losses)}


def mesh_of(chosen: Mapping[str, str]) -> Mesh:
    return Mesh(
        dp=1 + ("replicas" in chosen),
        pp=1 if chosen["pipeline"] == ONE_RANK else RANKS,
        tp=1 + ("slices" in chosen),
    )


def by_recipe(chosen: Mapping[str, str], rank) -> dict[str, np.ndarray]:
    """The same on ranks, by a Recipe: replicas, of two stages each, whose layers may be sliced.
    Impossible where the ingredients do not go together."""
    setting, fired, accumulates = Setting(chosen), Counter(), "accumulation" in chosen
    mesh = mesh_of(chosen)
    replicas = dict(mesh.axes)["dp"]
    rank = Rank(rank.index, mesh, rank.device)  # its groups are its own
    calls = [call for window in setting.windows for call in window]

    def model(stage):
        module = Stage(setting.config, *setting.slices[stage])
        module.plan = chosen.get("recompute")
        setting.freeze(module, fired)
        return module

    def data(number):
        call, part = divmod(number, MICRO_BATCHES)
        return [each.chunk(MICRO_BATCHES)[part] for each in setting.samples(call)]

    def weights(window):
        return token_weighted([int((sample.targets != IGNORED).sum()) for sample in window])

    def sliced_loss(shard, targets, group):
        mean = vocab_parallel_cross_entropy(shard, targets, group, IGNORED)
        return mean * (targets != IGNORED).sum() if accumulates else mean

    recipe = Recipe(
        model=model,
        data=data,
        loss=setting.loss_fn,
        optimizer=setting.optimizer,
        schedule=replace(
            setting.schedule, micro_batches=MICRO_BATCHES // replicas * (1 + accumulates)
        ),
        steps=len(setting.windows),
        samples=MICRO_BATCHES * len(calls) if accumulates else None,
        weights=weights if accumulates else None,
        replicas=replicas,
        bucket_bytes=1000,
        zero=ZERO.get(chosen.get("replicas"), 0),
        slices=dict(mesh.axes)["tp"],
        slicing=gpt_slices(setting.config) if "slices" in chosen else {},
        sequence_parallel=chosen.get("slices") == "sequence parallel",
        sliced_loss=sliced_loss if "slices" in chosen else None,
        precision=setting.level,
        scaler=setting.scaler(rank.group(("pp", "tp"))),
        clip=CLIP if "clipping" in chosen else None,
        tied=tied_weights(setting.config, setting.schedule.stages),
    )
    trained = train(recipe, rank)
    own = torch.tensor(trained.losses, dtype=setting.config.torch_dtype)
    losses = rank.group("dp").all_gather(own).view(replicas, -1).T.flatten()
    whole = {name: weight for own in trained.weights.values() for name, weight in own.items()}
    rank.finish()
    return found(
        setting,
        torch.nn.ModuleList(trained.stages.values()),
        setting.level and trained.precision,
        losses.tolist(),
        # each replica has its share
        Counter({name: replicas * count for name, count in fired.items()}),
        whole,
    )


def all_trained(rank, trainings: list[Mapping[str, str]]) -> dict[str, np.ndarray]:
    """Many trainings in one launch: results by number and name, or the sentence of a refusal."""
    results = {}
    for number, chosen in enumerate(trainings):
        try:
            own = by_recipe(chosen, rank)
        except Impossible as refused:
            results[f"{number} refused on rank {rank.index}"] = np.array(str(refused))
            continue
        results |= {
            f"{number} {name}": array
            for name, array in own.items()
            if name != "scale" or rank.index == 0
        }
    Group().barrier()  # a rank that ends would break a group that others still make
    return results
