"""Where a graph breaks, and why a function is captured again, each in a sentence."""

import linecache

import torch
from torch import Tensor, fx


def graph_breaks(function, *args, **kwargs) -> list[str]:
    """A sentence for each place where torch.compile cannot follow the Python code; [] where one
    graph has it all. The function is called once with these arguments."""
    found = torch._dynamo.explain(function)(*args, **kwargs)  # torch's manual names no other way
    told = []
    for each in found.break_reasons:
        place = each.user_stack[-1]
        line = linecache.getline(place.filename, place.lineno).strip() or each.reason
        why = (
            "depends on the values of a tensor"
            if "jump" in each.reason or ".item" in line
            else "cannot be captured"
        )
        told.append(
            f"The graph breaks at line {place.lineno} of {place.filename}, {line!r}, which "
            f"{why}: what comes before and after it is compiled apart."
        )
    return told


# -- captured again --------------------------------------------------------------------------------


def captured(graph: fx.GraphModule) -> tuple[dict[str, dict], tuple[str, ...]]:
    """What the inputs of a graph are like, name -> what is said of it, and its operators, as
    torch.compile captured it."""
    inputs = {}
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, Tensor):
            inputs[node.name.removeprefix("l_").strip("_")] = {
                "shape": (
                    " x ".join(
                        str(each) if isinstance(each, int) else "any" for each in value.shape
                    )
                    or "scalar"
                ),
                "format": str(value.dtype).removeprefix("torch."),
                "strides": tuple(map(str, value.stride())),
                "gradient": "with a gradient" if value.requires_grad else "without a gradient",
            }
    return inputs, tuple(
        str(node.target) for node in graph.graph.nodes if node.op.startswith("call_")
    )


def reasons(graphs: list[tuple[dict, tuple]]) -> list[str]:
    """Why each graph was captured, in order."""
    told, last = [], {}  # operators -> the inputs of their last capture
    for inputs, operators in graphs:
        first = operators not in last
        told.append("the first call of this code" if first else change(last[operators], inputs))
        last[operators] = inputs
    return told


def change(before: dict[str, dict], now: dict[str, dict]) -> str:
    """What differs between two captures of the same operators."""
    for name, said in now.items():
        earlier = before.get(name)
        if earlier is None:
            return f"{name} is another number: it became an input"
        for what in ("shape", "format", "gradient", "strides"):
            if earlier[what] != said[what]:
                return f"the {what} of {name} was {earlier[what]} and is {said[what]}"
    return "a Python value that the code reads has changed"
