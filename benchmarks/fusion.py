"""Our compiler against eager and against torch's inductor, on the GELU of lesson 15 and on larger
graphs.

python -m benchmarks fusion        one thread, about 4 minutes; inductor needs a C++ compiler, and
                                   is left out without
"""

import shutil
import time
from functools import partial
from statistics import median

import torch

from bigtrain_lab.techniques.fusion import BLOCK, Fusion, best_groups, moved_bytes
from tests.unit.test_fusion import drawn, fewest

from .measure import row

ELEMENTS, ROUNDS, SIZES = 2**24, 9, range(10, 23)
SEARCHED = range(100, 112)  # random graphs of up to 10 pointwise operators
PEERS = ["inductor"] if any(map(shutil.which, ("g++", "clang++", "c++"))) else []
SMALLEST = {"ELEMENTS": 2**12, "ROUNDS": 1, "SIZES": range(17, 18), "SEARCHED": range(100, 101)}


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))


def forward_and_backward(function, x):
    leaf = x.detach().requires_grad_()
    function(leaf).backward(torch.ones_like(x))


def cpu_seconds(contenders: dict, rounds: int = ROUNDS) -> dict[str, float]:
    """Median CPU time of each, in turns; each ran once before."""
    taken = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            start = time.process_time()
            function()
            taken[name].append(time.process_time() - start)
    return {name: median(each) for name, each in taken.items()}


def compiled(backend, x, gradient: bool):
    """The compiled function, and what its first call took."""
    torch.compiler.reset()
    function = torch.compile(lambda x: gelu(x), backend=backend, dynamic=False)
    start = time.perf_counter()
    (forward_and_backward if gradient else lambda f, x: f(x))(function, x)
    return function, time.perf_counter() - start


def rows():
    torch.set_num_threads(1)
    return [*forward(), *both(), *searched()]


def forward():
    x = torch.randn(ELEMENTS)
    contenders, first = {"eager": lambda: gelu(x)}, {}
    for name, backend in {**dict(zip(PEERS, PEERS)), "ours": (ours := Fusion())}.items():
        function, first[name] = compiled(backend, x, False)
        contenders[name] = lambda function=function: function(x)
    taken, fused = cpu_seconds(contenders), ours.compiled[0].graph

    def with_blocks(of: int):
        fused.group_0.block = of
        fused(x)

    edge = cpu_seconds({k: partial(with_blocks, 2**k) for k in SIZES}, 5)
    yield row("tanh-GELU of 64 MiB, 9 operators: eager, CPU time", taken["eager"] * 1e3, "ms")
    if not PEERS:
        yield row("no C++ compiler was found, so inductor was not measured: install g++", 0, "")
    for peer in PEERS:
        yield row(f"the same, {peer}", taken[peer] * 1e3, "ms")
    yield row(f"the same, ours, blocks of {BLOCK:,} elements", taken["ours"] * 1e3, "ms")
    for peer in PEERS:
        yield row(f"ours over {peer}", taken["ours"] / taken[peer], "", at_most=1.3)
    yield row("ours over eager", taken["ours"] / taken["eager"], "", at_most=0.3)
    for name in ("ours", *PEERS):
        yield row(f"first call, {name}", first[name], "s")
        yield row(
            f"calls until {name} has earned its first call",
            (first[name] - taken["eager"]) / (taken["eager"] - taken[name]) + 1,
            "calls",
        )
    for k, each in edge.items():
        yield row(
            f"ours, blocks of 2^{k} elements, over the block chosen",
            each / edge[BLOCK.bit_length() - 1],
            "",
        )


def both():
    x = torch.randn(ELEMENTS)
    contenders = {"eager": lambda: forward_and_backward(gelu, x)}
    for name, backend in {**dict(zip(PEERS, PEERS)), "ours": Fusion()}.items():
        function, _ = compiled(backend, x, True)
        contenders[name] = lambda function=function: forward_and_backward(function, x)
    taken = cpu_seconds(contenders, 5)
    for peer in PEERS:
        yield row(f"forward and backward, ours over {peer}", taken["ours"] / taken[peer], "")
    yield row(
        "forward and backward, ours over eager", taken["ours"] / taken["eager"], "", at_most=0.3
    )


def searched():
    graphs = [drawn(seed, 10) for seed in SEARCHED]
    start = time.perf_counter()
    found = [moved_bytes(*graph, best_groups(*graph)) for graph in graphs]
    taken = time.perf_counter() - start
    apart = sum(one != fewest(*graph) for graph, one in zip(graphs, found))
    yield row(
        f"of {len(graphs)} random graphs of up to 10 pointwise operators, those not at the"
        " brute-force minimum",
        apart,
        "",
        at_most=0,
    )
    yield row("grouping such a graph", taken / len(graphs) * 1e3, "ms")
    large = drawn(0, 500)
    start = time.perf_counter()
    best_groups(*large)
    yield row(
        "grouping a random graph of 500 pointwise operators", time.perf_counter() - start, "s"
    )
