"""A model with one of its blocks, run without values, so that each piece is told apart: what lies
before the block, the block, and what lies after it.

    F0 | F1 block | F2 loss    B2 | B1 block | B0    U2 U1 U0        each | cuts the graph

Blocks are alike, so that one stands for all of them, and a pipeline may cut the model between them.
Where the graph is cut a tensor arrives anew, as it does on another rank. A weight is of the piece
whose backward first brings it a gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, groupby, product
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_leaves, tree_map_only

from ..core import Impossible, refuse
from ..order import SLICES, Action
from ..runtime.devices import built
from ..runtime.memory import owned
from ..runtime.memory.saved import replaced
from ..techniques.checkpoint import checkpoint
from ..techniques.checkpoint.inside import owners_of
from ..techniques.mixed_precision import MixedPrecision
from ..techniques.pipeline import Entrance
from ..techniques.prepared_model import masters_of
from ..techniques.sliced_model import sliced
from .account import DryRun
from .dry_run import META, dry_run

STAGES = 2, 1, 0  # of what lies after the block, the block, and before it, as backwards run


class Step(NamedTuple):
    """What a step trains. `make()`: the module, with one of its blocks; `block`: its path; `data`:
    samples -> (arguments of the module, targets); `loss`: (output, targets, group) -> a mean;
    `optimizer`: weights -> a torch optimizer; `again`: paths of what else full recompute runs."""

    make: Callable[[], nn.Module]
    block: str
    data: Callable[[int], tuple]
    loss: Callable
    optimizer: Callable
    level: str | None = None
    slicing: Mapping[str, str] = {}
    again: Sequence[str] = ()


def of_user(make: Callable, optimizer: Callable, level: str | None) -> tuple[Step, int, str]:
    """The Step of a model of one's own, how many blocks it has, and its format. The blocks are the
    row of like children in a ModuleList or a Sequential that holds most weights. `make()`: a
    module, (inputs, targets) with samples along dim 0, and a loss(output, targets); on meta no
    weight is drawn."""
    with META:
        try:
            module, (inputs, targets), loss = make()
        except (TypeError, ValueError) as error:
            raise Impossible(
                f"make() gave no model: {error}. Return a module, (inputs, targets) and a"
                " loss(output, targets)."
            ) from error
    refuse(
        (
            len({x.shape[:1] for x in tree_leaves((inputs, targets)) if torch.is_tensor(x)}) > 1,
            "Inputs and targets differ in their number of samples, which is dim 0: make what all"
            " samples share, such as a mask, inside the module.",
        )
    )
    rows = []
    for path, part in module.named_modules():
        if isinstance(part, (nn.ModuleList, nn.Sequential)):
            # like modules are of one class, and of one size
            for _, own in groupby(
                enumerate(part), key=lambda e: (type(e[1]), *(p.shape for p in e[1].parameters()))
            ):
                own = [*own]
                weights = sum(p.numel() for _, child in own for p in child.parameters())
                rows.append((weights * (len(own) > 1), path, own[0][0], len(own)))
    weights, path, first, count = max(rows, default=(0, "", 0, 0))
    refuse(
        (
            not weights,
            f"{type(module).__name__} has no row of like blocks: put modules of one class and one"
            " size side by side, in a ModuleList or a Sequential.",
        )
    )

    def shortened() -> nn.Module:
        whole = make()[0]
        del whole.get_submodule(path)[first + 1 : first + count]
        return whole

    def data(rows: int) -> tuple:
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        return tree_map_only(
            torch.Tensor, lambda x: x.new_empty(rows, *x.shape[1:]), (given, targets)
        )

    step = Step(
        shortened,
        f"{path}.{first}".lstrip("."),
        data,
        lambda output, targets, group: loss(output, targets),
        optimizer,
        level,
    )
    return step, count, str(next(module.parameters()).dtype).removeprefix("torch.")


def run_pieces(
    step: Step,
    sizes: Sequence[int],
    slices: int = 1,
    sequence_parallel: bool = False,
    recompute: Sequence[str] = ("none",),
) -> tuple[DryRun, list[tuple[list[int], int, int]], list[int]]:
    """The dry run of a step of each size, with each recompute in turn, its actions named as of
    three stages; for each piece bytes of each weight, of all gradients, of the optimizer's state
    and masters; bytes of a message after it, step by step. Only the first step and the last one
    update the weights."""
    steps = [*product(recompute, sizes)]
    held: list[tuple[list[int], int, int]] = []
    messages: list[int] = []

    def program(rank) -> None:
        module = built(step.make, rank.device)
        group = rank.group(SLICES) if slices > 1 else None
        if group:
            sliced(module, step.slicing, group, sequence_parallel)
        precision = MixedPrecision(step.level)
        stepped = {p: p for p in precision.prepare(module).parameters()} | masters_of([module])
        spans, edges, optimizers = ExitStack(), [[]], {}

        def enter(kind: str, stage: int) -> None:
            spans.close()  # the action before
            spans.enter_context(rank.span(Action(kind, stage, number)))

        def arrive(y: torch.Tensor) -> torch.Tensor:
            """Cut the graph: what arrives shares nothing with what was sent."""
            with rank.aside():
                x = torch.empty_like(y).requires_grad_()
            edges[-1].append((get_gradient_edge(y) if y.requires_grad else None, x))
            return Entrance.apply(x)

        def begin(stage: int, y: torch.Tensor, sent: Sequence[torch.Tensor]) -> torch.Tensor:
            messages.append(sum(each.nbytes for each in sent))
            edges.append([])
            enter("F", stage)
            return arrive(y)

        def cut(forward: Callable, x: torch.Tensor, *given, **named):
            """Every block is sent x, and what else has a gradient, such as an encoder's output."""
            tensors = filter(torch.is_tensor, tree_leaves((given, named)))
            others = [each for each in tensors if each.requires_grad]
            x = begin(1, x, [x, *others])
            given, named = tree_map_only(
                torch.Tensor, lambda t: arrive(t) if t.requires_grad else t, (given, named)
            )
            y = forward(x, *given, **named)
            first, *rest = y if isinstance(y, tuple) else (y,)
            first = begin(2, first, [first, *others])
            return (first, *rest) if isinstance(y, tuple) else first

        block = module.get_submodule(step.block)
        again = {
            "none": [],
            "selective": [(part, "core") for part in owners_of(block, "core")],
            "full": [(module.get_submodule(path), "forward") for path in (step.block, *step.again)],
        }
        rank.watch(lambda: owned.named({"": module}, optimizers.values(), precision.masters))
        own: dict[int, list[nn.Parameter]] = {}
        for number, (how, rows) in enumerate(steps):
            with precision, ExitStack() as around:
                for part, method in again[how]:
                    around.enter_context(replaced(part, method, partial(partial, checkpoint)))
                around.enter_context(replaced(block, "forward", partial(partial, cut)))
                enter("F", 0)
                with rank.aside():
                    given, targets = step.data(rows)
                loss = step.loss(module(*given), targets, group) / 1  # micro-batch of an update
                edges.append([(get_gradient_edge(loss), None)])
                messages.append(0)
                del loss
                gradient = None
                for stage in STAGES:
                    enter("B", stage)
                    if ends := [edge for edge, _ in edges.pop() if edge]:
                        torch.autograd.backward(ends, gradient)
                    with rank.aside():
                        gradient = [torch.empty_like(x) for edge, x in edges[-1] if edge]
                    spans.close()
                    for _, x in edges[-1]:
                        x.grad = None
                    seen = {*chain(*own.values())}
                    own.setdefault(
                        stage, [p for p in stepped if stepped[p].grad is not None and p not in seen]
                    )
                for stage in STAGES:
                    if number == 0 and own[stage]:
                        optimizers[stage] = step.optimizer([stepped[p] for p in own[stage]])
                    if number in (0, len(steps) - 1):
                        enter("U", stage)
                        if stage in optimizers:
                            precision.step(optimizers[stage])
                    if stage in optimizers:
                        optimizers[stage].zero_grad()
                spans.close()
        left = len(stepped) - len([*chain(*own.values())])
        refuse(
            (left, f"{left} weights get no gradient: what is frozen or not used is not planned.")
        )
        for stage in reversed(STAGES):
            others = [stepped[p] for p in own[stage] if stepped[p] is not p]
            for p in own[stage]:
                others += filter(torch.is_tensor, optimizers[stage].state[stepped[p]].values())
            held.append(
                (
                    [p.nbytes for p in own[stage]],
                    sum(stepped[p].nbytes for p in own[stage]),
                    sum(t.nbytes for t in others),
                )
            )

    run = dry_run(program, slices=slices)
    refuse(
        (
            len(messages) != len(STAGES) * len(steps),
            f"A forward calls {step.block} more or less than once: plan it by hand.",
        )
    )
    return run, held, messages
