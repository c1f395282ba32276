"""The check of a checkpoint of one's own: right answers of every style pass, and each wrong one is told by its own sentence."""

from contextlib import nullcontext

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_s
from torch.utils.checkpoint import set_checkpoint_early_stop

from bigtrain_lab.checks import checkpoint_findings
from bigtrain_lab.techniques.checkpoint import checkpoint, checkpoint_by_function

HELD: list = []


class Again(torch.autograd.Function):
    """A student's: one node, with a token that needs a gradient. `fault` names what is left out."""

    @staticmethod
    def forward(ctx, fault, fn, kwargs, token, *inputs):
        ctx.fault, ctx.fn, ctx.kwargs, ctx.inputs = fault, fn, kwargs, inputs
        if fault == "one_place_for_all":
            HELD[:] = [fn, inputs]
        if fault == "seeds":
            torch.manual_seed(3)
        ctx.state = torch.get_rng_state()
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        if fault == "twice_in_the_forward":
            fn(*inputs, **kwargs)
        if fault == "second_dropped_in_the_forward":
            inputs = inputs[:1]
        return fn(*inputs, **({} if fault == "kwargs_dropped_in_the_forward" else kwargs))

    @staticmethod
    def backward(ctx, dy):
        fault, before, fn, inputs = ctx.fault, torch.get_rng_state(), ctx.fn, ctx.inputs
        if fault == "one_place_for_all":
            fn, inputs = HELD
        if fault == "wrong_gradient":
            dy = dy * 3
        if fault == "of_the_sum":
            dy = torch.ones_like(dy)
        if fault == "cleared":
            for weight in fn.linear.parameters():
                weight.grad = None
        if fault == "all_arguments_need_gradients":
            inputs = [x.detach().requires_grad_() for x in inputs]
        elif fault != "not_detached":
            inputs = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        used = {"second_dropped": inputs[:1], "swapped": inputs[::-1]}.get(fault, inputs)
        kwargs = {"kwargs_dropped": {}, "kwargs_detached": {name: x.detach() for name, x in ctx.kwargs.items()}}.get(fault, ctx.kwargs)
        if fault != "rng_not_restored":
            torch.set_rng_state(ctx.state)
        dtype = torch.bfloat16 if fault == "always_bfloat16" else ctx.autocast[1]
        under = torch.autocast("cpu", dtype, ctx.autocast[0])
        if fault == "autocast_forgotten" or fault == "autocast_only_where_on" and not ctx.autocast[0]:
            under = nullcontext()
        with nullcontext() if fault == "no_graph" else torch.enable_grad(), under:
            if fault == "three_runs":
                fn(*used, **kwargs)
                torch.set_rng_state(ctx.state)
            y = fn(*used, **kwargs)
        if fault == "recompute_held":
            HELD.append(y)
        if fault == "recompute_held_detached":
            HELD.append(y.detach())
        if fault == "graph_on_ctx":
            ctx.again = y
        if fault != "rng_left_rewound":
            torch.set_rng_state(before)
        torch.autograd.backward(y, dy, retain_graph=fault in ("recompute_held", "graph_on_ctx"))
        return None, None, None, None, *(None if fault == "input_gets_none" else x.grad for x in inputs)


def student(fault=""):
    def checkpoint(fn, *args, **kwargs):
        if fault == "graph_kept":
            return fn(*args, **kwargs)
        if fault == "nothing_returned":
            return None
        y = Again.apply(fault, fn, kwargs, torch.empty(0, requires_grad=fault != "no_grad_input_dies"), *args)
        if fault == "rewound_after_the_forward":
            torch.set_rng_state(y.grad_fn.state)
        if fault == "gradients_left_off":
            torch.set_grad_enabled(False)
        return y.detach() if fault == "detached_output" else y
    return checkpoint


def kept_by_hooks(pack, unpack=lambda kept: kept):
    """Other students': all is kept in another form, and nothing runs again."""
    def checkpoint(fn, *args, **kwargs):
        with saved_tensors_hooks(pack, unpack):
            return fn(*args, **kwargs)
    return checkpoint


# -- right ones ---------------------------------------------------------------------------------------------------------


