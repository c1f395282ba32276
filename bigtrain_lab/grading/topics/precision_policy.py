"""An operator policy: inside `with policy(dtype):` products of matrices compute in 16 bits, what is delicate
in float32, and everything else as it was.

2,049 - 2,048 is 0 in 16 bits and 300^2 is inf in fp16, so values tell in which type an operator computed, also
where its result was cast after. Graphs, float64, ids and the end of the with block are shown too. The truths
are the library's policy and one that computes in float64. Source: Micikevicius et al. 2018
(arXiv:1710.03740), section 3.3.
"""

import torch
from torch.nn import functional as F

from ..likeness import Scene, Topic, Wrong

RIGHT = """
import torch
from torch.overrides import TorchFunctionMode

LOW = {"matmul", "mm", "bmm", "einsum", "linear", "conv1d", "conv2d"}
FULL = {"exp", "softmax", "log_softmax", "log", "pow", "sum", "mean", "norm", "layer_norm", "cross_entropy", "mse_loss"}

class answer(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def cast(self, value, dtype):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64:
            return value.to(dtype)
        return value

    def wanted(self, name):
        return self.dtype if name in LOW else torch.float32 if name in FULL else None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        dtype = self.wanted(getattr(func, "__name__", ""))
        return self.call(func, args, kwargs or {}, dtype) if dtype else func(*args, **(kwargs or {}))

    def call(self, func, args, kwargs, dtype):
        args = [self.cast(each, dtype) for each in args]
        return func(*args, **{name: self.cast(each, dtype) for name, each in kwargs.items()})
"""
LIBRARYS = """
from bigtrain_lab.techniques.precision_policy import Policy

def answer(dtype):
    return Policy(dtype)
"""
PATCHING = """
from contextlib import contextmanager
import torch
from torch.nn import functional as F

LOW = "matmul mm bmm einsum linear conv1d conv2d __matmul__".split()
FULL = "exp softmax log_softmax log pow __pow__ sum mean norm layer_norm cross_entropy mse_loss".split()

def casting(func, dtype):
    def cast(value):
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16, torch.float32):
            return value.to(dtype)
        return value
    return lambda *args, **kwargs: func(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})

@contextmanager
def answer(dtype):
    saved = []
    for names, to in ((LOW, dtype), (FULL, torch.float32)):
        for name in names:
            for owner in (torch, torch.Tensor, F):
                if hasattr(owner, name):
                    saved.append((owner, name, getattr(owner, name)))
                    setattr(owner, name, casting(getattr(owner, name), to))
    try:
        yield
    finally:
        for owner, name, func in reversed(saved):
            setattr(owner, name, func)
"""
DISPATCH = """
import torch
from torch.overrides import TorchFunctionMode

class Mode(TorchFunctionMode):
    rounded = ("mm", "conv", "linear", "einsum", "matmul")
    kept = ("add", "sub", "mul", "div", "relu", "gelu", "tanh", "embedding", "to", "float", "half", "detach", "get", "set", "backward",
            "equal", "view", "reshape", "expand", "arange", "stack", "cat", "size", "dim", "item", "clone", "requires", "zeros", "ones")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = getattr(func, "__name__", "").strip("_"), kwargs or {}
        if any(word in name for word in self.rounded) and name != "addmm_":
            to = self.dtype
        elif any(name.startswith(word) for word in self.kept):
            return func(*args, **kwargs)
        else:
            to = torch.float32
        narrow = {torch.float16, torch.bfloat16, torch.float32}
        wide = lambda t: t.to(to) if type(t) is torch.Tensor and t.dtype in narrow else t
        return func(*[wide(t) for t in args], **{k: wide(t) for k, t in kwargs.items()})

def answer(dtype):
    mode = Mode()
    mode.dtype = dtype
    return mode
"""
LOW, FULL = RIGHT.split("\n")[4:6]
CAST, WANTED = (
    "value.dtype != torch.float64:",
    "return self.dtype if name in LOW else torch.float32 if name in FULL else None",
)
ARGS, CALL = (
    "args = [self.cast(each, dtype) for each in args]",
    "return func(*args, **{name: self.cast(each, dtype) for name, each in kwargs.items()})",
)
TO = "return value.to(dtype)\n"
FLOATING = "isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype"

