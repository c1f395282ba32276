"""Can a compiler do it faster without me? One function, run operator by operator and fused.

The prediction captures the function's graph without values, and charges each kernel with its bytes,
its products and one launch. `eager` runs every operator of torch's own graph as a kernel, `ours`
the groups of techniques/fusion.py. What inductor makes is not known before it ran: its step is one
action, charged as ours. A run also times the first call, later calls and every block size on this
machine.
"""

import shutil
import time
import timeit
from collections.abc import Iterable
from contextlib import nullcontext
from statistics import median
from typing import Any, ClassVar

from .. import techniques
from ..core import Impossible, Scalar, Trace, counted, duration, knob, size
from ..core.later import torch
from ..order import Action, Compute, Plan, apart, last, samples
from ..runtime.kept import kept
from .experiment import Quantity
from .on_hardware import OnOneRank, profiles

KINDS = {"forward": "F", "backward": "B"}
WHOLE = ("inductor", "cuda-graph")  # run as one action a step
SWEPT = tuple(2**k for k in range(12, 24))  # elements of a block
ALIVE = 19  # tensors of the input's size at the peak, at most
BYTES, FIRST, EAGER, COMPILED = (
    "bytes moved a step",
    "first call, s",
    "eager call, s",
    "compiled call, s",
)


def gelu(xp, x):
    return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))


def normalize(xp, x):
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def softmax(xp, x):
    powers = xp.exp(x - xp.amax(x, axis=-1, keepdims=True))
    return powers / xp.sum(powers, axis=-1, keepdims=True)


def product(xp, x):
    return gelu(xp, x) @ x[:64].T * 0.125


def clipped(x):
    """What no compiler can capture as one graph: the next line depends on the values of x."""
    if x.norm() > 1:
        x = x / x.norm()
    return 0.5 * x


FUNCTIONS = {"gelu": gelu, "normalize": normalize, "softmax": softmax, "product": product}


