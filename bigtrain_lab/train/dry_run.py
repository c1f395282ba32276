"""What a training step holds, computes and moves, found by running it: on meta tensors, under the
ledger, with no values.

    program(rank) on meta tensors -> for each action: bytes by kind at its end and inside it, FLOPs,
                                     bytes moved, operators

A meta tensor has a shape, a format and a storage, and no memory. The ledger follows such storages
as any others, so a prediction is the ledger's own count of the program that a run executes; no
model is described a second time.

    FLOPs        2 m n k of each matrix product; for convolutions and attention what torch counts
    attention    torch's own function is the kernel that it is on a CPU: fused, where that can be
    bytes moved  of every other operator: each reads its inputs once and writes its result once;
                 views are free; nothing is fused but what torch calls one operator, such as the
                 update of Adam(fused=True)
    operators    that a device would start, one kernel each; views are none; of a list of tensors
                 one each
    on a GPU     `Work.on_gpu`: an update launches an operator once for all tensors, and what
                 ON_GPU names is one kernel. A profile that launches ahead is priced so

What an operator returns depends on shapes alone, so each operator is asked once for each shape; an
operator of a model of equal layers then costs about 20 us, whatever its width. What depends on
values takes the plain path: a number that the program reads from a tensor is 1, and a condition is
False, so no step is skipped.

Bytes held are a CPU's, as the ledger of a run counts them. A GPU's RMS norm keeps its input and one
number a row, and a CPU's the normed input too. A GPU's update holds the temporaries of all tensors
at once. Its attention with dropout is one kernel that keeps no probabilities; here it is a CPU's,
in time too. Workspaces inside a kernel are not seen. Not exact: nn.LSTM, nn.GRU and nn.RNN, which a
CPU joins into other kernels (an LSTM keeps ten times as much), and the moment at which a batch norm
that learns from raw inputs, or nn.Mish, holds most in its backward.
Source: torch's meta device and torch.utils._python_dispatch; torch.utils.flop_counter has the
formulas of the FLOPs.
"""

import math
import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import count

import torch
from torch._C import _DisableTorchDispatch
from torch.autograd.graph import saved_tensors_hooks
from torch.library import _scoped_library
from torch.optim import optimizer
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from ..core import Alive
from ..core.later import compiler_asleep
from ..core.overtaken import go_on
from ..order.plan import SLICES, collector_paused
from ..order.schedule import Action, kind_of, name_of
from ..runtime.memory.balance import APART, Balance, together, with_units
from ..runtime.memory.ledger import Ledger, words
from ..runtime.memory.saved import in_backward, replaced
from ..runtime.talk.group import Alone, Handle
from .account import Account, Acted, Called, DryRun, Held, Moment, Work

META = torch.device("meta")


ALONE = threading.RLock()  # what one thread holds for a moment, another's would count as alive


def dry_run(program: Callable, unobserved: bool = False, **place) -> DryRun:
    """Run program(rank) without values, on a DryRank.

    unobserved   as torch runs where no one looks on: it adds up two gradients of a tensor, and
                 scatters, in place
    place        index, size, arriving: which of how many ranks, see Unsent; slices: how many share
                 a layer
    """
    return followed(program, unobserved, **place)[0].run


def account(program: Callable, unobserved: bool = False, **place) -> Account:
    """The same, storage by storage."""
    return followed(program, unobserved, **place)[0].account()


@collector_paused()
def followed(program: Callable, unobserved=False, replicas=0, **place) -> list["Journal"]:
    """Run it once; the journal of each of so many replicas, of which `only` tells what is its
    own."""
    wake()
    operators, journals = Operators(unobserved), [Journal(at) for at in range(replicas or 1)]
    balance = Journals(journals)
    ledger = Ledger(device=META, wall=count(1).__next__, operate=operators, balance=balance)
    rank = DryRank(ledger, operators, journals, replicas=replicas, **place)
    operators.copied = ledger.ignore
    try:
        with ALONE, compiler_asleep(), ledger, kernels(ledger, operators):
            program(rank)
        for journal in journals:
            journal.ended(ledger.at_peak(journal), rank.sent)
        return journals
    finally:
        ledger.forget()


