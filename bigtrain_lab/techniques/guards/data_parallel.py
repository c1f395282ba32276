"""What data parallel ranks cannot average, or would average wrongly: refused on every rank in one
sentence, before anything hangs."""

from zlib import crc32

from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

from ...core import Impossible
from ...runtime.talk.group import Group
from ...runtime.talk.message import Shape, as_bytes
from . import by_ranks, refuse_unlike_modules, who
from . import refuse as refuse_any


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


def refuse_gradient(model, gradient) -> None:
    """Of one backward, before it is kept."""
    found, view = gradient.home.grad, gradient.view
    same = found is view and gradient.home.shape == view.shape
    if same and gradient.count < model.backwards:
        return
    this = f"Parameter {gradient.name} on {who(model)}"
    if found is None:
        raise Impossible(
            f"{this} has lost its gradient to a hook, as that of MixedPrecision's "
            "masters is: prepare the model before it is wrapped, and under ZeRO "
            "without masters, by prepare(model, masters=False)."
        )
    if found.layout != view.layout:
        raise Impossible(
            f"{this} has a gradient that is {found.layout}: data parallel averages "
            "dense gradients, so take sparse=False."
        )
    now = gradient.home if found is view else found
    if Shape.of(now) != Shape.of(view) or found.device != view.device:
        raise Impossible(
            f"{this} is {Shape.of(now)} on {found.device} and was {Shape.of(view)} on "
            f"{view.device} when it was wrapped: change the module before."
        )
    if model.syncing and gradient.count >= model.backwards:
        raise Impossible(
            f"{this} got a gradient from backward {gradient.count + 1} of a batch of "
            f"{model.backwards}: call finish_gradient_synchronization() before, use "
            "no_sync(), or set backwards."
        )


def refuse_replaced(model) -> None:
    """What the ranks average would not be what the optimizer reads."""
    for each in model.gradients:
        if each.used and each.view is not None and each.home.grad is not each.view:
            raise Impossible(
                f"The gradient of {each.name} on {who(model)} was replaced after its "
                "backward, so its mean would be lost: call "
                "finish_gradient_synchronization() before what replaces it, such as "
                "the sum of a tied weight's copies."
            )
    for name, parameter in model.frozen.items():
        if parameter.grad is not None:
            raise Impossible(
                f"Parameter {name} on {who(model)} was frozen when it was wrapped and "
                "has a gradient now, which nobody averages: wrap the module anew."
            )


def refuse_written(model) -> None:
    """A gradient that may be on its way was changed by somebody else."""
    for each, writes in model.writes.items():
        if each.view is not None and each.view._version != writes:
            raise Impossible(
                f"The gradient of {each.name} on {who(model)} was changed after its "
                "backward, as torch's clip_grad_norm_ does by this rank's own norm: "
                "change it after finish_gradient_synchronization(); with a "
                "ZeroOptimizer call its clip_grad_norm_(), or change the pieces'."
            )
    model.writes.clear()


def refuse_copy() -> None:
    raise Impossible(
        "A DistributedDataParallel cannot be copied, since it talks to other ranks: copy "
        "its .module, or save the module's state_dict()."
    )


def refuse_unused(model, unused: list, by_rank: list[str]) -> None:
    """`by_rank`: names of the unused parameters of each rank; empty where all lack the same."""
    if model.allow_unused or not (unused or by_rank):
        return
    every = by_rank or ["\n".join(each.name for each in unused)] * model.group.size
    told = by_ranks(model.group, [text.replace("\n", ", ") for text in every])
    raise Impossible(
        f"Parameters got no gradient, on {told}; let every rank's loss depend on "
        "them, freeze them, or pass allow_unused=True."
    )