class Compile(OnOneRank):
    name: ClassVar[str] = "compile"
    question: ClassVar[str] = "Can a compiler do it faster without me?"
    figures: ClassVar[tuple[str, ...]] = ("rivals", "fusion", "timeline", "blocks")
    rivals_by: ClassVar[str] = "compiler"
    rivals_tell: ClassVar[tuple[str, ...]] = ("kernels a step", "bytes moved a step")
    answers: ClassVar[tuple[str, ...]] = (
        "step time",
        "kernels a step",
        "bytes moved a step",
    )
    terms: ClassVar[dict[str, str]] = {"stage": "kernel", "micro_batch": "step"}

    function: str = knob(
        "gelu", "what is computed; its operators are written out", choices=FUNCTIONS
    )
    compiler: str = knob("ours", "who runs it", choices=("eager", "ours", *WHOLE))
    rows: int = knob(1000, "rows of the input", low=64, high=65536, logarithmic=True)
    columns: int = knob(4000, "columns of the input", low=64, high=65536, logarithmic=True)
    block: int = knob(
        2**17, "elements that ours computes at a time", low=256, high=2**26, logarithmic=True
    )
    backward: bool = knob(False, "the gradient as well", more=True)
    lengths: int = knob(
        3, "inputs of so many different lengths after the steps", low=1, high=8, more=True
    )
    dtype: str = knob(
        "float32",
        "number format of the input",
        choices=("float32", "float64", "bfloat16"),
        more=True,
    )
    steps: int = knob(4, "steps of a run", low=1, high=20, more=True)
    sweep: bool = knob(True, "a run of ours also times every block size", more=True)
    varied: ClassVar[dict] = {
        "hardware": {"default": "a100-nvlink", "choices": lambda: profiles()[1:]},
    }

    unused: ClassVar[tuple] = (("compiler", lambda name: name != "ours", {"block", "sweep"}),)

    # -- theory -----------------------------------------------------------------------------------

    def kernels(self, compiler: str = "") -> "dict[str, tuple[techniques.kernels.Kernel, ...]]":
        """Of each pass, in the order in which they run."""
        return kernels_of(
            self.function,
            (compiler or self.compiler) in ("ours", "inductor"),
            self.rows,
            self.columns,
            self.dtype,
            self.backward,
        )

    def seconds(self, compiler: str = "") -> dict[str, list[float]]:
        """Of each kernel of a pass; of the whole step where it runs as one."""
        compiler = compiler or self.compiler
        kernels = self.kernels(compiler)
        if compiler == "cuda-graph":  # each pass was recorded once, and is launched once
            return {
                "forward": [
                    sum(
                        self.profile.seconds(
                            sum(each.flops for each in own),
                            sum(each.bytes for each in own),
                            self.dtype,
                            1,
                        )
                        for own in kernels.values()
                    )
                ]
            }
        found = {
            way: [self.profile.seconds(each.flops, each.bytes, self.dtype, 1) for each in own]
            for way, own in kernels.items()
        }
        return {"forward": [sum(map(sum, found.values()))]} if compiler == "inductor" else found

    def moved(self, compiler: str = "") -> int:
        """Bytes that a step reads and writes."""
        return sum(each.bytes for own in self.kernels(compiler).values() for each in own)

    def captures(self, trace: Trace) -> int | None:
        """Graphs that torch.compile captures: one, and one more for all other lengths. A run
        reports its own."""
        if trace.clock != "predicted":
            return len(reasons_of(trace)) or None
        return None if self.compiler in WHOLE else 1 + (self.lengths > 1)

    def durations(self) -> dict[str, tuple[float, ...]]:
        return {KINDS[way]: tuple(own) for way, own in self.seconds().items()}

    @property
    def lowered(self) -> Plan:
        computed = (
            Compute((Action(KINDS[way], k, step),))
            for step in range(self.steps)
            for way, own in self.seconds().items()
            for k in range(len(own))
        )
        return Plan({(0, "compute"): tuple(computed)}, 1, steps=self.steps)

    def predict(self) -> Trace:
        trace = super().predict()
        told = Scalar(0, "compute", "scalar", BYTES, trace.events[-1].end, self.moved())
        return Trace.of([*trace.events, *[told] * (self.compiler not in WHOLE)], **trace.header())

    @property
    def facts(self) -> dict[str, Any]:
        """What the figures draw."""
        eager = self.kernels("eager")
        drawn = {
            way: {
                "eager": [each._asdict() for each in eager[way]],
                "fused": [each._asdict() for each in own],
            }
            for way, own in self.kernels().items()
        }
        return {**super().facts, "graph": drawn, "block": self.block}

    # -- reality ----------------------------------------------------------------------------------

    def function_of(self, x):
        return FUNCTIONS[self.function](torch, x)

    def values(self, device="cpu") -> "torch.Tensor":
        return (
            torch.randn(
                self.rows,
                self.columns,
                dtype=getattr(torch, self.dtype),
                generator=torch.Generator().manual_seed(self.seed),
            )
            .to(device)
            .requires_grad_(self.backward)
        )

    def once(self, function, x):
        """The result, and the gradient of x where it is asked for."""
        y = function(x)
        if not self.backward:
            return y, None
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
        return y.detach(), gradient

    def program(self, rank) -> dict[str, Any]:
        """First call, steps kernel by kernel, other lengths; then all is timed."""
        torch.compiler.reset()
        x, watched = self.values(rank.device), Watched(rank)
        backend = backend_of(self.compiler == "ours")(self.block, watched)
        compiled = self.compiled(backend, x)
        start = time.perf_counter()
        self.once(compiled, x)
        first = time.perf_counter() - start
        for watched.step in range(self.steps):
            action = Action("F", 0, watched.step)
            with rank.span(action) if self.compiler in WHOLE else nullcontext():
                y, gradient = self.once(compiled, x)
        watched.step = None
        if self.compiler not in WHOLE:
            rank.log(BYTES, watched.bytes)
        if self.compiler != "eager":
            rank.log(FIRST, first)
        with rank.aside():
            self.look(rank, compiled, backend, x)
        return self.sums(y, gradient)

    def compiled(self, backend: "techniques.fusion.Fusion", x):
        """The function as the chosen compiler runs it."""
        if self.compiler == "cuda-graph":
            return torch.cuda.make_graphed_callables(self.function_of, (x,))
        return torch.compile(
            lambda x: self.function_of(x),
            backend="inductor" if self.compiler == "inductor" else backend,
        )

    def look(self, rank, compiled, backend: "techniques.fusion.Fusion", x) -> None:
        """Time calls and block sizes on this machine, and see what other lengths do."""
        for name, function in ((EAGER, self.function_of), (COMPILED, compiled)):
            if self.compiler != "eager":
                for taken in timeit.repeat(
                    lambda function=function: self.once(function, x), number=1
                ):
                    rank.log(name, taken)
        if self.compiler == "ours" and self.sweep:
            graph = backend.compiled[0].graph
            groups = [
                part for part in graph.modules() if isinstance(part, techniques.fusion.Blocked)
            ]
            for block in SWEPT:
                for part in groups:
                    part.block = block
                for taken in timeit.repeat(lambda: graph(x.detach()), number=1):
                    rank.log(f"block {block}", taken)
            for part in groups:
                part.block = self.block
        if self.compiler not in WHOLE:
            for k in range(1, self.lengths):
                compiled(x.detach()[k:].requires_grad_(self.backward))
            for reason in backend.reasons():
                rank.log(f"captured: {reason}", 1)

    def reference(self) -> dict[str, Any]:
        return self.sums(*self.once(self.function_of, self.values()))

    @staticmethod
    def sums(y, gradient) -> dict[str, Any]:
        """Of each row, of the result and of the gradient."""
        return {
            name: each.double().sum(-1).cpu().numpy()
            for name, each in {"result, row sums": y, "gradient, row sums": gradient}.items()
            if each is not None
        }

    @property
    def only_predicted(self) -> str:
        if self.compiler == "cuda-graph" and not torch.cuda.is_available():
            return (
                "A CUDA graph records the launches of a GPU, and none is visible here: choose "
                "ours, or read the prediction."
            )
        if self.compiler == "inductor" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
            return (
                "inductor writes C++, and no compiler for it was found: install g++, or choose "
                "ours, which needs none."
            )
        return super().only_predicted

    def needed_bytes(self) -> list[int]:
        """Of all tensors that are alive at the peak, with the two marks of each element."""
        return [self.rows * self.columns * (self.item + 2) * ALIVE]

    # -- what is told -----------------------------------------------------------------------------

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity(
                "kernels a step",
                "",
                lambda t: None if self.compiler in WHOLE else len(t.spans(0)) / t.steps,
            ),
            Quantity(BYTES, "B", lambda t: last(t, BYTES)),
            Quantity("step time", "s", lambda t: t.step_time),
            Quantity("graphs captured", "", self.captures),
            Quantity("first call, here", "s", on_the_wall(FIRST), exact=False),
            Quantity("eager call, here, median", "s", on_the_wall(EAGER), exact=False),
            Quantity("compiled call, here, median", "s", on_the_wall(COMPILED), exact=False),
            Quantity(
                "steps to break even, here",
                "",
                lambda t: break_even(t) if t.clock == "measured" else None,
                exact=False,
            ),
        )

    def describe(self) -> str:
        return (
            f"{self.function} of {self.rows:,} x {self.columns:,},"
            f" {size(self.rows * self.columns * self.item)}, by {self.compiler}"
        )

    @property
    def relief(self) -> str:
        return f"Fewer rows than {self.rows:,} would need less."

    def why(self, trace: Trace) -> Iterable[str]:
        eager, now = (
            {
                way: (len(own), sum(each.bytes for each in own))
                for way, own in self.kernels(compiler).items()
            }
            for compiler in ("eager", "ours")
        )
        slow, fast, graph = (
            sum(map(sum, self.seconds(name).values())) for name in ("eager", "ours", "cuda-graph")
        )
        hidden = (
            " A CUDA graph takes as long as eager here: each kernel lasts longer than the launch of"
            f" the next, {duration(self.profile.launch_s, 's')}, so no launch is seen."
        )
        yield (
            f"Fused kernels are {slow / fast:.1f} times as fast as eager ones, predicted for"
            f" {self.hardware}. A model that spends 30% of its time on such operators gains a"
            f" factor of {1 / (0.7 + 0.3 * fast / slow):.2f}: the rest is as before."
            f"{hidden * (duration(slow, 's') == duration(graph, 's'))}"
        )
        for way in eager:
            yield (
                f"{way.capitalize()}: {counted(eager[way][0], 'kernel')} and {size(eager[way][1])} "
                f"moved by eager, {counted(now[way][0], 'kernel')} and {size(now[way][1])} fused."
            )
        if self.compiler == "inductor":
            yield "What inductor makes is known only once it ran: it is charged as ours."
        if self.compiler == "cuda-graph":
            yield "A CUDA graph launches a pass at once; each kernel moves as many bytes as before."
        yield from (f"Graph {k}: {event.name}." for k, event in enumerate(reasons_of(trace), 1))
        if fast := samples(trace, COMPILED):
            steps, both = (
                break_even(trace),
                f"eager {spread(samples(trace, EAGER))}, compiled {spread(fast)}",
            )
            won = (
                "neither is faster within that spread"
                if steps is None
                else f"earned back after {counted(steps, 'step')}"
                if steps
                else "never earned back"
            )
            yield (
                f"Here, the first call took {duration(last(trace, FIRST), 's')}; then "
                f"{both}: {won}."
            )

    def hlo(self) -> tuple[str, str]:
        """What JAX's XLA is given for this function, and what it makes of it on the CPU. Needs the
        extra `xla`."""
        try:
            import jax
        except ImportError:
            raise Impossible(
                "JAX is not installed, which brings XLA: pip install 'bigtrain-lab[xla]'."
            ) from None
        shape = jax.ShapeDtypeStruct((self.rows, self.columns), self.dtype)
        with jax.default_device(jax.devices("cpu")[0]):
            lowered = jax.jit(lambda x: FUNCTIONS[self.function](jax.numpy, x)).lower(shape)
            return lowered.as_text("hlo"), lowered.compile().as_text()


