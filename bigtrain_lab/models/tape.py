"""The bytes of a training step, followed by hand: each operator makes storages, keeps some for its backward, lets others go.

    held(t) = sum of the bytes of all storages born by moment t and not yet gone;      peak = max over t

Nothing is computed. A layer is a function from a symbolic input to (output, backward), and says in order what torch's own
operator returns: a storage lives while a variable, a saved tensor or a pending gradient holds it, and a view is no storage.
`watched`: as under an observer of every operator (the ledger, torch's MemTracker), where autograd adds gradients of branches
and scatters into new storages; unobserved it does both in place. What a kernel allocates inside itself is not seen.

Cost: one row a storage. Shapes: rows = samples x tokens; a size is a number of values; `itemsize` bytes each.
"""

from collections.abc import Callable
from typing import NamedTuple


class Held(NamedTuple):
    """One storage: alive at the moments born <= t < dies. `made`: the action in which it was born, "" before the first."""

    name: str
    kind: str
    bytes: int
    born: int
    dies: int
    made: str


class Moment(NamedTuple):
    """Something is born, or an action ends ("end")."""

    action: str
    name: str


class Storage:
    """What the tape holds: a row in the making."""

    __slots__ = ("name", "kind", "bytes", "born", "dies", "made", "holders")

    def __init__(self, name: str, kind: str, size_bytes: int, born: int, made: str):
        self.name, self.kind, self.bytes, self.born, self.made = name, kind, size_bytes, born, made
        self.dies: int | None = None
        self.holders = 1


class Tape:
    """Births and deaths in order; what is made is held once, by the variable that it is given to."""

    def __init__(self, itemsize: int = 4, watched: bool = True):
        self.itemsize, self.watched, self.action = itemsize, watched, ""
        self.storages: list[Storage] = []
        self.moments: list[Moment] = []
        self.gradients: list[Storage] = []  # of weights, until zero_grad()
        self.adding = False  # whether each weight has a gradient already, which the next is added to

    def make(self, name: str, values: int, kind: str = "temporaries", itemsize: int | None = None) -> Storage:
        born = Storage(name, kind, values * (itemsize or self.itemsize), len(self.moments), self.action)
        self.moments.append(Moment(self.action, name))
        self.storages.append(born)
        return born

    def hold(self, *storages: Storage) -> None:
        for storage in storages:
            storage.holders += 1

    def save(self, *storages: Storage) -> None:
        """Autograd keeps them: from now on they are activations."""
        self.hold(*storages)
        for storage in storages:
            if storage.kind == "temporaries":
                storage.kind = "activations"

    def drop(self, *storages: Storage) -> None:
        """One holder less; without any the storage is gone."""
        for storage in storages:
            storage.holders -= 1
            if not storage.holders:
                storage.dies = len(self.moments)

    def accumulate(self, *gradients: Storage) -> None:
        """These become their weights' own: they outlive the backward. Or they are added to those that are there, and go."""
        if self.adding:
            self.drop(*gradients)
            return
        for gradient in gradients:
            gradient.kind = "gradients"
        self.gradients += gradients

    def end(self) -> None:
        """The action is over."""
        self.moments.append(Moment(self.action, "end"))

    def rows(self) -> tuple[Held, ...]:
        never = len(self.moments)
        return tuple(Held(s.name, s.kind, s.bytes, s.born, never if s.dies is None else s.dies, s.made) for s in self.storages)


Backward = Callable[[Storage], Storage | None]  # takes the output's gradient over, hands out the input's


# -- layers ---------------------------------------------------------------------------------------------------------


def linear(tape: Tape, name: str, x: Storage, rows: int, inner: int, outer: int, bias: bool = True, first: bool = False,
           give: Callable[[Storage], None] | None = None) -> tuple[Storage, Backward]:
    """y = x W^T + b. Keeps x; the backward makes dx (unless it is the first layer), dW and db while dy is there. It may `give`
    dW to someone else: a matrix that is used twice gets the sum."""
    y = tape.make(f"{name} output", rows * outer)
    tape.save(x)

    def backward(dy):
        dx = None if first else tape.make(f"{name} input gradient", rows * inner)
        weight = tape.make(f"{name}.weight gradient", outer * inner)
        biases = [tape.make(f"{name}.bias gradient", outer)] if bias else []
        (give or tape.accumulate)(weight)
        tape.accumulate(*biases)
        tape.drop(dy, x)
        return dx
    return y, backward


