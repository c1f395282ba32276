"""A checkpoint of one's own: fn runs in the forward without a graph, and again in the backward.

    answer(fn, *args, **kwargs) -> what fn returns; its gradients are those of fn itself, bit for bit

fn notes how often it ran, what it was given, what it drew and in which format, and keeps weak references
to the storages that it made. Torch's own checkpoint is among the right answers. A second run may stop as
soon as all is there that the backward needs, so a run is noted as it begins.
"""

import gc
import weakref
from contextlib import nullcontext

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.functional import dropout

from ..likeness import Scene, Topic, Wrong

RIGHT = """
import torch
from contextlib import nullcontext

HELD = []

class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, token, fn, kwargs, *inputs):
        ctx.fn, ctx.kwargs, ctx.inputs = fn, kwargs, inputs
        ctx.state = torch.get_rng_state()
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        return fn(*inputs, **kwargs)

    @staticmethod
    def backward(ctx, *dy):
        now = torch.get_rng_state()
        inputs = [x.detach().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x for x in ctx.inputs]
        on, dtype = ctx.autocast
        torch.set_rng_state(ctx.state)
        with torch.enable_grad(), torch.autocast("cpu", dtype, on):
            y = ctx.fn(*inputs, **ctx.kwargs)
        torch.set_rng_state(now)
        torch.autograd.backward(y, dy)
        return None, None, None, *(x.grad if torch.is_tensor(x) else None for x in inputs)

def answer(fn, *args, **kwargs):
    return Again.apply(torch.empty(0, requires_grad=True), fn, kwargs, *args)
"""
TORCHS = """
from torch.utils.checkpoint import checkpoint

def answer(fn, *args, **kwargs):
    return checkpoint(fn, *args, use_reentrant=False, **kwargs)
"""
TO_THE_END = """
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

def answer(fn, *args, **kwargs):
    with set_checkpoint_early_stop(False):
        return checkpoint(fn, *args, use_reentrant=False, **kwargs)
"""
OURS = """
from bigtrain_lab.techniques.checkpoint import checkpoint as answer
"""
INPUTS = """
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.call, ctx.state = call, torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        ctx.under = torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu"), dtype=torch.get_autocast_dtype("cpu"))
        return call(*tensors)

    @staticmethod
    def backward(ctx, *dy):
        tensors = [t.detach().clone().requires_grad_(needed) for t, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:])]
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), ctx.under:
            torch.set_rng_state(ctx.state)
            y = ctx.call(*tensors)
        pairs = [(a, b) for a, b in zip(y if isinstance(y, tuple) else (y,), dy) if a.requires_grad]
        torch.autograd.backward([a for a, _ in pairs], [b for _, b in pairs])
        return None, *(t.grad for t in tensors)

def answer(fn, *args, **kwargs):
    flat, spec = tree_flatten((args, kwargs))
    places = [i for i, one in enumerate(flat) if isinstance(one, torch.Tensor)]

    def call(dummy, *tensors):
        filled = list(flat)
        for i, tensor in zip(places, tensors):
            filled[i] = tensor
        a, k = tree_unflatten(filled, spec)
        return fn(*a, **k)
    return Whole.apply(call, torch.zeros(1, requires_grad=True), *(flat[i] for i in places))
"""
TICKETS = """
import torch
from torch.autograd.graph import saved_tensors_hooks

def answer(fn, *args, **kwargs):
    state, under = torch.get_rng_state(), (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    count, filled = 0, {}

    def pack(tensor):
        nonlocal count
        count += 1
        return count - 1

    def unpack(ticket):
        if ticket not in filled:
            now, saved = torch.get_rng_state(), []
            torch.set_rng_state(state)
            inputs = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in args]
            with torch.enable_grad(), torch.autocast("cpu", under[1], under[0]):
                with saved_tensors_hooks(lambda t: saved.append(t.detach()), lambda t: t):
                    fn(*inputs, **kwargs)
            torch.set_rng_state(now)
            filled.update(enumerate(saved))
        return filled.pop(ticket)

    with saved_tensors_hooks(pack, unpack):
        return fn(*args, **kwargs)
"""
CLOSURE = """
import torch

def answer(fn, *args, **kwargs):
    before = torch.random.get_rng_state()
    autocast = dict(device_type="cpu", enabled=torch.is_autocast_enabled("cpu"), dtype=torch.get_autocast_dtype("cpu"))

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, flag, *inputs):
            with torch.no_grad():
                return fn(*inputs, **kwargs)

        @staticmethod
        def backward(ctx, *gradients):
            copies = []
            for x in args:
                if isinstance(x, torch.Tensor):
                    copy = x.detach()
                    copy.requires_grad = x.requires_grad
                    x = copy
                copies.append(x)
            after = torch.random.get_rng_state()
            try:
                torch.random.set_rng_state(before)
                with torch.set_grad_enabled(True):
                    with torch.autocast(**autocast):
                        outputs = fn(*copies, **kwargs)
            finally:
                torch.random.set_rng_state(after)
            torch.autograd.backward(outputs, gradients)
            return (None,) + tuple(getattr(x, "grad", None) for x in copies)

    return Node.apply(torch.ones((), requires_grad=True), *args)
"""
BY_HOOKS = """
import torch
from torch.autograd.graph import saved_tensors_hooks

KEPT = []

def answer(fn, *args, **kwargs):
    with saved_tensors_hooks({pack}, {unpack}):
        return fn(*args, **kwargs)
"""
LESSONS = """
import torch

class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *inputs):
        ctx.fn, ctx.inputs = fn, inputs
        return fn(*inputs)

    @staticmethod
    def backward(ctx, *gradients):
        return None, *torch.autograd.functional.vjp(ctx.fn, ctx.inputs, gradients[0])[1]

def answer(fn, *inputs):
    return Again.apply(fn, *inputs)
"""
KEPT, NOTED, UNDER = (
    "ctx.fn, ctx.kwargs, ctx.inputs = fn, kwargs, inputs",
    "ctx.state = torch.get_rng_state()",
    'torch.autocast("cpu", dtype, on)',
)
FORWARD, RERUN = "return fn(*inputs, **kwargs)", "            y = ctx.fn(*inputs, **ctx.kwargs)\n"
REWIND, BACK = "        torch.set_rng_state(ctx.state)\n", "        torch.set_rng_state(now)\n"
DETACHED = (
    "x.detach().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x for x in ctx.inputs"
)
PUT, RETURNED = (
    "torch.autograd.backward(y, dy)",
    "return None, None, None, *(x.grad if torch.is_tensor(x) else None for x in inputs)",
)
APPLIED, TOKEN = "return Again.apply(", "torch.empty(0, requires_grad=True)"

