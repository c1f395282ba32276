"""One dry run for all replicas of a training, under ZeRO or without.

    replica    0                      1                     2
    F, B       |------- the same operators, shapes and storages: run once -------|
    U          its pieces             its pieces            its pieces

All replicas compute on the same shapes, and their shares of a flat tensor are equal. What differs
is where tensors begin and end in a share: so the update runs once for each replica, on views of one
share that are cut as that replica cuts them, with an optimizer of its own.

Without ZeRO the updates are alike too. Cost: a dry run of one rank, and under ZeRO for each further
replica one of its updates.
"""

from collections.abc import Iterable
from contextlib import contextmanager
from functools import cached_property, partial

from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass
from torch.optim import Optimizer

from ..techniques.flat import Flat
from .account import DryRun
from .dry_run import followed
from .recipe import Recipe, Training, train


def of_each_replica(recipe: Recipe, **place) -> tuple[DryRun, ...]:
    """The dry run of a rank of each replica; `place`: where in a replica."""
    program = partial(train, recipe, kind=EveryReplica if recipe.zero else Training)
    return tuple(each.run for each in followed(program, replicas=recipe.replicas, **place))


class EveryReplica(Training):
    """The training of replica 0, whose updates are made as each of the others makes them too."""

    def __init__(self, recipe, rank, lens):
        self.every: dict[int, list[Optimizer]] = {}  # stage -> the optimizer of each replica
        super().__init__(recipe, rank, lens)
        for replica in range(recipe.replicas):  # what their optimizers made is found declared
            with self.as_replica(replica):
                pass
        rank.watch(self.holdings)

    @cached_property
    def cuts(self) -> list[dict[nn.Parameter, Tensor]]:
        """Of each replica: what is stepped, and its elements there."""
        replicas = self.recipe.replicas
        return [
            {
                home.stepped: piece
                for held in self.parallel.held
                for home, piece in zip(
                    held.homes,
                    Flat(held.layout.tensors, replicas, replica).pieces(held.piece),
                    strict=True,
                )
            }
            for replica in range(replicas)
        ]

    @cached_property
    def stepped(self) -> dict[int | None, list[nn.Parameter]]:
        """What the ranks hold in pieces: of each stage, and of all (None)."""
        of_weight = {home.weight: home.stepped for home in self.homes}
        return {None: [*self.cuts[0]]} | {
            stage: [p for p in map(of_weight.get, module.parameters()) if p in self.cuts[0]]
            for stage, module in self.stages.items()
        }

    def optimizer(self, stage):
        self.every[stage] = []
        for replica in range(self.recipe.replicas):
            with self.as_replica(replica, stage):
                self.every[stage].append(super().optimizer(stage))
        return self.every[stage][0]

    def whole_duplicates(self):
        for replica in range(self.recipe.replicas):
            with self.as_replica(replica):
                super().whole_duplicates()

    def update(self, stage):
        waiting = self.waiting
        touched = None if len(waiting) == len(self.own) else stage  # the first one clips them all
        for replica in reversed(range(self.recipe.replicas)):  # the first one frees the gradients
            self.waiting = [*waiting]
            with self.as_replica(replica, touched):
                super().update(stage)

    @contextmanager
    def as_replica(self, replica: int, stage: int | None = None):
        """Within, what is stepped, of a stage or of all, are the pieces of this replica, by its
        optimizers."""
        moved = self.stepped[stage] if replica else ()
        before = [(piece, self.cuts[0][piece], piece.grad) for piece in moved]
        with self.rank.only(replica):
            self.optimizer_of = {
                stage: each[replica] for stage, each in self.every.items() if each[replica:]
            }
            put((piece, self.cuts[replica][piece], gradient) for piece, _, gradient in before)
            yield
        put(before)
        self.optimizer_of = {stage: each[0] for stage, each in self.every.items() if each}


def put(pieces: Iterable[tuple[nn.Parameter, Tensor, Tensor | None]]) -> None:
    """Make each piece these elements, and its gradient as many of the same storage."""
    with DisableTorchFunctionSubclass():  # a Piece asks at each question, in Python
        for piece, elements, gradient in pieces:
            piece.grad, piece.data = None, elements
            if gradient is not None:
                piece.grad = gradient.as_strided(
                    elements.shape, elements.stride(), elements.storage_offset()
                ).as_subclass(type(gradient))
