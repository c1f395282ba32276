"""Refusals of data parallel and ZeRO, all stages: modules that ranks would average or cut wrongly,
gradients that they would average wrongly, and reads of what is elsewhere.

A module is refused on every rank in one sentence, before anything hangs.
"""

import threading
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import chain, zip_longest
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ...core import Impossible
from ...core.later import compiler_awake
from ...runtime.talk.group import Group
from ...runtime.talk.message import Shape, as_bytes
from ..prepared_model import masters_of
from ..shards import CUTS, STEPPED
from . import by_ranks, refuse, who, whole
from .gone import Gone, gone, is_gone, real
from .optimizers import PIECES, TRIED, refuse_across

# a weight -> a weak reference to the Replicas that average its gradient
WRAPPED = WeakIdKeyDictionary()


EAGER = threading.Lock()
STANCES = []  # of torch's compiler, one for each call that is going on


@contextmanager
def as_written():
    """What is compiled runs as it is written: a compiled backward would keep the memory of weights
    that are dropped in between. The stance is torch's one, also of ranks that are threads: the
    first call takes it, and the last gives it back."""
    with EAGER:
        made = (
            STANCES[0] if STANCES else compiler_awake() and torch.compiler.set_stance("force_eager")
        )
        STANCES.append(made)
    try:
        yield
    finally:
        with EAGER:
            stance = STANCES.pop()
            if stance and not STANCES:
                stance.__exit__(None, None, None)


class Uncopied:
    """Base of what neither copy.deepcopy nor pickle can copy, since it has other ranks."""

    def __reduce_ex__(self, protocol):
        raise Impossible(
            f"A {type(self).__name__} cannot be copied, since it talks to other ranks: copy the "
            "module before you wrap it, and load what full_state_dict() or the .module's "
            "state_dict() gives."
        )


# -- modules to wrap -------------------------------------------------------------------------------


def refuse_module(module: nn.Module, group: Group, use: str, settings: str, *cases) -> None:
    """Refuse a module that ranks cannot `use`, also where it or the settings differ among them.
    `cases`: further ones of a technique."""
    lazy = [n for n, p in module.named_parameters() if isinstance(p, UninitializedTensorMixin)]
    refuse(
        (lazy, f"{', '.join(lazy)} have no shape yet: run one forward before you wrap the module."),
        (
            not any(p.requires_grad for p in module.parameters()),
            f"No parameter of the module needs a gradient: there is nothing to {use}.",
        ),
        *cases,
    )
    lines = [
        settings,
        *(
            f"parameter {name}, {Shape.of(p)}{'' if p.requires_grad else ', frozen'}"
            for name, p in module.named_parameters()
        ),
        *(f"buffer {name}, {Shape.of(b)}" for name, b in module.named_buffers()),
    ]
    refuse_differing(
        group,
        lines,
        "The ranks' modules or settings differ: {}; give every rank the same.",
        "the modules to wrap",
    )


def refuse_differing(group: Group, lines: Iterable[str], told: str, *about: str) -> None:
    """Refuse lines that are not the same on all ranks; the sentence `told` names the first of them,
    by rank. All ranks ask."""
    every = group.differing("\n".join(lines), *about)
    rows = zip_longest(*(text.split("\n") for text in every), fillvalue="nothing more")
    refuse(*((len({*row}) > 1, told.format(by_ranks(group, row))) for row in rows))


def world_ranks(group: Group) -> set[int]:
    return set(map(group.world_rank, range(group.size)))