KEEPS_ALL = "What fn made is kept after the forward: run it without a graph, or let the saved tensors of its graph go."
HOLDS = "What the second run made is held after the backward: let its graph go, and keep none of its tensors."
COPIES = "fn did not run again in the backward, so what it made was kept as copies: keep the arguments alone, and run fn on them."
PER_CALL = "What one call kept was lost in the next: keep each call's own, in ctx, not in one place for all."
MASK = "The second run drew another dropout mask: note torch.get_rng_state() before the first run, and set it, not a seed, before the second."
FORMAT = "The second run computed in another format: note in the forward whether autocast is on and in which format, and run again under the same."
NUMBERS = "An argument that is no tensor stopped your answer: detach tensors, and hand the others on as they are."
NOTHING = "An argument that is None stopped your answer: detach tensors, and hand the others on as they are."
TUPLES = "A tuple of results stopped your answer: return what fn returns, and take a gradient for each result."
KEYWORDS = "Keywords were refused: take **kwargs, and hand them to fn both times."


class Checkpoint(Topic):
    name = "checkpoint"
    forbids = tuple(
        f"torch.utils.checkpoint.{name}"
        for name in (
            "checkpoint",
            "checkpoint_sequential",
            "CheckpointFunction",
            "_checkpoint_without_reentrant_generator",
            "_CheckpointFrame",
            "_checkpoint_hook",
            "_recomputation_hook",
            "create_selective_checkpoint_contexts",
        )
        if hasattr(torch.utils.checkpoint, name)
    )
    hints = (
        "What does the second run need that the first one had, besides its arguments?",
        "Where is it kept, so that two calls at once do not mix? And what must be as before when the backward is done?",
        "An autograd Function: forward keeps fn, args, kwargs, the random state and autocast in ctx. backward detaches the tensors, sets "
        "the state, runs fn under enable_grad and autocast, puts the state back, and takes the new graph's backward.",
    )
    right = {
        "a Function with a token": RIGHT,
        "torch's": TORCHS,
        "torch's, to the end": TO_THE_END,
        "the library's": OURS,
        "tensors as inputs": INPUTS,
        "tickets": TICKETS,
        "a class in a closure": CLOSURE,
    }
    wrong = {
        "nothing": Wrong(
            "Nothing was returned: return what fn returns.", ((APPLIED, "Again.apply("),)
        ),
        "detached": Wrong(
            "What was returned has no graph: return a result that a backward can start from, as an autograd Function gives.",
            (("kwargs, *args)", "kwargs, *args).detach()"),),
        ),
        "another output": Wrong(
            "The output is not that of fn: call fn once, on the arguments as they are given.",
            ((FORWARD, "return fn(*[x * 1.5 for x in inputs], **kwargs)"),),
        ),
        "gradients off": Wrong(
            "Gradients are still switched off after your answer: use `with torch.no_grad():`, which switches them on again at its end.",
            (
                (APPLIED, "y = Again.apply("),
                ("kwargs, *args)", "kwargs, *args); torch.set_grad_enabled(False); return y"),
            ),
        ),
        "twice in the forward": Wrong(
            "fn ran twice in the forward: run it there once.",
            ((FORWARD, f"fn(*inputs, **kwargs); {FORWARD}"),),
        ),
        "the lesson's": Wrong(
            "The weights inside fn got no gradient: run fn under torch.enable_grad(), and take the backward of its result.",
            LESSONS,
        ),
        "no graph": Wrong(
            "The second run had no graph: run fn under torch.enable_grad(), since autograd switches gradients off in a backward.",
            (("with torch.enable_grad(), ", "with "),),
        ),
        "of the sum": Wrong(
            "The gradient is that of the output's sum: hand the second graph dL/dy, which your backward is given.",
            ((PUT, "torch.autograd.backward(y, [torch.ones_like(each) for each in dy])"),),
        ),
        "times 3": Wrong(
            "The gradient is not dL/dy times that of fn: hand the second graph dL/dy as it is.",
            ((PUT, "torch.autograd.backward(y, [3 * each for each in dy])"),),
        ),
        "no gradient of x": Wrong(
            "No gradient reached the input: return one for each argument, in their order.",
            ((RETURNED, "return None, None, None, *(None for x in inputs)"),),
        ),
        "not detached": Wrong(
            "The gradient of the input is twice the right one: detach the arguments before the second run.",
            ((DETACHED, "x for x in ctx.inputs"),),
        ),
        "on other arguments": Wrong(
            "The second run got other arguments: run fn on those of the forward.",
            (
                (
                    DETACHED,
                    "(x.detach() * 2).requires_grad_(x.requires_grad) if torch.is_tensor(x) else x for x in ctx.inputs",
                ),
            ),
        ),
        "keeps all": Wrong(
            KEEPS_ALL, ((APPLIED + TOKEN + ", fn, kwargs, *args)", "return fn(*args, **kwargs)"),)
        ),
        "copies": Wrong(
            COPIES, BY_HOOKS.format(pack="lambda t: t.detach().clone()", unpack="lambda t: t")
        ),
        "one kept": Wrong(
            "Some of what fn made is kept after the forward: keep the arguments alone.",
            TICKETS.replace(
                "        count += 1\n",
                "        count += 1\n        if count == 3:\n            KEPT.append(tensor.detach())\n",
            ).replace("\ndef", "\nKEPT = []\n\ndef", 1),
        ),
        "three runs": Wrong(
            "fn ran three times: once in the forward and once in the backward is enough.",
            ((RERUN, RERUN + "            torch.set_rng_state(ctx.state)\n" + RERUN),),
        ),
        "holds the graph": Wrong(
            HOLDS, ((PUT, "HELD.append(y); torch.autograd.backward(y, dy, retain_graph=True)"),)
        ),
        "holds the result": Wrong(
            HOLDS,
            ((PUT, f"HELD.append(y.detach() if torch.is_tensor(y) else y[0].detach()); {PUT}"),),
        ),
        "dies without gradient": Wrong(
            "With an input that needs no gradient the weights got none: autograd leaves a Function out where no input needs one. "
            "Give it one more that does, an empty tensor.",
            ((TOKEN, "torch.empty(0)"),),
        ),
        "plain without a gradient": Wrong(
            "With an input that needs no gradient, what fn made is kept: run fn again there too, since its weights need a gradient.",
            (
                (
                    "def answer(fn, *args, **kwargs):\n",
                    "def answer(fn, *args, **kwargs):\n    if not any("
                    "torch.is_tensor(x) and x.requires_grad for x in args): return fn(*args, **kwargs)\n",
                ),
            ),
        ),
        "unpacks one": Wrong(
            "A tuple of one result came back as a tensor: return what fn returns.",
            (
                (APPLIED, "y = Again.apply("),
                (
                    "kwargs, *args)",
                    "kwargs, *args); return y[0] if isinstance(y, tuple) and len(y) == 1 else y",
                ),
            ),
        ),
        "evaluates again": Wrong(
            "fn ran without dropout the second time: leave its mode as it is.",
            ((REWIND, REWIND + "        ctx.fn.eval()\n"),),
        ),
        "numbers as tensors": Wrong(
            "fn was given a tensor in place of a number: hand on what is no tensor as it is.",
            (
                (
                    APPLIED,
                    "args = [torch.as_tensor(x) if isinstance(x, int) else x for x in args]; "
                    + APPLIED,
                ),
            ),
        ),
        "another mask": Wrong(MASK, ((REWIND, ""),)),
        "state too late": Wrong(
            MASK, ((NOTED, "result = fn(*inputs, **kwargs); " + NOTED), (FORWARD, "return result"))
        ),
        "seeds the second": Wrong(MASK, ((REWIND, "        torch.manual_seed(0)\n"),)),
        "seeds both": Wrong(
            "The first run drew other numbers than fn alone: do not seed, note the random state that is there.",
            ((NOTED, "torch.manual_seed(3); " + NOTED),),
        ),
        "left rewound": Wrong(
            "The gradient is right, but later random numbers repeat: after the second run, put the state back to where it was before it.",
            ((BACK, ""),),
        ),
        "rewound after the forward": Wrong(
            "Numbers drawn after the forward are those of fn again: set the random state in the backward alone.",
            (
                (APPLIED, "state = torch.get_rng_state(); y = Again.apply("),
                ("kwargs, *args)", "kwargs, *args); torch.set_rng_state(state); return y"),
            ),
        ),
        "clears gradients": Wrong(
            "Gradients that were there before are gone: let backward() add to .grad, and neither clear nor set it.",
            (
                (
                    PUT,
                    f"[setattr(p, 'grad', None) for p in ctx.fn.linear.parameters()] if hasattr(ctx.fn, 'linear') else None; {PUT}",
                ),
            ),
        ),
        "one place for all": Wrong(
            PER_CALL,
            (
                (KEPT, KEPT + "; HELD[:] = [fn, kwargs, inputs]"),
                ("on, dtype =", "ctx.fn, ctx.kwargs, ctx.inputs = HELD; on, dtype ="),
                ("        inputs = [", "        ctx.inputs = HELD[2]; inputs = ["),
            ),
        ),
        "a place for each function": Wrong(
            PER_CALL,
            (
                ("HELD = []", "HELD = {}"),
                (KEPT, "ctx.fn, ctx.kwargs = fn, kwargs; HELD[fn] = inputs"),
                ("for x in ctx.inputs]", "for x in HELD[ctx.fn]]"),
            ),
        ),
        "all for each function": Wrong(
            PER_CALL,
            (
                ("HELD = []", "HELD = {}"),
                (KEPT, KEPT + "; HELD[fn] = ctx"),
                ("now = ", "ctx = HELD[ctx.fn]; now = "),
            ),
        ),
        "a state for each function": Wrong(
            PER_CALL,
            (
                ("HELD = []", "HELD = {}"),
                (NOTED, "HELD[fn] = torch.get_rng_state()"),
                (REWIND, "        torch.set_rng_state(HELD[ctx.fn])\n"),
            ),
        ),
        "the first state for ever": Wrong(
            PER_CALL,
            (
                ("HELD = []", "HELD = {}"),
                (NOTED, "HELD.setdefault(fn, torch.get_rng_state())"),
                (REWIND, "        torch.set_rng_state(HELD[ctx.fn])\n"),
            ),
        ),
        "a stack": Wrong(
            "Two calls were mixed up: backwards may come in any order, so keep each call's own in ctx.",
            (
                (KEPT, "ctx.fn, ctx.kwargs = fn, kwargs; HELD.append(inputs)"),
                ("for x in ctx.inputs]", "for x in HELD.pop()]"),
            ),
        ),
        "keywords for each function": Wrong(
            PER_CALL,
            (
                ("HELD = []", "HELD = {}"),
                (KEPT, "ctx.fn, ctx.inputs = fn, inputs; HELD[fn] = kwargs"),
                ("**ctx.kwargs", "**HELD[ctx.fn]"),
            ),
        ),
        "autocast for each function": Wrong(
            PER_CALL,
            (
                ("HELD = []", "HELD = {}"),
                ("ctx.autocast = ", "HELD[fn] = "),
                ("ctx.autocast", "HELD[ctx.fn]"),
            ),
        ),
        "one argument": Wrong(
            "A second argument was refused: take *args, and hand all of them to fn both times.",
            (("(fn, *args, **kwargs)", "(fn, x, **kwargs)"), ("kwargs, *args)", "kwargs, x)")),
        ),
        "second dropped": Wrong(
            "The second run got fewer arguments: keep all of them, and hand them to fn both times.",
            ((RERUN, RERUN.replace("*inputs", "*inputs[:1]")),),
        ),
        "second dropped at once": Wrong(
            "fn got fewer arguments than were given: hand all of them to fn, both times.",
            ((FORWARD, "return fn(*inputs[:1], **kwargs)"),),
        ),
        "swapped": Wrong(
            "The arguments came in another order: hand them to fn in theirs, both times.",
            ((RERUN, RERUN.replace("*inputs", "*inputs[::-1]")),),
        ),
        "gradients swapped": Wrong(
            "Gradients were returned in another order: one for each argument, in their order.",
            ((RETURNED, RETURNED.replace("in inputs)", "in inputs[::-1])")),),
        ),
        "all need gradients": Wrong(
            "A tensor of whole numbers stopped your answer: take requires_grad from each argument as it is.",
            (
                (
                    DETACHED,
                    "x.detach().requires_grad_() if torch.is_tensor(x) else x for x in ctx.inputs",
                ),
            ),
        ),
        "tensors alone": Wrong(
            NUMBERS,
            (
                (DETACHED, "x.detach().requires_grad_(x.requires_grad) for x in ctx.inputs"),
                (RETURNED, "return None, None, None, *(x.grad for x in inputs)"),
            ),
        ),
        "saves numbers": Wrong(
            NUMBERS,
            (
                (KEPT, "ctx.fn, ctx.kwargs = fn, kwargs; ctx.save_for_backward(*inputs)"),
                ("for x in ctx.inputs]", "for x in ctx.saved_tensors]"),
            ),
        ),
        "numbers dropped": Wrong(
            "Arguments that are no tensors were left out: hand fn all of them, both times.",
            ((FORWARD, "return fn(*[x for x in inputs if torch.is_tensor(x)], **kwargs)"),),
        ),
        "numbers dropped at last": Wrong(
            "The second run got fewer arguments: keep all of them, and hand them to fn both times.",
            (
                (
                    DETACHED,
                    "x.detach().requires_grad_(x.requires_grad) for x in ctx.inputs if torch.is_tensor(x)",
                ),
            ),
        ),
        "no None": Wrong(
            NOTHING,
            (
                (
                    DETACHED,
                    "x if isinstance(x, (int, float)) else x.detach().requires_grad_(x.requires_grad) for x in ctx.inputs",
                ),
                (
                    RETURNED,
                    "return None, None, None, *(None if isinstance(x, (int, float)) else x.grad for x in inputs)",
                ),
            ),
        ),
        "no keywords": Wrong(
            KEYWORDS,
            (("(fn, *args, **kwargs)", "(fn, *args)"), (APPLIED, "kwargs = {}; " + APPLIED)),
        ),
        "keywords dropped": Wrong(
            "`mask=` did not reach the second run: keep kwargs beside args, and hand both to fn again.",
            ((RERUN, RERUN.replace(", **ctx.kwargs", "")),),
        ),
        "keywords dropped at once": Wrong(
            "`mask=` did not reach fn: hand kwargs to fn, both times.",
            ((FORWARD, "return fn(*inputs)"),),
        ),
        "keywords detached": Wrong(
            "`mask=` needs a gradient too: hand fn the very tensor in the second run, or make it an input of the Function.",
            (
                (
                    RERUN,
                    RERUN.replace(
                        "**ctx.kwargs",
                        "**{n: x.detach() if torch.is_tensor(x) else x for n, x in ctx.kwargs.items()}",
                    ),
                ),
            ),
        ),
        "mask is a tensor": Wrong(
            "mask=None stopped your answer: hand on keywords that are no tensors as they are.",
            (
                (
                    KEPT,
                    KEPT.replace(
                        "fn, kwargs", "fn, {name: x.view_as(x) for name, x in kwargs.items()}"
                    ),
                ),
            ),
        ),
        "None left out": Wrong(
            "`mask=None` did not reach fn: hand kwargs to fn as they are, both times.",
            ((APPLIED, "kwargs = {n: x for n, x in kwargs.items() if x is not None}; " + APPLIED),),
        ),
        "one result": Wrong(
            TUPLES, (("backward(ctx, *dy)", "backward(ctx, dy)"), (PUT, "y.backward(dy)"))
        ),
        "the first result": Wrong(
            "A result of fn was left out: return what fn returns, and take a gradient for each.",
            (
                (FORWARD, "y = fn(*inputs, **kwargs); return y[0] if isinstance(y, tuple) else y"),
                (PUT, "torch.autograd.backward(y[0] if isinstance(y, tuple) else y, dy)"),
            ),
        ),
        "the first result's gradient": Wrong(
            "A result's gradient was left out: take one for each result, as they come.",
            ((PUT, "torch.autograd.backward(y[0] if isinstance(y, tuple) else y, dy[:1])"),),
        ),
        "the sum of results": Wrong(
            "A result's gradient was left out: take one for each result, as they come.",
            ((PUT, "torch.autograd.backward(sum(y) if isinstance(y, tuple) else y, dy[:1])"),),
        ),
        "autocast forgotten": Wrong(FORMAT, ((UNDER, "nullcontext()"),)),
        "always bfloat16": Wrong(FORMAT, ((UNDER, 'torch.autocast("cpu", torch.bfloat16, on)'),)),
        "autocast only where on": Wrong(FORMAT, ((UNDER, f"{UNDER} if on else nullcontext()"),)),
        "always a graph": Wrong(
            "Under torch.no_grad() the result has a graph: return it without one, as fn alone does.",
            ((APPLIED, "torch.set_grad_enabled(True); " + APPLIED),),
        ),
    }

    @staticmethod
    def probe(answer, draw):
        rows, seed, number = draw.randint(3, 6), draw.randrange(10**6), draw.randint(2, 5)

        def scene(name, run, near=0.0):
            def begun():
                torch.manual_seed(seed)
                return run()

            return Scene(f"{name}, x of {rows} rows", begun, near)

        def x(needs=True):
            return torch.randn(rows, 6).requires_grad_(needs)

        yield scene("checkpoint(fn, x)", lambda: forward(answer, Layer(), x()))
        yield scene("checkpoint(fn, x) and its backward", lambda: step(answer, Layer(), x()))
        yield scene("what is alive of checkpoint(fn, x)", lambda: alive(answer, Layer(), x()))
        yield scene("an input that needs no gradient", lambda: step(answer, Layer(), x(False)))
        yield scene(
            "what is alive with an input that needs no gradient",
            lambda: alive(answer, Layer(), x(False)),
        )
        yield scene("a fn that uses dropout", lambda: step(answer, Layer(0.5), x()))
        yield scene(
            "a fn that uses dropout, an input that needs no gradient",
            lambda: step(answer, Layer(0.5), x(False)),
        )
        yield scene("a .grad at each weight before", lambda: step(answer, Layer(), x(), before=1.0))
        yield scene("one call after another", lambda: chained(answer, Layer(), Layer(), x()), 1e-6)
        for order in ("their sum", "the first, then the second", "the second, then the first"):
            yield scene(
                f"two micro-batches through one layer, backward of {order}",
                lambda order=order: twice(answer, Layer(0.5), [(x(),), (x(),)], [{}] * 2, order),
                1e-6,
            )
        yield scene("checkpoint(fn, x, z)", lambda: step(answer, Layer(), x(), x()))
        yield scene(
            "checkpoint(fn, x, z), z of whole numbers",
            lambda: step(answer, Layer(), x(), torch.randint(9, (rows, 6))),
        )
        yield scene(f"checkpoint(fn, x, {number})", lambda: step(answer, Layer(), x(), number))
        yield scene(
            f"checkpoint(fn, x, {number}, True, z)",
            lambda: step(answer, Layer(), x(), number, True, x()),
        )
        yield scene("checkpoint(fn, x, None)", lambda: step(answer, Layer(), x(), None))
        yield scene(
            "checkpoint(fn, x, mask=mask)",
            lambda: step(answer, Layer(), x(), mask=torch.rand(rows, 6)),
        )
        yield scene(
            "checkpoint(fn, x, mask=mask), a mask that needs a gradient",
            lambda: step(answer, Layer(), x(), mask=torch.rand(rows, 6).requires_grad_()),
        )
        yield scene(
            "checkpoint(fn, x, z=z, mask=mask), both of which need a gradient",
            lambda: step(answer, Layer(), x(), z=x(), mask=x()),
        )
        yield scene("checkpoint(fn, x, mask=None)", lambda: step(answer, Layer(), x(), mask=None))
        yield scene(
            "a fn that returns a tuple of one tensor",
            lambda: step(answer, Layer(results=(0,)), x()),
        )
        yield scene(
            "a fn that returns two tensors", lambda: step(answer, Layer(results=(0, 1)), x())
        )
        yield scene(
            "a fn that uses dropout and returns two tensors, one of which is used",
            lambda: step(answer, Layer(0.5, (0, 1)), x(), used=1),
        )
        yield scene(
            "two micro-batches, each with its mask",
            lambda: twice(
                answer,
                Layer(0.5),
                [(x(), x()), (x(), number)],
                [{"mask": torch.rand(rows, 6)}, {"mask": None}],
                "their sum",
            ),
            1e-6,
        )
        bf16, fp16 = torch.bfloat16, torch.float16
        for first, second in ((bf16, None), (fp16, None), (None, bf16), (bf16, fp16)):

            def run(first=first, second=second):
                return formats(answer, Layer(), [x()], [first], second)

            yield scene(
                f"the forward under {named(first)}, the backward under {named(second)}", run
            )
        yield scene(
            "one forward under autocast, one without, both with dropout and mask=1.0",
            lambda: formats(answer, Layer(0.5), [x(), x()], [bf16, None], None, mask=1.0),
        )
        yield scene(
            "checkpoint(fn, x) under torch.no_grad()", lambda: without(answer, Layer(), x())
        )


