"""The check of a checkpoint of one's own: right answers pass, and each wrong one is told by its own sentence."""

from contextlib import nullcontext

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_s

from bigtrain_lab.checks import checkpoint_findings
from bigtrain_lab.techniques.checkpoint import checkpoint, checkpoint_by_function

pytestmark = pytest.mark.usefixtures("one_thread")


class Again(torch.autograd.Function):
    """A student's: one node, with a token that needs a gradient. `fault` names what is left out."""

    @staticmethod
    def forward(ctx, fault, fn, kwargs, token, *inputs):
        ctx.fault, ctx.fn, ctx.kwargs, ctx.inputs = fault, fn, kwargs, inputs
        ctx.state = torch.get_rng_state()
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        if fault == "output_of_another_call":
            fn(*inputs, **kwargs)
        return fn(*inputs, **({} if fault == "kwargs_dropped_in_the_forward" else kwargs))

    @staticmethod
    def backward(ctx, dy):
        fault, before = ctx.fault, torch.get_rng_state()
        if fault == "wrong_gradient":
            dy = dy * 2
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.inputs]
        if fault != "rng_not_restored":
            torch.set_rng_state(ctx.state)
        under = nullcontext() if fault == "autocast_forgotten" else torch.autocast("cpu", ctx.autocast[1], ctx.autocast[0])
        with torch.enable_grad(), under:
            y = ctx.fn(*inputs, **({} if fault == "kwargs_dropped" else ctx.kwargs))
        if fault == "recompute_held":
            HELD.append(y)
        if fault != "rng_left_rewound":
            torch.set_rng_state(before)
        torch.autograd.backward(y, dy, retain_graph=fault == "recompute_held")
        return None, None, None, None, *(None if fault == "input_gets_none" else x.grad for x in inputs)


HELD: list = []


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
        return y
    return checkpoint


def by_hooks(fn, *args, **kwargs):
    """Another student's: right in all but that it keeps what it was to let go, through hooks that hold the tensors."""
    with saved_tensors_hooks(lambda t: (t,), lambda packed: packed[0]):
        return fn(*args, **kwargs)


WRONG = {
    "rng_not_restored": "The second forward drew another dropout mask: gradient of a different function.",
    "rng_left_rewound": "The gradient is right, but later random numbers repeat: restore the state after the recompute too",
    "rewound_after_the_forward": "Numbers drawn after the forward are not those of the plain run",
    "graph_kept": "Peak equals keep-all: after the forward 2 of 2 tensors inside fn are still held. The first forward must run without a graph",
    "recompute_held": "What the recompute made is still held after the backward",
    "autocast_forgotten": "bfloat16 forward, float32 recompute",
    "kwargs_dropped": "`mask=` did not reach the recompute",
    "kwargs_dropped_in_the_forward": "`mask=` did not reach the forward",
    "no_grad_input_dies": "With an input that needs no gradient the weights got none",
    "wrong_gradient": "The gradient of the input and the weight inside fn and the bias inside fn is wrong",
    "input_gets_none": "No gradient reached the input",
    "nothing_returned": "Your function returned nothing where fn returns a tensor",
    "gradients_left_off": "Gradients are still switched off after your function",
}


@pytest.mark.parametrize("right", [checkpoint, student(), lambda fn, *a, **k: torch_s(fn, *a, use_reentrant=False, **k)],
                         ids=["the library's", "a Function with a token", "torch's"])
def test_right_answers_pass(right):
    state = torch.get_rng_state()
    assert checkpoint_findings(right) == []
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("fault", WRONG)
def test_each_wrong_answer_has_its_sentence_and_no_other(fault):
    (sentence,) = checkpoint_findings(student(fault))
    HELD.clear()
    assert sentence.startswith(WRONG[fault])
    assert torch.is_grad_enabled()


def test_tensors_kept_by_hooks_are_a_graph_kept():
    (sentence,) = checkpoint_findings(by_hooks)
    assert sentence.startswith(WRONG["graph_kept"])


def test_the_ten_lines_fail_by_their_two_limits_that_a_check_can_see():
    refused, dies = checkpoint_findings(checkpoint_by_function)
    assert refused.startswith("`mask=` was refused") and "take **kwargs" in refused
    assert dies.startswith(WRONG["no_grad_input_dies"])


def test_whatever_it_raises_is_a_finding():
    def broken(fn, *args, **kwargs):
        raise KeyError("x")
    (sentence,) = checkpoint_findings(broken)
    assert sentence == ("Your function raised KeyError: 'x'. Call it alone: checkpoint(torch.sin, torch.ones(3, requires_grad=True)).sum().backward().")