def pointwise(tape: Tape, name: str, x: Storage, values: int, keeps: str = "input") -> tuple[Storage, Backward]:
    """y = f(x), as GELU, which keeps its input, or ReLU and tanh, which keep their output."""
    y = tape.make(f"{name} output", values)
    kept = x if keeps == "input" else y
    tape.save(kept)

    def backward(dy):
        dx = tape.make(f"{name} input gradient", values)
        tape.drop(dy, kept)
        return dx
    return y, backward


def layer_norm(tape: Tape, name: str, x: Storage, rows: int, width: int) -> tuple[Storage, Backward]:
    """Keeps x and, of each row, its mean and 1/deviation."""
    y = tape.make(f"{name} output", rows * width)
    kept = x, tape.make(f"{name} mean", rows), tape.make(f"{name} rstd", rows)
    tape.save(*kept)
    tape.drop(*kept[1:])

    def backward(dy):
        dx = tape.make(f"{name} input gradient", rows * width)
        tape.accumulate(*(tape.make(f"{name}.{weight} gradient", width) for weight in ("weight", "bias")))
        tape.drop(dy, *kept)
        return dx
    return y, backward


def dropout(tape: Tape, name: str, x: Storage, values: int, p: float) -> tuple[Storage, Backward]:
    """y = x keep / (1 - p): keeps one byte a value. Takes x over."""
    if not p:
        return x, lambda dy: dy
    keep = tape.make(f"{name} keep", values, itemsize=1)
    product = tape.make(f"{name} product", values)
    tape.save(keep)
    y = tape.make(f"{name} output", values)
    tape.drop(product, keep, x)

    def backward(dy):
        divided = tape.make(f"{name} divided gradient", values)
        tape.drop(dy)
        dx = tape.make(f"{name} input gradient", values)
        tape.drop(divided, keep)
        return dx
    return y, backward


def residual(tape: Tape, name: str, x: Storage, values: int, branch: Callable) -> tuple[Storage, Backward]:
    """x + branch(x), given the variable x itself. The gradient goes both ways and is added up where they meet."""
    out, branch_backward = branch(x)
    y = tape.make(f"{name} residual", values)
    tape.drop(out, x)

    def backward(dy):
        tape.hold(dy)
        return added(tape, f"{name} residual gradient", values, dy, branch_backward(dy))
    return y, backward


def added(tape: Tape, name: str, values: int, first: Storage, second: Storage) -> Storage:
    """The sum of two gradients of one tensor: a new storage where torch is watched, else in the first's place."""
    if not tape.watched:
        tape.drop(second)
        return first
    total = tape.make(name, values)
    tape.drop(first, second)
    return total