def refuse_buckets(module: nn.Module, group: Group, bucket_bytes, settings: str, stage=0) -> None:
    """Refuse a module whose gradients cannot be averaged in buckets."""
    masters = {*STEPPED.values()} if stage else ()
    sliced = [
        path
        for path, part in module.named_modules()
        if any(CUTS.get(p) for p in part.parameters(recurse=False))
        and (stage or len(world_ranks(group) & world_ranks(part.group)) > 1)
    ]
    refuse_module(
        module,
        group,
        "average",
        f"buckets of {bucket_bytes} bytes by {settings}",
        (
            not whole(bucket_bytes),
            f"bucket_bytes is {bucket_bytes!r}: give a whole number of bytes, at least 1.",
        ),
        (
            any((of := WRAPPED.get(p)) and of() for p in module.parameters()),
            "Ranks average parameters of the module already: wrap a module once, or give a "
            "ZeroOptimizer parameters that nobody averages.",
        ),
        (
            stage and sliced,
            f"The parameters are slices: take a Recipe, with slices= and zero={stage}, or average "
            "their gradients by DistributedDataParallel over the replicas.",
        ),
        (
            sliced,
            (
                f"{''.join(sliced[:1])} is sliced over ranks that this group has too, and their"
                " weights are parts, not copies: give the group of the replicas."
            ),
        ),
        (
            any(
                isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.max_norm is not None
                for part in module.modules()
            ),
            "An embedding has a max_norm, by which each rank would scale the rows of its own "
            "samples alone: leave max_norm out, and scale all rows after the optimizer's step.",
        ),
        (
            stage and (masters_of([module]) or any(p in masters for p in module.parameters())),
            "The weights have masters already: prepare the model before, without masters, by "
            "prepare(model, masters=False), and give model.parameters(), of which ZeRO keeps "
            "masters in pieces.",
        ),
        (stage and overlap(module.parameters()), OVERLAP),
    )


def refuse_units(module: nn.Module, group: Group, compute_dtype, units) -> None:
    """Refuse a module that cannot be cut into pieces, unit by unit."""
    parameters, parts = dict(module.named_parameters()), set(module.modules())
    odd = [name for name, p in parameters.items() if not p.is_floating_point()]
    strange = [type(unit).__name__ for unit in units or () if unit not in parts]
    sliced = [name for name, p in parameters.items() if CUTS.get(p)]
    refuse_module(
        module,
        group,
        "train",
        f"compute_dtype {compute_dtype}",
        (
            odd,
            (
                f"{', '.join(odd)} {'are' if odd[1:] else 'is'} neither real nor floating: make a "
                "buffer of it, or split it into real parts."
            ),
        ),
        (
            compute_dtype is not None
            and not (isinstance(compute_dtype, torch.dtype) and compute_dtype.is_floating_point),
            f"compute_dtype is {compute_dtype!r}: give a floating format, such as torch.bfloat16.",
        ),
        (
            strange,
            (
                f"units names a {', '.join(strange)} that is no part of the module: give modules "
                "of the one that you wrap."
            ),
        ),
        (
            sliced,
            f"{', '.join(sliced)} are slices: train them by a Recipe, with slices= and zero=3.",
        ),
        (
            any(p.grad is not None for p in parameters.values()),
            "A parameter has a gradient already, which no piece would get: call the module's "
            "zero_grad() before you wrap it.",
        ),
        (
            masters_of([module]),
            (
                "The module's weights have masters or pieces already: wrap a module once, with "
                "units= for its parts, and one that nothing has prepared, with compute_dtype= the "
                "half format."
            ),
        ),
        (overlap([*module.parameters(), *module.buffers()]), OVERLAP),
    )


def overlap(tensors: Iterable[Tensor]) -> bool:
    """Whether two of the tensors begin at one place in memory."""
    places = [
        each.data_ptr()
        for each in tensors
        if not (isinstance(each, UninitializedTensorMixin) or each.is_meta) and each.numel()
    ]
    return len({*places}) < len(places)


OVERLAP = (
    "Two tensors of the module share their memory, and pieces of them would not: tie weights by one"
    " nn.Parameter under both names, and copy what a buffer keeps."
)


def refuse_unlike(module: nn.Module, group: Group) -> None:
    """Refuse weights that are said to be equal on all ranks and are not, by a checksum of each."""
    named = (*module.named_parameters(), *module.named_buffers()) if group.size > 1 else ()
    sums = [f"{n} {crc32(as_bytes(t.cpu()).numpy())}" for n, t in named if not t.is_meta]
    refuse_differing(
        group,
        sums,
        "The ranks begin with different weights, here with their checksums, {}: draw them from a "
        "seed that is the same on all, or let rank 0 send its own (alike=False).",
    )


# -- gradients and pieces --------------------------------------------------------------------------


def on_its_way(parameter: Tensor, name: str, replicas) -> Gone:
    """The stand-in in a `.grad` until the mean is there."""
    what = f"The gradient of parameter {name} on {who(replicas)} was used"
    told = (
        f"{what} after it had left for the ranks' pieces: call finish_gradient_synchronization(),"
        " read it in the optimizer's param_groups, clip by its clip_grad_norm_(), scale by a "
        "DynamicLossScaler and not by torch's GradScaler, and drop it by its zero_grad()."
        if replicas.stage
        else f"{what} on its way to the ranks' mean: call finish_gradient_synchronization() before."
    )
    return gone(parameter, told)


