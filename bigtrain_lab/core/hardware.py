"""A hardware profile: what a device computes, holds and sends, each number with its source.

A profile only prices work; it never runs anything. "unit" is the textbook device: F = 1 slot, B = 2 slots, free links.
Peaks are the vendor's dense figures: no program reaches them, so a modelled time is a lower bound in seconds and
right in its proportions. A vendor's GB of memory is taken as 2^30 bytes, his GB/s as 10^9 bytes a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Annotated

from pydantic import Field

from .impossible import Impossible
from .lane import FREE, Link

TICKS_PER_SECOND = 10**12  # one tick is a picosecond
Amount = Annotated[float, Field(gt=0, lt=1e30)]


@dataclass(frozen=True)
class Wire:
    """A one-way connection: `alpha_s` seconds of latency and `bytes_per_s` of bandwidth."""

    name: str
    alpha_s: Annotated[float, Field(ge=0, lt=1e6)]
    bytes_per_s: Amount

    def link(self) -> Link:
        return Link(round(self.alpha_s * TICKS_PER_SECOND), TICKS_PER_SECOND, round(self.bytes_per_s))


@dataclass(frozen=True)
class Hardware:
    """A device and its links. FLOP/s by dtype name; ranks fill nodes of `node_size` one after the other."""

    name: str
    flops_per_s: Mapping[str, Amount] = field(default_factory=dict)
    memory_bytes: Annotated[int, Field(gt=0, lt=2**62)] | None = None
    memory_bytes_per_s: Annotated[float, Field(ge=0, lt=1e30)] = 0.0
    inside: Wire | None = None
    between: Wire | None = None
    node_size: Annotated[int, Field(ge=1, lt=10**6)] = 8
    watts: Amount | None = None
    overlap_slowdown: Annotated[float, Field(ge=1, lt=1e6)] = 1.0
    collective_bytes_per_s: tuple[tuple[Annotated[int, Field(ge=1)], Amount], ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def all() -> "dict[str, Hardware]":
        """Every profile of the library by name."""
        return dict(PROFILES)

    @staticmethod
    def named(name: str) -> "Hardware":
        """The profile called `name`; Impossible, with the names there are, when there is none."""
        if name not in PROFILES:
            raise Impossible(f"There is no hardware called {name!r}: choose one of {', '.join(PROFILES)}.")
        return PROFILES[name]

    @property
    def textbook(self) -> bool:
        """Whether this is the unit profile, whose times are slots."""
        return not self.flops_per_s

    def wire(self, src: int, dst: int) -> Wire | None:
        return self.inside if src // self.node_size == dst // self.node_size else self.between

    def links(self, ranks: int) -> dict[tuple[int, int], Link]:
        """The link of every ordered pair of ranks."""
        pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
        return {pair: wire.link() if (wire := self.wire(*pair)) else FREE for pair in pairs}

    def prices(self, ranks: int) -> dict:
        """What a Cost of so many ranks knows of this hardware beside its durations: a Cost's keyword arguments."""
        nodes = range(1, -(-ranks // self.node_size) + 1) if self.collective_bytes_per_s else ()
        return {"links": self.links(ranks), "overlap_slowdown": self.overlap_slowdown, "node_size": self.node_size,
                "buses": {count: Link(0, TICKS_PER_SECOND, round(self.bus_bytes_per_s(count))) for count in nodes}}

    def bus_bytes_per_s(self, nodes: int) -> float:
        """Bandwidth of a collective over so many whole nodes: straight lines between the published points on logarithmic axes,
        the last point beyond them."""
        points = self.collective_bytes_per_s
        after = next((i for i, (count, _) in enumerate(points) if count >= nodes), len(points) - 1)
        (low, slow), (high, fast) = points[max(0, after - 1)], points[after]
        if nodes >= high or low == high:
            return fast
        return slow * (fast / slow) ** (log(nodes / low) / log(high / low))

    def seconds(self, flops: float, moved_bytes: float, dtype: str) -> float:
        """Compute time: matmul FLOPs at the peak of the dtype, plus the other operators' bytes at memory speed."""
        if dtype not in self.flops_per_s:
            raise Impossible(f"{self.name} states no speed for {dtype}: choose one of {', '.join(self.flops_per_s)}.")
        return flops / self.flops_per_s[dtype] + moved_bytes / self.memory_bytes_per_s


_ALPHA = "assumed: the order of a small NCCL message on such a link; latency is not in the data sheet"

PROFILES = {h.name: h for h in (
    Hardware("unit", node_size=1024, sources={"durations": "F = 1, B = 2 slots, links free: the convention of the papers' figures"}),
    Hardware(
        "rtx3090-pcie",
        flops_per_s={"float64": 0.556e12, "float32": 35.6e12, "bfloat16": 71e12, "float16": 71e12},
        memory_bytes=24 * 2**30, memory_bytes_per_s=936e9,
        inside=Wire("PCIe 3.0 x16", 5e-6, 12e9), between=Wire("10 Gb Ethernet", 30e-6, 1.25e9),
        node_size=8, watts=350,
        sources={
            "flops_per_s": "NVIDIA Ampere GA102 whitepaper v2, table 2 (dense, FP32 accumulate; FP64 = 1/64 of FP32)",
            "memory": "NVIDIA Ampere GA102 whitepaper v2, table 2: 24 GB GDDR6X, 936 GB/s",
            "inside": "PCIe 3.0 x16 is 15.75 GB/s each way by its specification; 12 GB/s is what transfers reach. " + _ALPHA,
            "between": "10GBASE: 10 Gb/s = 1.25 GB/s. " + _ALPHA,
            "watts": "NVIDIA GeForce RTX 3090 specification: graphics card power 350 W"}),
    Hardware(
        "a100-nvlink",
        flops_per_s={"float64": 9.7e12, "float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
        memory_bytes=80 * 2**30, memory_bytes_per_s=2039e9,
        inside=Wire("NVLink 3", 3e-6, 300e9), between=Wire("InfiniBand HDR", 5e-6, 25e9),
        node_size=8, watts=400, overlap_slowdown=1.13, collective_bytes_per_s=((1, 235e9),),
        sources={
            "flops_per_s": "NVIDIA A100 80GB SXM data sheet (dense; float32 without TF32, float64 without tensor cores)",
            "memory": "NVIDIA A100 80GB SXM data sheet: 80 GB HBM2e, 2,039 GB/s",
            "inside": "NVIDIA A100 data sheet: NVLink 600 GB/s in both directions, 300 each way. " + _ALPHA,
            "between": "NVIDIA DGX A100 data sheet: one 200 Gb/s HDR port a GPU = 25 GB/s each way. " + _ALPHA,
            "watts": "NVIDIA A100 80GB SXM data sheet: 400 W"}),
    Hardware(
        "titan-rtx-nvlink",
        flops_per_s={"float64": 0.51e12, "float32": 16.3e12, "float16": 130.5e12},
        memory_bytes=24 * 2**30, memory_bytes_per_s=672e9,
        inside=Wire("NVLink bridge", 5e-6, 50e9), between=Wire("10 Gb Ethernet", 30e-6, 1.25e9),
        node_size=2, watts=280,
        sources={
            "flops_per_s": "NVIDIA Turing GPU architecture whitepaper, appendix on TITAN RTX (FP16 tensor cores with FP32 accumulate; FP64 = 1/32 of FP32)",
            "memory": "NVIDIA TITAN RTX specification: 24 GB GDDR6, 672 GB/s",
            "inside": "NVIDIA TITAN RTX specification: two cards by one NVLink bridge, 100 GB/s in both directions. " + _ALPHA,
            "between": "10GBASE: 10 Gb/s = 1.25 GB/s. " + _ALPHA,
            "watts": "NVIDIA TITAN RTX specification: 280 W"}),
    Hardware(
        "v100-nvlink",
        flops_per_s={"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12},
        memory_bytes=32 * 2**30, memory_bytes_per_s=900e9,
        inside=Wire("NVLink 2", 4e-6, 150e9), between=Wire("InfiniBand EDR", 5e-6, 12.5e9),
        node_size=8, watts=300,
        sources={
            "flops_per_s": "NVIDIA V100 data sheet, SXM2 (float16 on tensor cores)",
            "memory": "NVIDIA V100 data sheet: 32 GB HBM2, 900 GB/s",
            "inside": "NVIDIA V100 data sheet: NVLink 300 GB/s in both directions. " + _ALPHA,
            "between": "one 100 Gb/s EDR port for each GPU: 12.5 GB/s each way. " + _ALPHA,
            "watts": "NVIDIA V100 data sheet: 300 W"}),
    Hardware(
        "h100-nvlink",
        flops_per_s={"float64": 34e12, "float32": 67e12, "bfloat16": 989.4e12, "float16": 989.4e12},
        memory_bytes=80 * 2**30, memory_bytes_per_s=3350e9,
        inside=Wire("NVLink 4", 3e-6, 450e9), between=Wire("InfiniBand NDR", 5e-6, 50e9),
        node_size=8, watts=700, collective_bytes_per_s=((1, 436e9), (8, 100e9)),
        sources={
            "flops_per_s": "NVIDIA H100 data sheet, SXM5 (dense: half the figures with sparsity; float32 without TF32)",
            "memory": "NVIDIA H100 data sheet: 80 GB HBM3, 3.35 TB/s",
            "inside": "NVIDIA H100 data sheet: NVLink 900 GB/s in both directions. " + _ALPHA,
            "between": "NVIDIA DGX H100 data sheet: one 400 Gb/s NDR port a GPU = 50 GB/s each way. " + _ALPHA,
            "watts": "NVIDIA H100 data sheet: up to 700 W"}),
    Hardware(
        "h200-nvlink",
        flops_per_s={"float64": 34e12, "float32": 67e12, "bfloat16": 989.4e12, "float16": 989.4e12},
        memory_bytes=141 * 2**30, memory_bytes_per_s=4800e9,
        inside=Wire("NVLink 4", 3e-6, 450e9), between=Wire("InfiniBand NDR", 5e-6, 50e9),
        node_size=8, watts=700, collective_bytes_per_s=((1, 436e9), (8, 100e9)),
        sources={
            "flops_per_s": "NVIDIA H200 data sheet, SXM5: the compute of H100",
            "memory": "NVIDIA H200 data sheet: 141 GB HBM3e, 4.8 TB/s",
            "inside": "NVIDIA H200 data sheet: NVLink 900 GB/s in both directions. " + _ALPHA,
            "between": "NVIDIA DGX H200 data sheet: one 400 Gb/s NDR port a GPU = 50 GB/s each way. " + _ALPHA,
            "watts": "NVIDIA H200 data sheet: up to 700 W"}),
)}
