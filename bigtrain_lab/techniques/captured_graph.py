"""The kernels of a captured graph: their operators, and the bytes that each reads and writes.

`kernels_of` predicts bytes from shapes. `KernelRun` counts them. An element counts once per kernel
that reads it, and once per kernel that writes it. To read what the same kernel wrote does not
count. Nor does a tensor that a kernel makes and does not return, such as a buffer of a fused group:
it stays in the cache. The count does not use the groups.
Cost: two bytes for each element of each tensor, and a write of them for each operator and block.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from functorch.compile import aot_function
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .fusion import Fusion, is_free, operators_of, traffic
from .kernels import Kernel


def captured(function: Callable, backend: Fusion, x: Tensor) -> dict[str, tuple[Kernel, ...]]:
    """Return the kernels that the backend makes of the forward, and of the backward if x requires a
    gradient. x may be on the meta device, without values."""
    y = aot_function(
        function,
        backend.compiler("forward"),
        backend.compiler("backward"),
        partition_fn=backend.partition,
    )(x)
    if x.requires_grad:
        torch.autograd.grad(y, x, torch.ones_like(y))
    return {each.way: kernels_of(each.graph) for each in backend.compiled}


def kernels_of(graph: fx.GraphModule) -> tuple[Kernel, ...]:
    operators, sizes, outputs = operators_of(graph.graph)
    outside = {source(node) for node in graph.graph.output_node().all_input_nodes}
    nodes, found = {node.name: node for node in graph.graph.nodes}, []
    moved = [each for each in operators if not each.free]
    for each, (reads, writes) in zip(moved, traffic(operators, outputs, [])):
        node = nodes[each.name]
        inside = (
            tuple(
                inner
                for inner in getattr(graph, node.target).part.graph.nodes
                if inner.op == "call_function"
            )
            if node.op == "call_module"
            else (node,)
        )
        found.append(
            Kernel(
                each.name,
                tuple(
                    (
                        inner.name,
                        inner.target.overloadpacket.__name__.strip("_"),
                        tuple(arg.name for arg in inner.all_input_nodes),
                    )
                    for inner in inside
                ),
                tuple(dict.fromkeys(source(nodes[value]) for value in reads)),
                each.name in outside,
                sum(sizes[value] for value in (*reads, *writes)),
                sum(map(flops_of, inside)),
            )
        )
    return tuple(found)


def source(node: fx.Node) -> str:
    """Find the kernel or the input that a value comes from, through views and parts of tuples."""
    while node.op.startswith("call_") and is_free(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node.name


def flops_of(node: fx.Node) -> int:
    """Count the FLOPs of a product; other operators count none."""
    formula = flop_registry.get(node.target.overloadpacket)
    values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in node.args]
    return formula(*values, out_val=node.meta["val"]) if formula else 0


class KernelRun(fx.Interpreter):
    """Interpreter that runs a graph kernel by kernel. Views are no kernels.

    span   number of a kernel -> a context manager around it
    count  count bytes: `.bytes` has those of each kernel; else zeros"""

    def __init__(
        self,
        graph: fx.GraphModule,
        span: Callable[[int], AbstractContextManager] = lambda k: nullcontext(),
        count: bool = True,
    ):
        super().__init__(graph)
        self.span, self.count = span, count
        self.bytes: list[int] = []

    def run_node(self, node: fx.Node):
        if not node.op.startswith("call_") or is_free(node):
            return super().run_node(node)
        with self.span(len(self.bytes)):
            if not self.count:
                self.bytes.append(0)
                return super().run_node(node)
            with Touched() as touched:
                result = super().run_node(node)
        given = (self.env[arg] for arg in node.all_input_nodes)
        self.bytes.append(touched.bytes_of(tree_leaves([*given, result])))
        return result


class Touched(TorchDispatchMode):
    """Record of the elements that operators read and write, storage by storage."""

    def __init__(self):
        super().__init__()
        self.marks: dict[tuple, tuple[Tensor, Tensor]] = {}
        self.alive: list[Tensor] = []  # so that no address is used twice

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.is_view or func.overloadpacket.__name__.startswith(("empty", "_unsafe_view")):
            return result
        changed = [
            value
            for declared, value in [
                *zip(func._schema.arguments, args),
                *((each, (kwargs or {}).get(each.name)) for each in func._schema.arguments),
            ]
            if declared.is_write and isinstance(value, Tensor)
        ]
        for tensor in tree_leaves([args, kwargs]):
            if isinstance(tensor, Tensor) and not any(tensor is each for each in changed):
                read, written = self.marked(tensor)
                read |= ~written
        for tensor in changed or tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.marked(tensor)[1].fill_(True)
        return result

    def marked(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return two masks to change in place: the tensor's elements that were read, and those that
        were written."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), tensor.dtype
        if key not in self.marks:
            self.alive.append(tensor)
            elements = storage.nbytes() // tensor.element_size()
            self.marks[key] = tuple(torch.zeros(elements, dtype=torch.bool) for _ in range(2))
        once = [
            size if stride else min(size, 1) for size, stride in zip(tensor.shape, tensor.stride())
        ]
        return tuple(
            mark.as_strided(once, tensor.stride(), tensor.storage_offset())
            for mark in self.marks[key]
        )

    def bytes_of(self, tensors) -> int:
        """Count the bytes read and written in these tensors' storages."""
        places = {
            tensor.untyped_storage().data_ptr() for tensor in tensors if isinstance(tensor, Tensor)
        }
        return sum(
            int(mark.sum()) * dtype.itemsize
            for (place, dtype), marks in self.marks.items()
            if place in places
            for mark in marks
        )
