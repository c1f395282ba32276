"""What others measured and published, and nothing else.

The run of the 93-million-parameter translator: what its log tells. Three RTX 3090, Adam at half of
Noam's rate, warm-up of 4,000 updates, patience of 5 epochs. An epoch's 457 s were not all training,
its model was chosen by a third of the held-out pairs, and its warm-up was over before the third
epoch was. What is derived from the log is computed here. Then the steps of four GPTs, and parts of
them: a layer, and all-reduces by their size. The log and Oracle Japan's all-reduces were told to
us, and not read in their sources; docs/coverage.md says where the others were read.
"""

from typing import NamedTuple

from ..techniques.learning_rates import noam


class Log(NamedTuple):
    """`seconds`: of one epoch, by what it was spent on; `thirds`: BLEU, of 1, that each rank saw of
    its third of the held-out pairs."""

    ranks: int = 3
    epoch_s: float = 457.0
    seconds: tuple[tuple[str, float], ...] = (
        ("training", 231.0),
        ("held-out loss", 6.0),
        ("BLEU, about", 210.0),
    )
    updates: int = 1844  # of an epoch; the learning rate after it is that of the next one
    width: int = 512
    warm_up: int = 4000
    factor: float = 0.5
    best: int = 12
    best_bleu: float = 26.98
    patience: int = 5
    last: int = 17
    thirds: tuple[float, ...] = (0.42, 0.47, 0.44)

    @property
    def warm_up_epochs(self) -> float:
        """Epochs after which the rate was highest."""
        return self.warm_up / self.updates

    def rate(self, update: int) -> float:
        """Noam's learning rate of an update, from 1 on."""
        return noam(self.width, self.warm_up, self.factor)(update)

    def waited(self, epoch: int) -> int:
        """Epochs since the best one."""
        return max(0, epoch - self.best)


PUBLISHED_LOG = Log()


class Step(NamedTuple):
    """A published step of a GPT on A100s: its model, its plan, and seconds with full recompute, and
    with selective recompute and sequence parallelism. 2,048 tokens a sample, a vocabulary of
    51,200, 8 slices; `rows`: samples of a micro-batch; `chunks`: of each rank, interleaved."""

    name: str
    layers: int
    width: int
    heads: int
    devices: int
    batch: int
    rows: int
    chunks: int
    full_s: float
    selective_s: float
    mfu: float  # of the faster: FLOPs of the model a second, of the devices' peak


# Korthikanti et al. 2022 (arXiv:2205.05198), tables 3 and 5.
PUBLISHED_STEPS = (
    Step("22 B", 48, 6144, 64, 8, 4, 4, 1, 1.42, 1.10, 0.415),
    Step("175 B", 96, 12288, 96, 64, 64, 1, 3, 18.13, 13.75, 0.514),
    Step("530 B", 105, 20480, 128, 280, 280, 1, 3, 49.05, 37.83, 0.560),
    Step("1 T", 128, 25600, 160, 512, 512, 1, 1, 94.42, 71.49, 0.563),
)

# Korthikanti et al. 2022, table 4: a layer of the 22 B model in the same plan, whether with
# sequence parallelism, recompute, seconds of its forward, and of its backward with what runs again.
PUBLISHED_LAYERS = (
    ("no recompute", False, "none", 7.7e-3, 11.9e-3),
    ("sequence parallelism", True, "none", 7.2e-3, 11.8e-3),
    ("full recompute", False, "full", 7.7e-3, 19.5e-3),
    ("selective recompute", False, "selective", 7.7e-3, 13.2e-3),
    ("selective recompute, sequence parallelism", True, "selective", 7.2e-3, 13.1e-3),
)

# All-reduces of 1, 2, 4, ... 256 MiB by NCCL on A100s, 8 on a node: where, ranks, seconds of each,
# out of place, by nccl-tests.
PUBLISHED_ALL_REDUCES = (
    (  # tests/benchmarks/micro_benchmarks/test_cuda_nccl_bw_performance.py
        "microsoft/superbenchmark",
        8,
        (74.8e-6, 93.5e-6, 112e-6, 162e-6, 226e-6, 374e-6, 585e-6, 1.162e-3, 2.112e-3),
    ),
    (  # a tutorial that builds a cluster of BM.GPU4.8
        "Oracle Japan, ocitutorials",
        8,
        (76.7e-6, 112e-6, 135e-6, 186e-6, 245e-6, 398e-6, 590e-6, 1.191e-3, 2.122e-3),
    ),
    (  # the output that tests of its hardware profiler read
        "PKU-DAIR/Hetu-Galvatron",
        8,
        (78.8e-6, 109e-6, 131e-6, 183e-6, 294e-6, 416e-6, 657e-6, 1.257e-3, 2.339e-3),
    ),
    (  # docs/slurm-cluster/slurm-perf-cluster.md, 4 DGX A100
        "NVIDIA/deepops",
        32,
        (135e-6, 162e-6, 229e-6, 320e-6, 381e-6, 586e-6, 1.08e-3, 2.281e-3, 3.083e-3),
    ),
)
