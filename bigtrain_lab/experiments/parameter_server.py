"""Why wait for the slowest?

Workers compute gradients of a small classifier of digits, servers apply them: one mean a round,
each gradient as it comes, or so that nobody runs far ahead. One worker may be slow for good, and
all may have hiccups. A gradient that was computed on old weights is stale by the updates made
since; how many are, by how much, and what the loss makes of it, is what a run shows.
Source: Dean et al. 2012, Large scale distributed deep networks (NIPS); Ho et al. 2013, the stale
synchronous parallel parameter server (NIPS); Chen et al. 2016, Revisiting distributed synchronous
SGD (arXiv:1604.00981).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from random import Random
from statistics import mean
from typing import Any, ClassVar

from .. import models, techniques, train
from ..core import Impossible, Scalar, Trace, counted, knob, size
from ..core.later import np, torch
from ..data.digits import CLASSES, POINTS, digits
from ..order import ACCURACY, TEST_LOSS, Action, Applied, Plan, applied, last
from ..order.simulate import simulate
from ..runtime.kept import kept
from .all_reduce import ports
from .experiment import Quantity
from .large_batch import quality
from .on_hardware import OnHardware

MOST = 20_000  # batches of a run, of all workers


class ParameterServing(OnHardware):
    name: ClassVar[str] = "parameter-server"
    question: ClassVar[str] = "Why wait for the slowest?"
    figures: ClassVar[tuple[str, ...]] = ("rivals", "timeline", "staleness")
    rivals_by: ClassVar[str] = "mode"
    rivals_tell: ClassVar[tuple[str, ...]] = ("staleness, mean",)
    rivals_take: ClassVar[str] = "time a gradient"
    curves: ClassVar[dict[str, str]] = {"loss": "loss of each worker's batch"}
    answers: ClassVar[tuple[str, ...]] = (
        "gradients applied a slot",
        "staleness, mean",
        "bytes through the busiest server's port, in and out",
    )
    must_exist: ClassVar[tuple[str, ...]] = ("requests",)

    mode: str = knob(
        "asynchronous",
        "when a server updates: by the mean of a round, by each "
        "gradient as it comes, or so while nobody is far ahead",
        choices=("synchronous", "asynchronous", "bounded"),
    )
    bound: int = knob(
        3, "how many batches a worker may be ahead of the slowest one", low=0, high=32
    )
    slow: float = knob(
        4.0,
        "how many times its time the last worker takes for each batch",
        low=1,
        high=16,
        step=0.5,
        unit="times",
    )
    hiccups: float = knob(
        0.0, "share of all batches that take long, drawn from the seed", low=0, high=1, step=0.05
    )
    learning_rate: float = knob(0.1, "step size of plain SGD", low=0.001, high=10, logarithmic=True)
    hiccup: float = knob(
        4.0,
        "how many times its time a batch with a hiccup takes",
        low=1,
        high=100,
        step=0.5,
        more=True,
    )
    workers: int = knob(4, "ranks that compute gradients", low=1, high=6, more=True)
    servers: int = knob(
        1, "ranks that share the parameters and apply gradients", low=1, high=3, more=True
    )
    steps: int = knob(
        20,
        "batches of each worker; those that have made them go on until all have",
        low=1,
        high=500,
        more=True,
    )
    rows: int = knob(
        32, "samples in a batch of a worker", low=1, high=512, unit="samples", more=True
    )
    layers: int = knob(2, "hidden layers", low=1, high=8, more=True)
    width: int = knob(32, "width of the model", low=8, high=512, step=8, more=True)
    dtype: str = knob(
        "float32", "number format of the weights", choices=("float32", "float64"), more=True
    )
    varied: ClassVar[dict] = {
        "hardware": {
            "help": "what the modelled clock charges for compute and messages; unit: a batch is"
            " a slot, links are free"
        },
    }

    terms: ClassVar[dict[str, str]] = {"micro_batch": "batch", "stage": "worker"}
    ticks_per_slot: ClassVar[int] = 3000  # a slot is a batch: a third of it forward
    unused: ClassVar[tuple] = (
        ("mode", lambda name: name != "bounded", {"bound"}),
        ("hiccups", lambda share: not share, {"hiccup"}),
    )

    # -- what the settings mean --------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        return self.workers + self.servers

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of the technique."""
        return {
            "bound": self.bound if self.mode == "bounded" else None,
            "synchronous": self.mode == "synchronous",
        }

    @property
    def shapes(self) -> tuple[int, int, int, int, str]:
        return self.rows, self.layers, self.width, self.servers, self.dtype

    def dry(self, rank: int) -> train.DryRun:
        """Of a worker's batches, or of a request at a server, which adds a round up."""
        if rank < self.workers:
            return dried(self.shapes, None)
        run = dried(self.shapes, rank - self.workers)
        sums = self.mode == "synchronous" and self.workers > 1
        return replace(run, start=run.start | {"gradients": run.start["weights"] * sums})

    @property
    def server_bytes(self) -> list[int]:
        return [self.dry(rank).start["weights"] for rank in range(self.workers, self.ranks)]

    def order(self, requests) -> Plan:
        return techniques.server_plan.order(requests, self.server_bytes, **self.how)

    @cached_property
    def requests(self) -> tuple[int, ...]:
        """Batches of each worker: those that end by when the last one has made its `steps`."""
        if self.mode == "synchronous":
            return (self.steps,) * self.workers
        slowest = max(self.slow, self.fault_factor if self.fault == "straggler" else 1)
        ahead = self.bound + 1 if self.mode == "bounded" else round(self.steps * (slowest - 1))
        most = self.steps + ahead + 1
        while most * self.workers <= MOST:
            trace = simulate(self.order((most,) * self.workers), self.cost(memory=False))
            ends = [
                [span.end for span in trace.spans(worker) if span.kind == "B"]
                for worker in range(self.workers)
            ]
            until = max(own[self.steps - 1] for own in ends)
            made = tuple(sum(end <= until for end in own) for own in ends)
            if max(made) < most:
                return made
            most *= 2
        raise Impossible(
            f"While the slowest worker makes {self.steps} batches the others make "
            f"{most:,} or so: take fewer steps, a smaller slow, or a bound."
        )

    # -- theory ------------------------------------------------------------------------------------

    slots: ClassVar[dict] = {"F": Fraction(1, 3), "B": Fraction(2, 3), "S": 0}

    def priced(self) -> dict[str, Fraction]:
        """Of a batch's forward and backward, and of the update of the largest shard."""
        largest = self.server_bytes.index(max(self.server_bytes))
        actions = self.dry(0).actions | self.dry(self.workers + largest).actions
        return {
            name[1]: Fraction(acted.work.seconds(self.profile, self.dtype))
            for name, acted in actions.items()
        }

    def charged(self) -> dict[str, Any]:
        """Which batches take long, of all that a run may have."""
        draws = [Random(f"{self.seed}/hiccups/{worker}") for worker in range(self.workers)]
        usual = self.durations()
        long = {kind: usual[kind] * Fraction(self.hiccup) for kind in "FB"}
        late = {
            (worker, number): long
            for number in range(MOST // self.workers if self.hiccups else 0)
            for worker, draw in enumerate(draws)
            if draw.random() < self.hiccups
        }
        return {"of_batch": late, "slowdown": {self.workers - 1: self.slow}}

    @property
    def memory(self) -> train.Holdings:
        own = [
            [Action(kind, worker, number) for number in range(max(self.requests)) for kind in "FB"]
            for worker in range(self.workers)
        ]
        return train.Likened(
            self.dry,
            lambda action: Action(action.kind, 0, min(action.micro_batch, 1)),
            own + [[]] * self.servers,
        )

    @property
    def lowered(self) -> Plan:
        return self.order(self.requests)

    @property
    def facts(self) -> dict[str, Any]:
        return {
            **super().facts,
            "served": {"requests": [*self.requests], **self.how},
            "roles": ["worker"] * self.workers + ["server"] * self.servers,
        }

    # -- reality -----------------------------------------------------------------------------------

    def model(self) -> "torch.nn.Module":
        return models.Classifier(
            POINTS,
            self.width,
            self.layers,
            CLASSES,
            seed=self.seed,
            dtype=getattr(torch, self.dtype),
        )

    def batch(self, worker: int, number: int) -> "tuple[torch.Tensor, torch.Tensor]":
        """A round of the workers' batches is a stretch of the stream."""
        return digits(self.dtype).batch(
            self.seed, (number * self.workers + worker) * self.rows, self.rows
        )

    def program(self, rank) -> dict[str, Any]:
        model, losses, place = self.model().to(rank.device), [], rank.index - self.workers
        service = techniques.ParameterServer(
            model,
            partial(torch.optim.SGD, lr=self.learning_rate),
            self.requests,
            self.servers,
            **self.how,
            group=rank.group(),
        )
        own = service.shards[place] if place >= 0 else [*model.parameters()]
        rank.watch(partial(held, own, service.server))

        def loss(number: int) -> "torch.Tensor":
            inputs, labels = (part.to(rank.device) for part in self.batch(rank.index, number))
            found = torch.nn.functional.cross_entropy(model(inputs), labels)
            losses.append(found.item())
            rank.log("loss", losses[-1])
            return found

        updates = service.run(loss)
        if rank.index == 0:
            with rank.aside():
                told = quality(model, digits(self.dtype).test)
            for name, value in told.items():
                rank.log(name, value)
        told = (
            {f"staleness of server {place}": np.array([each.staleness for each in updates])}
            if place >= 0
            else {f"loss of worker {rank.index}": np.array(losses)}
        )
        return told | {name: p.detach().cpu().numpy() for name, p in model.named_parameters()}

    def reference(self) -> dict[str, Any]:
        """In one process: a synchronous run as plain training; another as
        w <- w - lr g(w as it was read), in the trace's order."""
        model = self.model()
        found = (rounds if self.mode == "synchronous" else replayed)(self, model)
        return found | {name: p.detach().numpy() for name, p in model.named_parameters()}

    def learnt(self) -> dict[str, float]:
        """Loss and accuracy on held-out samples after the run, by the reference alone."""
        model, found = self.model(), self.reference()
        model.load_state_dict({name: torch.from_numpy(found[name]) for name in model.state_dict()})
        return quality(model, digits(self.dtype).test)

    # -- what is told ------------------------------------------------------------------------------

    def applied(self, trace: Trace) -> list[Applied]:
        """All updates that a trace's servers made of gradients."""
        return applied(trace, self.requests, **self.how)

    def stale(self, trace: Trace, of: Callable) -> float | None:
        values = [each.staleness for each in self.applied(trace)]
        return of(values) if values else None

    @property
    def quantities(self) -> tuple[Quantity, ...]:

        def rate(trace: Trace) -> float | None:
            """The wall knows no slots."""
            known = trace.makespan and (trace.clock != "measured" or self.profile.unit == "s")
            return sum(self.requests) / trace.makespan if known else None

        return (
            Quantity(f"gradients applied a {self.profile.unit}", "", rate),
            Quantity(
                "time a gradient", self.profile.unit, lambda t: t.makespan / sum(self.requests)
            ),
            Quantity("staleness, mean", "updates", lambda t: self.stale(t, mean)),
            Quantity("staleness, worst", "updates", lambda t: self.stale(t, max)),
            Quantity(
                "bytes through the busiest server's port, in and out",
                "B",
                lambda t: max(ports(t)[self.workers :]),
            ),
            Quantity("loss, mean of the last tenth", "", last_tenth, exact=False),
            Quantity("test loss, last", "", lambda t: last(t, TEST_LOSS), exact=False),
            Quantity(
                "test accuracy, last",
                "%",
                lambda t: 100 * of if (of := last(t, ACCURACY)) is not None else None,
                exact=False,
            ),
        )

    relief: ClassVar[str] = "A smaller width, or fewer samples in a batch (rows), would need less."

    def describe(self) -> str:
        shared = " and ".join(size(each) for each in self.server_bytes)
        made = ", ".join(f"{each:,}" for each in self.requests)
        return f"{counted(self.servers, 'server')} of {shared}; batches of the workers: {made}"

    def why(self, trace: Trace) -> Iterable[str]:
        found = self.applied(trace)
        if not found:
            return
        if self.mode == "synchronous":
            computes = min(trace.shares(worker).compute for worker in range(self.workers))
            yield (
                "Every gradient is of the newest weights, and the fastest worker waits "
                f"or idles {1 - computes:.0%} of the time."
            )
        else:
            yield from self.ages(found)
        idle = sum(trace.shares(rank).idle for rank in range(self.workers, self.ranks))
        if self.mode != "synchronous":
            yield "Servers answer by the modelled clock, so all wait for a worker that dies."
        yield f"Servers idle for {idle / self.ranks:.1%} of all ranks' time: each is a rank too."

    def ages(self, found: list) -> Iterable[str]:
        """What old weights do to the gradients that were applied."""
        slowest = min(range(self.workers), key=lambda worker: self.requests[worker])
        ages = [
            mean(each.staleness for each in found if each.worker == worker)
            for worker in range(self.workers)
        ]
        others = [age for worker, age in enumerate(ages) if worker != slowest]
        if others:
            share = self.requests[slowest] / sum(self.requests)
            yield (
                f"{self.mode.capitalize()}, worker {slowest}'s gradients, {share:.1%} of all, are"
                f" {ages[slowest]:.3g} updates old in the mean, the others'"
                f" {min(others):.3g} to {max(others):.3g}."
            )
        if self.mode == "bounded":
            most = (2 * self.bound + 1) * (self.workers - 1)
            yield (
                f"Bound {self.bound} allows at most {most}, (2 s + 1)(W - 1); here it was "
                f"{max(each.staleness for each in found)}."
            )
        if typical := round(mean(each.staleness for each in found)):
            largest = techniques.delayed_descent.largest_stable_rate(typical)
            yield (
                f"Where the loss is a parabola, a delay of {typical} is stable up to"
                f" {largest / 2:.0%} of the largest learning rate."
            )
        if self.servers > 1:
            yield (
                "Each server counts its own updates: a worker may read their parts at "
                "different versions."
            )


def last_tenth(trace: Trace) -> float | None:
    """The mean of the last tenth of all losses."""
    losses = [event.value for event in trace.where(Scalar, name="loss")]
    return mean(losses[-max(1, len(losses) // 10) :]) if losses else None


def held(parameters, server: "techniques.parameter_server.Server | None") -> dict[str, dict]:
    """What a rank holds: a server its own part."""
    total = {"sum": server.sum} if server else {}
    named = {str(number): parameter for number, parameter in enumerate(parameters)}
    return {"weights": named, "gradients": {name: p.grad for name, p in named.items()} | total}


@kept
def dried(shapes: tuple, server: int | None) -> train.DryRun:
    """Of two batches of a worker, or of one request at a server."""
    rows, layers, width, servers, dtype = shapes
    dtype = getattr(torch, dtype)

    def program(rank):
        model = models.built(
            lambda: models.Classifier(POINTS, width, layers, CLASSES, dtype=dtype),
            train.dry_run.META,
        )
        learnt = [*model.parameters()]
        if server is not None:
            learnt = [
                learnt[i]
                for i in techniques.server_plan.shares([p.nbytes for p in learnt], servers)[server]
            ]
            work = techniques.parameter_server.Server(learnt, torch.optim.SGD(learnt, 0.1), 1)
            rank.watch(partial(held, learnt, None))
            with rank.aside():
                gradient = techniques.parameter_server.flat(learnt)
            with rank.span((Action("S", 0, 0),)):
                work.request(0, 0, gradient)
            return

        def loss(number):
            return torch.nn.functional.cross_entropy(
                model(torch.empty(rows, POINTS, dtype=dtype, device=train.dry_run.META)),
                torch.empty(rows, dtype=torch.int64, device=train.dry_run.META),
            )

        work = techniques.parameter_server.Worker(loss, [learnt])
        rank.watch(partial(held, learnt, None))
        for number in range(2):
            for kind in "FB":
                with rank.span((Action(kind, 0, number),)):
                    work.compute(Action(kind, 0, number))
            model.zero_grad(set_to_none=True)  # as they are sent

    run = train.dry_run.dry_run(program)
    # a server's other parameters are idle
    return replace(run, start={"weights": run.start["weights"]})


# -- one process -----------------------------------------------------------------------------------


def rounds(lab: ParameterServing, model: "torch.nn.Module") -> "dict[str, np.ndarray]":
    """Plain training: a round is a window of all workers' batches."""
    recipe = train.Recipe(
        model=lambda stage: model,
        data=lambda number: lab.batch(number % lab.workers, number // lab.workers),
        loss=torch.nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=lab.learning_rate),
        steps=lab.steps,
        micro_batches=lab.workers,
    )
    losses = np.array(recipe.alone().losses).reshape(lab.steps, lab.workers)
    none = np.zeros(losses.size, int)
    return {f"loss of worker {w}": own for w, own in enumerate(losses.T)} | {
        f"staleness of server {k}": none for k in range(lab.servers)
    }


def replayed(lab: ParameterServing, model: "torch.nn.Module") -> "dict[str, np.ndarray]":
    """The recurrence, with every read and every update where the predicted trace has them."""
    names = [name for name, _ in model.named_parameters()]
    weights = {name: p.detach() for name, p in model.named_parameters()}
    owned = [
        [names[i] for i in own]
        for own in techniques.server_plan.shares([w.nbytes for w in weights.values()], lab.servers)
    ]
    read = [{name: w.clone() for name, w in weights.items()} for _ in range(lab.workers)]
    seen = [[0] * lab.workers for _ in owned]  # the version that each worker has, of each server
    made, waiting = [[0] * lab.workers for _ in owned], [set() for _ in owned]
    losses, stale, gradients = [[] for _ in read], [[] for _ in owned], {}
    for span in (span for span in lab.predict().spans() if span.kind == "S"):
        worker, number = map(int, span.name.split("S"))
        if (worker, number) not in gradients:
            old = {name: w.clone().requires_grad_() for name, w in read[worker].items()}
            inputs, labels = lab.batch(worker, number)
            loss = torch.nn.functional.cross_entropy(
                torch.func.functional_call(model, old, (inputs,)), labels
            )
            gradients[worker, number] = dict(zip(old, torch.autograd.grad(loss, [*old.values()])))
            losses[worker].append(loss.item())
        server = span.rank - lab.workers
        stale[server].append(len(stale[server]) - seen[server][worker])
        for name in owned[server]:
            weights[name] -= lab.learning_rate * gradients[worker, number][name]
        made[server][worker] += 1
        waiting[server].add(worker)
        staying = [count for count, most in zip(made[server], lab.requests) if count < most]
        least = min(staying, default=sum(lab.requests))
        for each in [*waiting[server]]:
            if lab.mode != "bounded" or made[server][each] - least <= lab.bound:
                waiting[server].remove(each)
                seen[server][each] = len(stale[server])
                read[each] |= {name: weights[name].clone() for name in owned[server]}
    return {f"loss of worker {w}": np.array(each) for w, each in enumerate(losses)} | {
        f"staleness of server {k}": np.array(each) for k, each in enumerate(stale)
    }
