"""The techniques, one lecture a file. Each works under a process group of your own, with nothing of
the lab around it."""

from .. import offered

__all__, __getattr__, __dir__ = offered(
    __name__,
    {
        "all_reduce": ("ring_all_reduce",),
        "checkpoint": ("checkpoint_sequential",),
        "data_parallel": ("DistributedDataParallel",),
        "lamb": ("LAMB",),
        "lars": ("LARS",),
        "loss_scaler": ("DynamicLossScaler",),
        "mixed_precision": ("MixedPrecision",),
        "parameter_server": ("ParameterServer",),
        "pipeline": ("Pipeline",),
        "reversible": ("ReversibleBlock",),
        "tensor_parallel": (
            "ColumnParallelLinear",
            "RowParallelLinear",
            "VocabParallelEmbedding",
            "vocab_parallel_cross_entropy",
        ),
        "zero": ("FullyShardedDataParallel", "ZeroOptimizer"),
    },
)
