"""ZeRO-3: steps of a stack of layers on one rank, and what of other ranks lay in its memory."""

import gc
import resource
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...trainings import drawn, refuse

RATE = 0.5
KEPT_IN = torch.float16, torch.bfloat16, torch.float32, torch.float64
LARGE = 1000  # numbers of a layer of which the process's own memory tells


class Memory(TorchDispatchMode):
    """The most of others' numbers that were alive at once, whatever they are called.

    others      number -> its place: "parameters" or "whole gradients", the layer, and where in it
    storages    id -> each storage that an operator returned, and the places of its numbers
    most        "parameters in the forward" -> how many
    saved       what layers returned: outputs, and what they were to be handed again
    """

    def __init__(self):
        super().__init__()
        self.phase, self.others, self.storages, self.most = "", {}, {}, Counter()
        self.saved = []

    def note(self, what: str, layer: int, numbers: torch.Tensor) -> None:
        if len(numbers) < LARGE:
            for dtype in KEPT_IN:
                rounded = enumerate(numbers.to(dtype).tolist())
                self.others |= {number: (what, layer, at) for at, number in rounded if number}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        made = operator(*args, **kwargs or {})
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.dtype in KEPT_IN:
                if "empty" in operator.name():
                    each.zero_()  # of what lay there before, nothing counts
                storage = each.untyped_storage()
                numbers = torch.empty(0, dtype=each.dtype).set_(storage).tolist()
                found = {self.others[number] for number in self.others.keys() & numbers}
                self.storages[id(storage)] = weakref.ref(storage), found
        return made

    def look(self) -> None:
        alive = set().union(
            *(
                found
                for ref, found in self.storages.values()
                if ref() is not None and ref().nbytes()
            )
        )
        for what, many in Counter(what for what, *_ in alive).items():
            name = f"{what} {self.phase}"
            self.most[name] = max(self.most[name], many)


class Layer:
    """tanh(x W + b) of flat parameters, or tanh(x W), or x times one number."""

    def __init__(self, at: int, numel: int, length: int, group, memory: Memory, slow: bool):
        self.at, self.numel, self.length, self.group, self.memory = at, numel, length, group, memory
        self.slow = slow  # whether its backward is over before a lane gets to anything

    def refuse(self, flat, way: str) -> None:
        tensor = isinstance(flat, torch.Tensor)
        refuse(
            (
                not tensor or not flat.numel() or flat.untyped_storage().nbytes() < flat.nbytes,
                f"Layer {self.at} got no parameters for its {way}.",
            )
        )
        refuse(
            (
                flat.shape != (self.numel,),
                f"Layer {self.at} got {[*flat.shape]} numbers for its {way}, "
                f"but has {self.numel} parameters.",
            )
        )

    def forward(self, flat, x):
        self.refuse(flat, "forward")
        y = computed(flat, x)
        self.group.pause()  # while it computes
        self.memory.look()
        self.memory.saved += [weakref.ref(x := x.view_as(x)), weakref.ref(y)]
        return y, x

    @torch.enable_grad()
    def backward(self, flat, saved, dy):
        self.refuse(flat, "backward")
        flat, x = flat.detach().requires_grad_(), saved.detach().requires_grad_()
        gradient, dx = torch.autograd.grad(computed(flat, x), (flat, x), dy)
        for many in (1, self.group.size):  # some divide before they add up
            own = others(gradient / many, self.group.rank, self.length)
            self.memory.note("whole gradients", self.at, own)
        gradient = gradient.clone()  # is seen, now that its numbers are known
        if not self.slow:
            self.group.pause()  # while it computes
        self.memory.look()
        return dx, gradient


def computed(flat, x):
    """A layer's output; how many parameters there are says which layer it is."""
    square = x.shape[-1] ** 2
    if len(flat) == 1:
        return x * flat
    z = x @ flat[:square].view(x.shape[-1], -1)
    return torch.tanh(z + flat[square:] if len(flat) > square else z)


def weights(first: dict) -> Iterator[torch.Tensor]:
    """Those of each layer, one by one, so large that numbers neither vanish nor grow."""
    for at, shape in enumerate(first["shapes"]):
        (p,) = drawn({"seed": first["seed"] + at, "shapes": [shape]})
        yield p / len(p) ** 0.25


def part(flat: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """A rank's part of a layer, padded."""
    return torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(size, -1)[rank].clone()


def others(numbers: torch.Tensor, rank: int, length: int) -> torch.Tensor:
    """A layer's numbers that lie in other ranks' parts."""
    return torch.cat([numbers[: rank * length], numbers[(rank + 1) * length :]])


def some(numbers: torch.Tensor) -> list[float]:
    """All numbers of a tensor, or every so many of a large one."""
    return numbers.flatten()[:: 1 + numbers.numel() // LARGE].tolist()


def refuse_unlike(what: str, found: list, right: list) -> None:
    found, right = ([[*getattr(each, "shape", ())] for each in some] for some in (found, right))
    refuse((found != right, f"{what} of shapes {found}: right are {right}."))


def play(answer, group, first, slow, data) -> dict:
    """Of each step the output and the parts of the gradients; and, of others' numbers, how many
    were alive at once; of what layers saved before the last step, how many are there after it."""
    memory, parts, layers, steps, before_all = Memory(), [], [], [], peak_bytes()
    for at, p in enumerate(weights(first)):
        parts.append(own := part(p, group.rank, group.size))
        memory.note("parameters", at, others(p, group.rank, len(own)))
        layers.append(Layer(at, len(p), len(own), group, memory, slow))
    del p
    with memory if memory.others else nullcontext():
        mine, numbers = answer(layers, parts, group), drawn(data)
        for x, dy in zip(numbers[::2], numbers[1::2]):
            memory.phase, before = "in the forward", len(memory.saved)
            y = mine.forward(x.clone())
            refuse_unlike(f"Rank {group.rank}'s forward returned an output", [y], [x])
            memory.phase = "after it"
            memory.look()
            grown = peak_bytes() - before_all
            output = some(y.detach())
            del y
            memory.phase = "in the backward"
            gradients = list(mine.backward(dy.clone()))
            refuse_unlike(f"Rank {group.rank}'s backward returned gradients", gradients, parts)
            steps.append([output, *map(some, gradients)])
            for own, g in zip(parts, gradients):
                own -= RATE * g.detach()
    gc.collect()
    kept = sum(ref() is not None for ref in memory.saved[:before])
    return {"steps": steps, "most": dict(memory.most), "kept": kept, "grown": grown}


def peak_bytes() -> int:
    """The most that this process has held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
