"""A compiler one can read: pointwise operators that share values run as one, block by block.

    eager   x -> [* 0.5] -> memory -> [tanh] -> memory -> [+ 1] -> memory    reads, writes: 6
    fused   x -> [* 0.5 -> tanh -> + 1] -> memory                            reads, writes: 2

The time of an operator with little arithmetic is that of its bytes. So the operators of a graph are
put into groups. A value that only its own group uses never leaves the cache:

    bytes = sum over groups (values read from outside + values that are read outside)

The naive way is greedy. Each operator joins the earlier group in which it adds the fewest bytes, or
begins one. A cheap choice may rule out a cheaper one later: two groups that need each other's
values cannot run. `best_groups` begins with the greedy choices and then tries the others.

torch.compile captures the graph. aot_autograd adds its backward, and recomputes there what is
cheaper to compute than to save. `Blocked` runs all operators of a group on one block of elements,
then on the next block.

Cost: compile time once for each graph; then the same operators with fewer bytes, each called once a
block. Memory: a few blocks instead of whole intermediate tensors.
Only values of one shape share a group: a reduction, a product, a view or a random number ends it.
Source: Ansel et al. 2024, PyTorch 2 (ASPLOS), sections 3 and 4; Kennedy and McKinley 1993 show that
the best groups of a large graph are hard to find: NP-complete.
"""

