"""Small real models, and exact accounts of what each stage of them costs."""

from .account import (Matmul, Movement, Saved, boundary_bytes, early_gradient_bytes, matmul_flops, matmuls, moved_bytes, movements,
                      parameter_bytes, parameter_shapes, parameters, queued_bytes, saved_bytes,
                      split_flops)
from .blocks import cross_entropy
from .config import GPTConfig, require_cuttable, split
from .dropout import Dropout, Noise
from .encoder import Encoder, EncoderConfig, class_loss
from .encoder_account import encoder_flops, encoder_matmuls, encoder_movements, encoder_parameters, encoder_saved, encoder_shapes
from .gpt import GPT, GPTStage, tied_weights
from .mlp import MLPStage, layered_mlp
from .peak import Account, gpt_steps, mlp_steps, peak_bytes
from .translator import TranslatorConfig, translator_parameters, translator_shapes, translator_steps
from .window import window_steps

__all__ = ["Account", "GPT", "Dropout", "Encoder", "EncoderConfig", "GPTConfig", "GPTStage", "MLPStage", "Matmul", "Movement", "Noise",
           "Saved", "TranslatorConfig", "boundary_bytes", "class_loss", "cross_entropy", "early_gradient_bytes", "encoder_flops", "encoder_matmuls",
           "encoder_movements", "encoder_parameters", "encoder_saved", "encoder_shapes", "gpt_steps", "layered_mlp", "matmul_flops",
           "matmuls", "mlp_steps", "moved_bytes", "movements", "parameter_bytes", "parameter_shapes", "parameters", "peak_bytes", "queued_bytes",
           "require_cuttable", "saved_bytes", "split", "split_flops", "tied_weights", "translator_parameters", "translator_shapes",
           "translator_steps", "window_steps"]
