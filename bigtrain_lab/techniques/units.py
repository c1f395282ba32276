"""Which parameters are gathered together: enough to be worth a message, and so few that two units
fit.

    a layer of a list (Sequential, ModuleList, ModuleDict) of several      is a unit, with all in it
    any other module that has parameters itself                            is one, with its own
    modules that share a parameter                                         are one

A list in a layer of a list makes no further units. Torch's attention and transformer layers read
the weights of their parts, so each is a unit. The units that somebody names go first; of two, one
in the other, the inner one has its parameters.
"""

from collections.abc import Sequence

from torch import nn

UNCALLED = nn.ModuleList, nn.ModuleDict  # their layers are called, they are not
LISTS = nn.Sequential, *UNCALLED
PARAMETERS = nn.ParameterList, nn.ParameterDict  # of the module around them
WHOLE = nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer


def units_of(module: nn.Module, named: Sequence[nn.Module] = ()) -> list[tuple[list, dict]]:
    """List (modules, {name: parameter}) of each unit, in the order of the module's parameters."""
    owners: dict[nn.Parameter, list[nn.Module]] = {}

    def walk(part: nn.Module, around: nn.Module, unit: nn.Module | None) -> None:
        layer = isinstance(around, LISTS) and len([*around.children()]) > 1
        if (
            part in named
            or unit is None
            and (isinstance(part, WHOLE) or layer and not isinstance(part, UNCALLED))
        ):
            unit = part
        owner = unit or (around if isinstance(part, PARAMETERS) else part)
        for p in part.parameters(recurse=False):
            if owner not in owners.setdefault(p, []):
                owners[p].append(owner)
        for child in part.children():
            walk(child, part, unit)

    walk(module, None, None)
    found: list[tuple[list, dict]] = []
    for name, p in module.named_parameters():
        shared = [unit for unit in found if set(unit[0]) & set(owners[p])]
        modules = [*dict.fromkeys([m for unit in shared for m in unit[0]] + owners[p])]
        own = {k: v for unit in shared for k, v in unit[1].items()} | {name: p}
        at = found.index(shared[0]) if shared else len(found)
        found = [unit for unit in found if unit not in shared]
        found.insert(at, (modules, own))
    return found
