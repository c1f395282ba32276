"""Small real models, and exact accounts of what each stage of them costs."""

from .account import (Matmul, Movement, Saved, boundary_bytes, early_gradient_bytes, matmul_flops, matmuls, moved_bytes, movements,
                      parameter_bytes, parameter_shapes, parameters, queued_bytes, saved_bytes,
                      split_flops)
from .blocks import cross_entropy
from .config import GPTConfig, require_cuttable, split
from .dropout import Dropout, Noise
from .gpt import GPT, GPTStage
from .mlp import MLPStage, layered_mlp

__all__ = ["GPT", "Dropout", "GPTConfig", "GPTStage", "MLPStage", "Matmul", "Movement", "Noise", "Saved", "boundary_bytes",
           "cross_entropy", "early_gradient_bytes", "layered_mlp", "matmul_flops", "matmuls", "moved_bytes", "movements",
           "parameter_bytes", "parameter_shapes", "parameters", "queued_bytes", "require_cuttable", "saved_bytes", "split", "split_flops"]
