"""How long a move of any control of any panel takes in the kernel: settings, prediction, table,
sentences, figures.

Each number is moved to the values beside its default, each menu through its words. A move whose dry
run is known already (it changes no shape, or goes back to shapes that were there) is told apart
from one that needs a new one. The way to the browser and the painting come on top:
benchmarks/browser.py.
"""

import tempfile
import time
from contextlib import suppress
from pathlib import Path

from bigtrain_lab.core import Impossible
from bigtrain_lab.experiments import Experiment, layered, one_device, pipeline, staleness
from bigtrain_lab.models import chain_weights
from bigtrain_lab.panel.controls import nearby
from bigtrain_lab.panel.picture import PLAYED
from bigtrain_lab.runtime import kept
from bigtrain_lab.view import figures, report
from bigtrain_lab.view.player import Player

from .measure import row

CACHES = (
    one_device.dried,
    layered.dried,
    pipeline.run_slice,
    staleness.layer_run,
    chain_weights.with_one_block,
    chain_weights.mlp_weights,
)
LABS = ()  # all
ROUNDS = 2  # every move is made twice: the second time its shapes are known
SMALLEST = {"ROUNDS": 1, "LABS": ("staleness",)}


def seconds(asked: Experiment, player: Player) -> float:
    """What a panel does at a move."""
    begin = time.perf_counter()
    trace = asked.predict()
    asked.describe(), asked.explain(trace), report.column(asked.quantities, trace)
    player.show(trace)
    for name in asked.figures:
        if name not in PLAYED:
            with suppress(Impossible):  # a figure of what only a run tells
                figures.figure(name, trace)
    return time.perf_counter() - begin


def misses() -> int:
    return sum(cache.cache_info().misses for cache in CACHES)


def moves(first: Experiment, refused: dict[str, str]):
    """Each setting's next values. Those that the lab refuses are skipped and noted, with its
    sentence."""
    for name, knob in first.knobs().items():
        if (
            name in first.idle_settings(first.model_dump())
            or name in ("text", "seed", "hardware")
            or name.startswith("fault")
        ):
            continue
        menu = knob.menu()
        for value in (
            menu
            or nearby(knob, type(first).model_fields[name].annotation, getattr(first, name))[:2]
        ):
            try:
                yield f"{name} {value}", first.replace(**{name: value})
            except Impossible as error:
                refused[f"{name} {value}"] = str(error)


def rows():
    with tempfile.TemporaryDirectory() as folder:  # what was kept before is no new shape
        kept.kept_in = Path(folder).joinpath
        return of_labs()


def of_labs():
    found = []
    for name in LABS or Experiment.all():
        first, player, known, new, refused = Experiment.named(name)(), Player(), [], [], {}
        seconds(first, player)
        for _ in range(ROUNDS):
            for move, asked in moves(first, refused):
                before = misses()
                try:
                    took = 1000 * seconds(asked, player)
                except Impossible as error:
                    refused[move] = str(error)
                    continue
                (new if misses() > before else known).append(took)
        for what, times, most in (("shapes known", known, 150), ("shapes new", new, 400)):
            if times:
                times.sort()
                found.append(
                    row(
                        f"{name}, {what}: 95th percentile of {len(times)} moves",
                        times[min(len(times) - 1, int(0.95 * len(times)))],
                        "ms",
                        at_most=most,
                    )
                )
        if refused:
            told = " ".join(f"{move}: {sentence}" for move, sentence in refused.items()).replace(
                "|", "/"
            )
            found.append(
                row(f"{name}, moves that the lab refuses, not timed: {told}", len(refused), "moves")
            )
    return [*found, *first_time()]


def first_time():
    """A deep model's first dry run, when torch's meta device is warm."""
    lab = Experiment.named("memory")
    lab(layers=2, width=64, heads=4).predict()
    times = []
    for layers in (24, 23, 22):
        begin = time.process_time()
        dry = lab(layers=layers, width=1024, heads=16, rows=8, sequence=512).dry
        times.append(time.process_time() - begin)
        del dry
    return [
        row(
            "dry run of two steps of 24 layers of width 1,024, CPU time",
            sorted(times)[1],
            "s",
            at_most=0.3,
        )
    ]
