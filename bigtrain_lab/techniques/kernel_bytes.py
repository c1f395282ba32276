"""What each kernel of a captured graph touches: elements are marked as they are read or written.

An element counts once for each kernel that reads it, unless this kernel wrote it before, and once
for each kernel that writes it. What is born in a kernel and is no result of it, such as the buffers
of a fused group, stays in the cache and does not count. Nothing here knows how groups were made.
Cost: a byte for each element of each tensor, and a mark for each operator on each block.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class KernelRun(fx.Interpreter):
    """Runs a graph operator by operator, and group by group.

    span   called with the number of each kernel: a context around it
    count  whether to count; `.bytes` has a number for each kernel then. Views are no kernels
    free   node -> whether it is no kernel"""

    def __init__(self, graph: fx.GraphModule, free: Callable[[fx.Node], bool],
                 span: Callable[[int], AbstractContextManager] = lambda k: nullcontext(),
                 count: bool = True):
        super().__init__(graph)
        self.free, self.span, self.count = free, span, count
        self.bytes: list[int] = []

    def run_node(self, node: fx.Node):
        if not node.op.startswith("call_") or self.free(node):
            return super().run_node(node)
        with self.span(len(self.bytes)):
            if not self.count:
                self.bytes.append(0)
                return super().run_node(node)
            with Touched() as touched:
                result = super().run_node(node)
        outside = [self.env[arg] for arg in node.all_input_nodes]
        self.bytes.append(touched.bytes_of(tree_leaves([outside, result])))
        return result


class Touched(TorchDispatchMode):
    """Marks the elements that operators read and write, storage by storage."""

    def __init__(self):
        super().__init__()
        self.marks: dict[tuple, tuple[Tensor, Tensor]] = {}
        self.alive: list[Tensor] = []  # so that no address serves twice

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.is_view or func.overloadpacket.__name__.startswith(("empty", "_unsafe_view")):
            return result
        changed = [value for declared, value in
                   [*zip(func._schema.arguments, args),
                    *((each, (kwargs or {}).get(each.name)) for each in func._schema.arguments)]
                   if declared.is_write and isinstance(value, Tensor)]
        for tensor in tree_leaves([args, kwargs]):
            if isinstance(tensor, Tensor) and not any(tensor is each for each in changed):
                read, written = self.marked(tensor)
                read |= ~written
        for tensor in changed or tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.marked(tensor)[1].fill_(True)
        return result

    def marked(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Where the elements of the tensor were read, and where written, to be changed in place."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), tensor.dtype
        if key not in self.marks:
            self.alive.append(tensor)
            elements = storage.nbytes() // tensor.element_size()
            self.marks[key] = tuple(torch.zeros(elements, dtype=torch.bool) for _ in range(2))
        once = [size if stride else min(size, 1)
                for size, stride in zip(tensor.shape, tensor.stride())]
        return tuple(mark.as_strided(once, tensor.stride(), tensor.storage_offset())
                     for mark in self.marks[key])

    def bytes_of(self, tensors) -> int:
        """Read and written in these tensors' storages."""
        places = {tensor.untyped_storage().data_ptr() for tensor in tensors
                  if isinstance(tensor, Tensor)}
        return sum(int(mark.sum()) * dtype.itemsize
                   for (place, dtype), marks in self.marks.items() if place in places
                   for mark in marks)
