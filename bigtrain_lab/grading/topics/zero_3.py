"""Stage 3 for a stack of layers: a rank keeps a part of each, and has it whole while it uses it.

    forward    all_gather a layer's parts, the layer, let go                (N-1)/N psi sent
    backward   all_gather again, its backward, reduce_scatter, let go     2 (N-1)/N psi sent

What is alive is read off a rank's memory: the numbers in all storages that were made there,
whatever they are called.

The truth is torch's own gradient of the mean over the ranks, with whole layers in one process.
Source: Rajbhandari et al. 2019, ZeRO (arXiv:1910.02054), sections 5.3 and 7.2.
"""

import math
import weakref
from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong
from ..ranks import Ranks

FEW, RATE = 4, 0.5
RIGHT = """
import torch

class answer:
    def __init__(self, layers, parts, group):
        self.layers, self.parts, self.group = layers, parts, group

    def whole(self, i):
        return self.group.all_gather(self.parts[i])[:self.layers[i].numel]

    def forward(self, x):
        self.saved = []
        for i, layer in enumerate(self.layers):
            x, saved = layer.forward(self.whole(i), x)
            self.saved.append(saved)
        return x

    def backward(self, dy):
        gradients = [None] * len(self.layers)
        for i in reversed(range(len(self.layers))):
            dy, whole = self.layers[i].backward(self.whole(i), self.saved.pop(), dy)
            padding = self.group.size * len(self.parts[i]) - len(whole)
            whole = torch.nn.functional.pad(whole, (0, padding))
            gradients[i] = self.group.reduce_scatter(whole, "mean")
        return gradients
"""
LANE = """
import torch

class answer:
    def __init__(self, layers, parts, group):
        self.layers, self.parts, self.group = layers, parts, group
        self.lane, self.coming = group.lane(), {}

    def launch(self, i):
        if 0 <= i < len(self.layers) and i not in self.coming:
            self.coming[i] = self.lane.launch(lambda group: group.all_gather(self.parts[i]))

    def whole(self, i, following):
        self.launch(i)
        flat = self.coming.pop(i).wait()
        self.launch(following)
        return flat[:self.layers[i].numel]

    def forward(self, x):
        self.saved = {}
        for i, layer in enumerate(self.layers):
            x, self.saved[i] = layer.forward(self.whole(i, i + 1), x)
        return x

    def backward(self, dy):
        launched = {}
        for i, layer in reversed(list(enumerate(self.layers))):
            dy, gradient = layer.backward(self.whole(i, i - 1), self.saved.pop(i), dy)
            room = torch.zeros(self.group.size * len(self.parts[i]), dtype=gradient.dtype)
            room[:len(gradient)] = gradient
            reduce = lambda group, room=room: group.reduce_scatter(room, "mean")
            launched[i] = self.lane.launch(reduce)
        return [launched[i].wait() for i in range(len(self.layers))]
"""
BUFFERS = """
import torch
from types import SimpleNamespace

def answer(layers, parts, group):
    longest = max(len(part) for part in parts) * group.size
    buffers, saved = [torch.empty(longest, dtype=parts[0].dtype) for _ in range(2)], []

    def gathered(i):
        out = buffers[i % 2][:len(parts[i]) * group.size]
        return group.all_gather(parts[i], out=out)[:layers[i].numel]

    def forward(x):
        for i, layer in enumerate(layers):
            x, kept = layer.forward(gathered(i), x)
            saved.append(kept)
        return x

    def backward(dy):
        gradients = []
        for i in range(len(layers) - 1, -1, -1):
            dy, whole = layers[i].backward(gathered(i), saved.pop(), dy)
            rows = [whole.new_zeros(len(part)) for part in [parts[i]] * group.size]
            for row, piece in zip(rows, whole.split(len(parts[i]))):
                row[:len(piece)] = piece / group.size
            gradients.insert(0, group.reduce_scatter(rows))
        return gradients

    return SimpleNamespace(forward=forward, backward=backward)
"""
RECOMPUTES = """
import torch

class answer(torch.nn.Module):
    def __init__(self, layers, parts, group):
        super().__init__()
        self.layers, self.parts, self.group = layers, parts, group

    def gathered(self, at):
        parts = [self.parts[at].clone() for _ in range(self.group.size)]
        return torch.cat([self.group.broadcast(part, rank) for rank, part in enumerate(parts)])

    @torch.no_grad()
    def forward(self, x):
        self.inputs = [x]
        for at, layer in enumerate(self.layers):
            self.inputs.append(layer.forward(self.gathered(at)[:layer.numel], self.inputs[-1])[0])
        return self.inputs.pop()

    def backward(self, dy):
        found = {}
        for at in sorted(range(len(self.layers)), reverse=True):
            x, flat = self.inputs[at].detach().requires_grad_(), self.gathered(at).requires_grad_()
            y, _ = self.layers[at].forward(flat[:self.layers[at].numel], x)     # once more
            dy, gradient = torch.autograd.grad(y, (x, flat), dy)
            del y, flat
            found[at] = self.group.reduce_scatter(gradient, op="mean")
        return [found[at] for at in range(len(found))]
"""
FUNCTION = """
import torch

class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer, part, group, gradients, at):
        ctx.layer, ctx.part, ctx.group, ctx.gradients, ctx.at = layer, part, group, gradients, at
        y, ctx.kept = layer.forward(group.all_gather(part).narrow(0, 0, layer.numel), x)
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        flat = ctx.group.all_gather(ctx.part).narrow(0, 0, ctx.layer.numel)
        dx, whole = ctx.layer.backward(flat, ctx.kept, dy)
        del flat
        missing = [whole.new_zeros(len(ctx.part) * ctx.group.size - len(whole))]
        own = ctx.group.reduce_scatter(torch.cat([whole] + missing))
        ctx.gradients[ctx.at] = own / ctx.group.size
        return dx, None, None, None, None, None

class answer:
    def __init__(self, layers, parts, group):
        self.each = list(zip(layers, parts, [group] * len(layers)))

    def forward(self, x):
        self.x, self.gradients = x.detach().requires_grad_(), {}
        self.y = self.x
        for at, (layer, part, group) in enumerate(self.each):
            self.y = Layer.apply(self.y, layer, part, group, self.gradients, at)
        return self.y.detach()

    def backward(self, dy):
        self.y.backward(dy)
        return [self.gradients[at] for at in range(len(self.each))]
"""
WHOLE = "        return self.group.all_gather(self.parts[i])[:self.layers[i].numel]\n"
SAVED, NOTED = "        self.saved = []\n", "            self.saved.append"
INIT = "self.layers, self.parts, self.group = layers, parts, group\n"
FORWARD = "layer.forward(self.whole(i), x)"
BACK = "self.layers[i].backward(self.whole(i), self.saved.pop(), dy)"
PAD = "            whole = torch.nn.functional.pad(whole, (0, padding))\n"
FOUND, RETURN = "        gradients = [None]", "        return gradients"
REDUCED = 'self.group.reduce_scatter(whole, "mean")'
WHOLLY = 'self.group.all_reduce(whole, "mean").view(self.group.size, -1)'
EARLY = "        early = [self.whole(i) for i in range(len(self.layers))]\n"
NEXT = "        self.launch(following)\n"
SENT = "            launched[i] = self.lane.launch(reduce)\n"
KEPT = """
        if self.kept[i] is None:
            self.kept[i] = self.group.all_gather(self.parts[i])[:self.layers[i].numel]
        return self.kept[i]
"""[1:]
NONE = SAVED + "        self.kept = [None] * len(self.layers)\n"
NEVER = (
    "All layers are still there after the forward, in a list, as copies or in autograd's "
    "graph: let each go, and gather it again."
)
GRAPH = """        return x

    def recorded(self, i, x):
        x, flat = x.detach().requires_grad_(), self.whole(i).requires_grad_()
        y, _ = self.layers[i].forward(flat, x)
        return y.detach(), ((x, flat), y)
"""
BEFORE = "group.lane(), {}\n"
UNROLLED = """dy, whole = torch.autograd.grad(y, (x, flat), dy)"""
NOT_WAITED = """
        room = torch.zeros(self.group.size * len(self.parts[i])).double()
        self.group.lane().launch(lambda group: group.all_gather(self.parts[i], out=room))
        return room[:self.layers[i].numel]
"""[1:]
ROOMS = """
        self.rooms = [torch.zeros(group.size * len(part)).double() for part in parts]
"""[1:]
IN_ROOMS = """
        whole = self.group.all_gather(self.parts[i], out=self.rooms[i])
        return whole[:self.layers[i].numel]
"""[1:]
IN_FLOAT = """
        room = torch.zeros(self.group.size * len(self.parts[i]))
        return self.group.all_gather(self.parts[i], out=room)[:self.layers[i].numel]
"""[1:]
OTHER_FREED = """
            if i:
                self.coming[i - 1].wait().untyped_storage().resize_(0)
"""[1:]
TWO_KEPT = "        self.before, self.now = self.now, flat\n"
TWICE = "self.layers[i].backward((self.whole(i), self.whole(i))[1], self.saved.pop(), dy)"


