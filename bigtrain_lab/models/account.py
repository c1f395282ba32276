"""What a stage holds, computes, moves and saves, as tables that follow from the configuration alone.

    weights of a block   12 D^2 + 13 D                      matmul flops   24 B S D^2 + 4 B S^2 D forward, twice that backward
    saved by a block     (16 B S D + 4 B S + B H S^2) z     z bytes a value; with dropout also B H S^2 (z + 1) + 2 B S D

Weights, matmul flops and saved bytes are exact for this model: float32 and float64, any slice, any size. (Korthikanti
et al. 2022, arXiv:2205.05198, section 4.1, count 34 B S D + 5 B H S^2 bytes for 16-bit values and another attention: z = 2
here gives 34 + 5 too, if the statistics are left out.) Moved bytes are an estimate by the rules of `movements`.

Every function takes a stage as the slice [first, last) of the model's pieces, and `batch` as that of a micro-batch.
Letters: B batch, S sequence, D width, H heads, V vocabulary; names are those of the whole model.
"""

from math import prod
from typing import NamedTuple

from .config import GPTConfig, require_count, require_slice


class Matmul(NamedTuple):
    """`count` products of an m x k by a k x n matrix, in one forward."""

    name: str
    m: int
    k: int
    n: int
    count: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n * self.count


class Movement(NamedTuple):
    """One operator that is no matmul, and how often it reads or writes a tensor of `bytes`."""

    name: str
    bytes: int
    forward: int
    backward: int


class Saved(NamedTuple):
    """One storage that autograd keeps from the forward to the backward."""

    name: str
    bytes: int


