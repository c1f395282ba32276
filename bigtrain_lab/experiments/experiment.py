"""An experiment is one question a student asks: settings, a prediction, a program for real ranks, a
reference.

Its fields are knobs; panel, command line, catalogue and tests are made from them, so a new
experiment is one new file.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from .. import runtime, train
from ..core import MEMORY_KINDS, Cost, Family, Impossible, Knob, Mesh, Trace, counted, knob, refuse
from ..core.family import is_typed
from ..order import MOST, does_not_fit, not_finite, peak_bytes
from ..order.simulate import simulate
from ..runtime.failure.faults import FAULTS, SLOWER, Fault

BESIDE = (
    "experiment",
    "unfinished",
    "facts",
)  # what a run or a trace keeps beside the settings that were asked for
MB = 10**6  # decimal, as sizes are told
HANGS_S = 5.0  # the stall limit of a run that is asked to hang: its actions last milliseconds


class Quantity(NamedTuple):
    """A row of the table predicted | modelled | measured. `exact`: predicted and modelled must be
    equal; `of` answers None where a trace does not tell, as a prediction does not tell a loss.
    `apart` says what happened in a trace that the prediction, which takes the plain path, knows
    nothing of; "" where nothing did."""

    name: str
    unit: str
    of: Callable[[Trace], float | None]
    exact: bool = True
    apart: Callable[[Trace], str] = lambda trace: ""


class Experiment(BaseModel, Family, family="bigtrain_lab.experiments"):
    """Subclass in one file: `name`, `question`, fields made with `knob(...)` (or properties), among
    them `ranks` and `steps` (training steps of a run), and the methods below."""

    # pydantic's checks of a class are built when it first checks something
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True
    )

    name: ClassVar[str]
    question: ClassVar[str]
    figures: ClassVar[tuple[str, ...]] = ("timeline",)
    curves: ClassVar[dict[str, str]] = {}  # what runs report, drawn while they learn -> its title
    rivals_by: ClassVar[str] = ""  # the setting by which rivals differ
    rivals_tell: ClassVar[tuple[str, ...]] = ()  # quantities that are columns of their table
    rivals_take: ClassVar[str] = ""  # the time by which they race; else that of a step
    breaks: ClassVar[str] = ""  # or a property: why such a training learns nothing
    unlike: ClassVar[str] = ""  # or a property: what makes it another training than its rivals
    slot: ClassVar[int] = 1  # or a property: a textbook slot is the work of 1 / slot of a model
    answers: ClassVar[tuple[str, ...]] = ()  # quantities above the picture; else the first ones
    ledger: ClassVar[bool] = False  # whether its runs count every storage at every operator
    quantities: ClassVar[
        tuple[Quantity, ...]
    ] = ()  # a property where the rows depend on the settings
    # What would need less memory, in a sentence that names settings, with which a run ends that
    # exceeds its devices' memory; a property where it depends on the settings.
    relief: ClassVar[str] = ""
    lens: ClassVar[type[train.Lens]] = train.Lens  # what its program does while it trains
    tells_late: ClassVar[bool] = False  # its sentences and numbers take long: a panel draws first
    looks_late: ClassVar[bool] = False  # what it finds inside actions too: a panel draws their ends
    mesh: ClassVar[Mesh | None] = None  # or a property: axes along which its ranks lie; None: one
    # Properties that are Impossible where settings do not fit each other: asked at once.
    must_exist: ClassVar[tuple[str, ...]] = ()
    # (setting, what tells it by its value, settings that have no effect then); a base's count too.
    unused: ClassVar[tuple[tuple[str, Callable[[Any], object], set[str]], ...]] = ()

    # Knobs of a base that differ here, and others that have their place among them: name -> the
    # default, or all that differs, with "default".
    varied: ClassVar[dict[str, Any]] = {}

    # What any lab has, shown after the settings of the subclass: the device's memory, and what may
    # go wrong (runtime/faults.py).
    memory_mb: float = knob(
        0.0,
        "memory of each device; 0: what the hardware profile states",
        low=0,
        high=10**6,
        step=0.001,
        unit="MB",
        more=True,
    )
    fault: str = knob("none", "what goes wrong on purpose", choices=lambda: list(FAULTS), more=True)
    fault_rank: int = knob(1, "the rank that it strikes", low=0, high=7, more=True)
    fault_at: int = knob(
        3,
        "the action of that rank at whose start it strikes, counted from 0",
        low=0,
        high=9999,
        more=True,
    )
    fault_factor: float = knob(
        SLOWER,
        "how many times its time each action of a straggler takes",
        low=1,
        high=100,
        step=0.25,
        more=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs):
        """A lab's own fields come first, then those it varies, then those that it has as its bases
        without a name have them."""
        fields, varied = cls.__pydantic_fields__, vars(cls).get("varied", {})
        for name, other in varied.items():
            field = fields.pop(name)
            about = other if isinstance(other, dict) else {"default": other}
            own = field.json_schema_extra["knob"].but(**{"default": field.default} | about)
            fields[name] = FieldInfo.from_annotated_attribute(field.annotation, own)
        own = cls.knobs()
        for base in (b for b in cls.__mro__ if issubclass(b, Experiment) and "name" not in vars(b)):
            for name in [name for name, each in base.knobs().items() if own.get(name) is each]:
                fields[name] = fields.pop(name)

    def __init__(self, **settings: Any):
        facts = settings.pop(
            "facts", None
        )  # of a run that is opened again: model_post_init is handed them
        try:
            self.__pydantic_validator__.validate_python(settings, self_instance=self, context=facts)
        except ValidationError as error:
            raise Impossible(sentence(error, type(self))) from None
        for name in self.must_exist:
            getattr(self, name)
        if self.fault != "none":
            self.refuse_fault()

    def model_post_init(self, facts):
        """A word that is not on its knob's menu is refused, unless that lists a family, which says
        what it lacks. A subclass that refuses settings here calls this first."""
        self.__dict__["kept"] = facts or {}
        for name, own in self.knobs().items():
            if (
                type(self).model_fields[name].annotation is str
                and not own.family
                and (menu := own.menu()) is not None
                and getattr(self, name) not in menu
            ):
                raise Impossible(
                    f"{name} is {getattr(self, name)!r}: choose one of {', '.join(menu)}."
                )
        if "optimizer" in self.knobs():
            self.optimizer_class.moments()  # Impossible for one that cannot step

    @cached_property
    def kept(self) -> dict[str, Any]:
        """The facts of the run that this was restored from, which price what follows from it too;
        {} where there was none."""
        return {}

    def replace(self, **changes) -> "Experiment":
        """The same experiment with some settings changed, checked again."""
        return type(self)(**{**self.model_dump(), "facts": self.kept, **changes})

    def possible(self, others: dict[Any, dict[str, Any]]) -> Iterator[tuple[Any, "Experiment"]]:
        """Of several changes by name, those that give an experiment which can be, with it."""
        for name, changes in others.items():
            with suppress(Impossible):
                yield name, self.replace(**changes)

    @classmethod
    def restored(cls, told: dict, ranks: int | None = None) -> "Experiment":
        """From the settings that a run or a trace of so many ranks keeps, of this class where they
        are of its name. Impossible where there is no such experiment, or not with these settings or
        ranks."""
        facts = told.get("facts", {})
        refuse(
            ("experiment" not in told, "it is not of an experiment."),
            (
                not isinstance(facts, dict),
                "what it kept beside its settings cannot be read: run it again.",
            ),
        )
        chosen = (
            cls
            if told["experiment"] == getattr(cls, "name", None)
            else Experiment.named(str(told["experiment"]))
        )
        restored = chosen(**asked(told), facts=facts)
        refuse(
            (
                ranks not in (None, restored.ranks),
                f"its settings ask for {counted(restored.ranks, 'rank')}, and it has {ranks}: run"
                " it again.",
            )
        )
        return restored

    def vouched(self, trace: Trace) -> Trace:
        """The trace with facts computed here. A stranger's facts are dropped; only the name of its
        order is kept, for comparison."""
        order = order_of(trace.settings)
        facts = {**self.facts, **({"order": order} if order else {})}
        others = {name: value for name, value in trace.settings.items() if name != "facts"}
        return replace(trace, settings={**others, **({"facts": facts} if facts else {})})

    @property
    def facts(self) -> dict[str, Any]:
        """What a run keeps beside its settings, as JSON: which order it runs, what pictures need
        beside the events, what was measured before."""
        return {"order": self.order_digest} if self.order_digest else {}

    def planned(self) -> Any:
        """The order that a run follows, as JSON; None where no open family decides it."""
        return None

    @cached_property
    def order_digest(self) -> str:
        """A name of that order, the same in every process: a class that was typed again keeps its
        own name."""
        planned = self.planned()
        return (
            ""
            if planned is None
            else sha256(json.dumps(planned, default=int).encode()).hexdigest()[:16]
        )

    @property
    def told(self) -> dict[str, Any]:
        """The settings, and the facts if there are any, as a trace keeps them."""
        return {
            **self.model_dump(mode="json"),
            **({"facts": facts} if (facts := self.facts) else {}),
        }

    def is_of(self, told: dict[str, Any]) -> bool:
        """Whether a run or a trace that keeps this was made by this order; True where it tells
        none."""
        return order_of(told) in ("", self.order_digest)

    @classmethod
    def knobs(cls) -> dict[str, Knob]:
        """Field -> its knob, in order."""
        return {name: field.json_schema_extra["knob"] for name, field in cls.model_fields.items()}

    @property
    def optimizer_class(self) -> type[train.Optimizer]:
        """The optimizer that the settings name."""
        return train.Optimizer.named(self.optimizer)

    def __getstate__(self):
        """With the classes typed in a notebook that the settings name: a rank that unpickles it has
        them as members of their families."""
        return super().__getstate__() | {
            "typed": [*filter(is_typed, self.members(self.model_dump()))]
        }

    @classmethod
    def members(cls, settings: dict[str, Any]) -> tuple[type, ...]:
        """The members of open families that these settings name, from which what they predict
        follows too."""
        families = {name: cls.knobs()[name].family for name in settings if name in cls.knobs()}
        return tuple(
            members[settings[name]]
            for name, members in families.items()
            if settings[name] in members
        )

    @property
    def watts(self) -> float | None:
        """Power of one device, for the energy of a run; None where the profile states none."""
        return getattr(getattr(self, "profile", None), "watts", None)

    @property
    def capacity_bytes(self) -> int | None:
        """What each device holds at most: a run that needs more fails, as on a GPU. None where
        neither memory_mb nor a profile says."""
        return round(self.memory_mb * MB) or getattr(
            getattr(self, "profile", None), "memory_bytes", None
        )

    @classmethod
    def idle_settings(cls, settings: dict[str, Any]) -> set[str]:
        """The settings that have no effect beside these values of the others: a panel hides
        them."""
        used = {"none": set(), "straggler": {"fault_rank", "fault_factor"}}.get(
            settings["fault"], {"fault_rank", "fault_at"}
        )
        others = (
            idle
            for base in cls.__mro__
            for name, where, idle in vars(base).get("unused", ())
            if name in settings and where(settings[name])
        )
        return ({"fault_rank", "fault_at", "fault_factor"} - used).union(*others)

    @property
    def misfortune(self) -> Fault:
        """The fault that the settings ask for; `.priced(cost)` is what a straggler makes of a
        Cost."""
        return Fault(self.fault, self.fault_rank, self.fault_at, self.fault_factor)

    def actions(self, rank: int) -> list[str]:
        """The names of what a rank does, in order; a fault strikes at one of them."""
        spans = self.predict().spans(rank)
        return [s.name for s in spans if s.lane == "compute" and s.kind.isupper()]

    def refuse_fault(self) -> None:
        """Impossible where the fault would strike nothing."""
        self.misfortune.refuse(self.ranks)
        first = self.misfortune.rank
        struck = {first, (first + 1) % self.ranks} if self.fault == "deadlock" else {first}
        for rank in struck:
            if self.fault != "straggler" and self.fault_at >= (count := len(self.actions(rank))):
                raise Impossible(
                    f"The fault is at action {self.fault_at} of rank {rank}, which has actions 0 to"
                    f" {count - 1}: choose one of them."
                )

    @property
    def counted(self) -> tuple[str, ...]:
        """Kinds of memory that its runs count: without a ledger no temporaries."""
        return MEMORY_KINDS if self.ledger else MEMORY_KINDS[:-1]

    @abstractmethod
    def cost(self) -> Cost:
        """What each action costs, for the prediction and for the ranks' virtual clocks."""

    def predict(self) -> Trace:
        """The simulated trace: no processes, instant."""
        return replace(self.simulated(), settings=self.told)

    def simulated(self, **charged: bool) -> Trace:
        """The prediction without what a picture needs beside it, for those who compare many;
        `charged` as of its cost. A subclass says what is `lowered`, its Plan, or predicts
        otherwise."""
        return simulate(self.lowered, self.cost(**charged))

    @property
    def recipe(self) -> "train.Recipe":
        """The training, of which `program` and `reference` are made where a subclass writes
        none."""
        raise Impossible(
            f"{type(self).__name__} says no training: write its recipe, or its program and its"
            " reference."
        )

    def program(self, rank) -> dict[str, Any]:
        """What each rank runs; returns named arrays, which the run keeps."""
        return self.recipe.program(rank, self.lens(self, rank))

    def reference(self) -> dict[str, Any]:
        """The same named arrays, computed in one process."""
        return self.recipe.reference()

    def rivals(self) -> dict[str, dict[str, Any]]:
        """Name -> the settings of a rival: the same training by each choice of one setting,
        `rivals_by`. The lens "rivals" sets their predictions side by side."""
        knob = self.knobs()[self.rivals_by]
        return {
            f"{value}": {self.rivals_by: value}
            for value in knob.menu() or range(int(knob.low), int(knob.high) + 1)
        }

    def shown(self, figure: str, trace: Trace, pinned: Trace | None = None) -> Any:
        """What the figure of this name draws of a trace of these settings: the trace; a subclass
        gives a figure that sets several side by side more of them, such as predictions of other
        settings by name, or a pinned one of this lab."""
        return trace

    def beside(self, trace: Trace) -> tuple[Trace | None, str]:
        """A training that a run's curves are drawn beside, at the run's times, and what it is."""
        return None, ""

    def describe(self) -> str:
        """What the settings amount to, in a line."""
        return ""

    def explain(self, trace: Trace) -> list[str]:
        """Sentences that say why the trace looks as it does: that a prediction does not fit into
        its devices, where the first NaN or infinity came from, and `why`. Of part of a run the
        last says nothing: it would explain the half as if it were the whole."""
        return [
            *self.excess(trace),
            *not_finite(trace),
            *([] if trace.settings.get("unfinished") else self.why(trace)),
            *self.launches(trace),
        ]

    def launches(self, trace: Trace) -> Iterable[str]:
        """That the launches of kernels decide how long a step takes, where they do."""
        return ()

    def excess(self, trace: Trace) -> list[str]:
        """That a prediction does not fit into its devices, in a sentence."""
        return does_not_fit(trace, self.capacity_bytes, self.relief)

    def why(self, trace: Trace) -> Iterable[str]:
        """What a subclass says of a whole trace."""
        return ()

    @property
    def only_predicted(self) -> str:
        """Why these settings do not run here, in a sentence; "" where they do."""
        return (
            f"{self.ranks} ranks are predicted only: run at most {MOST}."
            if self.ranks > MOST
            else ""
        )

    def run(self, **options) -> "runtime.Run":
        """Start the real ranks; options as for `launch` (directory=, stall_s=, jitter_s=, ...)."""
        refuse((self.only_predicted, self.only_predicted))
        if self.fault == "hang":
            options.setdefault("stall_s", HANGS_S)
        options.setdefault("ledger", self.ledger)
        return runtime.launch(
            self.program,
            ranks=self.ranks,
            mesh=self.mesh,
            cost=self.cost,
            settings={"experiment": self.name, **self.model_dump(mode="json")},
            name=self.name,
            steps=self.steps,
            watts=lambda: self.watts,
            facts=lambda: self.facts,
            fault=self.misfortune,
            informed=lambda facts: self.replace(facts=facts).program,
            capacity_bytes=lambda: self.capacity_bytes,
            relief=self.relief,
            needed_bytes=self.needed_bytes,
            least_bytes=self.least_bytes,
            **options,
        )

    def least_bytes(self) -> list[int]:
        """Of each rank's peak, without a prediction; empty where a prediction is as fast."""
        return []

    def needed_bytes(self) -> list[int]:
        """What each rank would hold at its peak, as predicted of two steps: Adam's state is there
        after one."""
        steps = {"steps": min(self.steps, 2)} if "steps" in type(self).model_fields else {}
        trace = self.replace(fault="none", **steps).predict()
        return [peak_bytes(trace, rank) for rank in range(self.ranks)]


def order_of(told: dict[str, Any]) -> str:
    """The name of the order that a run or a trace was made by, of what it keeps; "" where it tells
    none."""
    order = facts.get("order") if isinstance(facts := told.get("facts"), dict) else ""
    return order if isinstance(order, str) else ""


def asked(told: dict[str, Any]) -> dict[str, Any]:
    """The settings that were asked for, of what a run or a trace keeps."""
    return {name: value for name, value in told.items() if name not in BESIDE}


def sentence(error: ValidationError, cls: type) -> str:
    """One sentence for the first thing that is wrong: which setting, and the range or menu it must
    be in."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    field = str(first["loc"][0]) if first["loc"] else ""
    if field not in cls.model_fields:
        return f"{cls.name} has no setting {field!r}: choose from {', '.join(cls.model_fields)}."
    knob = cls.knobs()[field]
    kind = cls.model_fields[field].annotation
    if kind is bool:
        allowed = "true or false"
    elif knob.low is not None and knob.high is not None:
        allowed = f"a {'whole ' if kind is int else ''}number from {knob.low:,} to {knob.high:,}"
    else:
        allowed = first["msg"].removeprefix("Input should be ")
    return f"{field.replace('_', '-')} is {first['input']!r}: it must be {allowed}."
