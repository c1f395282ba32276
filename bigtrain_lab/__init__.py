"""bigtrain_lab: learn how large models are trained, with real processes, real tensors and real bytes."""

__version__ = "0.1.0"