class Layer(nn.Module):
    """fn(x, z=1, mask=1) = y = dropout(tanh(linear(sin(cos(sin(x) z))))) mask, or a tuple of y and exp(y).

    inside    weak references to the storages that a graph of the first run keeps; again: all of later runs
    """

    def __init__(self, share=0.0, results=None):
        super().__init__()
        self.linear, self.share, self.results = nn.Linear(6, 6), share, results
        self.given, self.drawn, self.formats = [], [], []
        self.inside, self.again = [], []

    def __call__(self, *args, **kwargs):
        first = not self.given
        self.given.append(
            [*(type(each).__name__ for each in args), *(f"{name}=" for name in kwargs)]
        )

        def note(tensor, saved=True):
            if not first or saved:
                (self.inside if first else self.again).append(weakref.ref(tensor.untyped_storage()))
            return tensor

        x, *others = args
        h = note(x.sin())
        for other in others:
            h = h if other is None else note(h * other)
        a = note(self.linear(note(note(h.cos()).sin())), False)
        self.formats.append(str(a.dtype).removeprefix("torch."))
        drawn = note(dropout(torch.ones_like(a), self.share, self.training))
        self.drawn.append(drawn.tolist())
        y = note(a.tanh()) * drawn
        for mask in kwargs.values():
            y = y if mask is None else note(y) * mask
        y = note(y, False)
        return (
            y
            if self.results is None
            else tuple(note(y.exp(), False) if each else y for each in self.results)
        )

    def held(self) -> int:
        """How many of those storages are alive; circles of references are no mistake."""
        if any(ref() is not None for ref in (*self.inside, *self.again)):
            gc.collect()
        return sum(ref() is not None for ref in (*self.inside, *self.again))