@cache
@compiler_asleep()
def wake() -> None:
    """Torch's first lookup on meta imports modules, and keeps the frames that led there."""
    torch.nn.functional.embedding(
        torch.zeros(1, dtype=torch.int64, device=META), torch.ones(1, 1, device=META)
    )


class DryRank:
    """What a program is given in place of a rank: its device is meta, what spans hold and do is
    noted, nothing is logged, and nobody else is there."""

    device = META

    def __init__(
        self,
        ledger: Ledger,
        operators: "Operators",
        journals: "list[Journal]",
        index: int = 0,
        size: int = 1,
        arriving: torch.Tensor | None = None,
        slices: int = 1,
        replicas: int = 0,
    ):
        self._ledger, self._operators, self._journals = ledger, operators, journals
        self.index, self.size, self._arriving = index, size, arriving
        self._slices, self._done, self._now = Slices(self, slices), Work(), journals
        self._replicas, self._looks = Replica(self, replicas or 2, size * slices), replicas > 0
        self.sent: dict[str, int] = {}
        self._hooked, self._loaded = False, False

    @contextmanager
    def span(self, step, version: int | None = None, beside: bool = False):
        go_on()
        step = (step,) if isinstance(step, (str, Action)) else tuple(step)
        named = isinstance(step[0], str)
        kind, name = (step[0], step[0]) if named else (kind_of(step), name_of(step))
        ledger, self._done = self._ledger, self._operators.work()
        first = len(self._operators.products)
        ledger.begin(name, look=ledger.pending or self._loaded or self._looks)
        self._loaded, began = False, ledger.looked
        for journal in self._journals:
            journal.begin(name)
        yield
        ledger.end(look=not self._hooked or kind not in "AB" and not in_backward())
        self._loaded &= self._hooked  # where the end of each action looks, all is seen
        for journal in self._journals:
            work = self._operators.work() - self._done
            journal.end(name, work, began, tuple(self._operators.products[first:]))

    @contextmanager
    def only(self, replica: int):
        """What is made and done within is this replica's alone."""
        operators, journal = self._operators, self._journals[replica]
        self._now, before = [journal], operators.work()
        with self._ledger.only(replica):
            yield
        journal.work += operators.work() - before
        operators.done(before)
        self._now = self._journals

    def watch(self, holdings) -> None:
        """Each look at what is held takes as long as an action of a small model. An advance makes
        nothing that is declared, and a backward, or what it recomputes, only gradients, of which
        hooks tell where weights have no masters and ranks hold the same: after these there is no
        look."""
        self._ledger.holdings, declared = holdings, holdings()
        weights = declared.get("weights")
        if not self._looks and not declared.get("master") and isinstance(weights, dict):
            self._hooked = True
            for name, weight in weights.items():
                if weight.requires_grad:
                    weight.register_post_accumulate_grad_hook(partial(self._arrived, name))
        self._ledger.changes()
        for journal in self._journals:
            journal.starts()

    def group(self, axis: str | None = None) -> Alone:
        if axis == SLICES:
            return self._slices
        return self._replicas if axis == "dp" else Unsent(self, self._arriving)

    def called(self, kind: str, size_bytes: int, name: str) -> None:
        """An action calls a collective, or what is done between actions."""
        done = self._operators.work() - self._done
        for journal in self._now:
            if journal.action:
                journal.called.append(Called(done + journal.work, kind, size_bytes, name))
            else:
                journal.sent[name] = size_bytes

    def _arrived(self, name: str, weight: torch.Tensor) -> None:
        if weight.grad is not None:  # another hook may have taken it
            self._ledger.became_gradient(name, weight.grad)

    def log(self, name: str, value) -> None:
        pass

    histogram = log

    @contextmanager
    def aside(self):
        """What is done within is not followed, and has no values either."""
        self._loaded, before = True, self._operators.work()
        first = len(self._operators.products)
        with self._ledger.aside(), Aside(self._operators):
            yield
        self._operators.done(before)
        del self._operators.products[first:]