GAINED = "A product of float32 matrices stayed in float32: nothing is gained. Cast both to the policy's type first."
AFTER = "A product was computed in float32 and rounded after: nothing is gained. Cast what goes in."
GIVEN = "A product came out in another type than the policy's: cast to the type that you are given."
GRAPH = "A result lost its graph: cast with .to(), which autograd records, not with .data, .detach() or under no_grad()."
DOUBLE = "float64 was cast: leave it alone, since whoever chose it wants its digits."
RANGE = "exp, a logarithm, a power or softmax was computed in 16 bits: compute it in float32, since fp16 ends at 65,504."
SUMS = "A sum, mean or norm was computed in 16 bits: compute it in float32, since fp16 ends at 65,504 and long sums stall."
TERMS = (
    "layer_norm or a loss was computed in 16 bits: compute it in float32, since it sums many terms."
)
WIDENED = "A delicate operator was computed in 16 bits and cast to float32 after: cast what goes in, not what comes out."
ROUNDED = "An operator that is no product of matrices came out in 16 bits: leave such operators as they are."
WIDEST = "Two types met and the narrower one was taken: leave such operators to torch, which takes the wider."
IDS = "Integers or bools were cast: leave them alone, since fp16 holds no odd number above 2,048."
KEYWORDS = "A tensor that came by keyword was not cast: cast the values of kwargs too."
UNDO = "After the with block the policy was still in force: undo in __exit__, or in finally, also after an error."
SWALLOWS = (
    "An error inside the with block was swallowed: let it pass, and return nothing from __exit__."
)


def without(names: str, line: str, sentence: str) -> dict[str, Wrong]:
    return {
        f"without {name}": Wrong(sentence, ((line, line.replace(f'"{name}"', '"-"')),))
        for name in names.split()
    }


def rounds(name: str) -> Wrong:
    return Wrong(ROUNDED, ((LOW, LOW.replace("{", f'{{"{name}", ')),))