def has_left(replicas, site) -> bool:
    """True if the part of a gradient is sent, and takes no more."""
    return replicas.stage < 2 and any(k not in replicas.rules.queue for k in site.parts)


def refuse_dropped(replicas, site) -> None:
    """Refuse that a gradient was dropped or replaced after it was sent."""
    refuse(
        (
            has_left(replicas, site) or site.n not in site.held.came,
            f"The gradient of {site.home.name} on {who(replicas)} was replaced or dropped on its "
            "way: call finish_gradient_synchronization() after the backward, before step(), "
            "zero_grad(), and what replaces it, such as the sum of a tied weight's copies.",
        )
    )


def refuse_gradient(replicas, site, found: Tensor | None) -> None:
    """Refuse a gradient that is missing, sparse, or too late."""
    name = f"Parameter {site.home.name} on {who(replicas)}"
    layout = None if found is None or is_gone(found) else found.layout
    before = site.home.stepped.grad if replicas.stage else None
    refuse(
        (
            layout is None,
            f"{name} has lost its gradient to a hook, as that of MixedPrecision's masters is: "
            "prepare the model before it is wrapped, and under ZeRO without masters, by "
            "prepare(model, masters=False).",
        ),
        (
            layout is not torch.strided,
            f"{name} has a gradient that is {layout}: dense gradients are cut and summed, so take "
            "sparse=False.",
        ),
        (
            before is not None and not site.used and not is_gone(before),
            f"{name} gets a gradient before the last one was dropped: call the optimizer's "
            "zero_grad() after its step, and let no loss depend on a piece, as a penalty on "
            "weights does.",
        ),
        (
            has_left(replicas, site) and replicas.unfinished,
            f"{name} got a gradient after its bucket had left: call "
            "finish_gradient_synchronization() before, or use no_sync().",
        ),
    )


def described(replicas) -> dict[str, tuple]:
    """Say of each parameter what must stay as it was wrapped."""
    pieces, stage, found = replicas.pieces, replicas.stage, {}
    flat = (
        each for held in replicas.held for each in (held.weights_flat, held.nothing, held.piece)
    )
    own = {each.untyped_storage()._cdata for each in flat if each is not None}
    for name, p in replicas.module.named_parameters():
        known, learns = p in pieces, p.requires_grad
        facts = {
            ", frozen": not learns and (stage == 3 or not known),
            ", averaged by nobody": learns and not known,
            ", in other memory": known
            and stage
            and not own.issuperset(e.untyped_storage()._cdata for e in (p, pieces[p])),
            f", version {p._version}": stage == 3,
            ", with a gradient that no piece gets": stage == 3 and p.grad is not None,
        }
        found[name] = p.dtype, p.shape, p.device, "".join(each for each in facts if facts[each])
    return found


def refuse_changed(replicas) -> None:
    """Refuse parameters that are not as they were wrapped."""
    then, now = replicas.wrapped, described(replicas)
    for name in dict.fromkeys((*then, *now)) if then != now else ():
        was, is_now = (
            "{} of shape {} on {}{}".format(str(kind)[6:], (*shape,), *rest) if rest else "missing"
            for kind, shape, *rest in (each.get(name, (None, None)) for each in (then, now))
        )
        refuse(
            (
                was != is_now,
                f"Parameter {name} on {who(replicas)} was {was} when the module was wrapped, and is"
                f" {is_now} now: change it before, and load values by load_full_state_dict().",
            )
        )


