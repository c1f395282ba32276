"""`bigtrain plan`: the fastest plan for a model on these devices, in a sentence, a table and a
command."""

from typing import Annotated

from cyclopts import Parameter

from ..core import Hardware
from ..core.words import counted, duration, size


def plan(
    *,
    devices: Annotated[int, Parameter(help="how many there are")] = 8,
    hardware: Annotated[str, Parameter(help="their profile: `bigtrain list`")] = "a100-nvlink",
    memory_gb: Annotated[float, Parameter(help="of a device; 0: as its profile says")] = 0.0,
    batch: Annotated[int, Parameter(help="samples of a step")] = 64,
    layers: Annotated[int, Parameter(help="blocks of the GPT")] = 24,
    width: Annotated[int, Parameter(help="its width")] = 1024,
    heads: Annotated[int, Parameter(help="attention heads of a block")] = 16,
    sequence: Annotated[int, Parameter(help="tokens of a sample")] = 1024,
    vocabulary: Annotated[int, Parameter(help="tokens that there are")] = 50304,
    precision: Annotated[str, Parameter(help="none or bf16")] = "bf16",
    optimizer: Annotated[str, Parameter(help="the update's rule")] = "adam",
    show: Annotated[int, Parameter(help="how many plans to list")] = 5,
) -> int:
    """Find the fastest plan that fits: dp x pp x tp, rows, recompute, ZeRO."""
    from ..core import Impossible
    from ..experiments.plan import gpt_job
    from ..models import GPTConfig
    from ..planner import Search
    from .screen import screen, table

    profile = Hardware.named(hardware)
    if profile.textbook:
        raise Impossible("The unit profile has no memory and no seconds: name other hardware.")
    config = GPTConfig(layers, width, heads, sequence, vocabulary)
    job = gpt_job(config, batch, optimizer, precision)
    search = Search(job, profile, devices, round(memory_gb * 1e9) or None)
    best, out = search.best, screen()
    out.print(
        f"Of {counted(len(search.fitting) + len(search.large), 'plan')} on {devices} x"
        f" {hardware}, {len(search.fitting)} fit {size(search.memory_bytes)}. The fastest is"
        f" {best.plan}: {duration(best.seconds, 's')} a step, {size(best.bytes)} on the fullest"
        " device."
    )
    plan = best.plan
    batches, chunks = batch // (plan.dp * plan.rows), 2
    if plan.pp > 1 and batches % plan.pp == 0 and layers >= chunks * plan.pp:
        seconds = search.scheduled(plan, "interleaved", chunks=chunks)
        out.print(f"Interleaved, {chunks} chunks a rank: {duration(seconds, 's')}.")
    rows = [
        (str(each.plan), duration(each.seconds, "s"), size(each.bytes), place)
        for place, found in (("fastest", search.fitting), ("frontier", search.frontier))
        for each in found[:show]
    ]
    out.print(table(("plan", "a step", "memory", ""), rows))
    return 0