def but(*changes: str, text: str = RIGHT) -> str:
    """The first right answer, or another text, with old, new, old, new, ... replaced."""
    for old, new in zip(changes[::2], changes[1::2]):
        assert old in text, old
        text = text.replace(old, new)
    return text


class ZeroThree(Topic):
    name = "zero-3"
    hints = (
        "While layer 3 computes, which other layers' parameters does a rank need? And later?",
        "A layer is gathered twice in a step: for its forward, and again for its backward. No "
        "name may keep it between.",
        "In the backward, from the last layer on: all_gather, cut the padding off, "
        "layer.backward, pad the gradient, reduce_scatter with the mean, and let both whole "
        "tensors go before the next but one is gathered.",
    )
    right = {
        "a class": RIGHT,
        "gathered ahead on a lane": LANE,
        "closures, two buffers": BUFFERS,
        "autograd, forward again": RECOMPUTES,
        "an autograd function": FUNCTION,
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            (
                "dy_handed_on",
                "Each layer's backward was given the last one's dy: hand on the dx that it returns.",
                but("dy, whole =", "_, whole ="),
            ),
            (
                "not_gathered",
                "A layer was given this rank's part of it: all-gather the parts first.",
                but("self.group.all_gather(self.parts[i])", "self.parts[i]"),
            ),
            (
                "padding_not_cut",
                "The padding was handed to a layer: cut it off, after its numel numbers.",
                but("[:self.layers[i].numel]", ""),
            ),
            (
                "gathered_once",
                "The backward used parameters that were let go after the forward: gather them again.",
                but(WHOLE, KEPT, SAVED, NONE, NOTED, f"            self.kept[i] = False\n{NOTED}"),
            ),
            (
                "never_waits",
                "A layer computes with parameters that are not there yet: wait for what was launched.",
                but(WHOLE, NOT_WAITED),
            ),
            (
                "stale",
                "The second step computes with the parameters of the first: gather them in each step.",
                but(WHOLE, KEPT, INIT, INIT + "        self.kept = [None] * len(layers)\n"),
            ),
            (
                "order_of_saved",
                "A layer's backward was given what another one saved: the last layer's comes first.",
                but("self.saved.pop()", "self.saved.pop(0)"),
            ),
            (
                "reversed",
                "A layer has the gradient of another: the backward meets the last layer first.",
                but("        return gradients", "        return gradients[::-1]"),
            ),
            (
                "not_padded",
                "The gradient was cut in other places than the parameters: pad it as they are.",
                but(PAD, ""),
            ),
            (
                "sum_not_mean",
                "Gradients are summed over ranks: divide by their number.",
                but(', "mean")', ")"),
            ),
            (
                "same_data",
                "Each part is one rank's own gradient, which is right only where all ranks see equal "
                "data: reduce-scatter it.",
                but(REDUCED, "whole.view(self.group.size, -1)[self.group.rank]"),
            ),
            (
                "other_part",
                "A rank has another rank's part of the gradient: part number group.rank is its own.",
                but(REDUCED, WHOLLY + "[self.group.rank - 1]"),
            ),
            ("never_freed", NEVER, but(WHOLE, KEPT, SAVED, NONE)),
            (
                "copies",
                NEVER,
                but(WHOLE, KEPT.replace("].numel]", "].numel].clone()"), SAVED, NONE),
            ),
            (
                "graph",
                NEVER,
                but(
                    FORWARD,
                    "self.recorded(i, x)",
                    "        return x\n",
                    GRAPH,
                    "dy, whole = " + BACK,
                    "(x, flat), y = self.saved.pop()\n            " + UNROLLED,
                ),
            ),
            (
                "gathers_all_first",
                "All layers were gathered before the first one computed: gather each just before its "
                "use.",
                but(SAVED, SAVED + EARLY, FORWARD, "layer.forward(early.pop(0), x)"),
            ),
            (
                "gathers_all_again",
                "All layers were gathered before the backward began: gather each just before its use.",
                but(FOUND, EARLY + FOUND, "self.whole(i), self.saved", "early.pop(), self.saved"),
            ),
            (
                "a_buffer_each",
                "Each layer has a buffer of its own that stays full: let it go, or use two in turn.",
                but(WHOLE, IN_ROOMS, INIT, INIT + ROOMS),
            ),
            (
                "two_ahead",
                "Three layers are alive, since two are gathered ahead: gather one ahead.",
                but(NEXT, NEXT + "        self.launch(2 * following - i)\n", text=LANE),
            ),
            (
                "three_ahead",
                "Four layers are alive, since three are gathered ahead: gather one ahead.",
                but(
                    NEXT,
                    NEXT
                    + "        self.launch(2 * following - i)\n        self.launch(3 * following - 2 * i)\n",
                    text=LANE,
                ),
            ),
            (
                "wrong_neighbour",
                "The backward gathers the next layer ahead, which it has done with: the one before "
                "comes next.",
                but("self.whole(i, i - 1)", "self.whole(i, i + 1)", text=LANE),
            ),
            (
                "keeps_last",
                "Three layers are alive: the one before stays while two more come. Let it go first.",
                but(NEXT, NEXT + TWO_KEPT, BEFORE, BEFORE + "        self.now = None\n", text=LANE),
            ),
            (
                "frees_another",
                "The layer that was gathered ahead was let go, not the one that was used.",
                but(SENT, SENT + OTHER_FREED, text=LANE),
            ),
            (
                "float_buffer",
                "Your buffer is of float32, the parameters are not: give your tensors their dtype.",
                but(WHOLE, IN_FLOAT),
            ),
            (
                "gradients_kept",
                "Whole gradients of all layers were alive: reduce-scatter each when it is there.",
                but(
                    f"gradients[i] = {REDUCED}",
                    "gradients[i] = whole",
                    RETURN,
                    f"        return [{REDUCED} for whole in gradients]",
                ),
            ),
            (
                "all_reduces",
                "Right, but gradients were reduced whole, so 4 psi numbers were sent: reduce-scatter is "
                "enough.",
                but(REDUCED, WHOLLY + "[self.group.rank].clone()"),
            ),
            (
                "gathers_thrice",
                "Right, but a layer was gathered twice in the backward: once is enough for both of its "
                "gradients.",
                but(BACK, TWICE),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        right = Trained.outputs, Trained.gradients
        every = *right, Trained.parameters, Trained.whole_gradients, Trained.traffic
        for who, ranks, layers, widths, shows, of in (
            ("2 ranks, 2 layers", 2, 2, (6, 8), right, {"steps": 2}),
            ("3 ranks, 3 layers, with padding", 3, 3, (5, 7), right, {}),
            ("4 ranks, 5 layers", 4, 5, (6, 7), every, {"lanes_first": True}),
            ("2 ranks, 4 layers", 2, 4, (6, 7), every, {"lanes_first": True}),
            ("3 ranks, a layer of one number", 3, 4, (5, 7), every, {"small": 1}),
            ("1 rank", 1, 3, (5, 6), right, {}),
        ):
            width, seed = draw.choice(widths), draw.randrange(2**31)
            of = dict(of, ranks=ranks, layers=layers, width=width, seed=seed)
            run = cache(lambda of=of: Trained(answer, **of))
            for show in shows:
                yield Scene(who, lambda show=show, run=run: show(run()))


class Alive(TorchDispatchMode):
    """Notes each storage that an operator returns in a thread, in `storages` of a whole rank."""

    def __init__(self, storages: dict):
        super().__init__()
        self.storages = storages

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        made = operator(*args, **kwargs or {})
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.dtype == torch.float64:
                if "empty" in operator.name():
                    each.zero_()  # of what lay there before, nothing counts
                storage = each.untyped_storage()
                known = self.storages.get(id(storage))
                if known is None or known() is not storage:
                    self.storages[id(storage)] = weakref.ref(storage)
        return made


class Layer:
    """tanh(x W + b) of flat parameters, or tanh(x W), or x times one number."""

    def __init__(self, run: "Trained", group, at: int, width: int, numel: int):
        self.run, self.group, self.at, self.width, self.numel = run, group, at, width, numel

    def refuse(self, flat, way: str) -> None:
        tensor = isinstance(flat, torch.Tensor)
        if not tensor or not flat.numel() or flat.untyped_storage().nbytes() < flat.nbytes:
            raise Refused(f"Layer {self.at} got no parameters for its {way}.")
        if flat.shape != (self.numel,):
            raise Refused(
                f"Layer {self.at} got {[*flat.shape]} numbers for its {way}, "
                f"but has {self.numel} parameters."
            )

    def forward(self, flat, x):
        self.refuse(flat, "forward")
        y = computed(flat, x)
        self.run.computes(self.group)
        return y, (x, y)

    def backward(self, flat, saved, dy):
        self.refuse(flat, "backward")
        x, y = saved
        if self.numel == 1:
            dx, gradient = dy * flat, (x * dy).sum().view(1)
        else:
            dz = dy * (1 - y * y)
            bias = [dz.sum(0)] * (self.numel > self.width**2)
            dx = dz @ flat[: self.width**2].view(self.width, -1).T
            gradient = torch.cat([(x.T @ dz).flatten(), *bias])
        self.run.computes(self.group, self.at, gradient)
        return dx, gradient


def computed(flat, x):
    """A layer's output; how many parameters there are says which layer it is."""
    square = x.shape[-1] ** 2
    if len(flat) == 1:
        return x * flat
    z = x @ flat[:square].view(x.shape[-1], -1)
    return torch.tanh(z + flat[square:] if len(flat) > square else z)


class Trained(Ranks):
    """Steps of an answer. Every rank has inputs of its own.

    foreign, partial    of a rank: each number of parameters, and of its own whole gradients, that
                        lies in no part of its own
    alive, unreduced    of a rank, {phase: the most of those that were in its memory at once}
    """

    def __init__(
        self,
        answer,
        ranks: int,
        layers: int,
        width: int,
        seed: int,
        steps=1,
        small=None,
        lanes_first=False,
    ):
        super().__init__(ranks, seed)
        self.width, self.steps, self.lanes_first = width, steps, lanes_first
        self.numels = [width * (width + at % 2) for at in range(layers)]
        if small:
            self.numels[1] = small
        self.lengths = [-(-n // ranks) for n in self.numels]
        draw = torch.Generator().manual_seed(seed)
        self.first = [torch.randn(n, generator=draw).double() for n in self.numels]
        for p in self.first:
            p /= width**0.5 if len(p) > 1 else 1.0
        self.x, self.dy = torch.randn(2, steps, ranks, 2, width, generator=draw).double()
        self.phase = [FORTH] * ranks
        self.born, self.foreign, self.partial, self.alive, self.unreduced = (
            [{} for _ in range(ranks)] for _ in range(5)
        )
        self.right = self.truth()
        self.shown = self.run(self.train, answer)

    def truth(self) -> list:
        """Of each step: (each rank's output, the mean gradient)."""
        weights, steps = [p.clone().requires_grad_() for p in self.first], []
        for x, dy in zip(self.x, self.dy):
            for rank, known in enumerate(self.foreign):
                for p, length in zip(weights, self.lengths):
                    numbers = others(p.detach(), rank, length)
                    known.update(zip(numbers, numbers))
            outputs = []
            for own in x:
                for p in weights:
                    own = computed(p, own)
                outputs.append(own)
            gradients = torch.autograd.grad(outputs, weights, [each / self.size for each in dy])
            steps.append(([own.detach() for own in outputs], gradients))
            weights = [(p.detach() - RATE * g).requires_grad_() for p, g in zip(weights, gradients)]
        return steps

    def part(self, flat: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's part of a layer, padded."""
        length = -(-len(flat) // self.size)
        padded = torch.cat([flat, flat.new_zeros(length * self.size - len(flat))])
        return padded.view(self.size, -1)[rank].clone()

    # -- what is alive -----------------------------------------------------------------------------

    def around(self, group):
        return Alive(self.born[group.rank])

    def met(self, group) -> None:
        self.look(group.rank)

    def computes(self, group, at: int = 0, gradient=None) -> None:
        """A layer computes, and its backward has made its gradient: others go on meanwhile."""
        if gradient is not None:
            own = others(gradient.detach(), group.rank, self.lengths[at])
            for many in (1, self.size):  # some divide before they add up
                self.partial[group.rank].update({n / many: (at, i) for i, n in enumerate(own)})
        self.pause(group)
        self.look(group.rank)

    def look(self, rank: int) -> None:
        """Note how many numbers of others' parts are in a rank's memory now."""
        numbers, phase = set(), self.phase[rank]
        with _disable_current_modes():  # what is made to look is not the rank's
            for key, ref in list(self.born[rank].items()):
                storage = ref()
                if storage is None:
                    del self.born[rank][key]
                elif storage.nbytes():
                    numbers.update(torch.empty(0, dtype=torch.float64).set_(storage).tolist())
        for most, known in (
            (self.alive[rank], self.foreign[rank]),
            (self.unreduced[rank], self.partial[rank]),
        ):
            found = len({known[number] for number in numbers & known.keys()})
            most[phase] = max(most.get(phase, 0), found)

    # -- the steps ---------------------------------------------------------------------------------

    def train(self, own, group) -> list:
        rank, shown = group.rank, []
        parts = [self.part(p, rank) for p in self.first]
        self.born[rank].clear()
        layers = [Layer(self, group, at, self.width, n) for at, n in enumerate(self.numels)]
        mine = own(layers, parts, group)
        for x, dy in zip(self.x, self.dy):
            self.phase[rank] = FORTH
            y = mine.forward(x[rank].clone())
            if not isinstance(y, torch.Tensor) or y.shape != x[rank].shape:
                raise Refused(
                    f"Rank {rank}'s forward returned no tensor of the last layer's "
                    f"shape, {[*x[rank].shape]}."
                )
            y = y.detach().clone()
            self.phase[rank] = BETWEEN
            self.look(rank)
            self.phase[rank] = BACKWARD
            gradients = list(mine.backward(dy[rank].clone()))
            self.look(rank)
            found, right = (
                [[*getattr(each, "shape", ())] for each in some] for some in (gradients, parts)
            )
            if found != right:
                raise Refused(
                    f"Rank {rank}'s backward returned gradients of shapes {found}, "
                    f"where its parts have {right}."
                )
            gradients = [g.detach().clone() for g in gradients]
            shown.append((y, gradients))
            for p, g in zip(parts, gradients):
                p -= RATE * g
        return shown

    def outputs(self) -> dict:
        """How many numbers of the last layer's output are not torch's, and the first ones."""
        wrong = {
            f"wrong numbers of step {at + 1}'s output": [
                off(own[at][0], right[rank]) for rank, own in enumerate(self.shown)
            ]
            for at, (right, _) in enumerate(self.right)
        }
        return wrong | {"first numbers": [own[-1][0].flatten()[:FEW] for own in self.shown]}

    def gradients(self) -> dict:
        """The same of the first step's gradients."""
        gradients = [own[0][1] for own in self.shown]
        wrong = {
            f"wrong numbers of layer {at}'s gradient, a rank": [
                off(own[at], self.part(right, rank)) for rank, own in enumerate(gradients)
            ]
            for at, right in enumerate(self.right[0][1])
        }
        first = [[g[:FEW] for g in own] for own in gradients]
        return wrong | {"first numbers of the gradients": first}

    def parameters(self) -> dict:
        return {
            f"layers' parameters alive {phase} beyond two": self.beyond(
                most.get(phase, 0) for most in self.alive
            )
            for phase in (FORTH, BETWEEN, BACKWARD)
        }

    def whole_gradients(self) -> dict:
        most = (max(each.values()) for each in self.unreduced)
        return {"layers' whole gradients alive beyond two": self.beyond(most)}

    def beyond(self, numbers) -> int:
        """How many layers beyond two have so many numbers of other ranks."""
        largest = max(n - length for n, length in zip(self.numels, self.lengths))
        return max(0, math.ceil(max(numbers) / largest) - 2)

    def traffic(self) -> dict:
        """How often psi was sent in a step, rounded up: in units of (N-1)/N psi, padded."""
        psi, sent, reduced = 8 * sum(self.lengths) * self.size * self.steps, [], []
        for seen, messages in zip(self.seen, self.sent):
            calls = [(what, size / psi) for what, _, size in seen if what not in ("launch", "wait")]
            reduced.append(sum(2 * size for what, size in calls if what == "all_reduce"))
            others = sum(size for what, size in calls if what != "all_reduce")
            sent.append(reduced[-1] + others + messages / psi * self.size / (self.size - 1))
        return {
            f"times psi {how}": [math.ceil(each - 1e-9) for each in some]
            for how, some in (("sent in a step", sent), ("by all-reduces", reduced))
        }


FORTH, BETWEEN, BACKWARD = "in the forward", "after it", "in the backward"


def others(flat: torch.Tensor, rank: int, length: int) -> list:
    """A layer's numbers that lie in other ranks' parts."""
    numbers = flat.tolist()
    return numbers[: rank * length] + numbers[(rank + 1) * length :]


def off(found: torch.Tensor, right: torch.Tensor) -> int:
    """How many numbers are not the right ones, by more than rounding."""
    return int((~((found - right).abs() <= 1e-9 * right.abs().max())).sum())