def refuse_without_effect(replicas) -> None:
    """Refuse what somebody did to weights or pieces that the pieces' step would not know of."""
    for site in replicas.sites if replicas.stage else ():
        refuse(
            (
                # torch has no public name for them
                site.home.stepped._backward_hooks or site.home.stepped._post_accumulate_grad_hooks,
                f"The piece of {site.home.name} on {who(replicas)} has hooks, and no backward "
                "reaches a piece: register them on the module's own parameters.",
            ),
            (
                real(site.home.weight.grad) is not None and not site.used,
                f"The gradient of {site.home.name} on {who(replicas)} was set by hand, and ranks "
                "average what a backward brings: take DistributedDataParallel, or let a backward "
                "bring it.",
            ),
        )
    for held in replicas.held if replicas.stage else ():
        refuse(
            (
                # a unit whose outputs no backward passed: its gradients were never sent
                replicas.stage == 3 and held.came,
                f"{held.homes[min(held.came, default=0)].name} on {who(replicas)} got a gradient, "
                "and no backward passed what its unit returned: let it return tensors, or a "
                "dataclass of them, or name a larger module in units=.",
            ),
            (
                # a dry run gathers nothing
                replicas.stage < 3 and not held.piece.is_meta and held.piece._version != held.seen,
                f"Pieces on {who(replicas)} were written to since the last step, and the weights "
                "of other ranks were not: write to the module's own parameters, on all ranks.",
            ),
            (
                replicas.stage == 3 and not (held.nothing.is_meta or held.nothing.float().isnan()),
                f"A parameter on {who(replicas)} was written to while its values were elsewhere: "
                "change it before you wrap the module, or load values by load_full_state_dict().",
            ),
        )


def refuse_clip(parameters: Iterable[Tensor], max_norm: float, group: Group) -> None:
    """Refuse a norm of nothing, and one that counts a mean gradient on several ranks of the
    group."""
    found = {WRAPPED.get(parameter, lambda: None)() for parameter in parameters} - {None}
    refuse(
        (
            not max_norm > 0,
            f"max_norm is {max_norm!r}: give the largest norm that the gradient may have, above 0.",
        ),
        (
            any(
                each.stage == 0 and len(world_ranks(group) & world_ranks(each.group)) > 1
                for each in found
            ),
            "Ranks of the group have the same mean gradient, which would count on each: take "
            "torch.nn.utils.clip_grad_norm_, or the group of the ranks that share one model.",
        ),
    )


def refuse_edited(optimizer) -> None:
    """Refuse a step where somebody replaced or dropped the gradient of a weight since the mean went
    to its piece."""
    refuse(
        *(
            (
                home.stepped.grad is not None and not is_gone(home.weight.grad),
                f"The gradient of parameter {home.name} on {who(optimizer.replicas)} was replaced "
                "or dropped after it had left for the ranks' pieces: change the .grad of the "
                "pieces, in the optimizer's param_groups.",
            )
            for home in optimizer.replicas.homes
        )
    )


def refuse_orders(group: Group, orders: list[str]) -> None:
    refuse(
        (
            len({*orders}) > 1,
            "The ranks used other units, or in another order (units by number, F forward, B "
            f"backward), {by_ranks(group, orders)}: let all use the same, or name a larger module "
            "in units=.",
        )
    )


def refuse_batch(replicas, unused: list[str], by_rank: list[str]) -> None:
    """Refuse units that the ranks used in different orders, at stage 3, since an all-gather of one
    unit met that of another; and parameters without a gradient. `by_rank`: the order of each rank,
    then in a line each its `unused` parameters; empty where all say the same."""
    every = [text.split("\n") for text in by_rank] or [["", *unused]] * replicas.group.size
    orders = [order for order, *_ in every]
    lacking = by_ranks(replicas.group, [", ".join(names) for _, *names in every])
    refuse_orders(replicas.group, orders)
    refuse(
        (
            not replicas.allow_unused and (unused or by_rank),
            f"Parameters got no gradient, on {lacking}; let every rank's loss depend on them, "
            "freeze them, or pass allow_unused=True.",
        ),
    )


# -- ZeroOptimizer ---------------------------------------------------------------------------------


def groups_of(params: Iterable, stage) -> list[dict]:
    """The parameters as groups."""
    params = [params] if isinstance(params, Tensor) else list(params)
    refuse(
        (not params, "There are no parameters: give model.parameters()."),
        (
            stage not in (1, 2),
            (
                f"stage is {stage!r}: take 1 (optimizer state in pieces) or 2 (gradients "
                "too); for parameters in pieces wrap the module in FullyShardedDataParallel."
            ),
        ),
    )
    groups = params if isinstance(params[0], dict) else [{"params": params}]
    lists = [[own] if isinstance(own := each["params"], Tensor) else list(own) for each in groups]
    every = [*chain(*lists)]
    refuse(
        (
            any(not isinstance(p, nn.Parameter) for p in every),
            "A tensor among the parameters is no nn.Parameter: make it one.",
        ),
        (
            len(set(map(id, every))) < len(every),
            "A parameter is in two groups, and would be stepped twice: give each once.",
        ),
    )
    return [each | {"params": own} for each, own in zip(groups, lists)]


