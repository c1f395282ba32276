"""`bigtrain plan`: the fastest plan for a model on these devices, in a sentence, a table and, where
asked, the settings that say it to another library."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ..core import Hardware, Impossible, counted, duration, refuse, size

if TYPE_CHECKING:
    from ..planner import Plan

HERE_BYTES = 4e9  # of a plan that any machine can run
MEGATRON = {2: "optim_grads", 3: "optim_grads_params"}  # its sharding strategy, by stage of ZeRO


def plan(
    model: Annotated[
        str, Parameter(help="my_model.py:make, a model of your own; else a GPT of the sizes below")
    ] = "",
    *,
    devices: Annotated[int, Parameter(help="how many there are")] = 8,
    hardware: Annotated[str, Parameter(help="their profile: `bigtrain list`")] = "a100-nvlink",
    memory_gb: Annotated[
        float, Parameter(("--memory-gb", "--memory"), help="of a device; 0: as its profile says")
    ] = 0.0,
    batch: Annotated[int, Parameter(help="samples of a step")] = 64,
    layers: Annotated[int, Parameter(help="blocks of the GPT")] = 24,
    width: Annotated[int, Parameter(help="its width")] = 1024,
    heads: Annotated[int, Parameter(help="attention heads of a block")] = 16,
    sequence: Annotated[int, Parameter(help="tokens of a sample")] = 1024,
    vocabulary: Annotated[int, Parameter(help="tokens that there are")] = 50304,
    fused_attention: Annotated[
        bool, Parameter(help="of one kernel, which keeps no probabilities")
    ] = False,
    precision: Annotated[str, Parameter(help="none or bf16")] = "bf16",
    optimizer: Annotated[str, Parameter(help="the update's rule")] = "adam",
    show: Annotated[int, Parameter(help="how many plans to list")] = 5,
    settings_for: Annotated[
        Literal["megatron", "torchtitan", "deepspeed"] | None,
        Parameter(help="print the fastest plan as settings of this library"),
    ] = None,
    train: Annotated[
        int,
        Parameter(help="steps that a model of your own is trained here, by the fastest plan"),
    ] = 0,
) -> int:
    """Find the fastest plan that fits: dp x pp x tp, rows, recompute, ZeRO. In a file of your own
    `make()` returns a module, (inputs, targets) with samples along dim 0, and a
    loss(output, targets); its blocks are like modules in a row."""
    from ..experiments.plan import PlanACluster, gpt_job, what_next
    from ..models import GPTConfig
    from ..planner import Search, model_job, model_recipe
    from ..view.report import command
    from .screen import screen, table

    profile = Hardware.named(hardware)
    refuse(
        (
            profile.textbook,
            "The unit profile has no memory and no seconds: name other hardware.",
        )
    )
    if model:
        path, _, name = model.rpartition(":")
        refuse(
            (
                not Path(path).is_file(),
                f"There is no file {path!r}: name a model as my_model.py:make.",
            )
        )
        make = run_path(path).get(name)
        job, others = model_job(make, batch, optimizer, precision), ()
    else:
        config = GPTConfig(
            layers, width, heads, sequence, vocabulary, fused_attention=fused_attention
        )
        job = gpt_job(config, batch, optimizer, precision)
        others = (
            (
                "fused attention",
                gpt_job(replace(config, fused_attention=True), batch, optimizer, precision),
            ),
            ("bf16", gpt_job(config, batch, optimizer, "bf16")),
        )
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
    if plan.pp > 1 and batches % plan.pp == 0 and job.blocks >= chunks * plan.pp:
        seconds = search.scheduled(plan, "interleaved", chunks=chunks)
        out.print(f"Interleaved, {chunks} chunks a rank: {duration(seconds, 's')}.")
    rows = [
        (str(each.plan), duration(each.seconds, "s"), size(each.bytes), place)
        for place, found in (("fastest", search.fitting), ("frontier", search.frontier))
        for each in found[:show]
    ]
    out.print(table(("plan", "a step", "memory", ""), rows))
    out.print(*what_next(search, others), sep="\n")
    moved = [each for each in search.elasticities(plan) if abs(each[1]) >= 0.005]
    out.print(
        f"1% more of a constant moves the step, {len(moved)} of the"
        f" {len(profile.constants())} of {hardware} (`bigtrain doctor --constants` lists all):"
    )
    for each, moves in moved:
        told = f"{'#' * round(20 * abs(moves)):20} {each.name}, {each.tag}: {each.source}"
        out.print(f"{moves:+.2f}% {told}", no_wrap=True, overflow="ellipsis")
    out.print(f"To train it: {for_recipe(plan, batch)}")
    here = devices <= 8 and devices * best.bytes < HERE_BYTES
    refuse(
        (
            train and not model,
            "--train is for a model of your own: leave it out, and take the last line's command.",
        ),
        (
            train and not here,
            f"{devices} devices with {size(best.bytes)} each are too much to train here: take 8"
            " devices or fewer, and a smaller model or batch.",
        ),
    )
    if train:
        run = model_recipe(make, plan, batch, optimizer, precision, steps=train).run()
        run.wait()
        losses = [run.result[name] for name in run.result if name.startswith("loss")]
        steps = sum(losses).reshape(train, -1).mean(1) / len(losses)
        out.print(
            f"Trained for {counted(train, 'step')} on {counted(devices, 'rank')}:"
            f" loss {steps[0]:.4g}, at the end {steps[-1]:.4g}. To open it: bigtrain show"
            f" {run.directory}",
            soft_wrap=True,
        )
    elif here and model:
        out.print(
            "If the trial of its stages passes, this trains it on processes here: bigtrain plan"
            f" {model} --devices {devices} --hardware {hardware} --memory-gb {memory_gb:g}"
            f" --batch {batch} --precision {precision} --optimizer {optimizer} --train 10",
            soft_wrap=True,
        )
    elif here and plan.way.recompute != "selective":
        with suppress(Impossible):  # it is beyond what the lab's settings say
            lab = PlanACluster(
                devices=devices,
                batch=batch,
                layers=layers,
                width=width,
                heads=heads,
                sequence=sequence,
                vocabulary=vocabulary,
                fused_attention=fused_attention,
                precision=precision,
                optimizer=optimizer,
                hardware=hardware,
                memory_mb=1e3 * memory_gb,
                **PlanACluster.settings_of(plan),
            )
            out.print(f"To run it on processes here: {command(lab)}", soft_wrap=True)
    if settings_for:
        print(
            {"megatron": for_megatron, "torchtitan": for_torchtitan, "deepspeed": for_deepspeed}[
                settings_for
            ](plan, batch)
        )
    return 0


def for_recipe(plan: "Plan", batch: int) -> str:
    """Write the plan as what a Recipe is told beside model, data, loss and optimizer."""
    told = {
        "ranks": plan.pp,
        "replicas": plan.dp,
        "slices": plan.way.tp,
        "micro_batches": batch // (plan.dp * plan.rows),
        "zero": plan.zero,
        "sequence_parallel": plan.way.sequence_parallel,
    } | {
        "none": {},
        "full": {"recompute": "checkpoint"},
        "selective": {"recompute": "'selective'"},
    }[plan.way.recompute]
    words = ", ".join(f"{name}={value}" for name, value in told.items())
    return f"Recipe(..., {words}), of {counted(plan.rows, 'row')} a micro-batch"


def for_megatron(plan: "Plan", batch: int) -> str:
    """Write the plan as Megatron-LM's arguments."""
    how = plan.way.recompute
    words = [
        f"--tensor-model-parallel-size {plan.way.tp} --pipeline-model-parallel-size {plan.pp}",
        f"--micro-batch-size {plan.rows} --global-batch-size {batch}",
        "--sequence-parallel" * plan.way.sequence_parallel,
        f"--recompute-granularity {how}" * (how != "none"),
        "--recompute-method uniform --recompute-num-layers 1" * (how == "full"),
        "--use-distributed-optimizer" * (plan.zero > 0),
        "--use-megatron-fsdp" * (plan.zero > 1),
        f"--data-parallel-sharding-strategy {MEGATRON.get(plan.zero)}" * (plan.zero > 1),
    ]
    return " \\\n  ".join(filter(None, words))