class OnMeta(Alone):
    """A group of several ranks that carries nothing: collectives return what has the right
    shape, and are noted by `of`, where there is one."""

    _of: "DryRank | None" = None

    def _note(self, kind: str, size_bytes: int, name: str) -> None:
        if self.size > 1 and self._of:
            self._of.called(kind, size_bytes, name)

    def all_reduce(self, tensor, op="sum", name="all_reduce"):
        self._note("all_reduce", tensor.nbytes, name)
        return tensor.div_(self.size) if op == "mean" else tensor

    def all_gather(self, tensor, out=None, name="all_gather"):
        return tensor.new_empty(self.size * len(tensor), *tensor.shape[1:]) if out is None else out

    def reduce_scatter(self, tensor, op="sum", name="reduce_scatter", out=None):
        own = self._parts(tensor, name)[self.rank]
        own = own.new_empty(own.shape) if out is None else out
        return own.div_(self.size) if op == "mean" else own

    def broadcast(self, tensor, src=0, name="broadcast"):
        return tensor

    def differing(self, text, name=""):
        return []


class Replica(OnMeta):
    """The group of so many replicas, of which this is the first, each of `apart` ranks. What is
    launched on its lane changes no storage, and is not carried out. Other collectives are noted by
    `of`."""

    def __init__(self, of: DryRank, size: int, apart: int):
        super().__init__(META)
        self.size, self._of, self._apart = size, of, apart

    def world_rank(self, rank):
        return rank * self._apart

    def lane(self, name=""):
        return self

    def launch(self, function, name="", timed=True):
        return self

    def wait(self):
        pass

    settle = wait


class Unsent(OnMeta):
    """A group that carries nothing. An action's result looks like what was sent to that rank
    before, the first of all like `arriving`; any other message is received `like` a tensor."""

    def __init__(self, rank: DryRank, arriving: torch.Tensor | None = None):
        super().__init__(META, rank.span)
        self.rank, self.size = rank.index, rank.size
        self._arriving, self._sent, self._sites = arriving, {}, rank.sent

    def isend(self, tensor, dst, name="", site="", tag=0, agreed=False):
        if isinstance(name, Action):
            self._sent[dst] = tensor.shape, tensor.dtype
        self._sites[site] = tensor.nbytes

    def _posted(self, src, name, site, tag, like, *_):
        def take():
            shape, dtype = (
                self._sent.get(src) or (self._arriving.shape, self._arriving.dtype)
                if like is None
                else (like.shape, like.dtype)
            )
            return torch.empty(shape, dtype=dtype, device=META)

        return Handle(None, take)


class Slices(OnMeta):
    """The ranks among which layers are sliced, of which this is the first: their collectives are
    noted by `rank`, where there is one, and return what has the right shape."""

    def __init__(self, rank: DryRank | None, size: int):
        super().__init__(META)
        self.size, self._of = size, rank

    def reduce_scatter(self, tensor, op="sum", name="reduce_scatter", out=None):
        parts = self._parts(tensor, name)
        self._note("reduce_scatter", sum(part.nbytes for part in parts), name)
        return parts[0].new_empty(parts[0].shape) if out is None else out

    def all_gather(self, tensor, out=None, name="all_gather"):
        self._note("all_gather", tensor.nbytes * self.size, name)
        return super().all_gather(tensor, out)


# -- what operators return, and what they cost ----------------------------------------------------

