"""The translator that this course takes as its example: its weights and the bytes of its training step, from shapes alone.

    encoder layer   4 D^2 + 2 D I + I + 5 D        decoder layer   8 D^2 + 2 D I + I + 7 D        I: inner width of the MLP
    whole           L (both) + 3 V D + 4 D         = 93,255,680 for L = 6, D = 512, I = 2048, V = 32,000

An encoder-decoder transformer with the norm before each branch and one more at each end, ReLU, sinusoidal positions (no weights),
no bias in attention or output, and three matrices of V x D: source table, target table, output. Counted without dropout and
without padding. Vaswani et al. 2017 (arXiv:1706.03762), section 3; the norm's place as in Xiong et al. 2020 (arXiv:2002.04745).
"""

from dataclasses import dataclass
from math import prod

import torch

from .config import require_count, require_floating
from .peak import Account, Forward, feed_forward, training
from .tape import Storage, Tape, added, attention, cross_entropy, layer_norm, linear, residual


@dataclass(frozen=True)
class TranslatorConfig:
    """Sizes; `layers` of the encoder and of the decoder each, `vocabulary` of each language."""

    layers: int = 6
    width: int = 512
    heads: int = 8
    inner: int = 2048
    vocabulary: int = 32_000
    dtype: torch.dtype = torch.float32

    def __post_init__(self):
        for name in ("layers", "width", "heads", "inner", "vocabulary"):
            require_count(name, getattr(self, name))
        require_floating(self.dtype)


def translator_shapes(config: TranslatorConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of each weight."""
    D, inner, V = config.width, config.inner, config.vocabulary
    norm = {"weight": (D,), "bias": (D,)}
    own = {"qkv.weight": (3 * D, D), "out.weight": (D, D)}
    cross = {"q.weight": (D, D), "kv.weight": (2 * D, D), "out.weight": (D, D)}
    mlp = {"up.weight": (inner, D), "up.bias": (inner,), "down.weight": (D, inner), "down.bias": (D,)}
    layer = {"attention_norm": norm, "attention": own, "mlp_norm": norm, "mlp": mlp}
    crossing = {"attention_norm": norm, "attention": own, "cross_norm": norm, "cross": cross, "mlp_norm": norm, "mlp": mlp}
    parts = {"source": {"weight": (V, D)}}
    for side, of in (("encoder", layer), ("decoder", crossing)):
        if side == "decoder":
            parts["target"] = {"weight": (V, D)}
        parts |= {f"{side}.{i}.{part}": weights for i in range(config.layers) for part, weights in of.items()}
        parts[f"{side}_norm"] = norm
    parts["logits"] = {"weight": (V, D)}
    return {f"{part}.{name}": shape for part, weights in parts.items() for name, shape in weights.items()}


def translator_parameters(config: TranslatorConfig) -> int:
    return sum(map(prod, translator_shapes(config).values()))


def translator_steps(config: TranslatorConfig, samples: int, source: int, target: int, optimizer: str = "adam", steps: int = 2,
                     watched: bool = True) -> Account:
    """The account of `steps` training steps on pairs of `source` and `target` tokens a sample."""
    for name, value in (("samples", samples), ("source", source), ("target", target)):
        require_count(name, value)
    tape = Tape(config.dtype.itemsize, watched)
    return training(tape, translator_shapes(config), lambda: translator(tape, config, samples, source, target), optimizer, steps)


def translator(tape: Tape, config: TranslatorConfig, samples: int, source: int, target: int) -> Forward:
    D, V, rows = config.width, config.vocabulary, samples * target
    memory, encoder_backward = side(tape, config, "encoder", "source", samples, source)
    pending: list[Storage] = []  # the memory's gradient, one decoder layer after the other

    def give(gradient: Storage):
        pending.append(added(tape, "memory gradient", samples * source * D, pending.pop(), gradient) if pending else gradient)

    out, decoder_backward = side(tape, config, "decoder", "target", samples, target, memory, source, give)
    logits, logits_backward = linear(tape, "logits", out, rows, D, V, bias=False)
    tape.drop(out, memory)
    loss, loss_backward = cross_entropy(tape, logits, rows, V)

    def backward():
        dy, one = loss_backward()
        decoder_backward(logits_backward(dy))
        encoder_backward(pending.pop())
        tape.drop(one)
    return Forward(loss, backward)


def side(tape: Tape, config: TranslatorConfig, name: str, table: str, samples: int, tokens: int, memory: Storage | None = None,
         keys: int = 0, give=None):
    """Encoder or (with a memory) decoder: lookup, layers, last norm."""
    D, rows = config.width, samples * tokens
    hidden, walked = rows * D, []
    looked_up = tape.make(f"{table} output", hidden)
    x = tape.make(f"{table} and position", hidden)
    tape.drop(looked_up)

    def branch(norm, body):
        def walk(x):
            normed, norm_backward = layer_norm(tape, norm, x, rows, D)
            out, backward = body(normed)
            tape.drop(normed)
            return out, lambda dy: norm_backward(backward(dy))
        return walk

    for i in range(config.layers):
        at = f"{name}.{i}"
        branches = [(f"{at}.attention", f"{at}.attention_norm", lambda x, at=at: attention(
            tape, f"{at}.attention", x, samples, tokens, D, config.heads, bias=False, causal=memory is not None))]
        if memory is not None:
            branches.append((f"{at}.cross", f"{at}.cross_norm", lambda x, at=at: attention(
                tape, f"{at}.cross", x, samples, tokens, D, config.heads, bias=False, causal=False, memory=memory, keys=keys, give=give)))
        branches.append((f"{at}.mlp", f"{at}.mlp_norm", lambda x, at=at: feed_forward(
            tape, f"{at}.mlp", x, rows, D, config.inner, keeps="output")))
        given = x
        tape.hold(given)  # by the caller of the layer
        for path, norm, body in branches:
            x, backward = residual(tape, path, x, hidden, branch(norm, body))
            walked.append(backward)
        tape.drop(given)
    last, norm_backward = layer_norm(tape, f"{name}_norm", x, rows, D)
    tape.drop(x)

    def backward(dy):
        dy = norm_backward(dy)
        while walked:
            dy = walked.pop()(dy)
        tape.accumulate(tape.make(f"{table}.weight gradient", config.vocabulary * D))
        tape.drop(dy)
    return last, backward