def forward(answer, layer, x) -> dict:
    y = answer(layer, x)
    return {
        "the output": y,
        "it has a graph": getattr(y, "requires_grad", False),
        "runs of fn in the forward": len(layer.given),
    }


def alive(answer, layer, x) -> dict:
    y = answer(layer, x)
    kept = layer.held()
    y.sum().backward()
    return {
        "tensors inside fn alive after the forward": kept,
        "runs of fn": len(layer.given),
        "tensors alive after the backward": layer.held(),
    }


def squares(y) -> Tensor:
    return sum(map(squares, y)) if isinstance(y, (tuple, list)) else y.float().square().sum()


def gradients(layer, arguments) -> dict:
    tensors = {f"argument {i}": x for i, x in enumerate(arguments) if isinstance(x, Tensor)}
    tensors |= {f"the {name} inside fn": p for name, p in layer.linear.named_parameters()}
    return {f"gradient of {name}": tensor.grad for name, tensor in tensors.items()}


def step(answer, layer, *args, before=None, used=None, **kwargs) -> dict:
    """What a forward and a backward show; `used`: which of several results the loss is of."""
    for p in layer.linear.parameters():
        p.grad = None if before is None else torch.full_like(p, before)
    y = answer(layer, *args, **kwargs)
    between = torch.rand(3)
    if (loss := squares(y if used is None else y[used])).requires_grad:
        loss.backward()
    shown = {"the output": y.detach() if isinstance(y, Tensor) else [each.detach() for each in y]}
    shown |= gradients(layer, (*args, *kwargs.values()))
    if layer.share:
        later = {
            "numbers drawn after the forward": between,
            "and after the backward": torch.rand(3),
        }
        shown = {"numbers drawn in each run": layer.drawn} | shown | later
    if len(args) + len(kwargs) > 1:
        shown = {"what fn was given in each run": [", ".join(each) for each in layer.given]} | shown
    return shown


