"""Small real models, and exact accounts of what each stage of them costs."""

from .account import (Matmul, Movement, boundary_bytes, early_gradient_bytes, matmul_flops, matmuls, moved_bytes, movements,
                      queued_bytes, split_flops)
from .blocks import cross_entropy
from .config import GPTConfig, require_cuttable, split
from .dropout import Dropout, Noise
from .encoder import Encoder, EncoderConfig, class_loss
from .gpt import GPT, GPTStage, tied_weights
from .mlp import MLPStage, layered_mlp
from .seed import built
from .steps import (gpt_steps, mlp_steps, parameter_bytes, parameter_shapes, parameters, peak_bytes, saved_bytes, translator_parameters,
                    translator_steps)
from .translator import Translator, TranslatorConfig

__all__ = ["GPT", "Dropout", "Encoder", "EncoderConfig", "GPTConfig", "GPTStage", "MLPStage", "Matmul", "Movement", "Noise", "Translator",
           "TranslatorConfig", "boundary_bytes", "built", "class_loss", "cross_entropy", "early_gradient_bytes", "gpt_steps", "layered_mlp",
           "matmul_flops", "matmuls", "mlp_steps", "moved_bytes", "movements", "parameter_bytes", "parameter_shapes", "parameters", "peak_bytes",
           "queued_bytes", "require_cuttable", "saved_bytes", "split", "split_flops", "tied_weights", "translator_parameters", "translator_steps"]
