"""The table of the field: every level of mixed precision trained on relation classification,
measured here, modelled on an A100.

    python -m benchmarks precision                     on this machine's CPU, one thread, nothing
                                                       watching: about 80 s
    python -m benchmarks.precision --device cuda       alone on a CUDA card, TF32 off and on;
                                                       UNTESTED until a card is at hand. Writes
                                                       benchmarks/results/precision-<date>-<card>.json

Then the whole flow against fp32 over five seeds, and each broken level at settings that break it.
"""

import argparse
import json
import re
from datetime import UTC, datetime

import numpy as np
import torch

from bigtrain_lab.experiments.precision import READ, Precision
from bigtrain_lab.models import Encoder, class_loss
from bigtrain_lab.order.rates import reading_rate, training_rate
from bigtrain_lab.techniques.mixed_precision import LEVELS, MixedPrecision

from .measure import RESULTS, alternating, machine, row

SIZE = {
    "layers": 2,
    "width": 64,
    "rows": 32,
    "steps": 200,
    "dev_size": 1024,
    "learning_rate": 2e-3,
    "every": 0,
}
BY_HEART = {
    "layers": 1,
    "width": 32,
    "rows": 16,
    "train_size": 64,
    "dev_size": 64,
    "steps": 60,
    "learning_rate": 3e-3,
}
SEEDS, APART = (
    5,
    2.53,
    # as many as levels that train; a ratio of two standard deviations of 5 exceeds that by
    # chance once in 20 (F-test)
)
FILLS = {"layers": 12, "width": 768, "heads": 12, "rows": 512}  # BERT-base, 20,480 tokens a batch


def rows():
    torch.set_num_threads(1)
    return [*table(), *seeds(), *broken(), *modelled()]


def table():
    """The field, level by level. Times are of turns over the levels; bytes come from the
    prediction, which tests hold equal to runs."""
    told, micro, (training, reading) = [], {}, rates()
    for level in LEVELS:
        asked = Precision(level=level, **SIZE)
        found, sizes, predicted = asked.reference(), asked.bytes, asked.predict()
        told += [
            row(f"{level}: training, measured here", training[level], "steps/s"),
            row(f"{level}: training, modelled, A100", training_rate(predicted), "steps/s"),
            row(
                f"{level}: inference, batches of {READ}, measured here", reading[level], "batches/s"
            ),
            row(
                f"{level}: inference, batches of {READ}, modelled, A100",
                reading_rate(predicted),
                "batches/s",
            ),
            row(f"{level}: micro F1", found["F1"][0], ""),
            row(f"{level}: macro F1", found["F1"][1], ""),
            row(
                f"{level}: checkpoint to go on",
                sum(sizes[kind] for kind in ("weights", "master", "optimizer")) / 1e6,
                "MB",
            ),
            row(f"{level}: weights alone", sizes["weights"] / 1e6, "MB"),
            row(f"{level}: peak memory between actions", predicted.peak_bytes(0) / 1e6, "MB"),
        ]
        if np.isfinite(found["loss"]).all():
            micro[level] = found["F1"][0]
    return told + separated(micro)


def rates(rounds: int = 5, steps: int = 8) -> tuple[dict[str, float], dict[str, float]]:
    """level -> training steps and readings a second: the median of turns over all levels, so that a
    disturbance meets all."""
    contenders = {
        level: steps_of(Precision(level=level, **SIZE), torch.device("cpu"), steps, READ)
        for level in LEVELS
    }
    for both in contenders.values():
        both[0](), both[1]()
    return tuple(
        {
            level: steps / taken
            for level, taken in alternating(
                rounds, **{level: both[i] for level, both in contenders.items()}
            ).items()
        }
        for i in range(2)
    )


def separated(micro: dict[str, float]) -> list[dict]:
    """Whether F1 tells the levels that train from each other, beside what another seed does to
    it."""
    seeds = [
        micro["fp32"],
        *(
            Precision(level="fp32", seed=seed, **SIZE).reference()["F1"][0]
            for seed in range(1, SEEDS)
        ),
    ]
    levels, chance = (float(np.std(values, ddof=1)) for values in (list(micro.values()), seeds))
    ratio = levels / max(chance, 1e-9)
    verdict = "separates" if ratio > APART else "does not separate"
    return [
        row(
            f"micro F1, standard deviation over the {len(micro)} levels whose loss stays a number",
            levels,
            "",
        ),
        row(f"micro F1, standard deviation over {SEEDS} seeds of fp32", chance, ""),
        row(
            f"micro F1 {verdict} the levels that train, at this setting: the first over the second"
            f" (above {APART} it would)",
            ratio,
            "times",
        ),
    ]


def losses(**settings):
    return Precision(**{**BY_HEART, **settings}).reference()["loss"]


