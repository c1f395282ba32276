"""One training, of chosen ingredients: `alone` in one process, by a plain loop of torch; `piped` on the ranks of a pipeline."""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from bigtrain_lab.core import Impossible
from bigtrain_lab.models import GPTConfig, GPTStage, split, tied_weights
from bigtrain_lab.runtime import Group
from bigtrain_lab.schedule import Schedule
from bigtrain_lab.techniques import one_process
from bigtrain_lab.techniques.accumulate import token_weighted
from bigtrain_lab.techniques.checkpoint import checkpoint_sequential
from bigtrain_lab.techniques.clip import clip_grad_norm
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler, MixedPrecision
from bigtrain_lab.techniques.pipeline import Pipeline

RANKS, MICRO_BATCHES, ROWS, IGNORED = 2, 4, 2, -100
LEVELS = {"bf16": "bf16", "fp16 with scaler": "fp16"}
SCALER = {"init_scale": 2.0**40, "backoff_factor": 2.0**-26, "growth_interval": 2}  # the first step overflows, later ones let it grow
CLIP = 0.05  # below every norm that was seen
OPTIMIZERS = {None: lambda p: torch.optim.SGD(p, 0.1), "SGD momentum": lambda p: torch.optim.SGD(p, 0.2, momentum=0.9),
              "Adam": lambda p: torch.optim.Adam(p, 1e-2, eps=1e-4)}


class Stage(GPTStage):
    """A slice of the GPT that runs its pieces by a recompute plan."""

    plan = None

    def forward(self, x, *context):
        return checkpoint_sequential(list(self.layers.values()), self.plan, x) if self.plan else super().forward(x, *context)


class Setting:
    """What both ways of training share: sizes, data, which weights are frozen."""

    def __init__(self, chosen: Mapping[str, str]):
        self.chosen = chosen
        self.schedule = Schedule.named(chosen["pipeline"])(RANKS, MICRO_BATCHES)
        self.level = LEVELS.get(chosen.get("precision"))
        self.config = GPTConfig(layers=4, width=16, heads=2, sequence=6, vocabulary=11, tied="weights" in chosen,
                                dtype=torch.float32 if self.level else torch.float64)
        self.slices = split(self.config, self.schedule.stages)
        self.optimizer = OPTIMIZERS[chosen.get("optimizer")]
        # Accumulation: windows of two calls, and a short last one. Mixed precision needs more updates: some are skipped.
        self.windows = [[0, 1], [2]] if "accumulation" in chosen else [[n] for n in range(6 if self.level == "fp16" else 3)]

    def frozen(self, name: str) -> bool:
        """The whole first stage, and the norms and the tied copy elsewhere."""
        _, last = self.slices[0]
        tied = self.config.tied and name.endswith("logits.weight")
        return "frozen" in self.chosen and (int(name.split(".")[1]) < last or "norm" in name or tied)

    def samples(self, call: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of ids and targets, of which each micro-batch counts another number."""
        draw = torch.Generator().manual_seed(call)
        ids = torch.randint(11, (MICRO_BATCHES * ROWS, 7), generator=draw)
        targets = ids[:, 1:].clone()
        if "accumulation" in self.chosen:
            targets[torch.rand(targets.shape, generator=draw) < torch.linspace(0, 0.8, len(targets)).unsqueeze(1)] = IGNORED
        return ids[:, :-1].contiguous(), targets

    def tokens(self, call: int) -> list[int]:
        return [int((part != IGNORED).sum()) for part in self.samples(call)[1].chunk(MICRO_BATCHES)]

    def weights(self, window: list[int]) -> list[float] | None:
        """What each micro-batch's loss is multiplied by: 1/N where it is a sum over tokens."""
        return token_weighted([n for call in window for n in self.tokens(call)]) if "accumulation" in self.chosen else None

    def loss_fn(self, logits, targets):
        how = "sum" if "accumulation" in self.chosen else "mean"
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction=how)

    def prepare(self, model, group=None):
        """Freeze, hook, and prepare for mixed precision: (what makes the policy hold, the precision, calls of each hook)."""
        fired = Counter()
        for name, weight in model.named_parameters():
            weight.requires_grad_(not self.frozen(named(name)))
            if "hooks" in self.chosen and weight.requires_grad:
                weight.register_hook(lambda gradient: gradient * 0.5)
                weight.register_post_accumulate_grad_hook(lambda _, name=named(name): fired.update([name]))
        if not self.level:
            return nullcontext(), None, fired
        mp = MixedPrecision(self.level, DynamicLossScaler(**SCALER, group=group) if self.level == "fp16" else None)
        mp.prepare(model)
        return mp, mp, fired


def named(name: str) -> str:
    """A weight's name in the whole model, of one in a list of stages."""
    return "layers." + name.partition("layers.")[2]