class Watched:
    """Runs a captured graph kernel by kernel in spans while there is a step, else as it is. The
    first step counts bytes."""

    def __init__(self, rank):
        self.rank, self.step, self.bytes = rank, None, 0

    def __call__(self, way: str, graph):
        def called(*args):
            if self.step is None:
                return graph.forward(*args)
            run = techniques.captured_graph.KernelRun(
                graph,
                lambda k: self.rank.span(Action(KINDS[way], k, self.step)),
                count=self.step == 0,
            )
            result = run.run(*args)
            self.bytes += sum(run.bytes)
            return result

        return called


@kept
def kernels_of(
    function: str, fused: bool, rows: int, columns: int, dtype: str, backward: bool
) -> "dict[str, tuple[techniques.kernels.Kernel, ...]]":
    """The kernels of each pass, captured from tensors without values."""
    x = torch.empty(
        rows, columns, dtype=getattr(torch, dtype), device="meta", requires_grad=backward
    )
    return techniques.captured_graph.captured(
        lambda x: FUNCTIONS[function](torch, x), backend_of(fused)(), x
    )


def backend_of(fused: bool) -> "type[techniques.fusion.Fusion]":
    return techniques.fusion.Fusion if fused else techniques.fusion.Unfused


def on_the_wall(name: str):
    """The median of what was timed under this name: wall clock, which no other clock tells."""
    return lambda t: (
        median(taken) if t.clock == "measured" and (taken := samples(t, name)) else None
    )


def spread(taken: list[float]) -> str:
    low, high = (duration(each, "s") for each in (min(taken), max(taken)))
    return f"{duration(median(taken), 's')} (median of {len(taken)}, {low} to {high})"


def reasons_of(trace: Trace) -> list[Scalar]:
    return [
        event._replace(name=event.name.removeprefix("captured: "))
        for event in trace.where(Scalar)
        if event.name.startswith("captured: ")
    ]


def break_even(trace: Trace) -> int | None:
    """Steps until compiling has saved more than it took; 0: never. None where nothing was timed, or
    where the calls of both are within each other's spread."""
    first, (eager, fast) = last(trace, FIRST), (samples(trace, name) for name in (EAGER, COMPILED))
    if not eager or not fast or apart(eager, fast) is None:
        return None
    eager, fast = median(eager), median(fast)
    return int(max(first - fast, 0) / (eager - fast)) + 1 if eager > fast else 0