def seeds():
    """The difference of the means of the last ten losses over five seeds, in standard errors of
    that difference; with gradients as small as in a mean over 1.6 million samples."""
    ends = {
        level: np.array(
            [losses(level=level, seed=seed, loss_weight=1e-5)[-10:].mean() for seed in range(5)]
        )
        for level in ("fp32", "fp16", "bf16")
    }
    found = []
    for level in ("fp16", "bf16"):
        found.append(
            row(
                f"{level} with the whole flow: a seed's final loss differs from fp32's by at most",
                100 * np.abs(ends[level] / ends["fp32"] - 1).max(),
                "%",
            )
        )
        error = np.sqrt((ends["fp32"].var(ddof=1) + ends[level].var(ddof=1)) / 5)
        found.append(
            row(
                f"{level} with the whole flow: mean loss of 5 seeds, off fp32's by",
                abs(ends[level].mean() - ends["fp32"].mean()) / error,
                "standard errors",
                at_most=2,
            )
        )
    return found


def broken():
    """How much higher the loss is than that of fp32 at the same settings."""
    small, slow = {"loss_weight": 1e-5}, {"train_size": 32, "learning_rate": 3e-5, "steps": 120}
    first = {level: losses(level=level, steps=2)[1] for level in ("fp16-no-masters", "fp16-pure")}
    plain, without = (
        losses(level=level, **small)[-10:].mean() for level in ("fp32", "fp16-no-scaling")
    )
    falls = [
        (found := losses(level=level, **slow))[:10].mean() - found[-10:].mean()
        for level in ("fp32", "bf16-no-masters")
    ]
    return [
        row(
            "fp16-no-scaling, mean over 1.6 million samples: final loss over fp32's",
            without / plain,
            "times",
            at_least=2,
        ),
        row(
            "bf16-no-masters, learning rate 3e-5: what the loss falls, of fp32's fall",
            falls[1] / falls[0],
            "",
            at_most=0.7,
        ),
        *(
            row(
                f"{level}, Adam: losses of step 2 that are no number",
                float(np.isnan(loss)),
                "",
                at_least=1,
            )
            for level, loss in first.items()
        ),
    ]


def modelled():
    """BERT-base on data sheets: what half precision could give."""
    found = []
    for hardware, half in (
        ("a100-nvlink", "bf16"),
        ("h100-nvlink", "bf16"),
        ("v100-nvlink", "fp16"),
        ("titan-rtx-nvlink", "fp16"),
    ):
        rates = [
            training_rate(Precision(level=level, hardware=hardware, steps=1, **FILLS).predict())
            for level in ("fp32", half)
        ]
        found.append(
            row(
                f"BERT-base, {hardware}, modelled: {half} training over fp32 without TF32",
                rates[1] / rates[0],
                "times",
            )
        )
    return found


# On a card. Untested: no CUDA device was at hand when this was written.


def on_card(rounds: int = 7, steps: int = 10) -> dict:
    """Training and inference of BERT-base at each level, TF32 off and on, alternating; the fp32
    TF32-off training is the unit."""
    device, settings = (
        torch.device("cuda"),
        {level: Precision(level=level, steps=1, **FILLS) for level in LEVELS},
    )
    found = []
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        for level, asked in settings.items():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            train, read = steps_of(asked, device, steps, asked.rows)
            train(), read()
            times = alternating(rounds, train=train, read=read)
            found.append(
                {
                    "level": level,
                    "tf32": tf32,
                    "training_steps_per_s": steps / times["train"],
                    "inference_batches_per_s": steps / times["read"],
                    "peak_bytes": torch.cuda.max_memory_allocated(),
                }
            )
    about = machine() | {
        "card": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "size": FILLS,
        "steps": steps,
        "rounds": rounds,
    }
    return {"machine": about, "rows": found}


def steps_of(asked: Precision, device, steps: int, read_rows: int):
    """(train, read): each does `steps` of them, and waits for the card where there is one."""
    recipe = asked.recipe
    mp = MixedPrecision(recipe.precision, recipe.scaler)
    model = mp.prepare(Encoder(asked.config).to(device))
    optimizer = torch.optim.Adam(mp.parameters(), 1e-4)
    *given, labels = (tensor.to(device) for tensor in asked.data.batch(0, asked.rows))
    *asking, _ = (tensor.to(device) for tensor in asked.data.batch(0, read_rows))
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def train():
        for _ in range(steps):
            with mp:
                loss = class_loss(model(*given), labels)
            mp.backward(loss)
            mp.step(optimizer)
            mp.update()
            optimizer.zero_grad()
        wait()

    @torch.no_grad()
    def read():
        for _ in range(steps):
            with mp:
                model(*asking)
        wait()

    return train, read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda"], required=True)
    parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(
            "No CUDA device is at hand: run `python -m benchmarks precision` for what a CPU can"
            " tell."
        )
    found = on_card()
    card = re.sub(r"[^a-z0-9]+", "-", found["machine"]["card"].lower())
    path = RESULTS / f"precision-{datetime.now(UTC):%Y-%m-%d}-{card}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
