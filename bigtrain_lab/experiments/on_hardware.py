"""What every experiment does whose modelled clock is that of a chosen device: a profile of the
library, or this machine."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, ClassVar

from .. import train
from ..core import DTYPES, PROFILES, Cost, Hardware, Trace, duration, knob
from ..order import Compute, launched
from ..runtime.calibrate import NAME as MACHINE, remembered, this_machine
from ..runtime.failure.faults import Fault
from .experiment import Experiment


def profiles() -> list[str]:
    """The menu of a `hardware` knob."""
    return [*PROFILES, MACHINE]


def with_links(hardware: Hardware, ranks_per_node: int, gb_s: float = 0.0) -> Hardware:
    """With nodes of so many ranks, and this bandwidth inside a node; 0: what the profile states."""
    if hardware.textbook:
        return hardware
    if gb_s:  # what was measured of collectives is of the profile's links
        hardware = replace(
            hardware,
            inside=replace(hardware.inside, bytes_per_s=gb_s * 1e9),
            collective_bytes_per_s=(),
        )
    return replace(hardware, node_size=ranks_per_node)


class OnHardware(Experiment):
    """Its modelled clock charges what a profile of hardware says."""

    hardware: str = knob(
        "unit",
        "what the modelled clock charges for compute and messages",
        choices=profiles,
        more=True,
    )
    seed: int = knob(0, "seed of all random numbers", low=0, high=2**31 - 1, more=True)

    # What the numbers of an action count (view/words.py); or a property.
    terms: ClassVar[dict[str, str]] = {}
    ticks_per_slot: ClassVar[int] = 1000  # or a property

    def model_post_init(self, facts):
        """A run that is opened again is priced by the machine that it kept."""
        super().model_post_init(facts)
        if "machine" in self.kept:
            self.machine  # noqa: B018  (raises Impossible where it is damaged)

    @cached_property
    def profile(self) -> Hardware:
        """The hardware that prices the run."""
        return self.machine if self.hardware == MACHINE else PROFILES[self.hardware]

    @cached_property
    def machine(self) -> Hardware:
        """What this-machine is: the one that the run kept, where this was restored from one."""
        return remembered(self.kept["machine"]) if "machine" in self.kept else this_machine()

    @property
    def item(self) -> int:
        """Bytes of a number, where `dtype` is a field."""
        return DTYPES[self.dtype].itemsize

    # -- the account: from dry runs to what a Cost charges ----------------------------------------

    slots: ClassVar[dict] = {}  # kind -> time on the textbook profile; or a property

    def durations(self) -> dict[str, Any]:
        """Kind -> time, in slots on the textbook profile and in seconds on any other."""
        return self.slots if self.profile.textbook else self.priced()

    def priced(self) -> dict[str, Any]:
        """Kind -> seconds, by the profile."""
        return {}

    def charged(self) -> dict[str, Any]:
        """What else an action costs: messages, collectives inside it, exceptions by batch."""
        return {}

    @property
    def memory(self) -> train.Holdings:
        """What its ranks hold."""
        return train.Holdings()

    def bytes_held(self) -> dict[str, dict]:
        """What a Cost says of memory: `resident` before the first action, and the `changes` at the
        end of each."""
        return self.memory.held(self.ranks, self.counted)

    def predict(self, inside: bool = True) -> Trace:
        """Also what is held `inside` actions, where a ledger follows its runs."""
        trace = super().predict()
        return self.memory.looked_into(trace) if self.ledger and inside else trace

    def cost(self, memory: bool = True) -> Cost:
        """`memory`: also what actions do to it; times do without."""
        return self.misfortune.priced(
            Cost(
                self.durations(),
                **self.charged(),
                **(self.bytes_held() if memory else {}),
                capacity_bytes=self.capacity_bytes,
                **self.profile.clock(self.ticks_per_slot),
                **self.profile.prices(self.ranks),
            )
        )

    @cached_property
    def launch_share(self) -> float:
        """The share of the compute in which devices have nothing to do until their host has started
        the next kernel: what actions take beyond the same with kernels that start at once."""
        if not (self.profile.launch_s and self.durations() and hasattr(self, "lowered")):
            return 0.0  # where nothing is launched, or the lab predicts by itself
        free = self.replace(fault="none")  # which is not looked for again
        vars(free)["profile"] = replace(self.profile, launch_s=0.0)
        costs = [  # of actions alone: links are many, where ranks are
            Cost(
                each.durations(),
                of_batch=each.charged().get("of_batch", {}),
                **self.profile.clock(self.ticks_per_slot),
            )
            for each in (self, free)
        ]
        took, least = (
            sum(
                cost.duration(op.step, rank)
                for (rank, lane), ops in self.lowered.lanes.items()
                for op in ops
                if lane == "compute" and isinstance(op, Compute) and not op.part
            )
            for cost in costs
        )
        return 1 - least / took if took else 0.0

    def launches(self, trace: Trace) -> Iterable[str]:
        if (share := launched(trace)) > 0.5:
            yield (
                f"Launches decide here: a kernel takes {duration(self.profile.launch_s, 's')} to"
                f" start, and {share:.1%} of the ranks' time their devices have nothing else to do."
                " With a larger model the order may be another."
            )

    @property
    def facts(self) -> dict[str, Any]:
        own = {
            "machine": asdict(self.profile) if self.profile.name == MACHINE else None,
            "terms": self.terms,
            "launch_share": self.launch_share,
        }
        return super().facts | {name: told for name, told in own.items() if told}


class OnNodes(OnHardware):
    """The same where so many ranks are a node."""

    node_size: int = knob(
        8, "ranks in a node; links between nodes are slower", low=1, high=64, more=True
    )

    @cached_property
    def profile(self) -> Hardware:
        return replace(super().profile, node_size=self.node_size)


class OnOneRank(OnHardware):
    """The same on one rank, which is the one that a fault can strike."""

    ranks: ClassVar[int] = 1
    unused: ClassVar[tuple] = (("fault", lambda kind: True, {"fault_rank"}),)

    @property
    def misfortune(self) -> Fault:
        return Fault(self.fault, 0, self.fault_at, self.fault_factor)
