"""The papers' closed forms, to be compared with what a dry run finds; they price nothing.

    GPT                 12 L D^2 + 13 L D + (2 V + S + 2) D weights, V once if tied
    block, forward      24 B S D^2 + 4 B S^2 D FLOPs; the backward twice that
    block, saved        (16 B S D + 4 B S + B H S^2) z bytes; with dropout
                        B H S^2 (z + 1) + 2 B S D more; see `block_saved_bytes` for slices
    training, float32   with Adam 16 bytes a weight at the end of a backward; at the loss 12 and
                        three tensors of logits

z bytes a value. Korthikanti et al. 2022 (arXiv:2205.05198), section 4.1, count 34 B S D + 5 B H S^2
bytes for 16-bit values and another attention: z = 2 here gives 34 + 5 too, if the statistics are
left out. Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 3 and 5, count the bytes a
weight. Letters: B batch, S sequence, D width, H heads, V vocabulary.
"""

from .config import GPTConfig


def gpt_weights(config: GPTConfig) -> int:
    """With G of H heads of keys and values (10 + 2 G/H) L D^2 + (11 + 2 G/H) L D in the blocks."""
    L, D, V, S, H = config.layers, config.width, config.vocabulary, config.sequence, config.heads
    shared = 2 * L * D * (D + 1) * (config.kv_heads or H) // H
    return 10 * L * D**2 + 11 * L * D + shared + ((2 - config.tied) * V + S + 2) * D


def block_flops(config: GPTConfig, batch: int) -> int:
    """Of a forward. The attention is computed in full, its masked half too."""
    S, D, H = config.sequence, config.width, config.heads
    return (20 * H + 4 * (config.kv_heads or H)) * batch * S * D**2 // H + 4 * batch * S**2 * D


def forward_flops(config: GPTConfig, batch: int) -> int:
    """Of the whole: its blocks and the output layer. The backward does two products for each."""
    output = 2 * batch * config.sequence * config.width * config.vocabulary
    return config.layers * block_flops(config, batch) + output


def block_saved_bytes(
    config: GPTConfig, batch: int, slices: int = 1, sequence: bool = False
) -> int:
    """What autograd keeps of a block for its backward, its input among it: on each of t `slices`,
    of z bytes a value.

    Whole on each rank; with `sequence` cut t times:
        2 B S D z           x and x + attention, the inputs of the norms
        2 B S D z           the normed inputs of qkv and of mlp.up
        4 B S z             both norms' mean and 1 / deviation; the paper leaves them out
        2 B S D             keep masks of both outer dropouts
    Cut t times:
        12 B S D z          q, k, v, mixed, and 4 + 4 around gelu
        B H S^2 z           the softmax's probabilities
        B H S^2 (z + 1)     those that dropout kept, and its keep mask
        B S D z + 4 B H S   of a fused attention, in place of all probabilities: what it
                            returned, and the logarithm of each row's sum in float32

    So 34 B S D + 5 B H S^2, 10 + 24/t and 34/t of Korthikanti et al. hold for z = 2, but for the
    statistics of the norms, 8 / D of a B S D. In float32, z = 4, a mask is still one byte a value:
    66 B S D + 9 B H S^2.
    """
    S, D, H, z = config.sequence, config.width, config.heads, config.item_bytes
    hidden, square, cut = batch * S * D, batch * H * S**2, slices if sequence else 1
    dropped = bool(config.dropout)
    by_token = 4 * hidden * z + 4 * batch * S * z + 2 * hidden * dropped
    attention = (
        hidden * z + 4 * batch * H * S
        if config.fused_attention
        else square * (z + (z + 1) * dropped)
    )
    by_head = 12 * hidden * z + attention
    return by_token // cut + by_head // slices


MIXED, FLOAT32 = (
    (2, 2, 12),
    (4, 4, 8),
)  # bytes a weight with Adam: weight, gradient, masters and state


def zero_bytes(weights: int, devices: int, stage: int, each: tuple[int, ...] = MIXED) -> float:
    """Bytes a device, where ZeRO's stage shards what the optimizer holds (1), also gradients (2),
    also weights (3). `each`: bytes a weight of the three, the sharded first one last."""
    kept = len(each) - stage
    return weights * (sum(each[:kept]) + sum(each[kept:]) / devices)


def zero_sent_bytes(weight_bytes: int, devices: int, stage: int, micro_batches: int = 1) -> float:
    """Bytes that a device sends in a step. Data parallel and stage 1: 2 (N-1)/N of all weights'
    bytes; stage 2 scatters after each backward; stage 3 gathers twice, and scatters, in each."""
    times = {2: micro_batches + 1, 3: 3 * micro_batches}.get(stage, 2)
    return times * (devices - 1) / devices * weight_bytes