def found(setting: Setting, model, mp, losses, fired) -> dict[str, np.ndarray]:
    masters = {} if mp is None else mp.masters
    weights = {named(name): masters.get(p, p).detach().float().numpy() if mp else p.detach().numpy().copy() for name, p in model.named_parameters()}
    if setting.config.tied and isinstance(model, GPTStage):  # the whole model has one where the stages have two
        (embedding, output), = (places.values() for places in tied_weights(setting.config, 2).values())
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
            parts = []
            for ids, targets in zip(*(part.chunk(MICRO_BATCHES) for part in setting.samples(call))):
                with policy:
                    loss = setting.loss_fn(model(ids), targets)
                    part = loss / MICRO_BATCHES if (weight := next(weights, None)) is None else loss * weight
                    (mp.scale(part) if mp else part).backward()
                parts.append((loss.detach(), weight))
            told, weighed = zip(*parts)
            losses.append((torch.stack(told).mean() if weighed[0] is None else (torch.stack(told) * told[0].new_tensor(weighed)).sum()).item())
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
    """PipeDream's published recurrence. A hook that halves each gradient is half the rate of plain SGD."""
    samples = [one_process.Sample(*sample) for window in setting.windows for call in window
               for sample in zip(*(part.chunk(MICRO_BATCHES) for part in setting.samples(call)))]

    def optimizer(parameters):
        learnt = [p for p in parameters if p.requires_grad]
        return torch.optim.SGD(learnt, 0.05) if "hooks" in setting.chosen else setting.optimizer(learnt or [torch.zeros(0)])
    stages = [GPTStage(setting.config, *each) for each in setting.slices]
    for stage in stages:
        for name, weight in stage.named_parameters():
            weight.requires_grad_(not setting.frozen(name))
    training = one_process.delayed(stages, samples, setting.loss_fn, optimizer)
    fired = Counter({name: len(samples) for name in training.weights if "hooks" in setting.chosen})
    counts = {f"calls of the hook of {name}": np.array(float(fired[name])) for name in fired}
    return {name: weight.numpy() for name, weight in training.weights.items()} | counts | {"loss": np.array(training.losses)}


def piped(rank, chosen: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The same on ranks. Impossible where the ingredients do not go together, before anything is trained."""
    setting, group = Setting(chosen), Group()  # of its own: one group expects messages of one shape at each place
    schedule, calls = setting.schedule, [call for window in setting.windows for call in window]
    if schedule.asynchronous:
        schedule = schedule.lengthened(len(calls))
    own = [s for s in range(schedule.stages) if schedule.rank_of(s, 0) == rank.index]
    model = torch.nn.ModuleList(Stage(setting.config, *setting.slices[s]) for s in own)
    for stage in model:
        stage.plan = chosen.get("recompute")
    policy, mp, fired = setting.prepare(model, group)
    outside = not schedule.asynchronous or {"accumulation", "clipping"} & set(chosen)  # the update is the user's own, after step()
    pipeline = Pipeline(list(model), schedule, setting.loss_fn, group, optimizer=None if outside else setting.optimizer,
                        scale=mp.scale if mp else None, tied=tied_weights(setting.config, schedule.stages))
    losses = []
    if schedule.asynchronous:
        pipeline.step(*(torch.cat(parts) for parts in zip(*map(setting.samples, calls))))
        return found(setting, model, mp, [loss.item() for loss in pipeline.losses], fired)
    parameters = [p for p in (mp or model).parameters() if p.requires_grad]
    optimizers = [setting.optimizer(parameters)] if parameters else []
    for window in setting.windows:
        weights = setting.weights(window)
        for number, call in enumerate(window):
            with policy:
                loss = pipeline.step(*setting.samples(call), weights and weights[number * MICRO_BATCHES:(number + 1) * MICRO_BATCHES])
            losses += [] if loss is None else [loss.item()]
        for optimizer in optimizers if mp else ():
            mp.unscale_(optimizer)
        if "clipping" in chosen:
            clip_grad_norm(parameters, CLIP, group)
        for optimizer in () if mp else optimizers:
            optimizer.step()
        if mp:
            mp.step(*optimizers)
            mp.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return found(setting, model, mp, losses, fired)


def all_piped(rank, trainings: list[Mapping[str, str]]) -> dict[str, np.ndarray]:
    """Many trainings in one launch: results by number and name, and a sentence where one was refused."""
    results = {}
    for number, chosen in enumerate(trainings):
        try:
            results |= {f"{number} {name}": array for name, array in piped(rank, chosen).items()
                        if name != "scale" or rank.index == 0}
        except Impossible as refused:

            results[f"{number} refused on rank {rank.index}"] = np.array(str(refused))
    return results