class PrecisionPolicy(Topic):
    name = "precision-policy"
    forbids = (
        "torch.amp.autocast_mode.autocast",
        "torch.cuda.amp.autocast",
        "torch.cpu.amp.autocast",
    )
    hints = (
        "Which operators are most of the work, and which can reach 65,504 or add up many terms?",
        "torch.overrides.TorchFunctionMode is told of every operator inside a with block: its name, and what it is given.",
        "In __torch_function__ look the operator's name up in two sets: products of matrices, and what is delicate. Cast floating tensors among "
        "args and kwargs, never float64 nor ids, and call the operator.",
    )
    right = {
        "two tables": RIGHT,
        "the library's": LIBRARYS,
        "in float64 where delicate": RIGHT
        + """
class Double(answer):
    def call(self, func, args, kwargs, dtype):
        if dtype == torch.float32 and all(not isinstance(each, torch.Tensor) or each.dtype != torch.float64 for each in (*args, *kwargs.values())):
            found = super().call(func, args, kwargs, torch.float64)
            return found.to(dtype) if found.is_floating_point() else found
        return super().call(func, args, kwargs, dtype)

answer = Double
""",
        "widens everything else": RIGHT.replace(
            WANTED,
            WANTED.replace(
                " else None", ' or name in ("add", "mul", "div", "tanh", "relu", "gelu") else None'
            ),
        ),
        "torch's functions replaced, and put back": PATCHING,
        "by parts of names": DISPATCH,
    }
    wrong = {
        "does nothing": Wrong(
            GAINED, "import torch\ndef answer(dtype):\n    return torch.enable_grad()\n"
        ),
        **without("matmul mm bmm einsum linear conv1d conv2d", LOW, GAINED),
        "float16 always": Wrong(GIVEN, (("self.dtype = dtype", "self.dtype = torch.float16"),)),
        "bfloat16 always": Wrong(GIVEN, (("self.dtype = dtype", "self.dtype = torch.bfloat16"),)),
        "casts results": Wrong(
            AFTER,
            (
                (
                    ARGS,
                    "return self.cast(func(*(self.cast(each, torch.float32) for each in args), **kwargs), dtype)",
                ),
            ),
        ),
        "widens results": Wrong(
            WIDENED,
            (
                (
                    ARGS,
                    f"if dtype == torch.float32:\n            return func(*args, **kwargs).to(dtype)\n        {ARGS}",
                ),
            ),
        ),
        "widens products": Wrong(
            "A product was computed in 16 bits and cast back: leave it in the policy's type.",
            (
                (
                    CALL,
                    f"found = {CALL[7:]}\n        return found.float() if dtype == self.dtype and found.dtype == dtype else found",
                ),
            ),
        ),
        "delicate in float64": Wrong(
            "A delicate operator came out in float64: float32 is enough there, so return that.",
            ((WANTED, WANTED.replace("torch.float32", "torch.float64")),),
        ),
        "no keywords where delicate": Wrong(
            KEYWORDS,
            ((CALL, f"return func(*args, **kwargs) if dtype == torch.float32 else {CALL[7:]}"),),
        ),
        "casts float64": Wrong(DOUBLE, ((CAST, "True:"),)),
        "casts float64 where delicate": Wrong(
            DOUBLE, ((CAST, "(value.dtype != torch.float64 or dtype == torch.float32):"),)
        ),
        "detaches": Wrong(GRAPH, ((TO, "return value.detach().to(dtype)\n"),)),
        "detaches where delicate": Wrong(
            GRAPH,
            (
                (
                    CALL,
                    f"found = {CALL[7:]}\n        return found.detach() if dtype == torch.float32 else found",
                ),
            ),
        ),
        "no keywords": Wrong(KEYWORDS, ((CALL, "return func(*args, **kwargs)"),)),
        **without("exp softmax log_softmax log pow", FULL, RANGE),
        **without("sum mean norm", FULL, SUMS),
        **without("layer_norm cross_entropy mse_loss", FULL, TERMS),
        **{
            f"rounds {name}": rounds(name)
            for name in ("add", "mul", "div", "tanh", "relu", "gelu", "embedding")
        },
        "the narrowest": Wrong(
            WIDEST,
            (
                (ARGS, f"{ARGS}"),
                (
                    '        dtype = self.wanted(getattr(func, "__name__", ""))',
                    '        if getattr(func, "__name__", "") in ("add", "mul") and any(isinstance(each, torch.Tensor) and each.dtype == self.dtype for each in args):\n'
                    '            args = [self.cast(each, self.dtype) for each in args]\n        dtype = self.wanted(getattr(func, "__name__", ""))',
                ),
            ),
        ),
        "casts ids": Wrong(
            IDS,
            (
                (
                    FLOATING,
                    "isinstance(value, torch.Tensor) and (value.is_floating_point() or value.dtype == torch.int64) and value.dtype",
                ),
            ),
        ),
        "casts bools": Wrong(
            IDS,
            (
                (
                    FLOATING,
                    "isinstance(value, torch.Tensor) and (value.is_floating_point() or value.dtype == torch.bool) and value.dtype",
                ),
            ),
        ),
        "casts ids in products": Wrong(
            IDS,
            (
                (
                    FLOATING,
                    "isinstance(value, torch.Tensor) and (value.is_floating_point() or value.dtype == torch.int64 and dtype != torch.float32) and value.dtype",
                ),
            ),
        ),
        "swallows": Wrong(
            SWALLOWS,
            (
                (
                    "    def cast(self",
                    "    def __exit__(self, *error):\n        super().__exit__(*error)\n        return True\n\n    def cast(self",
                ),
            ),
        ),
        "undoes without an error alone": Wrong(
            UNDO,
            PATCHING.replace(
                "    try:\n        yield\n    finally:\n    ", "    yield\n    if True:\n    "
            ),
        ),
        "never undoes": Wrong(UNDO, PATCHING.replace("reversed(saved)", "()")),
    }

    @staticmethod
    def probe(answer, draw):
        size, n, top = draw.randint(3, 6), draw.choice((512, 768)), draw.uniform(301, 350)
        for dtype in (torch.float16, torch.bfloat16):
            kind = word(dtype)
            for name in PRODUCTS:
                yield Scene(
                    f"{name}, float32 and {size} x {size}, under {kind}",
                    lambda dtype=dtype, name=name: product(
                        answer, dtype, name, size, torch.float32
                    ),
                    0.0,
                )
            for name in PRODUCTS:
                yield Scene(
                    f"{name}, {kind} and float32, {size} x {size}, under {kind}",
                    lambda dtype=dtype, name=name: product(answer, dtype, name, size, dtype),
                    0.0,
                )
            for name in DELICATE:
                yield Scene(
                    f"{name}, {n} numbers of {kind} from 1 to {top:.1f}, under {kind}",
                    lambda dtype=dtype, name=name: delicate(answer, dtype, name, n, top),
                    1e-5,
                )
            for name in OTHERS:
                yield Scene(
                    f"{name}, float32, under {kind}",
                    lambda dtype=dtype, name=name: other(answer, dtype, name, torch.float32),
                    0.0,
                )
            for name in MIXED:
                yield Scene(
                    f"{name}, {kind} and float32, under {kind}",
                    lambda dtype=dtype, name=name: other(answer, dtype, name, dtype),
                    0.0,
                )
            yield Scene(
                f"integers and bools, under {kind}",
                lambda dtype=dtype: integers(answer, dtype, size),
                0.0,
            )
            yield Scene(
                f"float64, under {kind}", lambda dtype=dtype: doubles(answer, dtype, size), 0.0
            )
            yield Scene(
                f"after the with block of {kind}",
                lambda dtype=dtype: ended(answer, dtype, fails=False),
                0.0,
            )
            yield Scene(
                f"after an error in the with block of {kind}",
                lambda dtype=dtype: ended(answer, dtype, fails=True),
                0.0,
            )