VIEW, CALL, PURE = "a view", "anything", "new tensors"
IN_PLACE = "its first argument, or what is given as `out`"
# What operators read of their first argument: no more than they return; write of it: no more than
# they are given; and those that only write it.
INDEXED = {"embedding", "gather", "index", "index_select", "take_along_dim"}
SCATTERED = {"scatter_add", "scatter_add_", "index_put", "index_put_", "_index_put_impl_"}
RESIZING = {"set_", "resize_", "resize_as_"}
UNREAD = {"zero_", "fill_", "copy_", "bernoulli_", "normal_", "uniform_"}
MOST_KNOWN = 20_000  # calls of operators, some 20 MB


@cache
def known_calls(dtype: torch.dtype) -> dict[tuple, tuple]:
    """What operators returned and cost where this is the default format: of all dry runs, since
    weights keep their shapes when a batch changes, and stages are alike."""
    return {}


class Operators:
    """In the place of a call of an operator: its result on meta tensors, remembered by operator and
    shapes; its work is added up. `copied` is called with what comes to the host, which on a CPU is
    there already."""

    def __init__(self, unobserved: bool = False):
        self._unobserved = unobserved
        self._known = known_calls(torch.get_default_dtype())
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        self._ways: dict[object, str] = {}
        self.products: list[tuple[int, int, int, int]] = []
        self.done(Work())
        self.copied: Callable = lambda tensor: None

    def work(self) -> Work:
        return Work(self.flops, self.moved_bytes, self.operators, *self.spared[1:3])

    def done(self, work: Work) -> None:
        """Count on from this work."""
        self.flops, self.moved_bytes, self.operators, *spared = work
        self.spared = Work(0, *spared)  # what a GPU does without

    def __call__(self, operator, args, kwargs):
        way = self._ways.get(operator) or self._way(operator)
        if way is VIEW:
            return operator(*args, **kwargs)
        key = self._key(operator, args, kwargs) if way is not CALL and args else None
        try:
            known = self._known.get(key)
        except TypeError:  # a list of something, or a generator
            key = None
        if key is None:
            return self._called(operator, args, kwargs)
        if self._unobserved and operator in WRITTEN_IN_PLACE and in_backward():
            return args[0]
        if known is None:
            return self._first(key, way, operator, args, kwargs)
        if known is VIEW:
            return operator(*args, **kwargs)
        alone, looks, flops, moved, started, products = known
        self.products += products
        self.flops += flops
        self.moved_bytes += moved
        self.operators += started
        if way is IN_PLACE:
            return kwargs["out"] if "out" in kwargs else args[0]
        made = [empty(*look) for look in looks]
        return made[0] if alone else tuple(made)

    def _way(self, operator) -> str:
        schema = operator._schema
        aliases, name = [value.alias_info for value in schema.returns], schema.name.split("::")[1]
        written = any(each and each.is_write for each in aliases)
        plain = all(str(value.type) == "Tensor" for value in schema.returns)
        way = CALL
        if aliases and all(aliases) and not written:
            way = VIEW
        elif aliases and not any(aliases) and not schema.is_mutable and plain:
            way = PURE
        elif (
            written
            and len(aliases) == 1
            and (name.endswith("_") or operator._schema.arguments[-1].name == "out")
            and name not in RESIZING
            and torch.Tag.inplace_view not in operator.tags
        ):
            way = IN_PLACE
        self._ways[operator] = way
        return way

    @staticmethod
    def _key(operator, args, kwargs):
        """The operator and what its arguments look like; None where nothing says that it works on
        meta tensors: its first argument, or the device on which it makes a new one."""
        first = args[0][0] if isinstance(args[0], list) and args[0] else args[0]
        if not (first.is_meta if isinstance(first, torch.Tensor) else kwargs.get("device") == META):
            return None
        looks = [operator]
        for value in (*args, *kwargs, *kwargs.values()) if kwargs else args:
            if isinstance(value, torch.Tensor):
                looks += value.shape, value.stride(), value.dtype, value.is_meta
            elif isinstance(value, (list, tuple)):
                looks.append(
                    tuple(
                        look_of(each) if isinstance(each, torch.Tensor) else each for each in value
                    )
                )
            else:
                looks.append((type(value), value))  # 1 is not 1.0
        return tuple(looks)

    def _first(self, key, way, operator, args, kwargs):
        """Called for the first time with such arguments. A result that is a view, or is more than
        its shape tells, is not remembered."""
        before, first = self.work(), len(self.products)
        result = self._called(operator, args, kwargs)
        tensors = (result,) if isinstance(result, torch.Tensor) else result
        looks = ()
        if way is IN_PLACE and self._key(operator, args, kwargs) != key:
            return result  # what was given has another size now
        if way is PURE:
            if not all(t is not None and t.is_meta for t in tensors):
                return result
            given, made = storages_of(tree_leaves((args, kwargs))), storages_of(tensors)
            if made <= given:  # a view that does not say so
                self._known[key] = VIEW
                return result
            looks = tuple(map(look_of, tensors))
            if (
                given & made
                or len(made) < len(tensors)
                or any(
                    t.untyped_storage().nbytes() != empty(*look).untyped_storage().nbytes()
                    for t, look in zip(tensors, looks)
                )
            ):
                self._ways[operator] = CALL
                return result
        done = *(self.work() - before)[:3], self.products[first:]
        self._known[key] = isinstance(result, torch.Tensor), looks, *done
        return result

    def _called(self, operator, args, kwargs):
        if operator is READ and args[0].is_meta:
            one = 1.0 if args[0].is_floating_point() else 1
            return False if args[0].dtype == torch.bool else one
        if operator is COPY and args[0].is_meta and (kwargs.get("device") or META).type != "meta":
            one = torch.zeros((), dtype=kwargs.get("dtype") or args[0].dtype)
            self.copied(host := one.expand(args[0].shape))
            return host
        unknown = operator.overloadpacket in NOT_ON_META and args[0][0].is_meta
        result = None if unknown else operator(*args, **kwargs)
        if operator in AS_ON_CPU:
            result = AS_ON_CPU[operator](result, *args)
        self._count(operator, args, kwargs, result)
        return result

    def _count(self, operator, args, kwargs, result) -> None:
        """A list of tensors is one operator each, as on a CPU."""
        made = on_meta(result if operator._schema.returns else written(operator, args, kwargs))
        name = operator._schema.name.removeprefix("aten::")
        if not made or name.startswith(("empty", "new_empty")):
            return  # nothing that the device does
        outs = {each.name for each in operator._schema.arguments if each.is_out}
        given = on_meta((args, [value for key, value in kwargs.items() if key not in outs]))
        if not operator._schema.is_mutable and storages_of(made) <= storages_of(given):
            return  # a view that does not say so
        kernel = operator.overloadpacket
        if formula := flop_registry.get(SAME_WORK.get(kernel, kernel)):
            self.flops += formula(*args, **kwargs, out_val=result)
            if kernel in FACTORS:
                one, other = args[FACTORS[kernel] :][:2]
                *several, m, k = one.shape
                self.products.append((math.prod(several), m, other.shape[-1], k))
        else:
            size = sum(t.nbytes for t in made)
            if name.endswith("_like") or name.startswith("new_") or name in UNREAD:
                given = given[1:]
            elif name in INDEXED:
                given = [*given[1:], *made]
            elif name in SCATTERED:
                given, size = given[1:], given[-1].nbytes
            self.moved_bytes += size + sum(t.nbytes for t in given)
        self.operators += len(args[0]) if name.startswith(("_foreach", "_fused")) else 1


