"""A kernel of a captured graph as a plain value, which is kept: captured_graph.py finds it."""

from typing import NamedTuple


class Kernel(NamedTuple):
    """Operators that run as one.

    operators   (name, operator, values that it reads) of each
    reads       kernels and inputs whose values it reads
    is_result   True if the graph returns a value of it
    bytes       read and written
    """

    name: str
    operators: tuple[tuple[str, str, tuple[str, ...]], ...]
    reads: tuple[str, ...]
    is_result: bool
    bytes: int
    flops: int