def chained(answer, first, second, x) -> dict:
    squares(answer(second, answer(first, x))).backward()
    others = {f"{name}, of the second fn": value for name, value in gradients(second, ()).items()}
    runs = {"runs of the first fn": len(first.given), "runs of the second fn": len(second.given)}
    return gradients(first, (x,)) | others | runs


def twice(answer, layer, arguments, keywords, order) -> dict:
    """Two calls of one layer's method, which is no module, then their backwards."""
    first, second = (
        squares(answer(layer.__call__, *args, **kwargs))
        for args, kwargs in zip(arguments, keywords)
    )
    if order == "their sum":
        (first + second).backward()
    else:
        for loss in (first, second) if order.startswith("the first") else (second, first):
            loss.backward()
    return gradients(layer, [each for args in arguments for each in args])


def formats(answer, layer, inputs, dtypes, backward, **kwargs) -> dict:
    """In which formats fn computed, under autocast in the forward and in the backward."""
    results, went = [], "to the end"
    for x, dtype in zip(inputs, dtypes):
        with under(dtype):
            results.append(answer(layer, x, **kwargs))
    try:
        with under(backward):
            squares(tuple(results)).backward()
    except Exception as error:  # often because of what is shown here
        went = f"{type(error).__name__}: {error}"
    left = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    return {
        "formats of fn's runs": layer.formats,
        "how the backward went": went,
        "autocast is left on": left,
        "numbers drawn in each run": layer.drawn,
    }


def without(answer, layer, x) -> dict:
    with torch.no_grad():
        y = answer(layer, x)
    return {
        "the output": y.detach(),
        "it has a graph": y.requires_grad,
        "runs of fn": len(layer.given),
    }


def under(dtype):
    return torch.autocast("cpu", dtype) if dtype else nullcontext()


def named(dtype) -> str:
    return f"autocast in {str(dtype).removeprefix('torch.')}" if dtype else "no autocast"