class Whole(torch.autograd.Function):
    """Another's: tensors through save_for_backward, fork_rng around the second run, every gradient by autograd.grad."""

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.call, ctx.state = call, torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        ctx.under = torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu"), dtype=torch.get_autocast_dtype("cpu"))
        return call(*tensors)

    @staticmethod
    def backward(ctx, dy):
        tensors = [t.detach().clone().requires_grad_(needed) for t, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:])]
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), ctx.under:
            torch.set_rng_state(ctx.state)
            y = ctx.call(*tensors)
        y.backward(dy)
        return None, *(t.grad for t in tensors)


def by_names(fn, *args, **kwargs):
    """Keyword tensors are inputs of the Function as positional ones are; a dummy lets it live."""
    names = list(kwargs)

    def call(dummy, *tensors):
        n = len(args)
        return fn(*tensors[:n], **dict(zip(names, tensors[n:])))
    return Whole.apply(call, torch.zeros(1, requires_grad=True), *args, *kwargs.values())


def by_tickets(fn, *args, keep=None, **kwargs):
    """Hooks that keep a number for each saved tensor; the first that is asked for runs fn again and fills all."""
    state, under = torch.get_rng_state(), (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    count, filled = 0, {}

    def pack(tensor):
        nonlocal count
        count += 1
        if keep is not None and count == 3:
            keep.append(tensor.detach())
        return count - 1

    def unpack(ticket):
        if ticket not in filled:
            now, saved = torch.get_rng_state(), []
            torch.set_rng_state(state)
            with torch.enable_grad(), torch.autocast("cpu", under[1], under[0]), saved_tensors_hooks(lambda t: saved.append(t.detach()), lambda t: t):
                fn(*(x.detach().requires_grad_(x.requires_grad) for x in args), **kwargs)
            torch.set_rng_state(now)
            filled.update(enumerate(saved))
        return filled.pop(ticket)

    with saved_tensors_hooks(pack, unpack):
        return fn(*args, **kwargs)


def torch_s_to_the_end(fn, *args, **kwargs):
    with set_checkpoint_early_stop(False):
        return torch_s(fn, *args, use_reentrant=False, **kwargs)


RIGHT = {"the library's": checkpoint, "a Function with a token": student(), "torch's": lambda fn, *a, **k: torch_s(fn, *a, use_reentrant=False, **k),
         "torch's, to the end": torch_s_to_the_end, "tensors as inputs": by_names, "tickets": by_tickets}


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name):
    state = torch.get_rng_state()
    assert checkpoint_findings(RIGHT[name]) == []
    assert torch.equal(torch.get_rng_state(), state)


# -- wrong ones ---------------------------------------------------------------------------------------------------------

WRONG = {
    "rng_not_restored": "The second forward drew another dropout mask: gradient of a different function.",
    "rng_left_rewound": "The gradient is right, but later random numbers repeat: restore the state after the recompute too",
    "rewound_after_the_forward": "Numbers drawn after the forward are not those of the plain run",
    "seeds": "The first forward drew other numbers than the plain run: do not seed",
    "graph_kept": "Peak equals keep-all: after the forward 5 of 5 tensors inside fn are still held. The first forward must run without a graph",
    "recompute_held": "What the recompute made is still held after the backward",
    "recompute_held_detached": "What the recompute made is still held after the backward",
    "graph_on_ctx": "What the recompute made is still held after the backward",
    "twice_in_the_forward": "fn ran 2 times in the forward: once is enough",
    "three_runs": "fn ran 3 times: once in the forward and once in the backward is enough",
    "autocast_forgotten": "bfloat16 forward, float32 recompute: note",
    "always_bfloat16": "float16 forward, bfloat16 recompute: note",
    "autocast_only_where_on": "float32 forward, bfloat16 recompute, the backward under autocast: note",
    "second_dropped": "fn takes two arguments here and was given 1 in the recompute: keep *args",
    "second_dropped_in_the_forward": "fn takes two arguments here and was given 1 in the forward: keep *args",
    "swapped": "With two inputs the gradient of ",
    "all_arguments_need_gradients": "Your function raised RuntimeError: only Tensors of floating point",
    "kwargs_dropped": "`mask=` did not reach the recompute",
    "kwargs_dropped_in_the_forward": "`mask=` did not reach the forward",
    "kwargs_detached": "`mask=` needs a gradient too",
    "no_grad_input_dies": "With an input that needs no gradient the weights got none",
    "wrong_gradient": "The gradient of the input and the weight inside fn and the bias inside fn is wrong: in the backward run fn on the arguments",
    "of_the_sum": "The gradient of the input and the weight inside fn and the bias inside fn is wrong: it is that of the output's sum",
    "not_detached": "The gradient of the input is wrong, exactly twice the right one: detach the arguments",
    "input_gets_none": "No gradient reached the input",
    "cleared": "Gradients were there before the step, as in accumulation, and those of the weight inside fn and the bias inside fn are not added to",
    "one_place_for_all": "Right alone, but with one call after another the gradient of",
    "no_graph": "The second forward ran without a graph, so it has no backward",
    "detached_output": "What your function returned has no graph",
    "nothing_returned": "Your function returned nothing where fn returns a tensor",
    "gradients_left_off": "Gradients are still switched off after your function",
}