import math
import operator
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from functorch.compile import (
    aot_module_simplified,
    default_partition,
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import optimization_hint as hint
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from ..core import grouped
from .guards import fusion as guard

BLOCK = 2**17  # elements: a few tensors of them fit into a CPU's cache
MOST_VISITS = 2_000_000  # of `best_groups`: partial groupings, times the graph's operators


# -- which operators share a group --------------------------------------------------------------


class Operator(NamedTuple):
    """Operator of a graph, and the value of that name which it computes.

    reads   names of values
    space   operators of equal space, such as the shape of their values, may share a group; None:
            this one is alone
    free    it moves no bytes, as a view
    """

    name: str
    reads: tuple[str, ...]
    space: Hashable = None
    free: bool = False


def moved_bytes(
    operators: Sequence[Operator],
    sizes: Mapping[str, int],
    outputs: Sequence[str],
    groups: Sequence[Sequence[str]],
) -> int:
    """Count the bytes that the groups read and write. Operators in no group are groups of one."""
    return sum(
        sizes[value]
        for reads, writes in traffic(operators, outputs, groups)
        for value in (*reads, *writes)
    )


def traffic(operators, outputs, groups) -> list[tuple[list[str], list[str]]]:
    """Return of each group the values that it reads from outside, and its values that are read
    there."""
    named = {each.name: each for each in operators}
    grouped = {name for group in groups for name in group}
    found = []
    for group in [*groups, *([name] for name in named if name not in grouped)]:
        if any(named[name].free for name in group):
            continue
        own = set(group)
        outside = {value for each in operators if each.name not in own for value in each.reads}
        found.append(
            (
                list(
                    dict.fromkeys(
                        value for name in group for value in named[name].reads if value not in own
                    )
                ),
                [name for name in group if name in outside or name in outputs],
            )
        )
    return found


def best_groups(
    operators: Sequence[Operator], sizes: Mapping[str, int], outputs: Sequence[str]
) -> list[list[str]]:
    """Return the groups of two operators or more with the fewest bytes.

    Operators are given in an order in which they can run. Each joins an earlier group or begins
    one, the cheapest choice first. A partial grouping that costs as much as the best one so far is
    given up. If the graph is too large for all choices, the best of MOST_VISITS is returned."""
    graph = Choices(operators, sizes, outputs)
    best, stack, visits = None, [(0, None, 0)], MOST_VISITS
    while stack and (visits > 0 or best is None):
        extra, earlier, g = stack.pop()
        if best and extra >= best[0]:
            continue
        now = Partial() if earlier is None else graph.joined(earlier, g)
        visits -= len(operators)
        if len(now.group_of) < len(operators):
            ways = [(extra + graph.added_bytes(now, g), now, g) for g in graph.groups(now)]
            stack += sorted(ways, key=lambda way: -way[0])
        else:
            best = extra, now
    members = grouped((g, each.name) for each, g in zip(operators, best[1].group_of))
    return [group for group in members.values() if len(group) > 1]


class Partial(NamedTuple):
    """Groups of the first operators of a graph."""

    group_of: tuple[int, ...] = ()  # each operator's group
    before: tuple[int, ...] = ()  # of each group: bit h is set if group h must run before it
    spaces: tuple[Hashable, ...] = ()


class Choices:
    """Groups that the next operator may join, and their costs.

    users     value -> numbers of the operators that read it
    written   values that any grouping writes
    """

    def __init__(self, operators, sizes, outputs):
        self.operators, self.sizes = operators, sizes
        self.number = {each.name: i for i, each in enumerate(operators)}
        read = {value for each in operators for value in each.reads}
        self.users = {
            value: [i for i, each in enumerate(operators) if value in each.reads] for value in read
        }
        alone = {value for each in operators if each.space is None for value in each.reads}
        self.written = {*outputs} | alone

    def joined(self, now: Partial, g: int) -> Partial:
        """Add the next operator to group g."""
        bits, space = self.needed(now, g), self.operators[len(now.group_of)].space
        fresh = g == len(now.before)
        before = (*now.before, 0) if fresh else now.before
        return Partial(
            (*now.group_of, g),
            tuple(
                bits if h == g else mask | bits if mask >> g & 1 else mask
                for h, mask in enumerate(before)
            ),
            (*now.spaces, space) if fresh else now.spaces,
        )

    def needed(self, now: Partial, g: int) -> int:
        """Return the groups, as bits, that must run before group g if the next operator joins
        it."""
        bits = 0 if g == len(now.before) else now.before[g]
        for value in self.operators[len(now.group_of)].reads:
            if value in self.number and (maker := now.group_of[self.number[value]]) != g:
                bits |= now.before[maker] | 1 << maker
        return bits

    def groups(self, now: Partial) -> list[int]:
        """List the groups that the next operator may join: a new one, and earlier ones that would
        not have to run before themselves."""
        space, fresh = self.operators[len(now.group_of)].space, len(now.before)
        return [
            fresh,
            *(
                g
                for g in range(fresh)
                if space is not None and now.spaces[g] == space and not self.needed(now, g) >> g & 1
            ),
        ]

    def added_bytes(self, now: Partial, g: int) -> int:
        """Count the bytes that the next operator adds in group g.

        Every grouping reads each input once and writes each result once. Only more is counted. A
        value made in another group is read again, and written if it need not be otherwise."""
        each, extra = self.operators[len(now.group_of)], 0
        for value in set(each.reads) if each.space is not None else ():
            maker = self.number.get(value)
            grouped = maker is not None and self.operators[maker].space is not None
            own = now.group_of[maker] if grouped else None
            readers = {
                now.group_of[i]
                for i in self.users[value]
                if i < len(now.group_of) and self.operators[i].space is not None
            } - {own}
            if g != own and g not in readers:
                reads = 1 if grouped or readers else 0  # an input's first reader adds nothing
                writes = 1 if grouped and not readers and value not in self.written else 0
                extra += (reads + writes) * self.sizes[value]
        return extra


# -- the graph of torch --------------------------------------------------------------------------


def pointwise(node: fx.Node) -> bool:
    """Tell whether each element of the one result depends only on elements at its place. All
    tensors must be on one device. torch does not tag a random operator so: it stays alone."""
    tags = getattr(node.target, "tags", ())
    value = node.meta.get("val")
    return (
        (torch.Tag.pointwise in tags or node.target is torch.ops.aten._to_copy.default)
        and isinstance(value, Tensor)
        and value.dim() > 0
        and value.layout is torch.strided
        and not set(node.kwargs) & {"memory_format", "layout", "generator"}
        and all(
            value.device == arg.meta["val"].device or not arg.meta["val"].dim()
            for arg in node.all_input_nodes
            if isinstance(arg.meta["val"], Tensor)
        )
    )


def size_bytes(value) -> int:
    """Count the bytes of a tensor's distinct elements, or of each tensor of a tuple; an expanded
    dimension adds none. Two views of one tensor are two values. Symbolic sizes count as in the call
    that was compiled."""
    if not isinstance(value, Tensor):
        return sum(map(size_bytes, value)) if isinstance(value, (tuple, list)) else 0
    sizes = [hint(size) for size, stride in zip(value.shape, value.stride()) if hint(stride)]
    return math.prod(sizes) * value.element_size()


def operators_of(graph: fx.Graph) -> tuple[list[Operator], dict[str, int], list[str]]:
    """Return the arguments of `best_groups`. Shapes are compared with their symbols: two that are
    equal in this call only do not share a group."""
    found, sizes = [], {}
    for node in graph.nodes:
        value = node.meta.get("val")
        sizes[node.name] = size_bytes(value)
        if node.op in ("call_function", "call_module"):
            reads = tuple(dict.fromkeys(arg.name for arg in node.all_input_nodes))
            space = (str(value.device), *map(str, value.shape)) if pointwise(node) else None
            found.append(Operator(node.name, reads, space, free=is_free(node)))
    return found, sizes, [node.name for node in graph.output_node().all_input_nodes]


def is_free(node: fx.Node) -> bool:
    """Tell whether the node moves no bytes: a view, a part of a tuple, or a size."""
    return (
        getattr(node.target, "is_view", False)
        or node.target in (torch.ops.aten._unsafe_view.default, operator.getitem)
        or not size_bytes(node.meta.get("val"))
    )


def fuse(
    graph: fx.GraphModule, block: int = BLOCK, memory: "Memory | None" = None
) -> fx.GraphModule:
    """Make each of the graph's best groups one module that runs block by block."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])  # no gradient is recorded here
        graph.graph.erase_node(node)
    named = {node.name: node for node in graph.graph.nodes}
    groups = best_groups(*operators_of(graph.graph))
    fused = fuse_by_partitions(
        graph, [{named[name]: None for name in group} for group in groups], prefix="group_"
    )
    for name, part in fused.named_children():
        if name.startswith("group_"):
            setattr(fused, name, Blocked(part, block, memory or Memory()))
    return fused


# -- a group, block by block ----------------------------------------------------------------------


class Blocked(torch.nn.Module):
    """Module that runs a graph of pointwise operators on blocks of at most `block` elements.

    A `Pass` is made once for each kind of arguments (shapes, strides, formats). For each block it
    runs every operator of the group. Results are in buffers that stay in the cache.
    """

    def __init__(self, part: fx.GraphModule, block: int, memory: "Memory"):
        super().__init__()
        self.part, self.block, self.memory, self.passes = part, block, memory, {}

    @torch.no_grad()
    def forward(self, *args):
        kind = (
            self.block,
            *(
                (arg.shape, arg.stride(), arg.dtype, arg.device) if isinstance(arg, Tensor) else arg
                for arg in args
            ),
        )
        if kind not in self.passes:
            if len(self.passes) > 100:  # of sizes that change with every call
                self.passes.clear()
            self.passes[kind] = Pass(self.part, args, self.block, self.memory)
        return self.passes[kind](args)


class Pass:
    """Program of one block, and the way that tensors are cut into blocks."""

    def __init__(self, part: fx.GraphModule, args: Sequence, block: int, memory: "Memory"):
        values, self.memory = shapes_of(part, args), memory
        returned = part.graph.output_node().args[0]
        self.alone = isinstance(returned, fx.Node)
        self.results = [values[node] for node in ([returned] if self.alone else returned)]
        self.shape = self.results[0].shape
        self.cut = [isinstance(arg, Tensor) and arg.dim() > 0 for arg in args]
        self.device = next(arg.device for arg in args if isinstance(arg, Tensor) and arg.dim())
        self.block, self.code, self.buffers = block, *program(part, values)

    def __call__(self, args: Sequence):
        made = [self.memory.empty(each, self.device) for each in self.results]
        if self.device.type == "meta":
            return made[0] if self.alone else tuple(made)
        whole = [arg.expand(self.shape) for arg, cut in zip(args, self.cut) if cut]
        buffers: dict[torch.Size, list[Tensor]] = {}
        for pieces in blocks([*made, *whole], self.block):
            shape = pieces[0].shape
            if shape not in buffers:
                buffers[shape] = [
                    torch.empty(shape, dtype=dtype, device=self.device) for dtype in self.buffers
                ]
            rest = iter(pieces[len(made) :])
            self.code(
                *(next(rest) if cut else arg for arg, cut in zip(args, self.cut)),
                *pieces[: len(made)],
                *buffers[shape],
            )
        return made[0] if self.alone else tuple(made)


class Memory:
    """Allocator of large results. It reuses the memory of a freed result, as a GPU's caching
    allocator does. A CPU's returns it to the system, and each page costs time again."""

    LARGE_BYTES = 2**20

    def __init__(self):
        self.free: dict[int, list[np.ndarray]] = {}

    def empty(self, like: Tensor, device: torch.device) -> Tensor:
        """Allocate a tensor of the shape, strides and format of `like`."""
        size = like.numel() * like.element_size()
        if size < self.LARGE_BYTES or device.type != "cpu":
            return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
        free = self.free.setdefault(size, [])
        whole = free.pop() if free else np.empty(size, np.uint8)
        lent = whole[:]  # a view that lives as long as the tensor
        weakref.finalize(lent, free.append, whole).atexit = False
        return torch.from_numpy(lent).view(like.dtype).as_strided(like.shape, like.stride())


def shapes_of(part: fx.GraphModule, args: Sequence) -> dict[fx.Node, Tensor]:
    """Return each value of the part as a tensor without data: its shape, strides and format."""
    FakeTensorProp(part).propagate(*args)
    return {node: node.meta["val"] for node in part.graph.nodes if node.op == "call_function"}


def program(part: fx.GraphModule, values: Mapping) -> tuple[fx.GraphModule, list[torch.dtype]]:
    """Rewrite the part as a function of (arguments, places of the results, buffers). Return it and
    each buffer's format. An operator overwrites a buffer whose value is not needed any more."""
    graph, returned = fx.Graph(), part.graph.output_node().all_input_nodes
    at = {node: graph.placeholder(node.name) for node in part.graph.find_nodes(op="placeholder")}
    places = {node: graph.placeholder(f"to_{node.name}") for node in returned}
    last = {arg: node for node in part.graph.nodes for arg in node.all_input_nodes}
    buffers, free, begin = [], [], graph.find_nodes(op="placeholder")[-1]
    for node in (node for node in part.graph.nodes if node.op == "call_function"):
        free += [
            places[arg]
            for arg in node.all_input_nodes
            if last[arg] is node and places.get(arg) in buffers
        ]
        if node not in places:
            dtype = values[node].dtype
            place = next((each for each in free if each.meta["dtype"] == dtype), None)
            if place:
                free.remove(place)
            else:
                with graph.inserting_after(begin):
                    begin = place = graph.placeholder(f"buffer_{len(buffers)}")
                place.meta["dtype"] = dtype
                buffers.append(place)
            places[node] = place
        at[node] = written(graph, node, at, places[node])
    graph.output(None)
    return fx.GraphModule({}, graph), [each.meta["dtype"] for each in buffers]


def written(graph: fx.Graph, node: fx.Node, at: Mapping, place: fx.Node) -> fx.Node:
    """Add the operator of `node`, its result written to `place`."""
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), at.__getitem__)
    if node.target is torch.ops.aten._to_copy.default:
        return graph.call_function(torch.ops.aten.copy_.default, (place, args[0]))
    into = out_of(node.target)
    if into is None:  # a rare operator: its result is a new tensor, and copied
        return graph.call_function(
            torch.ops.aten.copy_.default, (place, graph.call_function(node.target, args, kwargs))
        )
    return graph.call_function(into[0], args, {**kwargs, into[1]: place})


