"""A recompute plan is data: in which order the layers of a chain run, and so which activations need
not be kept.

    x_0 -> [layer 0] -> x_1 -> [layer 1] -> ... -> x_n            a state x_i is what passes from
                                                                  layer to layer

    A  advance: x_i -> x_{i+1}, nothing recorded    "5A0": layer 5 advances for the first time
    F  record:  the same with its graph kept        "5F1": its second pass, recorded
    B  backward of the layer, frees its record      "5B1": of the record that pass 1 made

A plan is only that order. Which states must be kept, and from when to when, follows from it, as the
life of a variable follows from a program: x_i is kept as long as a later pass of layer i reads it
before layer i-1 makes it anew. The simulator, the executor, the figures and the exercise all read
the same list of Op. Each layer is recorded once, so the price is the number of advances (work done
twice), and what it buys is the peak of `live`.

The state that an operation has just made is in hand for the next one: it travels, nobody keeps it,
and so it is not counted; nor is x_n, which belongs to whoever called. What is kept and what a
record holds share storages, each of which counts once. Source: Griewank and Walther 2000, Revolve
(ACM TOMS 26(1)), section 1; Chen et al. 2016 (arXiv:1604.06174).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import NamedTuple

from ...core import Family, Impossible, refuse, size
from ..schedule import Action


class Chain(NamedTuple):
    """What n layers weigh, all tuples. `states`: bytes of x_0 .. x_n. Layer i recorded keeps
    `saved[i]` bytes of its own, beside its input where `saves_input[i]` and its output where
    `saves_output[i]`. `forwards`, `backwards`: cost of a pass.
    """

    states: tuple[int, ...]
    saved: tuple[int, ...]
    forwards: tuple[float, ...]
    backwards: tuple[float, ...]
    saves_input: tuple[bool, ...]
    saves_output: tuple[bool, ...]

    @classmethod
    def of(
        cls,
        states: Sequence[int],
        saved: Sequence[int],
        forwards: Sequence[float] = (),
        backwards: Sequence[float] = (),
        saves_input: Sequence[bool] = (),
        saves_output: Sequence[bool] = (),
    ) -> "Chain":
        """A checked chain. By default a forward costs 1, a backward twice the forward; a layer
        saves its input, not its output."""
        n = len(saved)
        forwards = tuple(forwards) or (1,) * n
        chain = cls(
            tuple(states),
            tuple(saved),
            forwards,
            tuple(backwards) or tuple(2 * f for f in forwards),
            tuple(saves_input) or (True,) * n,
            tuple(saves_output) or (False,) * n,
        )
        refuse(
            (
                not n
                or any(len(column) != n for column in chain[1:])
                or len(chain.states) != n + 1,
                f"A chain of {n} layers needs {n + 1} states and one entry a layer of everything"
                " else, at least one layer: here are"
                f" {', '.join(f'{len(c)} {name}' for c, name in zip(chain, cls._fields))}.",
            )
        )
        refuse(
            *(
                (
                    any(value < 0 for value in column),
                    f"The chain's {name} hold {min(column)}: bytes and costs must not be negative.",
                )
                for name, column in zip(cls._fields, chain)
            )
        )
        return chain

    @classmethod
    def equal(cls, layers: int, state: int = 1, saved: int = 0) -> "Chain":
        """Layers that are all alike."""
        return cls.of((state,) * (layers + 1), (saved,) * layers)

    @property
    def layers(self) -> int:
        return len(self.saved)

    def record(self, layer: int) -> int:
        """Bytes that the layer's record keeps, its states included."""
        return (
            self.saved[layer]
            + self.saves_input[layer] * self.states[layer]
            + self.saves_output[layer] * self.states[layer + 1]
        )


class Op(NamedTuple):
    """One operation and the states that are kept after it; the executor lets go of every other
    state."""

    action: Action
    keep: tuple[int, ...]


def each_anew(start: int, end: int) -> Iterator[Action]:
    """The layers start .. end-1, run backward from the state before them, for each backward all
    over again: the plan of the least memory."""
    for last in reversed(range(start, end)):
        yield from (*map(A, range(start, last)), F(last), B(last))


def A(layer: int) -> Action:
    return Action("A", layer, 0)


def F(layer: int) -> Action:
    return Action("F", layer, 0)


def B(layer: int) -> Action:
    return Action("B", layer, 0)


@dataclass(frozen=True)
class Recompute(Family, ABC, family="bigtrain_lab.order.recompute.plans"):
    """Subclass, set `name`, write `order`; a plan with settings is a frozen dataclass of its
    own."""

    # whether a recorded layer recomputes a part within itself: its record is smaller, its backward
    # longer
    inside = False

    @abstractmethod
    def order(self, chain: Chain, budget_bytes: int | None = None) -> Iterable[Action]:
        """The operations A(i), F(i), B(i), in order. `budget_bytes`: what the peak must not exceed;
        only some plans can choose."""

    def ops(self, chain: Chain, budget_bytes: int | None = None) -> tuple[Op, ...]:
        """The order with what each operation leaves kept; Impossible where a plan that chooses by
        the budget has none."""
        refuse(
            (
                self.needs_budget() and budget_bytes is None,
                f"The plan {self.name} chooses by a budget of memory: give budget_bytes.",
            )
        )
        return planned(self.order(chain, budget_bytes), chain.layers)

    def needs_budget(self) -> bool:
        """Whether the plan chooses by the budget."""
        return False


