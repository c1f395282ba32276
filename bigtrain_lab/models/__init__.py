"""Small real models, and exact accounts of what each stage of them costs."""

from ..runtime.devices import built
from . import theory
from .blocks import cross_entropy
from .classifier import Classifier
from .config import GPTConfig, require_cuttable, split
from .dropout import Dropout, Noise
from .encoder import Encoder, EncoderConfig, class_loss, encoder_slices
from .gpt import GPT, GPTStage, gpt_slices, tied_weights
from .mlp import MLPStage, layered_mlp
from .steps import (
    gpt_steps,
    mlp_steps,
    parameter_bytes,
    parameter_shapes,
    parameters,
    peak_bytes,
    saved_bytes,
    translator_parameters,
    translator_steps,
)
from .theory import boundary_bytes
from .translator import Translator, TranslatorConfig, translator_slices

__all__ = [
    "GPT",
    "Classifier",
    "Dropout",
    "Encoder",
    "EncoderConfig",
    "GPTConfig",
    "GPTStage",
    "MLPStage",
    "Noise",
    "Translator",
    "TranslatorConfig",
    "boundary_bytes",
    "built",
    "class_loss",
    "cross_entropy",
    "encoder_slices",
    "gpt_slices",
    "gpt_steps",
    "layered_mlp",
    "mlp_steps",
    "parameter_bytes",
    "parameter_shapes",
    "parameters",
    "peak_bytes",
    "require_cuttable",
    "saved_bytes",
    "split",
    "theory",
    "tied_weights",
    "translator_parameters",
    "translator_slices",
    "translator_steps",
]