def refuse_late(made: bool) -> None:
    refuse(
        (
            made,
            (
                "Parameters that come later would have no pieces, and gradients of each rank's "
                "own: give all groups when the optimizer is made."
            ),
        )
    )


def refuse_optimizer(optimizer) -> None:
    refuse(
        (
            not isinstance(optimizer, Optimizer),
            (
                f"optimizer_class made a {type(optimizer).__name__}: give a torch optimizer's "
                "class, such as torch.optim.AdamW."
            ),
        ),
        (
            None not in (getattr(optimizer, each, None) for each in ("max_grad_norm", "ranks")),
            "The optimizer has a group of its own: leave its group out, ZeRO gives it one.",
        ),
    )
    if not hasattr(optimizer, "among"):  # which will know its ranks
        refuse_across(optimizer)


def refuse_other_rank(optimizer, state_dict: dict) -> None:
    own = optimizer.replicas.group.rank, optimizer.replicas.group.size
    of, size = state_dict.get("rank", own)
    refuse(
        (
            (of, size) != own,
            f"This state_dict is of rank {of} of {size}, and this is rank {own[0]} of "
            f"{own[1]}: save full_state_dict() and load it by load_full_state_dict().",
        )
    )


# -- FullyShardedDataParallel ----------------------------------------------------------------------


def tensors_in(output, module: nn.Module) -> list[Tensor]:
    """Those of what a call returned, or left as an attribute, that a backward can reach."""
    leaves = [
        *chain(*map(opened, tree_leaves(output))),
        *(value for part in module.modules() for value in vars(part).values()),
    ]
    return [
        *{
            id(each): each
            for each in leaves
            if isinstance(each, Tensor) and each.grad_fn is not None
        }.values()
    ]


def opened(value) -> list:
    """A dataclass's tensors too, which torch takes for one value."""
    if is_dataclass(value) and not isinstance(value, type):
        return tree_leaves([getattr(value, each.name) for each in fields(value)])
    return [value]


def refuse_graph(model) -> None:
    refuse(
        (
            torch.is_grad_enabled(),
            (
                f"A backward with create_graph=True on {who(model)} would need weights again when "
                "they are gone: take units without FullyShardedDataParallel for it."
            ),
        )
    )


def refuse_state(model, call: str, *_) -> None:
    """A hook: refuse the state of a module whose parameters are empty."""
    refuse(
        (
            not model.replicas.gathered_by_hand,
            (
                f"Parameters are sharded, and empty between uses: call {call} of the "
                "FullyShardedDataParallel."
            ),
        )
    )


def watch(model) -> None:
    """state_dict and load_state_dict of the module, or of a part of it, refuse; and optimizers that
    need whole tensors."""
    PIECES.update(dict.fromkeys(model.replicas.pieces, who(model)))
    TRIED.clear()
    saved, loaded = (
        partial(refuse_state, model, call)
        for call in ("full_state_dict()", "load_full_state_dict()")
    )
    for part in model.module.modules():
        part.register_state_dict_pre_hook(saved)
        part.register_load_state_dict_pre_hook(loaded)


class Watch(TorchFunctionMode):
    """Around the first forward: no operator gets a parameter while its unit is closed."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = {id(each) for each in tree_leaves((args, kwargs))}
        empty = [
            name
            for unit in self.model.units
            if not unit.use
            for name, p in unit.named.items()
            if id(p) in given
        ]
        asked = getattr(getattr(function, "__self__", None), "__name__", None)  # p.device, p.T
        reads = function.__name__ in ("__get__", "__set__") and asked not in ("T", "mT", "H", "mH")
        refuse(
            (
                empty and not reads,
                (
                    f"{', '.join(empty)} on {who(self.model)} is used outside the forward of its "
                    "unit, where it is empty: call the module that has it, or name in units= one "
                    "whose forward uses it."
                ),
            )
        )
        return function(*args, **kwargs or {})


def refuse_inside(replicas) -> None:
    refuse(
        (
            any(replicas.rules.open.values()),
            (
                f"A state of whole tensors was asked for on {who(replicas)} while a unit is in "
                "use: call finish_gradient_synchronization() before."
            ),
        )
    )