def plan_of(plan, chain: Chain, budget_bytes: int | None = None) -> tuple[Op, ...]:
    """The operations of a plan: a name ("sqrt", "every-3"), a Recompute, an order of actions, or
    operations as they are.

    Impossible where the peak of any of them exceeds the budget.
    """
    refuse(
        (
            # nan equals nothing
            not isinstance(budget_bytes, Real | None) or budget_bytes != budget_bytes,
            f"budget_bytes is {budget_bytes!r}: give a number of bytes, such as 500_000.",
        )
    )
    if isinstance(plan, str):
        plan = named(plan)
    if isinstance(plan, Recompute):
        ops = plan.ops(chain, budget_bytes)
    elif isinstance(plan, Sequence | Iterator):
        plan = tuple(plan)
        ops = (
            checked(plan, chain.layers)
            if plan and isinstance(plan[0], Op)
            else planned(plan, chain.layers)
        )
    elif type(plan) is int and plan > 0:
        k = -(-chain.layers // plan)
        raise Impossible(
            f'The plan is the number {plan}: what torch calls {plan} segments is here "every-{k}",'
            f" {k} layers to one kept input."
        )
    else:
        raise Impossible(
            f'The plan is of type {type(plan).__name__}: give a name such as "sqrt" or "every-4", a'
            " Recompute, or a list of operations."
        )
    if budget_bytes is not None and (peak := peak_bytes(ops, chain)) > budget_bytes:
        raise Impossible(
            f"The plan keeps {size(peak)} at its peak, which exceeds the budget of"
            f" {size(budget_bytes)}: take the plan optimal, which stays within it where any can, or"
            " a larger budget."
        )
    return ops


def named(name: str) -> Recompute:
    """The plan of that name; "every-3" is the member "every-k" with k = 3."""
    members = Recompute.all()
    stem, _, number = name.rpartition("-")
    if name not in members and number.isdecimal() and (general := members.get(f"{stem}-k")):
        return general(**{fields(general)[0].name: int(number)})
    return Recompute.named(name)()


# -- an order, and what follows from it ------------------------------------------------------------


def planned(order: Iterable[Action], layers: int) -> tuple[Op, ...]:
    """The order with passes numbered and with the states that each operation must leave kept.

    Backwards through the order, the states that are read later: reading x_i wants it, making x_i
    ends the want.
    """
    actions = numbered(order)
    wanted: list[set[int]] = [set()]  # last first: what later operations want before them
    for kind, layer, _ in reversed(actions):
        before = wanted[-1]
        wanted.append(before if kind == "B" else before - {layer + 1} | {layer})
    wanted.reverse()
    ops = []
    for at, action in enumerate(actions):
        later, after = wanted[at + 1], wanted[min(at + 2, len(actions))]
        made = None if action.kind == "B" else action.stage + 1
        in_hand = (
            at + 1 < len(actions)
            and actions[at + 1].kind != "B"
            and actions[at + 1].stage == made
            and made not in after
        )
        ops.append(Op(action, tuple(sorted(later - {made} if in_hand else later))))
    return checked(tuple(ops), layers)


def numbered(order: Iterable[Action]) -> list[Action]:
    """The same actions, each pass of a layer with its number; a backward has that of the record it
    uses."""
    passes: dict[int, int] = {}
    actions = []
    for action in order:
        if not isinstance(action, Action):
            raise Impossible(f"A plan is an order of A(i), F(i) and B(i), and here is {action!r}.")
        if action.kind != "B":
            passes[action.stage] = passes.get(action.stage, -1) + 1
        actions.append(action._replace(micro_batch=passes.get(action.stage, 0)))
    return actions


def checked(ops: tuple[Op, ...], layers: int) -> tuple[Op, ...]:
    """The operations as they are; Impossible, naming the operation, where they use what is not
    there or miss a layer."""
    kept, in_hand, recorded, next_backward = {0}, 0, set(), layers - 1
    for (kind, layer, time), keep in ops:
        name = f"{layer}{kind}{time}"
        refuse(
            (
                kind not in "AFB" or not 0 <= layer < layers,
                f"{name} is no operation on this chain: write A, F or B of the layers 0 to"
                f" {layers - 1}.",
            )
        )
        if kind == "B":
            refuse(
                (
                    layer not in recorded,
                    f"{name} comes before a recorded pass of layer {layer}: put F({layer}) before"
                    f" B({layer}).",
                ),
                (
                    layer != next_backward,
                    f"{name} comes before the backward of layer {next_backward}: gradients come"
                    " from the last layer down.",
                ),
            )
            recorded.remove(layer)
            next_backward, in_hand = layer - 1, None
        else:
            refuse(
                (
                    layer > next_backward,
                    f"{name} runs layer {layer} after its backward: leave it out.",
                ),
                (
                    layer not in kept and layer != in_hand,
                    f"{name} needs x_{layer}, which is neither kept nor just made: keep it, or run"
                    f" layer {layer - 1} before.",
                ),
                (
                    kind == "F" and layer in recorded,
                    f"{name} records layer {layer} a second time: one record is enough.",
                ),
            )
            recorded |= {layer} if kind == "F" else set()
            in_hand = layer + 1
        if missing := set(keep) - kept - {in_hand}:
            raise Impossible(
                f"After {name} the plan keeps x_{min(missing)}, which is not there: it was dropped"
                " or never made."
            )
        kept = set(keep)
    refuse(
        (
            next_backward >= 0,
            f"The backward of layer {next_backward} is missing: a plan ends with B(0).",
        )
    )
    return ops


def turn(ops: Sequence[Op], layers: int) -> int:
    """How many operations make up the forward, the first sweep, up to the first pass of the last
    layer; the rest is backward."""
    return 1 + next(at for at, op in enumerate(ops) if op.action.stage == layers - 1)


def is_read(ops: Sequence[Op], at: int) -> bool:
    """Whether the state that this pass makes is kept, or in hand for the next operation; else
    nobody reads it."""
    made, ahead = ops[at].action.stage + 1, ops[at + 1].action
    return made in ops[at].keep or ahead.kind != "B" and ahead.stage == made


# -- what it costs ---------------------------------------------------------------------------------


def live(ops: Sequence[Op], chain: Chain) -> list[int]:
    """Bytes of saved activations after each operation: states that are kept and what records hold,
    each storage once."""
    return [sum(sizes.values()) for sizes, *_ in storages(ops, chain)]


def storages(ops: Sequence[Op], chain: Chain) -> Iterable[tuple[dict, tuple | None, set]]:
    """After each operation, the storages that are alive and their bytes: ("x", i, which making of
    x_i) or ("record", i); the newest of what its layer makes; and what its record keeps."""
    making = [0] * (chain.layers + 1)  # how often each state was made
    states: dict[int, tuple] = {0: ("x", 0, 0)}  # the newest storage of each state
    records: dict[int, set[tuple]] = {}
    for (kind, layer, _), keep in ops:
        if kind == "B":
            del records[layer]
        else:
            making[layer + 1] += 1
            source, states[layer + 1] = states[layer], ("x", layer + 1, making[layer + 1])
            if kind == "F":
                records[layer] = {
                    ("record", layer),
                    *[source] * chain.saves_input[layer],
                    *[states[layer + 1]] * chain.saves_output[layer],
                }
        sizes = {
            key: chain.saved[key[1]] if key[0] == "record" else chain.states[key[1]]
            for key in {states[i] for i in keep}.union(*records.values())
        }
        yield sizes, states.get(layer + 1), records.get(layer, set())


def peak_bytes(ops: Sequence[Op], chain: Chain) -> int:
    """The most that `live` reaches."""
    return max(live(ops, chain))


def advances(ops: Sequence[Op]) -> int:
    """Passes that record nothing: how many more forwards than plain training runs."""
    return sum(op.action.kind == "A" for op in ops)


def extra_cost(ops: Sequence[Op], chain: Chain) -> float:
    """The cost of the advances, in the units of the chain's forwards."""
    return sum(chain.forwards[op.action.stage] for op in ops if op.action.kind == "A")


def held(ops: Sequence[Op], chain: Chain) -> Iterable[dict[str, int]]:
    """Bytes by kind after each operation, all that a device holds for the chain, as the ledger
    (runtime/ledger.py) tells it.

    activations   what `live` counts, less
    recomputed    what is kept of passes in the backward, what a recorded one among them saves that
                  no record of the forward saved, and the state that it makes
    temporaries   the state in hand, where nothing else holds it; in the backward the gradient on
                  its way too, and the chain's output

    A recorded pass in the backward ends with the last tensor that it saves: the state that it makes
    is there only where the plan reads it.
    """
    n, first_backward = chain.layers, turn(ops, chain.layers)
    on_its_way, again, saved = (
        0,
        set(),
        set(),
    )  # saved by records of the forward: that stays an activation
    for at, (((kind, layer, _), _), (alive, result, record)) in enumerate(
        zip(ops, storages(ops, chain))
    ):
        in_backward, passing = at >= first_backward, set()
        if kind == "B":
            on_its_way = chain.states[layer]
        else:
            if at + 1 == first_backward or is_read(ops, at):
                passing = {result}
            if in_backward and (kind == "F" or result in alive):
                again.add(result)
            if kind == "F":
                (again if in_backward else saved).update(record - saved)
        passing = {key for key in passing if key not in alive}
        weights = {key: chain.states[key[1]] for key in passing} | alive
        yield {
            "activations": sum(size for key, size in alive.items() if key not in again),
            "recomputed": sum(weights[key] for key in weights if key in again),
            "temporaries": (
                sum(weights[key] for key in passing - again)
                + on_its_way
                + in_backward * chain.states[n]
            ),
        }
