"""Plans and checkpoints that do not fit a model: refused, on all ranks, in a sentence that says what to change."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import Tensor, nn

from ...core import Impossible
from ...runtime.group import Group
from ...runtime.message import Shape
from . import by_ranks
from .tensor_parallel import refuse_uneven

OF_LINEAR = ("column", "row", "heads", "kv heads", "vocabulary", "split row", "column gather")


def matching(module: nn.Module, pattern: str) -> list[str]:
    """The paths that a pattern names. None is refused, unless they lie on another stage of a model, as `module.elsewhere` tells."""
    paths = [path for path, _ in module.named_modules(remove_duplicate=False) if path]
    found = [path for path in paths if fnmatchcase(path, pattern)]
    elsewhere = (fnmatchcase(absent, ".".join(pattern.split(".")[:absent.count(".") + 1])) for absent in getattr(module, "elsewhere", ()))
    if not found and not any(elsewhere):
        near = get_close_matches(pattern, paths, 3, 0) or ["none"]
        raise Impossible(f"The plan names {pattern!r}, and the model has no such module: the nearest are {', '.join(near)}.")
    return found


def refuse(module: nn.Module, plan: Mapping, ways: Mapping[str, str], group: Group, sequence: bool) -> None:
    """Also where the ranks' plans or models differ."""
    if not ways:
        raise Impossible("The plan names no module of this model: give a path and how it is cut, such as {'layers.*.mlp.up': 'column'}.")
    lines = [f"{group.size} slices{', cut along the sequence' * sequence}", *(f"{path} by {way}" for path, way in ways.items()),
             *(f"{name}, {Shape.of(p)}" for name, p in module.named_parameters())]
    if every := group.differing("\n".join(lines)):
        first = [min(set(text.split("\n")) - set(other.split("\n")), default="") for text in every for other in every if other != text][:1]
        raise Impossible(f"The ranks slice different models, or by different plans (only some have: {first[0]}): give the same on all.")
    if sequence and "sequence" not in plan.values():
        raise Impossible("sequence=True needs a plan that says where the sequence is cut first: name the module that adds the positions "
                         "as 'sequence'.")
    for path, way in ways.items():
        refuse_way(module, path, way, group, sequence)
    owners = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for parameter in part.parameters(recurse=False):
            owners.setdefault(parameter, []).append(path)
    for paths in owners.values():
        cut = [path for path in paths if ways.get(path, "sequence") != "sequence"]
        if cut and len(cut) < len(paths):
            raise Impossible(f"{' and '.join(paths)} share a weight, and the plan cuts only {cut[0]}: plan both.")


def refuse_way(module: nn.Module, path: str, way: str, group: Group, sequence: bool) -> None:
    whole, parent = module.get_submodule(path), module.get_submodule(path.rpartition(".")[0])
    if way not in (*OF_LINEAR, "sequence"):
        raise Impossible(f"The plan cuts {path} by {way!r}: choose one of {', '.join((*OF_LINEAR, 'sequence'))}.")
    fits = way == "sequence" or isinstance(whole, nn.Linear) or way == "vocabulary" and isinstance(whole, nn.Embedding)
    if not fits:
        raise Impossible(f"The plan cuts {path} by {way!r}, and it is a {type(whole).__name__}: name a Linear"
                         f"{' or an Embedding' * (way == 'vocabulary')}.")
    if way in ("split row", "column gather") and sequence:
        raise Impossible(f"The plan cuts {path} by {way!r}, which needs the whole sequence on each rank: take sequence=False.")
    if way.endswith("heads"):
        heads = getattr(parent, field := way.replace(" ", "_"), None)
        if not isinstance(heads, int):
            raise Impossible(f"The plan cuts {path} by {way}, and {type(parent).__name__} does not say how many: give it an attribute {field}.")
        if way == "heads" or group.size % heads:
            refuse_uneven(f"The number of {way} of {path.rpartition('.')[0]}", heads, group.size)
    elif way != "sequence":
        features = "num_embeddings" if isinstance(whole, nn.Embedding) else "in_features" if way.endswith("row") else "out_features"
        what = f"The vocabulary of {path}" if way == "vocabulary" else f"{features} of {path}"
        refuse_uneven(what, getattr(whole, features), group.size)


def refuse_state(own: Mapping[str, Tensor], given: Mapping[str, Tensor], cut: Mapping, ranks: int) -> None:
    """A checkpoint of another model, or one of slices."""
    for what, names in (("lacks", own.keys() - given.keys()), ("has no place in this model for", given.keys() - own.keys())):
        if names:
            raise Impossible(f"The checkpoint {what} {some(names)}: load one of this model, saved by whole_state_dict.")
    for name, value in given.items():
        shape = list(own[name].shape)
        if name in cut:
            shape[cut[name].dim] *= ranks
        if list(value.shape) != shape:
            raise Impossible(f"The checkpoint's {name} has the shape {tuple(value.shape)} and this model's is {tuple(shape)} when it is "
                             "whole: load one of this model, saved by whole_state_dict.")


def some(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