def written(operator, args, kwargs) -> list:
    """What an operator writes that returns nothing. A fused update writes gradients where it undoes
    the scale of their loss."""
    return [
        value
        for each, value in zip(operator._schema.arguments, args)
        if each.alias_info and (each.name != "grads" or kwargs.get("grad_scale") is not None)
    ]


def storages_of(values) -> set[int]:
    return {value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)}


def on_meta(values) -> list[torch.Tensor]:
    return [v for v in tree_leaves(values) if isinstance(v, torch.Tensor) and v.is_meta]


def look_of(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype


def empty(shape, stride, dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=META)


@contextmanager
def kernels(ledger: Ledger, operators: Operators):
    """Run attention and fused updates as a CPU does, and note what a GPU calls in place of several
    operators. torch chooses its kernel by the device. On meta tensors it would take the plain
    attention, which keeps all probabilities, and refuse a fused update. It has no public name for
    where those run: without this one they are refused. A transform of torch.func comes before the
    library, so torch's name is taken too."""
    taken = replaced(
        torch.nn.functional, ATTENTION.__name__, lambda own: scaled_dot_product_attention
    )
    where = "_get_fused_kernels_supported_devices"
    with taken, _scoped_library("aten", "IMPL") as library, ExitStack() as more:
        library.impl(ATTENTION.__name__, scaled_dot_product_attention, "AutogradMeta")
        for operator in ON_GPU:
            library.impl(operator, partial(as_on_gpu, operator, ledger, operators), "AutogradMeta")
        if hasattr(optimizer, where):
            more.enter_context(replaced(optimizer, where, lambda own: lambda: [*own(), META.type]))
        yield


def as_on_gpu(operator, ledger: Ledger, operators: Operators, *args, **kwargs):
    """Call an operator of ON_GPU, and add what a GPU is spared, forward and backward."""

    def spare(work: Work) -> None:
        operators.spared += work

    result = operator.decompose(*args, **kwargs)
    forward, backward = spared(operator, ledger, args, kwargs)
    spare(forward)
    if result.requires_grad:
        result.grad_fn.register_hook(lambda *gradients: spare(backward))
    return result


def spared(operator, ledger: Ledger, args, kwargs) -> tuple[Work, Work]:
    """The work of a CPU's operators less that of a GPU's kernels, forward and backward. It is found
    on tensors that are alike, aside; a checkpoint around them must not run again for it, so what
    they save is their own."""
    operators, own = Operators(), saved_tensors_hooks(lambda kept: kept, lambda kept: kept)
    with ledger.aside(), Aside(operators), own:
        args, kwargs = tree_map_only(
            torch.Tensor, lambda t: t.detach().requires_grad_(t.requires_grad), (args, kwargs)
        )
        result, backward = operator.decompose(*args, **kwargs), Work()
        forward = operators.work()
        if result.requires_grad:
            torch.autograd.grad(
                result,
                [t for t in on_meta((args, kwargs)) if t.requires_grad],
                torch.empty_like(result),
            )
            backward = operators.work() - forward
    on_gpu = ON_GPU[operator](result, *args, **kwargs)
    return forward - on_gpu[0], backward - on_gpu[1]


def rms_norm(y, input, normalized_shape, weight=None, eps=None) -> tuple[Work, Work]:
    """A kernel each way: y = weight x r, dL/dx and dL/dweight. r, of a row, is kept in float32."""
    own = [input] if weight is None else [input, weight]
    moved = sum(t.nbytes for t in (y, *own)) + 4 * input.numel() // math.prod(normalized_shape)
    return Work(0, moved, 1), Work(0, moved + sum(t.nbytes for t in own), 1)


# What a GPU calls in place of several operators of a CPU: its work forward and backward. Attention
# and layer norm are one kernel on both; an update's operators are launched once for all tensors.
ON_GPU = {torch.ops.aten.rms_norm.default: rms_norm}


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Call torch's scaled_dot_product_attention. torch itself names the kernel, asked about tensors
    on the host that are alike but for their tokens: two at most. A mode, such as a policy of
    precision, has its turn first, as with torch's own."""
    given, asked = (query, key, value, attn_mask), {"scale": scale, "enable_gqa": enable_gqa}
    if has_torch_function(given):
        return handle_torch_function(
            scaled_dot_product_attention, given, *given, dropout_p, is_causal, **asked
        )
    if query.is_meta:
        with _DisableTorchDispatch():
            like = [
                each if each is None else of_two_tokens(each, each is attn_mask) for each in given
            ]
            fused = torch._fused_sdp_choice(*like, dropout_p, is_causal, **asked) == FUSED
        if fused:
            if attn_mask is not None and attn_mask.dtype == torch.bool:
                attn_mask = torch.where(
                    attn_mask, 0.0, torch.scalar_tensor(-math.inf, dtype=query.dtype, device=META)
                )
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            return flash(*given[:3], dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
        return PLAIN.decompose(*given, dropout_p, is_causal, **asked)
    return ATTENTION(*given, dropout_p, is_causal, **asked)


def of_two_tokens(tensor: torch.Tensor, mask: bool) -> torch.Tensor:
    """Return a tensor of at most two tokens on the host. A mask has them in its last two
    dimensions."""
    shape, tokens = list(tensor.shape), (-2, -1) if mask else (-2,)
    for at in tokens[: len(shape)]:
        shape[at] = min(2, shape[at])
    return torch.empty(shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad)


ATTENTION, FUSED = torch.nn.functional.scaled_dot_product_attention, 1
PLAIN = torch.ops.aten.scaled_dot_product_attention.default
SAME_WORK = {  # the CPU's fused attention, for which torch has no formula
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        torch.ops.aten._scaled_dot_product_flash_attention
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        torch.ops.aten._scaled_dot_product_flash_attention_backward
    ),
}
FACTORS = {  # products, and which argument is the first factor
    torch.ops.aten.mm: 0,
    torch.ops.aten.bmm: 0,
    torch.ops.aten.addmm: 1,
    torch.ops.aten.baddbmm: 1,
}
READ, COPY = torch.ops.aten._local_scalar_dense.default, torch.ops.aten._to_copy.default


def in_full(result, x, *_):
    """A mean that keeps what it is of."""
    return x.new_empty(x.numel()).as_strided(result.shape, result.stride())


# Where torch's meta kernel and the CPU's make other storages: the statistics of a norm in half are
# in half; a mean of squares keeps them all.
AS_ON_CPU = {
    torch.ops.aten.native_layer_norm.default: lambda result, x, shape, weight, *_: (
        result[0],
        *(each.to((x if weight is None else weight).dtype) for each in result[1:]),
    ),
    torch.ops.aten.mse_loss.default: in_full,
    torch.ops.aten.smooth_l1_loss.default: in_full,
}
NOT_ON_META = {torch.ops.aten._fused_sgd_, torch.ops.aten._fused_adagrad_}
# What an observer makes torch do out of place: the sum of two gradients of one tensor, the gradient
# of a gather.
WRITTEN_IN_PLACE = {torch.ops.aten.add.Tensor, torch.ops.aten.scatter_add.default}


class Aside(TorchDispatchMode):
    """Operators without values, and with no ledger."""

    def __init__(self, operators: Operators):
        super().__init__()
        self._operators = operators

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return self._operators(operator, args, kwargs or {})


# -- storage by storage ---------------------------------------------------------------------------


class Journal(Balance):
    """The balance of one replica, that notes each action, and keeps every change too, so that
    storages are followed one by one."""

    def __init__(self, replica: int = 0):
        super().__init__()
        self.replica, self.action = replica, ""
        self.start: dict[str, int] = {}
        self.actions: dict[str, Acted] = {}
        self.work, self.called = Work(), []  # of an action, this replica's alone
        self.sent: dict[str, int] = {}  # between actions
        self.rises: list[tuple[str, str, int]] = []
        self._changes: list[tuple] = []
        self._peak: tuple = "", None, 0
        self._boundary: dict[str, int] = {}  # kind -> bytes at the last one

    def change(self, storage, state, wall) -> None:
        before, highest = storage.counted, self.peak_bytes
        if state == before:
            return
        super().change(storage, state, wall)
        self._changes.append((self.action, storage, before, state))
        if self.peak_bytes > highest and self.action:
            self.rises.append((self.action, words(storage.maker), self.total))

    def starts(self) -> None:
        """All that the program declares is there."""
        self.start = self._boundary = self.held
        self._changes.append(("", None, None, None))

    def begin(self, action: str) -> None:
        self.action, self._found = action, self.held
        self.work, self.called = Work(), []

    def end(self, action: str, work: Work, began: int, products: tuple) -> None:
        """`work`, `products`: what all replicas do alike; `began`: the wall when the action did."""
        kinds, walls, rows = self.readings()
        kinds, rows = with_units(kinds, rows, self._found, self._boundary)
        if self.peak_bytes > self._peak[2]:  # it was at one of these moments, or is now
            heights = [*map(sum, rows)]
            inside = heights.index(max(heights)) if self.peak_wall in walls else None
            self._peak = action, inside, self.peak_bytes
        self.action, self._boundary = "", self.held
        self.actions[action] = Acted(
            work + self.work,
            self._found,
            self._boundary,
            tuple(kinds),
            tuple(rows),
            sum(wall <= began for wall in walls),
            tuple(self.called),
            products,
        )
        self._changes.append((action, None, None, None))

    def ended(self, alive: list[Alive], sent: dict[str, int]) -> None:
        """The program has: `run` is its dry run. `alive`: at the peak."""
        self.run = DryRun(
            self.start,
            self.actions,
            tuple(row._replace(start=0) for row in together(alive)),
            *self._peak[:2],
            tuple(self.rises),
            sent | self.sent,
            self.set_up_bytes,
        )

    def at_peak(self, alive):
        return super().at_peak(each for each in alive if each.of in (None, self.replica))

    @property
    def held(self) -> dict[str, int]:
        """kind -> bytes now."""
        return {kind: size for kind, size in self.levels.items() if size and kind not in APART}

    def account(self) -> Account:
        rows, moments = {}, []
        for action, storage, _before, state in self._changes:
            if storage is None:
                moments.append(Moment(action, "end"))
            elif not state:
                if storage in rows:
                    rows[storage][4] = len(moments)
            elif state[0] not in APART:
                name, (kind, size) = words(storage.maker), state
                row = rows.setdefault(
                    storage, [name, kind, 0, len(moments), None, storage.made, storage.module]
                )
                if row[1] == "temporaries":
                    row[1] = kind
                if size > row[2]:
                    row[2] = size
                    moments.append(Moment(action, name))
        held = (
            Held(*row[:4], len(moments) if row[4] is None else row[4], *row[5:])
            for row in rows.values()
        )
        return Account(tuple(held), tuple(moments))


class Journals:
    """The journals of replicas as one balance: what is one's alone is in no other's."""

    def __init__(self, journals: list[Journal]):
        self._journals = journals

    def _of(self, storage) -> list[Journal]:
        return self._journals if storage.of is None else [self._journals[storage.of]]

    def change(self, storage, state, wall) -> None:
        before = storage.counted
        for journal in self._of(storage):
            storage.counted = before
            journal.change(storage, state, wall)

    def name(self, storage, name: str) -> None:
        before = storage.maker
        for journal in self._of(storage):
            storage.maker = before
            journal.name(storage, name)

    def steps_begin(self, wall: int) -> None:
        for journal in self._journals:
            journal.steps_begin(wall)

    def listen(self) -> None:
        for journal in self._journals:
            journal.listen()

    def readings(self) -> None:
        """Each journal reads its own when its action ends."""

    @property
    def levels(self) -> dict[str, int]:
        return self._journals[0].levels