def attention(tape: Tape, name: str, x: Storage, batch: int, queries: int, width: int, heads: int, *, bias: bool = True, causal: bool = True,
              p: float = 0.0, memory: Storage | None = None, keys: int = 0, give: Callable[[Storage], None] | None = None) -> tuple[Storage, Backward]:
    """softmax(q k^T / sqrt(K) + causal) v W_out, q, k and v from one product with x; or q from x, k and v from the `memory`, of
    `keys` tokens a sample, to which the backward will `give` a gradient. Keeps the batch x heads x queries x keys
    probabilities, the heads, and the input of each product."""
    keys, rows = keys or queries, batch * queries
    hidden, square = rows * width, batch * heads * queries * keys

    def projected(what, source, tokens, parts):
        """Several of q, k, v in one storage; their gradients are stacked, put back into the product's order, and go through it."""
        product, product_backward = linear(tape, f"{name}.{what}", source, tokens, width, parts * width, bias)
        by_head = tape.make(f"{name}.{what} by head", parts * tokens * width)
        tape.drop(product)

        def backward(*gradients):
            ordered = stacked = gradients[0]
            if parts > 1:
                stacked = tape.make(f"{name}.{what} stacked gradient", parts * tokens * width)
                tape.drop(*gradients)
            if parts > 1 or heads > 1:
                ordered = tape.make(f"{name}.{what} output gradient", parts * tokens * width)
                tape.drop(stacked)
            return product_backward(ordered)
        return by_head, backward

    if memory is None:
        query, own_backward = projected("qkv", x, rows, 3)
        key = query
    else:
        query, own_backward = projected("q", x, rows, 1)
        key, memory_backward = projected("kv", memory, batch * keys, 2)
    product = tape.make(f"{name}.product", square)
    tape.save(query, key)
    scores = tape.make(f"{name}.scaled", square)
    tape.drop(product)
    if causal:
        full = tape.make(f"{name}.full", queries * keys)
        mask = tape.make(f"{name}.causal", queries * keys)
        tape.drop(full)
        scaled, scores = scores, tape.make(f"{name}.scores", square)
        tape.drop(scaled)
    probabilities = tape.make(f"{name}.probabilities", square)
    tape.save(probabilities)
    dropped, dropout_backward = dropout(tape, f"{name}.dropout_probabilities", probabilities, square, p)
    tape.save(dropped, key)
    mixed = tape.make(f"{name}.mixed", hidden)
    if heads > 1:
        by_head, mixed = mixed, tape.make(f"{name}.merged", hidden)
        tape.drop(by_head)
    out, out_backward = linear(tape, f"{name}.out", mixed, rows, width, width, bias)
    out, last_backward = dropout(tape, f"{name}.dropout_out", out, hidden, p)
    tape.drop(mixed, scores, dropped, query, *([mask] if causal else []), *([] if memory is None else [key]))  # its variables

    def backward(dy):
        dmixed = out_backward(last_backward(dy))
        if heads > 1 and batch > 1:  # one sample's heads are a view
            merged, dmixed = dmixed, tape.make(f"{name}.mixed gradient", hidden)
            tape.drop(merged)
        dvalue = tape.make(f"{name}.v gradient", batch * keys * width)
        dropped_gradient = tape.make(f"{name}.dropped probabilities gradient", square)
        tape.drop(dmixed, dropped, key)
        dprobabilities = dropout_backward(dropped_gradient)
        dscores = tape.make(f"{name}.scores gradient", square)
        tape.drop(dprobabilities, probabilities)
        dproduct = tape.make(f"{name}.product gradient", square)
        tape.drop(dscores)
        dquery = tape.make(f"{name}.q gradient", hidden)
        dkey = tape.make(f"{name}.k gradient", batch * keys * width)
        tape.drop(dproduct, query, key)
        if memory is None:
            return own_backward(dquery, dkey, dvalue)
        give(memory_backward(dkey, dvalue))
        return own_backward(dquery)
    return out, backward


def cross_entropy(tape: Tape, logits: Storage, rows: int, vocabulary: int) -> tuple[Storage, Callable[[], Storage]]:
    """Mean of -log softmax(logits)[target]; takes the logits over. In the backward three storages of rows x vocabulary values
    are alive together: the log-softmax, its gradient, and the logits' gradient."""
    values = rows * vocabulary
    log_probabilities = tape.make("log_probabilities", values)
    tape.save(log_probabilities)
    chosen = tape.make("chosen log_probabilities", rows)
    mean = tape.make("mean", 1)
    tape.drop(chosen)
    loss = tape.make("loss", 1)
    tape.drop(mean, logits, log_probabilities)

    def backward():
        one = tape.make("loss gradient", 1)  # held by the call of backward() until its end
        minus = tape.make("mean gradient", 1)
        each = tape.make("chosen log_probabilities gradient", rows)
        tape.drop(minus)
        scattered = tape.make("log_probabilities gradient", values)
        if tape.watched:
            zeros, scattered = scattered, tape.make("log_probabilities gradient, scattered", values)
            tape.drop(zeros)
        tape.drop(each)
        dlogits = tape.make("logits gradient", values)
        tape.drop(scattered, log_probabilities)
        return dlogits, one
    return loss, backward
