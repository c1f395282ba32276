"""Plans that do not fit a model: refused, on all ranks, in a sentence that says what to change."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only

from ...core import Impossible, grouped
from ...runtime.talk.group import Group
from ...runtime.talk.message import Shape
from ..checkpoint.conditions import Conditions
from ..sequence_parallel import SEQUENCE
from ..tensor_parallel import cut_of, gathered
from ..tied_plan import LOOKS
from . import refuse as refuse_any, replicas
from .tensor_parallel import refuse_uneven

TABLE = ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse")  # of an nn.Embedding
ALONE = ("split row", "column gather")
WAYS = ("column", "row", "heads", "kv heads", "vocabulary", "sequence", *ALONE)


class Drift:
    """What comes before a sliced module's forward: where its duplicates moved, their values are
    compared, in the first LOOKS updates. They part where a forward draws random numbers of its own
    on each rank, calls F.linear with a slice, or uses a duplicate on sliced features, and where
    sum_duplicates is forgotten. Ranks may round otherwise: of what moved 1/100 may differ."""

    def __init__(self, group: Group):
        self.group, self.counts, self.before, self.looks = group, [], None, 0

    def __call__(self, module: nn.Module, given) -> None:
        learnt = [p for p in module.parameters() if p.requires_grad and cut_of(p) is None]
        counts, parted = [p._version for p in learnt if not p.is_meta], False
        if self.looks > LOOKS or counts == self.counts:
            return
        self.counts, self.looks = counts, self.looks + 1
        with torch.no_grad(), self.group.recorder.aside():
            now = torch.cat([p.flatten().double() for p in learnt])
            if self.before is not None and self.before.shape == now.shape:
                ends = torch.stack([now, -now, (now - self.before).abs()])
                high, low, moved = self.group.unrecorded().all_reduce(ends, "max", "duplicates")
                parted = (high + low).norm() > 0.01 * moved.norm()  # weights that are nan have not
            self.before = now if self.looks <= LOOKS else None
        refuse_any(
            (
                parted,
                "Weights that every rank holds whole have parted: in a forward call what is cut as "
                "a module, and draw by models.Dropout; with sequence=True call sum_duplicates.",
            )
        )


class Whole:
    """What surrounds the first forward of a sliced module: the model as it was before it was cut
    runs on the same input, and gives the same, of which this rank has its part. Where it does not,
    a function between a column and a row mixes features, as a softmax and a norm do, or draws
    numbers on each rank. It keeps no values: those of the slices are gathered for it. A module that
    cannot be copied, or called so, is let through, one with a function for its forward, and one
    whose slices draw masks of their own. Rounding: 1/1000 of the norm, in half formats 1/10.

    gathers   the input has this rank's tokens alone
    whole     (own, cut, group) -> the value that the part was cut from
    """

    def __init__(self, module: nn.Module, group: Group, whole: Callable, gathers: bool):
        self.group, self.whole, self.gathers, self.twin = group, whole, gathers, None
        memo = {id(b): b.to("meta") for b in module.buffers()} | {
            id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in module.parameters()
        }
        if not any("forward" in vars(part) for part in module.modules()):
            with suppress(Exception):  # whatever a stranger's module raises
                self.twin = deepcopy(module, memo)
        self.hooks = [
            module.register_forward_pre_hook(self.before, with_kwargs=True),
            module.register_forward_hook(self.after),
        ]

    def before(self, module: nn.Module, given: tuple, named: dict) -> None:
        with self.group.recorder.aside():
            self.given = tree_map_only(Tensor, lambda x: x.detach().clone(), (given, named))
            self.conditions = Conditions(filter(torch.is_tensor, tree_leaves(self.given)), module)

    @torch.no_grad()
    def after(self, module: nn.Module, given: tuple, output) -> None:
        for hook in self.hooks:
            hook.remove()  # and with them all that is kept here
        self.conditions.ran()
        with self.group.recorder.aside(), self.conditions.restored():
            pairs = zip(tree_leaves(output), tree_leaves(self.expected(module)))
            other = any(self.differ(own, whole, module) for own, whole in pairs)
        told = self.group.differing("other" if other else "", "the first output")
        refuse_any(
            (
                other or told,
                "The sliced model gives another output than the whole one: between a column and a "
                "row lie this rank's features alone, so work on each by itself there, without a "
                "softmax or a norm, or cut by heads; and draw by models.Dropout.",
            )
        )

    def expected(self, module: nn.Module):
        """What the whole model returns; nothing where it is let through, as where there is no room
        for it. All ranks call it."""
        (given, named), group = self.given, self.group.unrecorded()
        with suppress(Exception):  # on all ranks, where it is one
            if self.twin and not draws_apart(module, self.twin):
                values = {name: buffer.clone() for name, buffer in module.named_buffers()} | {
                    name: self.whole(p.detach(), cut_of(p), group)
                    for name, p in module.named_parameters()
                }
                if self.gathers:
                    given = gathered(given[0], group, "whole input", SEQUENCE), *given[1:]
                return functional_call(self.twin, values, given, named)
        return ()

    def differ(self, own, whole, module: nn.Module) -> bool:
        if not (torch.is_tensor(own) and torch.is_tensor(whole) and own.dim() == whole.dim()):
            return False
        for dim, size in enumerate(own.shape):
            if size < whole.shape[dim]:
                whole = whole.chunk(self.group.size, dim)[self.group.rank]
        half = _get_current_function_mode_stack() or any(
            p.itemsize < 4 for p in module.parameters()
        )
        rounding = 0.1 if half or torch.is_autocast_enabled(own.device.type) else 0.001
        return own.shape == whole.shape and bool(
            (own.double() - whole).norm() > rounding * whole.double().norm()
        )


def draws_apart(module: nn.Module, twin: nn.Module) -> bool:
    """True where a slice draws a mask of its own, by a path of its own."""
    return any(
        whole.training and whole.p and module.get_submodule(name).path != whole.path
        for name, whole in twin.named_modules()
        if {"p", "path"} <= vars(whole).keys()
    )


def matching(module: nn.Module, pattern: str) -> list[str]:
    """The paths that a pattern names. None is refused, unless they lie on another stage of a model,
    as `module.elsewhere` tells."""
    paths = [path for path, _ in module.named_modules(remove_duplicate=False) if path]
    found = [path for path in paths if fnmatchcase(path, pattern)]
    names = pattern.split(".")
    elsewhere = any(
        fnmatchcase(absent, ".".join(names[: absent.count(".") + 1]))
        for absent in getattr(module, "elsewhere", ())
    )
    if not found and not elsewhere:
        near = get_close_matches(pattern, paths, 3, 0) or ["none"]
        raise Impossible(
            f"The plan names {pattern!r}, and the model has no such module: the nearest "
            f"are {', '.join(near)}; where another stage has it, list the paths of that "
            "stage's modules in this one's attribute elsewhere."
        )
    return found


def refuse_unlike(module: nn.Module, plan: Mapping, group: Group, sequence: bool) -> None:
    """Ranks whose plans, models or values differ. All ranks ask, before any is refused."""
    lines = [
        f"{group.size} slices{', cut along the sequence' * sequence}",
        *(f"{path} by {way}" for path, way in plan.items()),
        *(f"{name}, {Shape.of(p)}" for name, p in module.named_parameters()),
    ]
    replicas.refuse_differing(
        group,
        lines,
        "The ranks slice different models, or by different plans, {}: give all the same.",
    )
    if not any(p.is_meta for p in module.parameters()):
        replicas.refuse_unlike(module, group)


def refuse(
    module: nn.Module, plan: Mapping, ways: Mapping[str, str], group: Group, sequence: bool
) -> None:
    """A plan that does not fit the model."""
    refuse_any(
        (
            not ways,
            (
                "The plan names no module of this model: give a path and how it is cut, such as "
                "{'layers.*.mlp.up': 'column'}."
            ),
        ),
        (
            sequence and not cuts_tokens(module, plan, ways),
            (
                "sequence=True needs a plan that says where the sequence is cut first: cut the "
                "table of tokens by 'vocabulary', or name the module that adds the positions, or "
                "makes the tokens, as 'sequence'."
            ),
        ),
    )
    for path in ways:
        refuse_way(module, path, ways, group, sequence)
    refuse_any(
        *(
            (
                isinstance(part, nn.Dropout) and part.p and group.size > 1,
                f"{path} is torch's Dropout, which draws another mask on each rank: take "
                "models.Dropout, or p=0.",
            )
            for path, part in module.named_modules()
        ),
        (
            any(
                getattr(parameter, hooks, None)  # torch has no public name for them
                for path, way in ways.items()
                if way != "sequence"
                for parameter in module.get_submodule(path).parameters(recurse=False)
                for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks")
            ),
            (
                "A parameter that the plan cuts has hooks, which its slices would not "
                "have: register hooks on the sliced model."
            ),
        ),
    )
    for paths in grouped(
        (parameter, name.rpartition(".")[0])
        for name, parameter in module.named_parameters(remove_duplicate=False)
    ).values():
        cut = [path for path in paths if ways.get(path, "sequence") != "sequence"]
        refuse_any(
            (
                0 < len(cut) < len(paths),
                f"{' and '.join(paths)} share a weight, and the plan cuts only {''.join(cut[:1])}: "
                "plan both.",
            )
        )


def begins(module: nn.Module, ways: Mapping[str, str]) -> bool:
    """Whether the sequence is cut in this module, and not on a stage before."""
    return any(
        way == "sequence"
        or way == "vocabulary"
        and isinstance(module.get_submodule(path), nn.Embedding)
        for path, way in ways.items()
    )


def cuts_tokens(module: nn.Module, plan: Mapping, ways: Mapping[str, str]) -> bool:
    """Whether blocks get the tokens of one rank: by a module that the plan names, or by a table,
    here or, where there is none, on another stage."""
    tables = [
        path
        for path, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, nn.Embedding)
    ]
    away = [way for pattern, way in plan.items() if not matching(module, pattern)]
    return "sequence" in plan.values() or (
        any(path in ways for path in tables) if tables else "vocabulary" in away
    )


def refuse_way(
    module: nn.Module, path: str, ways: Mapping[str, str], group: Group, sequence: bool
) -> None:
    way, whole, above = ways[path], module.get_submodule(path), path.rpartition(".")[0]
    parent, cut = module.get_submodule(above), f"The plan cuts {path} by {way!r}"
    is_table = isinstance(whole, nn.Embedding)
    fits = way == "sequence" or isinstance(whole, nn.Linear) or way == "vocabulary" and is_table
    refuse_any(
        (way not in WAYS, f"{cut}: choose one of {', '.join(WAYS)}."),
        (
            not fits,
            (
                f"{cut}, and it is a {type(whole).__name__}: name a Linear"
                f"{' or an Embedding' * (way == 'vocabulary')}."
            ),
        ),
        (
            way in ALONE and sequence,
            f"{cut}, which needs the whole sequence on each rank: take sequence=False.",
        ),
    )
    if way != "sequence":
        kind = nn.Embedding if is_table else nn.Linear
        changed = [
            name for name in TABLE if str(getattr(whole, name, None)) not in ("None", "False")
        ]
        refuse_any(
            (
                changed,
                f"{cut}, and a slice of it knows no {' nor '.join(changed)}: leave them out.",
            ),
            (
                is_parametrized(whole)
                or whole._forward_hooks
                or whole._forward_pre_hooks
                or whole._backward_hooks
                or whole._backward_pre_hooks,
                (
                    f"{cut}, and it has hooks or parametrizations, which its slices "
                    "would not have: add them to the sliced model."
                ),
            ),
            (
                own := own_names(whole, kind),
                (
                    f"{cut}, and this {type(whole).__name__} has a {own} of its own, which its"
                    f" slices would not have: take a plain {kind.__name__}, with what is added in a"
                    " module around it."
                ),
            ),
        )
    if way.endswith("heads"):
        heads = getattr(parent, field := way.replace(" ", "_"), None)
        refuse_any(
            (
                not isinstance(heads, int),
                (
                    f"{cut}, and {type(parent).__name__} does not say "
                    f"how many: give it an attribute {field}."
                ),
            )
        )
        grouped = getattr(parent, "kv_heads", heads) != heads
        fit = [n * whole.in_features for n in ([1] if grouped else [1, 3])]
        beside = [
            other
            for other, its in ways.items()
            if its.endswith("heads") and other != path and other.rpartition(".")[0] == above
        ]
        refuse_any(
            (
                way == "heads" and whole.out_features not in fit,
                (
                    f"{cut}, and it makes {whole.out_features} features of "
                    f"{whole.in_features}: heads are cut of as many, or of three times as "
                    "many (as many queries, keys and values); take a Linear for the queries "
                    "and one for keys and values, which is cut by 'kv heads'."
                ),
            ),
            (
                way == "heads" and whole.out_features == whole.in_features and not beside,
                f"{cut}, which are queries alone, and nothing beside it: take a Linear for the "
                "queries and one for keys and values, and cut both.",
            ),
        )
        if way == "heads" or group.size % heads:
            refuse_uneven(f"The number of {way} of {above}", heads, group.size)
    elif way != "sequence":
        size = (
            "num_embeddings"
            if is_table
            else "in_features"
            if way.endswith("row")
            else "out_features"
        )
        refuse_uneven(
            f"{'The vocabulary' if way == 'vocabulary' else size} of {path}",
            getattr(whole, size),
            group.size,
        )


def own_names(whole: nn.Module, kind: type) -> str:
    """What a layer has that a plain one has not."""
    methods = [
        name
        for name in ("forward", "__call__")
        if getattr(type(whole), name) is not getattr(kind, name)
    ]
    found, plain = (
        [*vars(layer), *layer._parameters, *layer._buffers, *layer._modules]
        for layer in (whole, kind(1, 1, device="meta"))
    )
    return " and a ".join(methods + [name for name in found if name not in plain])