def parameter_shapes(config: GPTConfig, first: int, last: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of each weight, in the order of `named_parameters`."""
    D = config.width
    norm = {"weight": (D,), "bias": (D,)}
    embedding = {"token.weight": (config.vocabulary, D), "position.weight": (config.sequence, D)}
    block = {
        **_under("attention_norm", norm),
        "attention.qkv.weight": (3 * D, D), "attention.qkv.bias": (3 * D,),
        "attention.out.weight": (D, D), "attention.out.bias": (D,),
        **_under("mlp_norm", norm),
        "mlp.up.weight": (4 * D, D), "mlp.up.bias": (4 * D,),
        "mlp.down.weight": (D, 4 * D), "mlp.down.bias": (D,),
    }
    head = _under("norm", norm) | ({} if config.tied else {"logits.weight": (config.vocabulary, D)})
    shapes = {}
    for i, kind in _pieces(config, first, last):
        shapes |= _under(f"layers.{i}", {"embedding": embedding, "block": block, "head": head}[kind])
    return shapes


def parameters(config: GPTConfig, first: int, last: int) -> int:
    """Weights of the stage, a tied table counted once."""
    return sum(map(prod, parameter_shapes(config, first, last).values()))


def parameter_bytes(config: GPTConfig, first: int, last: int) -> int:
    return parameters(config, first, last) * config.dtype.itemsize


def boundary_bytes(config: GPTConfig, batch: int) -> int:
    """The message between two stages, forward (hidden) or backward (its gradient): B S D values."""
    require_count("batch", batch)
    return batch * config.sequence * config.width * config.dtype.itemsize


def matmuls(config: GPTConfig, first: int, last: int, batch: int) -> list[Matmul]:
    """Every matrix product of one forward. The attention is computed in full, its masked half too."""
    require_count("batch", batch)
    S, D, K = config.sequence, config.width, config.head_width
    rows, squares = batch * S, batch * config.heads
    block = [
        Matmul("attention.qkv", rows, D, 3 * D),
        Matmul("attention.scores", S, K, S, squares),
        Matmul("attention.mixed", S, S, K, squares),
        Matmul("attention.out", rows, D, D),
        Matmul("mlp.up", rows, D, 4 * D),
        Matmul("mlp.down", rows, 4 * D, D),
    ]
    head = [Matmul("logits", rows, D, config.vocabulary)]
    return _named({"embedding": [], "block": block, "head": head}, config, first, last)


def matmul_flops(config: GPTConfig, first: int, last: int, batch: int) -> tuple[int, int]:
    """(forward, backward). The backward does two products for each: one for each factor's gradient. Token ids have
    no gradient, but their lookup is no product, so this costs and saves nothing."""
    forward = sum(matmul.flops for matmul in matmuls(config, first, last, batch))
    return forward, 2 * forward


def split_flops(config: GPTConfig, first: int, last: int, batch: int) -> tuple[int, int]:
    """(I, W) of a split backward: W is the weights' half of each product that has weights; attention's products have none."""
    weights = sum(m.flops for m in matmuls(config, first, last, batch) if not m.name.endswith((".scores", ".mixed")))
    return matmul_flops(config, first, last, batch)[1] - weights, weights


def movements(config: GPTConfig, first: int, last: int, batch: int, loss: bool = True) -> list[Movement]:
    """Every operator that is no matmul, by these rules: each reads its inputs once and writes its output once; views
    are free; nothing is fused; caches do not exist; vectors of one value a token or a feature are left out. The
    loss is counted on the last stage. Additions of a bias ride in their matmul, their gradients are a sum."""
    require_count("batch", batch)
    z, S, D = config.dtype.itemsize, config.sequence, config.width
    hidden, square, scores = batch * S * D, S * S, batch * config.heads * S * S

    def dropout(name, values):
        if not config.dropout:
            return []
        return [Movement(f"{name} values", values * z, 4, 4),     # multiply by keep, divide by 1 - p
                Movement(f"{name} keep", values, 2, 1)]           # one byte each: drawn, read

    def norm(name):
        return Movement(name, hidden * z, 2, 3)                   # backward: input, gradient in, gradient out

    embedding = [
        Movement("token", hidden * z, 2, 1),
        Movement("token gradient", config.vocabulary * D * z, 0, 1),
        Movement("position", hidden * z, 2, 1),
        Movement("position values", S * D * z, 1, 3),             # backward: sum written, laid into the table (2)
        *dropout("dropout", hidden),
    ]
    block = [
        norm("attention_norm"),
        Movement("attention.heads", 3 * hidden * z, 2, 4),        # backward: stack q k v, then back to qkv's order
        Movement("attention.qkv bias gradient", 3 * hidden * z, 0, 1),
        Movement("attention.scale", scores * z, 2, 2),
        Movement("attention.causal values", square * z, 4, 0),    # fill, cut (2), read
        Movement("attention.causal", scores * z, 2, 0),
        Movement("attention.softmax", scores * z, 2, 3),
        *dropout("attention.dropout_probabilities", scores),
        Movement("attention.merge heads", hidden * z, 2, 2),
        Movement("attention.out bias gradient", hidden * z, 0, 1),
        *dropout("attention.dropout_out", hidden),
        Movement("attention residual", hidden * z, 3, 3),         # backward: the two branches' gradients are added
        norm("mlp_norm"),
        Movement("mlp.up bias gradient", 4 * hidden * z, 0, 1),
        Movement("mlp.gelu", 4 * hidden * z, 2, 3),
        Movement("mlp.down bias gradient", hidden * z, 0, 1),
        *dropout("mlp.dropout", hidden),
        Movement("mlp residual", hidden * z, 3, 3),
    ]
    logits = batch * S * config.vocabulary * z
    head = [norm("norm"), *([Movement("loss", logits, 2, 4)] if loss else [])]   # backward: zeros, then log-softmax
    return _named({"embedding": embedding, "block": block, "head": head}, config, first, last)


def moved_bytes(config: GPTConfig, first: int, last: int, batch: int, loss: bool = True) -> tuple[int, int]:
    """(forward, backward): an estimate, the sum of `movements`."""
    table = movements(config, first, last, batch, loss)
    return sum(row.bytes * row.forward for row in table), sum(row.bytes * row.backward for row in table)


def saved_bytes(config: GPTConfig, first: int, last: int, batch: int, loss: bool = True) -> list[Saved]:
    """The distinct storages autograd packs in a training forward, and in the loss on the last stage; without weights
    and without what the stage was given (its input, ids, targets). Each is named for who reads it in the backward."""
    require_count("batch", batch)
    z, S = config.dtype.itemsize, config.sequence
    hidden, scores = batch * S * config.width, batch * config.heads * S * S

    def dropout(name, values):
        return [Saved(f"{name}.keep", values)] if config.dropout else []     # one byte each

    def norm(name):
        per_token = batch * S * z
        return [Saved(f"{name}.input", hidden * z), Saved(f"{name}.mean", per_token), Saved(f"{name}.rstd", per_token)]

    dropped = [Saved("attention.dropped_probabilities", scores * z)] if config.dropout else []
    block = [
        *norm("attention_norm"),
        Saved("attention.qkv.input", hidden * z),
        Saved("attention.heads", 3 * hidden * z),                 # q, k and v in one storage
        Saved("attention.probabilities", scores * z),             # for softmax, and for the product with v if not dropped
        *dropout("attention.dropout_probabilities", scores),
        *dropped,
        Saved("attention.out.input", hidden * z),
        *dropout("attention.dropout_out", hidden),
        *norm("mlp_norm"),
        Saved("mlp.up.input", hidden * z),
        Saved("mlp.gelu.input", 4 * hidden * z),
        Saved("mlp.down.input", 4 * hidden * z),
        *dropout("mlp.dropout", hidden),
    ]
    log_probabilities = [Saved("log_probabilities", batch * S * config.vocabulary * z)] if loss else []
    head = [*norm("norm"), Saved("logits.input", hidden * z), *log_probabilities]
    table = _named({"embedding": dropout("dropout", hidden), "block": block, "head": head}, config, first, last)
    given = {f"layers.{first}.attention_norm.input", f"layers.{first}.norm.input"}
    return [row for row in table if row.name not in given]


def queued_bytes(config: GPTConfig, first: int, last: int, batch: int, loss: bool = True) -> list[Saved]:
    """What waits between the halves of a split backward (I, then W): input and output gradient of each Linear and of the
    token table, less the stage's ids. The products' inputs are those of `saved_bytes`; everything else is freed by I."""
    require_count("batch", batch)
    z, hidden = config.dtype.itemsize, batch * config.sequence * config.width

    def pair(name, rows_in, rows_out):
        return [Saved(f"{name}.input", rows_in * z), Saved(f"{name}.output gradient", rows_out * z)]

    block = [*pair("attention.qkv", hidden, 3 * hidden), *pair("attention.out", hidden, hidden),
             *pair("mlp.up", hidden, 4 * hidden), *pair("mlp.down", 4 * hidden, hidden)]
    head = pair("logits", hidden, batch * config.sequence * config.vocabulary)
    embedding = [Saved("token.output gradient", hidden * z)]
    return _named({"embedding": embedding, "block": block, "head": head}, config, first, last)


def early_gradient_bytes(config: GPTConfig, first: int, last: int) -> int:
    """Bytes of the gradients that a split backward makes in I: those of norms and of the position table."""
    late = (".qkv.", ".out.", ".up.", ".down.", ".logits.", ".token.")
    shapes = parameter_shapes(config, first, last)
    return sum(prod(shape) for name, shape in shapes.items() if not any(part in name for part in late)) * config.dtype.itemsize


def _pieces(config, first, last):
    require_slice(first, last, config.pieces)
    kinds = ["embedding", *["block"] * config.layers, "head"]
    return [(i, kinds[i]) for i in range(first, last)]


def _named(tables, config, first, last):
    """The tables of a stage's pieces, one after the other, under the names of the whole model."""
    return [row._replace(name=f"layers.{i}.{row.name}")
            for i, kind in _pieces(config, first, last) for row in tables[kind]]


def _under(path, named):
    return {f"{path}.{name}": value for name, value in named.items()}
