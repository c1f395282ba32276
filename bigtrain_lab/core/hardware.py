"""A hardware profile: what a device computes, holds and sends, each number with its source.

A profile only prices work; it never runs anything. "unit" is the textbook device: F = 1 slot,
B = 2 slots, free links. On any other an action of this many FLOPs, bytes moved and operators takes

    work     = flops / (matmul_share * peak) + bytes / (memory_share * bandwidth)
    seconds  = max(work, operators * launch_s)

because the host queues kernels ahead of the device. A CPU launches and computes in turn: there the
two add up. The shares are those of large kernels, for every dtype; launches bound small ones. Peaks
are the vendor's dense figures; his GB of memory is 2^30 bytes, his GB/s are 10^9 bytes a second.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from math import log
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from .impossible import Impossible, refuse_unknown
from .lane import FREE, Link

TICKS_PER_SECOND = 10**12  # one tick is a picosecond
Amount = Annotated[float, Field(gt=0, lt=1e30)]
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Wire:
    """A one-way connection: `alpha_s` seconds of latency and `bytes_per_s` of bandwidth."""

    name: str
    alpha_s: Annotated[float, Field(ge=0, lt=1e6)]
    bytes_per_s: Amount

    def link(self) -> Link:
        return Link(
            round(self.alpha_s * TICKS_PER_SECOND), TICKS_PER_SECOND, round(self.bytes_per_s)
        )


@dataclass(frozen=True)
class Hardware:
    """A device and its links. FLOP/s by dtype name; ranks fill nodes of `node_size` one by one.

    launch_s                what the host spends on each operator it launches
    launches_ahead          whether the host launches ahead of the device, as a CPU cannot: this is
                            a GPU, and torch calls a GPU's kernels (train/dry_run.py)
    matmul_share            of the peak FLOP/s, and
    memory_share            of the memory's bandwidth: what large kernels reach
    multiprocessors         each works on one tile of a product at a time, and a full wave of tiles
    wave_share              reaches this share of the peak in half precision; where there are 0
                            all products reach `matmul_share`
    cache_bytes_per_s       that all multiprocessors together read from the last cache
    overlap_slowdown        factor on kernels beside which the device communicates
    collective_bytes_per_s  (nodes, bandwidth of a collective over so many whole nodes), ...;
                            () where nothing is published: the slowest link of the ring counts
    protocols               (share of the bandwidth, factor on the latency), ...: the ways in which
                            collectives send inside a node, of which the fastest is taken
    trees                   (most bytes a second, share of the ring's bandwidth, factor on the
                            latency), ...: of the trees of an all-reduce of several nodes
    sources                 field -> "tag: source", the tag one of TAGS
    """

    name: str
    flops_per_s: Mapping[str, Amount] = field(default_factory=dict, hash=False)
    memory_bytes: Annotated[int, Field(gt=0, lt=2**62)] | None = None
    memory_bytes_per_s: Annotated[float, Field(ge=0, lt=1e30)] = 0.0
    inside: Wire | None = None
    between: Wire | None = None
    node_size: Annotated[int, Field(ge=1, lt=10**6)] = 8
    watts: Amount | None = None
    launch_s: Annotated[float, Field(ge=0, lt=1e6)] = 0.0
    launches_ahead: bool = True
    matmul_share: Share = 1.0
    memory_share: Share = 1.0
    multiprocessors: Annotated[int, Field(ge=0)] = 0
    wave_share: Share = 1.0
    cache_bytes_per_s: Annotated[float, Field(ge=0, lt=1e30)] = 0.0
    overlap_slowdown: Annotated[float, Field(ge=1, lt=1e6)] = 1.0
    collective_bytes_per_s: tuple[tuple[Annotated[int, Field(ge=1)], Amount], ...] = ()
    protocols: tuple[tuple[Share, Amount], ...] = ((1.0, 1.0),)
    trees: tuple[tuple[Amount, Share, Amount], ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    @staticmethod
    def all() -> "dict[str, Hardware]":
        """Every profile of the library by name."""
        return dict(PROFILES)

    @staticmethod
    def named(name: str) -> "Hardware":
        """The profile called `name`; Impossible, with the names there are, when there is none."""
        refuse_unknown("hardware called", name, PROFILES)
        return PROFILES[name]

    @property
    def textbook(self) -> bool:
        """Whether this is the unit profile, whose times are slots."""
        return not self.flops_per_s

    @property
    def unit(self) -> str:
        """Of modelled times."""
        return "slot" if self.textbook else "s"

    def clock(self, ticks_per_slot: int) -> dict[str, Any]:
        """The unit and the resolution of a Cost."""
        return {
            "unit": self.unit,
            "ticks_per_unit": ticks_per_slot if self.textbook else TICKS_PER_SECOND,
        }

    def wire(self, src: int, dst: int) -> Wire | None:
        return self.inside if src // self.node_size == dst // self.node_size else self.between

    def links(self, ranks: int) -> dict[tuple[int, int], Link]:
        """The link of every ordered pair of ranks."""
        pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
        links = {wire: wire.link() if wire else FREE for wire in (self.inside, self.between)}
        return {pair: links[self.wire(*pair)] for pair in pairs}

    def prices(self, ranks: int) -> dict:
        """A Cost's keyword arguments that this hardware knows, all but durations and bytes."""
        nodes = range(1, -(-ranks // self.node_size) + 1) if self.collective_bytes_per_s else ()
        return {
            "links": self.links(ranks),
            "buses": {n: Link(0, TICKS_PER_SECOND, round(self.bus_bytes_per_s(n))) for n in nodes},
            "node_size": self.node_size,
            "protocols": self.protocols,
            "trees": self.trees,
            "overlap_slowdown": self.overlap_slowdown,
        }

    def bus_bytes_per_s(self, nodes: int) -> float:
        """Bandwidth of a collective over so many whole nodes: straight lines between the published
        points on logarithmic axes, beyond them the last point."""
        points = self.collective_bytes_per_s
        after = next((i for i, (count, _) in enumerate(points) if count >= nodes), len(points) - 1)
        (low, fast), (high, slow) = points[max(0, after - 1)], points[after]
        if nodes >= high or low == high:
            return slow
        return fast * (slow / fast) ** (log(nodes / low) / log(high / low))

    def seconds(self, flops: float, moved_bytes: float, dtype: str, operators: int = 0) -> float:
        """Time of an action: matmul FLOPs in this dtype, bytes of other operators, launches. All
        but the dtype may be arrays."""
        if dtype not in self.flops_per_s:
            raise Impossible(
                f"{self.name} states no speed for {dtype}: "
                f"choose one of {', '.join(self.flops_per_s)}."
            )
        work = flops / (self.matmul_share * self.flops_per_s[dtype]) + moved_bytes / (
            self.memory_share * self.memory_bytes_per_s
        )
        launches = operators * self.launch_s
        longer = work * (work >= launches) + launches * (work < launches)
        return longer if self.launches_ahead else work + launches

    def constants(self) -> "list[Constant]":
        """The numbers of this profile, each with its tag and its source."""

        def at(path: str):
            return reduce(lambda value, part: getattr(value, part, None), path.split("."), self)

        return [
            Constant(self.name, path, at(path), *told.split(": ", 1))
            for path, told in self.sources.items()
            if ": " in told
        ]


# -- the library's profiles ------------------------------------------------------------------------

TAGS = {
    "published": "stands in the source",
    "reported": "told to us, and not read in its source",
    "derived": "computed from published numbers",
    "assumed": "by us, or taken from another device",
    "measured": "measured on this machine",
}


class Constant(NamedTuple):
    """A number that prices plans: whose, its name and value, one of TAGS, and where it is from."""

    of: str
    name: str
    value: object
    tag: str
    source: str


def known(tag: str, source: str, /, **values) -> dict[str, tuple]:
    """Name -> (value, "tag: source"): nothing enters a profile without its tag and its source."""
    return {name: (value, f"{tag}: {source}") for name, value in values.items()}


published, derived, assumed = (partial(known, tag) for tag in ("published", "derived", "assumed"))


def profile(name: str, inside: str, between: str, *facts: dict[str, tuple]) -> Hardware:
    """A profile of two wires by name, and of facts: `inside_alpha_s` is the first wire's."""
    told = ONE_PROTOCOL | NO_TREE | {key: each for fact in facts for key, each in fact.items()}
    told |= BY_FLOPS | told
    values = {key: value for key, (value, _) in told.items()}
    sources = {
        re.sub("^(inside|between)_", r"\1.", key): source for key, (_, source) in told.items()
    }
    for place, wire in (("inside", inside), ("between", between)):
        alpha, bandwidth = values.pop(f"{place}_alpha_s"), values.pop(f"{place}_bytes_per_s")
        values[place] = Wire(wire, alpha, bandwidth)
    return Hardware(name, **values, sources=sources)


def alphas(inside_s: float, between_s: float) -> dict[str, tuple]:
    return assumed(
        "the order of a small NCCL message on such a link; data sheets state no latency",
        inside_alpha_s=inside_s,
        between_alpha_s=between_s,
    )


GB = 2**30
GA102 = {"float64": 0.556e12, "float32": 35.6e12, "bfloat16": 71e12, "float16": 71e12}
GA100 = {"float64": 9.7e12, "float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12}
GH100 = {"float64": 34e12, "float32": 67e12, "bfloat16": 989.4e12, "float16": 989.4e12}
MATMULS = "Bekman, Machine Learning Engineering, table Maximum Achievable Matmul FLOPS (bfloat16)"
ETHERNET = published("10GBASE: 10 Gb/s", between_bytes_per_s=1.25e9)
LAUNCH = assumed(
    "PyTorch takes 4 to 10 us of the host's time for an eager operator, on any GPU", launch_s=5e-6
)
OVERLAP = assumed(
    "the middle of 1.1 to 1.3, documentation of Galvatron's hardware profiler", overlap_slowdown=1.2
)
BY_LINKS = derived("nothing published: the slowest link of the ring", collective_bytes_per_s=())
ONE_PROTOCOL = derived("nothing published: one protocol for all sizes", protocols=((1.0, 1.0),))
BY_FLOPS = derived(
    "not described: all products reach matmul_share",
    multiprocessors=0,
    wave_share=1.0,
    cache_bytes_per_s=0.0,
)
NO_TREE = derived("nothing published: rings alone", trees=())
BY_NODES = (
    (1, 436e9),
    (2, 361.7e9),
    (4, 160.1e9),
    (8, 99.6e9),
    (16, 84.7e9),
    (32, 64.9e9),
    (64, 32.9e9),
)
PLAYBOOK = (
    "Hugging Face 2025, The Ultra-Scale Playbook, figure Communication Bandwidth by Number "
    "of Nodes: all-reduce of 256 MB on H100"
)
HOPPER = (
    published(
        "NVIDIA H100 and H200 data sheets, SXM5 (dense: half the figures with sparsity; "
        "float32 without TF32): up to 700 W, NVLink 900 GB/s in both directions",
        flops_per_s=GH100,
        watts=700,
        inside_bytes_per_s=450e9,
    ),
    published(
        "NVIDIA DGX H100 and H200 data sheets: 8 GPUs, one 400 Gb/s NDR port each",
        node_size=8,
        between_bytes_per_s=50e9,
    ),
    alphas(3e-6, 5e-6),
    LAUNCH,
    OVERLAP,
)

PROFILES = {
    each.name: each
    for each in (
        Hardware(
            "unit",
            node_size=1024,
            sources={
                "durations": "published: F = 1, B = 2 slots, links free, as in the papers' figures"
            },
        ),
        profile(
            "rtx3090-pcie",
            "PCIe 3.0 x16",
            "10 Gb Ethernet",
            published(
                "NVIDIA Ampere GA102 whitepaper v2, table 2 (dense, FP32 accumulate; FP64 = 1/64 "
                "of FP32): 24 GB GDDR6X, 936 GB/s",
                flops_per_s=GA102,
                memory_bytes=24 * GB,
                memory_bytes_per_s=936e9,
            ),
            published(
                "NVIDIA GeForce RTX 3090 specification: graphics card power 350 W", watts=350
            ),
            assumed("what transfers reach of 15.75 GB/s each way", inside_bytes_per_s=12e9),
            assumed("a server of eight slots", node_size=8),
            ETHERNET,
            alphas(5e-6, 30e-6),
            assumed("as A100, the same generation", matmul_share=0.859, memory_share=0.9),
            LAUNCH,
            OVERLAP,
            BY_LINKS,
        ),
        profile(
            "a100-nvlink",
            "NVLink 3",
            "InfiniBand HDR",
            published(
                "NVIDIA A100 80GB SXM data sheet: 400 W, 80 GB HBM2e, 2,039 GB/s, NVLink 600 GB/s"
                " in both directions (dense; float32 without TF32, float64 without tensor cores)",
                flops_per_s=GA100,
                watts=400,
                memory_bytes=80 * GB,
                memory_bytes_per_s=2039e9,
                inside_bytes_per_s=300e9,
            ),
            published(
                "NVIDIA DGX A100 data sheet: 8 GPUs, one 200 Gb/s HDR port each",
                node_size=8,
                between_bytes_per_s=25e9,
            ),
            alphas(3e-6, 5e-6),
            published(f"{MATMULS}: 267.9 of 312 TFLOP/s", matmul_share=0.859),
            published("NVIDIA A100 architecture whitepaper, table 4", multiprocessors=108),
            derived(
                "He 2024, Strangely, Matrix Multiplications on GPUs Run Faster When Given "
                "Predictable Data: 257 TFLOP/s of normal numbers at 8,192 x 8,192 x 8,192, where "
                "99.8% of all waves is filled",
                wave_share=0.826,
            ),
            published(
                "NVIDIA Developer Forums, How to reach peak bandwidth of L2 cache on A100: 4,830 "
                "of 7,219 GB/s",
                cache_bytes_per_s=4830e9,
            ),
            published(
                "Isaev et al. 2023, Calculon, systems/a100_80g.json: 0.90 from 100 MB on",
                memory_share=0.9,
            ),
            LAUNCH,
            published(
                "Galvatron's hardware profiles of A100 nodes, overlap_coefficient.json",
                overlap_slowdown=1.13,
            ),
            published(
                "Bekman, Machine Learning Engineering, network: nccl-tests on one A100 node; "
                "between nodes the ports",
                collective_bytes_per_s=((1, 235e9),),
            ),
            published(
                "NCCL, src/graph/tuning.cc: LL reaches a quarter in an all-reduce; Simple all, at "
                "6 us a hop (Hu et al. 2025, arXiv:2507.04786, table 1), twice the latency here",
                protocols=((0.25, 1.0), (1.0, 2.0)),
            ),
            derived(
                "NCCL, src/graph/tuning.cc: LL128 on A100s of more than two nodes, 0.915 of at "
                "most 105 GB/s and of 0.9 of the ring; 8.5 us a level between nodes, 5 by LL",
                trees=((96e9, 0.8235, 1.7),),
            ),
        ),
        profile(
            "titan-rtx-nvlink",
            "NVLink bridge",
            "10 Gb Ethernet",
            published(
                "NVIDIA Turing GPU architecture whitepaper, appendix on TITAN RTX (FP16 tensor "
                "cores with FP32 accumulate; FP64 = 1/32 of FP32)",
                flops_per_s={"float64": 0.51e12, "float32": 16.3e12, "float16": 130.5e12},
            ),
            published(
                "NVIDIA TITAN RTX specification: 280 W, 24 GB GDDR6, 672 GB/s, two cards by one "
                "NVLink bridge of 100 GB/s in both directions",
                watts=280,
                memory_bytes=24 * GB,
                memory_bytes_per_s=672e9,
                node_size=2,
                inside_bytes_per_s=50e9,
            ),
            ETHERNET,
            alphas(5e-6, 30e-6),
            assumed("as V100, the generation before", matmul_share=0.664, memory_share=0.833),
            LAUNCH,
            OVERLAP,
            BY_LINKS,
        ),
        profile(
            "v100-nvlink",
            "NVLink 2",
            "InfiniBand EDR",
            published(
                "NVIDIA V100 data sheet, SXM2 (float16 on tensor cores): 300 W, 32 GB HBM2, "
                "900 GB/s, NVLink 300 GB/s in both directions",
                flops_per_s={"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12},
                watts=300,
                memory_bytes=32 * GB,
                memory_bytes_per_s=900e9,
                inside_bytes_per_s=150e9,
            ),
            published("NVIDIA DGX-1 data sheet: 8 GPUs", node_size=8),
            assumed("one 100 Gb/s EDR port a GPU", between_bytes_per_s=12.5e9),
            alphas(4e-6, 5e-6),
            derived(
                "Markidis et al. 2018 (arXiv:1803.04014), abstract: 83 of 125 TFLOP/s in float16",
                matmul_share=0.664,
            ),
            assumed(
                "near the 750 of 900 GB/s of Jia et al. 2018 (arXiv:1804.06826), not read again",
                memory_share=0.833,
            ),
            LAUNCH,
            OVERLAP,
            BY_LINKS,
        ),
        profile(
            "h100-nvlink",
            "NVLink 4",
            "InfiniBand NDR",
            *HOPPER,
            published(
                "NVIDIA H100 data sheet, SXM5: 80 GB HBM3, 3.35 TB/s",
                memory_bytes=80 * GB,
                memory_bytes_per_s=3350e9,
            ),
            published(f"{MATMULS}: 792.1 of 989 TFLOP/s", matmul_share=0.801),
            published(
                "Voltage Park and AI at Georgia Tech, vpbenchmarking: 2,903 of 3,350 GB/s",
                memory_share=0.867,
            ),
            published(PLAYBOOK, collective_bytes_per_s=BY_NODES),
        ),
        profile(
            "h200-nvlink",
            "NVLink 4",
            "InfiniBand NDR",
            *HOPPER,
            published(
                "NVIDIA H200 data sheet, SXM5: 141 GB HBM3e, 4.8 TB/s",
                memory_bytes=141 * GB,
                memory_bytes_per_s=4800e9,
            ),
            published(f"{MATMULS}: 794.5 of 989 TFLOP/s on H100 and H200", matmul_share=0.803),
            assumed("as H100, the same generation", memory_share=0.867),
            assumed(f"as H100, of the same links: {PLAYBOOK}", collective_bytes_per_s=BY_NODES),
        ),
    )
}