def for_torchtitan(plan: "Plan", batch: int) -> str:
    """Write the plan as torchtitan's TOML."""
    refuse(
        (
            plan.zero == 1,
            "torchtitan has no stage 1 of ZeRO: take settings for another library.",
        )
    )
    shards = plan.dp if plan.zero else 1
    local = batch // plan.dp if plan.pp > 1 else plan.rows
    tables = {
        "training": {"local_batch_size": local, "global_batch_size": batch},
        "parallelism": {
            "data_parallel_replicate_degree": plan.dp // shards,
            "data_parallel_shard_degree": shards,
            "fsdp_reshard_after_forward": "always" if plan.zero == 3 else "never",
            "tensor_parallel_degree": plan.way.tp,
            "enable_sequence_parallel": plan.way.sequence_parallel,
            "pipeline_parallel_degree": plan.pp,
            "pipeline_parallel_schedule": "1F1B",
            "pipeline_parallel_microbatch_size": plan.rows,
        },
        "activation_checkpoint": {"mode": plan.way.recompute},
    }
    return "\n\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in own.items())])
        for name, own in tables.items()
    )


def for_deepspeed(plan: "Plan", batch: int) -> str:
    """Write the plan as DeepSpeed's JSON, of what its file can say."""
    refuse(
        (
            plan.pp > 1 or plan.way.recompute != "none" or plan.way.sequence_parallel,
            "DeepSpeed's pipelines, recompute and sequence parallelism are said in the script, not"
            " in its file: take settings for another library.",
        )
    )
    return json.dumps(
        {
            "train_batch_size": batch,
            "train_micro_batch_size_per_gpu": plan.rows,
            "gradient_accumulation_steps": batch // (plan.dp * plan.rows),
            "zero_optimization": {"stage": plan.zero},
            "tensor_parallel": {"autotp_size": plan.way.tp},
        },
        indent=2,
    )
