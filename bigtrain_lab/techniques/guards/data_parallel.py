"""What data parallel ranks cannot average, or would average wrongly: refused on every rank in one
sentence, before anything hangs."""

from zlib import crc32

from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

from ...core import Impossible
from ...runtime.talk.group import Group
from ...runtime.talk.message import as_bytes
from . import refuse as refuse_any
from . import refuse_unlike_modules
from .optimizers import AVERAGING


def refuse(module: nn.Module, group: Group, bucket_bytes, backwards, strategy) -> None:
    """Also where the ranks' modules or settings differ."""
    parameters = dict(module.named_parameters())
    lazy = [name for name, p in parameters.items() if isinstance(p, UninitializedTensorMixin)]
    refuse_any(
        (
            not isinstance(bucket_bytes, int) or bucket_bytes < 1,
            f"bucket_bytes is {bucket_bytes!r}: give a whole number of bytes, at least 1.",
        ),
        (
            not isinstance(backwards, int) or backwards < 1,
            (
                f"backwards is {backwards!r}: give how many backward passes make one gradient, a"
                " whole number, at least 1."
            ),
        ),
        (lazy, f"{', '.join(lazy)} have no shape yet: run one forward before you wrap the module."),
        (
            {*parameters.values()} & {p for each in AVERAGING.models for p in each.pieces},
            "Ranks average parameters of the module already: wrap a module once, or give a "
            "ZeroOptimizer parameters that nobody averages.",
        ),
        (
            not any(p.requires_grad for p in parameters.values()),
            "No parameter of the module needs a gradient: there is nothing to average.",
        ),
    )
    own = set(map(group.world_rank, range(group.size)))
    for path, part in module.named_modules():
        slices = getattr(part, "group", None)
        if (
            any(hasattr(p, "cut") and p.cut for p in part.parameters(recurse=False))
            and len(own & set(map(slices.world_rank, range(slices.size)))) > 1
        ):
            raise Impossible(
                f"{path} is sliced over ranks that this group has too, and their weights "
                "are parts, not copies: give the group of the replicas."
            )
    refuse_unlike_modules(module, group, f"buckets of {bucket_bytes} bytes by {strategy}")


def refuse_unlike(module: nn.Module, group: Group) -> None:
    """Weights that are said to be equal on all ranks, by a checksum of each."""
    if group.size == 1:
        return
    named = [*module.named_parameters(), *module.named_buffers()]
    sums = [str(crc32(as_bytes(tensor.cpu()).numpy())) for _, tensor in named]
    if every := group.differing("\n".join(sums)):
        rows = zip(named, zip(*map(str.split, every)))
        name = next(name for (name, _), row in rows if len(set(row)) > 1)
        raise Impossible(
            f"The ranks begin with different weights, {name} among them: draw them "
            "from a seed that is the same on all, or let rank 0 send its own "
            "(alike=False)."
        )


def refuse_copy() -> None:
    raise Impossible(
        "A DistributedDataParallel cannot be copied, since it talks to other ranks: copy "
        "its .module, or save the module's state_dict()."
    )