# Looked up when called, as a policy may stand in their place.
PRODUCTS = {
    "x @ y": lambda x, y: x @ y,
    "torch.mm": lambda x, y: torch.mm(x, y),
    "torch.bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "torch.matmul": lambda x, y: torch.matmul(x, y),
    "torch.einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "F.linear": lambda x, y: F.linear(x, y),
    "F.linear with bias=": lambda x, y: F.linear(x, y, bias=y[0]),
    "F.conv1d": lambda x, y: F.conv1d(x[None], y[None]),
    "F.conv2d": lambda x, y: F.conv2d(x[None, None], y[None, None]),
}
DELICATE = {
    "x.exp()": lambda x: x.exp(),
    "torch.exp": lambda x: torch.exp(x),
    "F.softmax": lambda x: F.softmax(x, -1),
    "x.softmax": lambda x: x.softmax(-1),
    "torch.softmax": lambda x: torch.softmax(x, -1),
    "F.log_softmax": lambda x: F.log_softmax(x, -1),
    "torch.log": lambda x: torch.log(x),
    "x.log()": lambda x: x.log(),
    "x ** 2": lambda x: x**2,
    "torch.pow": lambda x: torch.pow(x, 2),
    "x.sum()": lambda x: x.sum(),
    "torch.sum": lambda x: torch.sum(x),
    "x.mean()": lambda x: x.mean(),
    "torch.mean": lambda x: torch.mean(x),
    "x.norm()": lambda x: x.norm(),
    "F.layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "F.cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x))),
    "torch.exp with input=": lambda x: torch.exp(input=x),
    "F.mse_loss": lambda x: F.mse_loss(x, torch.zeros_like(x)),
}
OTHERS = {
    "x + y": lambda x, y: x + y,
    "x * y": lambda x, y: x * y,
    "x / y": lambda x, y: x / y,
    "torch.tanh": lambda x, y: torch.tanh(x),
    "F.relu": lambda x, y: F.relu(x),
    "F.gelu": lambda x, y: F.gelu(x),
    "F.embedding": lambda x, y: F.embedding(torch.tensor([1]), torch.stack([x, y])),
}
MIXED = ("x + y", "x * y")


def word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def pair(size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of 2,049 - 2,048, which are 1 in float32 and 0 in 16 bits, and ones."""
    row = torch.tensor([2049.0, -2048.0] + [0.0] * (size - 2))
    return row.expand(size, size).to(dtype).requires_grad_(), torch.ones(
        size, size, dtype=dtype, requires_grad=True
    )


def product(answer, dtype, name, size, of) -> dict:
    """`of`: the type of the first matrix; the second is float32."""
    x, y = pair(size, of)[0], pair(size, torch.float32)[1]
    with answer(dtype):
        found = PRODUCTS[name](x, y)
    return {
        "type": word(found.dtype),
        "has a graph": found.requires_grad,
        "result": found.detach().float().flatten(),
    }


def delicate(answer, dtype, name, n, top) -> dict:
    x = torch.linspace(1, top, n).view(4, -1).to(dtype).requires_grad_()
    with answer(dtype):
        found = DELICATE[name](x)
    return {
        "type": word(found.dtype),
        "has a graph": found.requires_grad,
        "last results": found.detach().double().flatten()[-4:],
    }


def other(answer, dtype, name, of) -> dict:
    """`of`: the type of the first tensor; the second is float32."""
    x, y = torch.full((4,), 300, dtype=of), torch.full((4,), 300.0)
    with answer(dtype):
        found = OTHERS[name](x, y)
    return {"type": word(found.dtype)}


def integers(answer, dtype, size) -> dict:
    odd = 2049 + 2 * size
    with answer(dtype):
        sums = torch.tensor([odd]).sum(), torch.tensor([True] * size).sum()
        found = *sums, torch.tensor([[odd]]) @ torch.tensor([[2]])
    return {
        "types": [word(each.dtype) for each in found],
        "results": [float(each) for each in found],
    }


def doubles(answer, dtype, size) -> dict:
    x, y = pair(size, torch.float64)
    with answer(dtype):
        found = {name: operator(x, y) for name, operator in PRODUCTS.items()}
        found |= {name: operator(x) for name, operator in DELICATE.items()}
    return {name: word(each.dtype) for name, each in found.items()}


def ended(answer, dtype, fails: bool) -> dict:
    x, y = pair(4, torch.float32)
    passed = False
    try:
        with answer(dtype):
            if fails:
                raise KeyError("of the block")
            passed = True
        went_on = True
    except KeyError:
        went_on = False
    return {
        "the block ran": passed,
        "the line after the block ran": went_on,
        "types after": [word(each.dtype) for each in (x @ y, F.linear(x, y), y.to(dtype).exp())],
    }