@cache
def out_of(target):
    """Find the function that writes an operator's result into a given tensor, and that argument's
    name. A public function of torch, such as torch.mul, is called faster than the overload."""
    wanted = [(each.name, str(each.type)) for each in target._schema.arguments]
    for name in target.overloadpacket.overloads():
        other = getattr(target.overloadpacket, name)
        given = other._schema.arguments
        outs = [each.name for each in given if each.is_out]
        if len(outs) == 1 and wanted == [
            (each.name, str(each.type)) for each in given if not each.is_out
        ]:
            public = getattr(torch, target.overloadpacket.__name__, None)
            offered = public and outs == ["out"] and torch.Tag.generated not in other.tags
            return (public if offered else other), outs[0]
    return None


def blocks(tensors: Sequence[Tensor], most: int):
    """Cut tensors of one shape alike into pieces of at most `most` elements. First merge dimensions
    that are contiguous in every tensor."""
    order = sorted(range(tensors[0].dim()), key=lambda dim: -tensors[0].stride(dim))
    tensors = [tensor.permute(order) for tensor in tensors]
    dims = [(1, (0,) * len(tensors))]  # size, and the stride of each tensor
    for size, *own in zip(tensors[0].shape, *(tensor.stride() for tensor in tensors)):
        outer, strides = dims[-1]
        if outer == 1 or all(each == size * inner for each, inner in zip(strides, own)):
            dims[-1] = outer * size, own
        elif size > 1:
            dims.append((size, own))
    sizes, strides = zip(*dims)
    return pieces(
        [tensor.as_strided(sizes, own) for tensor, own in zip(tensors, zip(*strides))], most
    )


