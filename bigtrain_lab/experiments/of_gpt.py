"""The settings that labs share whose model is a GPT on text."""

from dataclasses import fields
from functools import cached_property
from typing import ClassVar

from .. import data, models, train
from ..core import knob
from .on_hardware import OnHardware


class OfGPT(OnHardware):
    """`vocabulary`, `dropout` and `tied` are those of the model where they are no fields."""

    must_exist: ClassVar[tuple[str, ...]] = ("config",)

    layers: int = knob(4, "transformer blocks", low=1, high=24, more=True)
    width: int = knob(
        64,
        "width of the model; 12 x width^2 weights a block",
        low=16,
        high=1024,
        step=16,
        more=True,
    )
    heads: int = knob(4, "attention heads; they divide the width", low=1, high=32, more=True)
    sequence: int = knob(
        64, "tokens (bytes of text) in a sample", low=4, high=1024, unit="tokens", more=True
    )
    fused_attention: bool = knob(
        False, "attention is one fused kernel, which keeps no probabilities", more=True
    )
    optimizer: str = knob("adam", "the rule that U applies", choices=train.Optimizer.all, more=True)
    learning_rate: float = knob(
        1e-3, "step size of the optimizer", low=1e-5, high=10, logarithmic=True, more=True
    )
    dtype: str = knob(
        "float32",
        "number format of weights and activations",
        choices=("float32", "float64"),
        more=True,
    )
    text: str = knob("", "path of a text file; empty: Python's own help", more=True)

    def model_post_init(self, facts):
        """A text that is read is long enough for a sample."""
        super().model_post_init(facts)
        if self.text and "text" not in self.idle_settings(self.model_dump()):
            data.chosen_text(self.text).batch(0, 0, 0, 1, self.sequence)

    @cached_property
    def config(self) -> "models.GPTConfig":
        sizes = {f.name for f in fields(models.GPTConfig)} & type(self).model_fields.keys()
        return models.GPTConfig(**{name: getattr(self, name) for name in sizes})

    def samples(self, micro_batch: int) -> "train.Sample":
        """The n-th micro-batch is the same text whatever the size of a batch."""
        inputs, targets = data.chosen_text(self.text).batch(
            self.seed, 0, micro_batch, self.rows, self.sequence
        )
        return train.Sample(
            inputs,
            targets,
            (models.Noise(self.seed, micro_batch // self.micro_batches, micro_batch),),
        )
