"""The base of labs whose replicas may share what they hold (ZeRO): every layered lab."""

from .layered import Layered as Sharded

__all__ = ["Sharded"]