def pieces(tensors: Sequence[Tensor], most: int):
    """Cut along the first dimension; if a row is too long, cut each row."""
    rows, row = tensors[0].shape[0], math.prod(tensors[0].shape[1:])
    if not rows * row:
        return
    if row <= most:
        yield from zip(*(tensor.split(most // row) for tensor in tensors))
    else:
        for inner in zip(*(tensor.unbind() for tensor in tensors)):
            yield from pieces(inner, most)


# -- the backend -----------------------------------------------------------------------------------


class Compiled(NamedTuple):
    """Result of one graph's compilation."""

    way: str  # "forward" or "backward"
    graph: fx.GraphModule


class Fusion:
    """Backend for torch.compile:

        backend = Fusion()
        fast = torch.compile(model, backend=backend)

    block  the most elements of a block
    run    (way, graph) -> a function to call instead of the graph, to observe it

    `compiled` has one entry for each forward and each backward. `reasons()` has one sentence for
    each graph that torch.compile captured: why it did."""

    partition = staticmethod(min_cut_rematerialization_partition)  # into forward and backward

    def __init__(self, block: int = BLOCK, run: Callable = lambda way, graph: graph.forward):
        self.block, self.run, self.memory = block, run, Memory()
        self.captured, self.compiled = [], []

    def __call__(self, graph: fx.GraphModule, examples: Sequence):
        self.captured.append(guard.captured(graph))
        return aot_module_simplified(
            graph,
            examples,
            self.compiler("forward"),
            self.compiler("backward"),
            partition_fn=self.partition,
        )

    def reasons(self) -> list[str]:
        return guard.reasons(self.captured)

    def compiler(self, way: str):
        def compile_graph(graph: fx.GraphModule, examples: Sequence):
            fused = self.rewritten(graph)
            self.compiled.append(Compiled(way, fused))
            return make_boxed_func(self.run(way, fused))

        return compile_graph

    def rewritten(self, graph: fx.GraphModule) -> fx.GraphModule:
        return fuse(graph, self.block, self.memory)


class Unfused(Fusion):
    """Backend whose kernels are single operators; forward and backward are as eager runs them."""

    partition = staticmethod(default_partition)

    def rewritten(self, graph: fx.GraphModule) -> fx.GraphModule:
        return graph