@pytest.mark.parametrize("fault", WRONG)
def test_each_wrong_answer_has_its_sentence_and_no_other(fault):
    (sentence,) = checkpoint_findings(student(fault))
    HELD.clear()
    assert sentence.startswith(WRONG[fault])
    assert torch.is_grad_enabled()


def flat(tensor):
    return tensor.detach().as_strided((tensor.numel(),), (1,)), tensor.shape, tensor.stride()


@pytest.mark.parametrize("pack,unpack", [(lambda t: (t,), lambda kept: kept[0]), (lambda t: t.detach(), lambda t: t),
                                         (flat, lambda kept: kept[0].as_strided(*kept[1:]))], ids=["tensors", "detached", "views"])
def test_tensors_kept_by_hooks_are_a_graph_kept(pack, unpack):
    (sentence,) = checkpoint_findings(kept_by_hooks(pack, unpack))
    assert sentence.startswith(WRONG["graph_kept"])


@pytest.mark.parametrize("pack,unpack", [(lambda t: t.detach().clone(), lambda t: t), (lambda t: t.detach().double(), lambda t: t.float()),
                                         (lambda t: t.detach().numpy().copy(order="K"), torch.from_numpy)], ids=["clone", "double", "numpy"])
def test_copies_kept_by_hooks_are_no_recompute(pack, unpack):
    (sentence,) = checkpoint_findings(kept_by_hooks(pack, unpack))
    assert sentence.startswith("fn did not run again in the backward, so what it made was kept in another form, as copies.")


def test_one_tensor_kept_is_not_called_all():
    def keeps_one(fn, *args, **kwargs):
        return by_tickets(lambda *a, **k: fn(*a, **k), *args, **kwargs, keep=HELD)

    (sentence,) = checkpoint_findings(keeps_one)
    HELD.clear()
    assert sentence.startswith("After the forward 1 of 5 tensors inside fn are still held.")


def test_a_gradient_that_is_off_by_rounding_is_told_so():
    in_another_layout = kept_by_hooks(lambda t: t.detach().contiguous(), lambda t: t)
    (sentence,) = checkpoint_findings(in_another_layout)
    assert sentence.startswith("The gradient of the input differs in its last bits")


def test_the_ten_lines_fail_by_their_two_limits_that_a_check_can_see():
    refused, dies = checkpoint_findings(checkpoint_by_function)
    assert refused.startswith("`mask=` was refused") and "take **kwargs" in refused
    assert dies.startswith(WRONG["no_grad_input_dies"])


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_one_argument_and_torch_s_older_kind_are_refused_by_their_limits():
    def one_argument(fn, x):
        return student()(fn, x)

    second, mask = checkpoint_findings(one_argument)
    assert second.startswith("A second argument was refused") and mask.startswith("`mask=` was refused")
    found = checkpoint_findings(lambda fn, *a, **k: torch_s(fn, *a, use_reentrant=True, **k))
    assert "mask" in found[0] and found[1].startswith(WRONG["no_grad_input_dies"])


def test_whatever_it_raises_is_a_finding():
    def broken(fn, *args, **kwargs):
        raise KeyError("x")
    (sentence,) = checkpoint_findings(broken)
    assert sentence == ("Your function raised KeyError: 'x'. Call it alone: checkpoint(torch.sin, torch.ones(3, requires_grad=True)).sum().backward().")
