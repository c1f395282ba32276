"""The check of a `peak_bytes` of one's own: a right one passes, and each mistake is named by its own sentence."""

import re
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import prod

import numpy as np
import pytest
import torch

from bigtrain_lab.checks import peak_findings
from bigtrain_lab.checks.memory import KINDS, MISTAKES, cases, right
from bigtrain_lab.models import GPTConfig, gpt_steps, mlp_steps, parameter_shapes, saved_bytes


def solution(model, batch, optimizer, dtype, *, state=True, in_step=1, views=1, untied=False, kinds=False):
    """A right answer as a student writes it, from the shapes: the highest of a few moments. Its options make it wrong."""
    if isinstance(model, GPTConfig):
        model = replace(model, tied=model.tied and not untied)
        shapes, z = list(parameter_shapes(model, 0, model.pieces).values()), model.dtype.itemsize
        rows, V = batch * model.sequence, model.vocabulary
        saved = sum(row.bytes * (views if row.name == "clone" and row.bytes == 3 * rows * model.width * z else 1) for row in saved_bytes(model, 0, model.pieces, batch))
        at_the_loss = [dict(activations=saved, temporaries=(2 * rows * V + rows + 2) * z)]
        backwards = []
    else:
        z, layers = dtype.itemsize, list(zip(model, model[1:]))
        shapes = [shape for inner, outer in layers for shape in ((outer, inner), (outer,))]
        kept = [batch * width * z for width in model[1:-1]]
        logits = batch * model[-1] * z
        at_the_loss = [dict(activations=sum(kept) + logits, temporaries=2 * logits + (batch + 2) * z)]
        backwards, gradients = [], 0
        for i in reversed(range(len(layers))):
            inner, outer = layers[i]
            gradients += (inner + 1) * outer * z
            backwards.append(dict(gradients=gradients, activations=sum(kept[:i]),
                                  temporaries=(batch * outer + batch * inner * (i > 0) + 2) * z))
            if i:
                backwards.append(dict(gradients=gradients, activations=sum(kept[:i]), temporaries=(2 * batch * inner + 2) * z))
    numbers = [prod(shape) for shape in shapes]
    weights = sum(numbers) * z
    own = {"sgd": 0, "momentum": weights, "adam": 2 * weights + 4 * len(shapes)}[optimizer]
    pairs = list(zip([0, *numbers], numbers))
    temporaries = max(before + 2 * now for before, now in pairs) * z if optimizer == "adam" else 0
    update = dict(optimizer=own, gradients=weights, temporaries=temporaries + z)
    moments = [dict(moment, optimizer=own if in_step else 0) for moment in at_the_loss + backwards] + [update]
    totals = [dict(moment, weights=weights, optimizer=moment["optimizer"] if state else 0) for moment in moments]
    most = max(totals, key=lambda moment: sum(moment.values()))
    return most if kinds else sum(most.values())


def state_only(model, batch, optimizer, dtype):
    shapes = parameter_shapes(model, 0, model.pieces).values() if isinstance(model, GPTConfig) else [(o, i + 1) for i, o in zip(model, model[1:])]
    return (2 + {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]) * sum(map(prod, shapes)) * dtype.itemsize


def account_of(model, batch, optimizer, dtype):
    return next(c.account for c in cases() if (c.model, c.batch, c.optimizer, c.dtype) == (model, batch, optimizer, dtype))


def every_kind_at_its_most(*case):
    """The sum of the highest bars of a memory chart, kind by kind."""
    account, most = account_of(*case), 0
    for kind in KINDS:
        changes = [0] * (len(account.moments) + 1)
        for row in account.rows:
            if row.kind == kind:
                changes[row.born] += row.bytes
                changes[row.dies] -= row.bytes
        most += max(accumulate(changes))
    return most


def all_ever_made(*case):
    return sum(row.bytes for row in account_of(*case).rows)


def as_activations(*case):
    held = dict(solution(*case, kinds=True))
    held["activations"] = held.get("activations", 0) + held.pop("gradients", 0)
    return held


WRONG = {
    "weights_only": lambda *case: state_only(*case[:2], "sgd", case[3]) // 2,
    "weights_times_four_only": state_only,
    "no_optimizer_state": lambda *case: solution(*case, state=False),
    "first_step_peak": lambda *case: solution(*case, in_step=0),
    "counts_views_twice": lambda *case: solution(*case, views=3),
    "tied_twice": lambda *case: solution(*case, untied=True),
    "mb_is_mib": lambda *case: solution(*case) / 10**6 * 2**20,
    "sums_instead_of_peak": all_ever_made,
}


def steps(watched):
    return lambda model, batch, optimizer, dtype: (gpt_steps(model, batch, optimizer, watched=watched) if isinstance(model, GPTConfig) else
                                                   mlp_steps(model, batch, optimizer, dtype, watched=watched)).peak_bytes


def in_one_loop(model, batch, optimizer, dtype, mistake=""):
    """Another right answer for MLPs, bytes as they come and go in one walk back; or one with a mistake. Transformers as above."""
    if isinstance(model, GPTConfig):
        return solution(model, batch, optimizer, dtype)
    samples = 1 if mistake == "one_sample" else batch
    z, layers, bias = dtype.itemsize, list(zip(model, model[1:])), mistake != "no_biases"
    shapes = [shape for inner, outer in layers for shape in ((outer, inner), (outer,))[:1 + bias]]
    numbers = [prod(shape) for shape in shapes]
    weights = sum(numbers) * z
    moments = {"sgd": 0, "momentum": 1, "adam": 1 if mistake == "one_moment" else 2}[optimizer]
    state = weights * moments + 4 * len(shapes) * (optimizer == "adam" and mistake != "no_step_counts")
    state = 0 if mistake == "no_state" else state
    always = weights + (batch * model[0] * z if mistake == "inputs" else 0)
    base = always + (0 if mistake == "step_1" else state)
    kept, logits = [samples * width * z for width in model[1:-1]], samples * model[-1] * z
    scalars = 0 if mistake == "no_scalars" else 2 * z
    tensors = {"one_logits": 1, "two_logits": 2, "four_logits": 4}.get(mistake, 3)
    at_loss = base + (0 if mistake == "nothing_saved" else sum(kept)) + tensors * logits + samples * z + scalars
    backward, gradients = [], 0
    for i, (inner, outer) in reversed(list(enumerate(layers))):
        gradients += 0 if mistake == "no_gradients" else (inner + bias) * outer * z
        dx = samples * inner * z
        backward.append(base + gradients + sum(kept[:i]) + samples * outer * z + dx * (i > 0 or mistake == "first_dx") + scalars)
        backward += [base + gradients + sum(kept[:i]) + 2 * dx + scalars] * (i > 0)
    temporaries = {"no_temporaries": 0, "one_temporary": max(numbers), "denominator_let_go": 2 * max(numbers)}.get(
        mistake, max(before + 2 * now for before, now in zip([0, *numbers], numbers))) * z * (optimizer == "adam")
    update = always + state + (0 if mistake == "no_gradients" else weights) + temporaries + z
    match mistake:
        case "no_update": return max(at_loss, *backward)
        case "no_loss": return max(*backward, update)
        case "no_backward": return max(at_loss, update)
        case "loss_only": return at_loss
        case "update_only": return update
        case "backward_only": return max(backward)
        case "moments_added": return at_loss + sum(backward) + update
        case "peaks_added": return at_loss + max(backward) + update
        case _: return max(at_loss, *backward, update)


RIGHT = {"the highest of a few moments": solution, "by kind": lambda *case: solution(*case, kinds=True), "in one loop": in_one_loop,
         "the library's walk": steps(watched=True), "as torch's allocator counts, unobserved": steps(watched=False),
         "numpy's int": lambda *case: np.int64(solution(*case)), "a float": lambda *case: float(solution(*case)),
         "a fraction": lambda *case: Fraction(solution(*case)), "a tensor": lambda *case: torch.tensor(solution(*case)),
         "numpy's by kind": lambda *case: {kind: np.int64(count) for kind, count in solution(*case, kinds=True).items()}}


@pytest.mark.parametrize("style", RIGHT)
def test_right_answers_pass(style):
    assert peak_findings(RIGHT[style]) == []


FIRST = r"\d+ of 20 sizes are wrong, MLPs; the first is an MLP of the widths \(15, 14\), batch 40, adam, float32. "
IN_MLPS = {
    "no_state": FIRST + "Short by exactly 8 bytes a parameter: Adam's m and v. [^:]*$",
    "step_1": FIRST + "You gave step 1's peak",
    "one_moment": FIRST + "Short by one of Adam's moments",
    "no_step_counts": "Short by 4 bytes a tensor: Adam keeps a step count",
    "one_logits": FIRST + "Short by two tensors of logits: .* Or: The moment of the loss is missing",
    "two_logits": FIRST + "Short by one tensor of logits: .* Count three.$",
    "four_logits": r"6 of 20 .* 2,240 too many, exactly one tensor of logits\. The peak is in the backward of step 2",
    "no_scalars": r"\d+ of 20 .* 8 too few, exactly two numbers\.",
    "nothing_saved": "2 of 20 sizes are wrong, MLPs; the first .* The activations are missing",
    "first_dx": "You counted dx of the first layer",
    "no_biases": "The biases are missing",
    "one_sample": FIRST + "Activations and temporaries grow with the batch: you counted one sample.",
    "no_gradients": "The gradients are missing",
    "no_temporaries": "The update's moment is missing, or its temporaries",
    "one_temporary": "The update's moment is missing, or its temporaries",
    "denominator_let_go": "The update's moment is missing, or its temporaries",
    "inputs": "You counted the inputs",
    "no_update": "The update's moment is missing, or its temporaries",
    "no_loss": r"\d+ of 20 sizes are wrong, MLPs; .* The moment of the loss is missing",
    "no_backward": "The backward's moments are missing",
    "loss_only": "That is the moment of the loss alone.",
    "update_only": FIRST + "That is the update alone.",
    "backward_only": FIRST + "The moment of the loss is missing",
    "moments_added": FIRST + "You added moments",
    "peaks_added": FIRST + "You added moments",
}


@pytest.mark.parametrize("mistake", IN_MLPS)
def test_a_mistake_that_is_made_in_mlps_alone_is_named(mistake):
    (said,) = peak_findings(lambda *case: in_one_loop(*case, mistake))
    assert re.match(IN_MLPS[mistake], said), said


def test_a_mistake_that_is_made_in_transformers_alone_is_named():
    (said,) = peak_findings(lambda model, *rest: solution(model, *rest, state=not isinstance(model, GPTConfig)))
    assert re.match(r"9 of 20 sizes are wrong, transformers; the first is a GPT of 3 layers, width 10, 1 head, .*: Adam's m and v", said), said


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), -3, "12", [1], True, 1j, torch.zeros(3), np.zeros(2), 10**400])
def test_what_is_no_number_of_bytes_is_told(answer):
    (said,) = peak_findings(lambda *case: answer)
    assert said.endswith(f"your function gave {answer!r}: return a number of bytes.")
    (said,) = peak_findings(lambda *case: {"weights": answer})
    assert said.endswith(f"your function gave {answer!r} for weights: let each kind have a number of bytes.")


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_is_named(name):
    assert peak_findings(WRONG[name]) == [next(mistake.sentence for mistake in MISTAKES if mistake.name == name)]


def test_other_ways_of_making_a_mistake():
    (sums,) = (mistake.sentence for mistake in MISTAKES if mistake.name == "sums_instead_of_peak")
    assert peak_findings(every_kind_at_its_most) == [sums]
    (mib,) = (mistake.sentence for mistake in MISTAKES if mistake.name == "mb_is_mib")
    assert peak_findings(lambda *case: solution(*case) * 10**6 / 2**20) == [mib]


def test_gradients_are_no_activations():
    (said,) = peak_findings(as_activations)
    assert said.startswith("The total is right and the kinds are not: a weight's gradient outlives the backward.")
    (said,) = peak_findings(lambda *case: {"temporaries": solution(*case)})
    assert said.startswith("The total is right and the kinds are not: on an MLP") and "weights 0, not" in said


def test_an_unknown_mistake_is_told_by_its_numbers():
    (said,) = peak_findings(lambda *case: solution(*case) + (case[1] > 100))
    assert "2 of 20 sizes are wrong" in said and "1 too many" in said and "The peak is in the backward of step 2" in said
    (said,) = peak_findings(lambda *case: 1 / 0)
    assert "raised ZeroDivisionError" in said
    (said,) = peak_findings(lambda *case: None)
    assert "gave None: return a number of bytes" in said
    (said,) = peak_findings(lambda *case: {"activation": 3})
    assert "'activation' is no kind of memory" in said


@pytest.mark.parametrize("unit", [10**6, 2**20, 10**9, 10**3])
def test_an_answer_in_another_unit_is_shown_and_told(unit):
    for answer in (solution, state_only):  # whatever else is wrong with it
        number = answer(*next((c.model, c.batch, c.optimizer, c.dtype) for c in cases())) / unit
        (said,) = peak_findings(lambda *case, answer=answer: answer(*case) / unit)
        assert f"you gave {number:,}, and its weights alone are " in said and said.endswith("In MB? Return bytes.")


def test_a_format_that_is_not_asked_for_is_told():
    (said,) = peak_findings(lambda model, batch, optimizer, dtype: solution(model, batch, optimizer, torch.float32))
    how_many = sum(case.dtype == torch.float64 for case in cases())
    assert said == f"{how_many} of 20 sizes are wrong, all of them float64, whose values take 8 bytes and not 4: use dtype.itemsize."
    (said,) = peak_findings(lambda *case: solution(*case) + (case[3] == torch.float64))  # float64, and another mistake
    assert f"{how_many} of 20 sizes are wrong. On" in said and "1 too many" in said


def test_the_sizes_tell_every_mistake_from_every_other():
    """No two mistakes, and none and the right answer, give the same numbers on all sizes."""
    told = {name: [wrong(c.model, c.batch, c.optimizer, c.dtype) for c in cases()] for name, wrong in WRONG.items()}
    for name, numbers in told.items():
        assert any(not right(case, number) for case, number in zip(cases(), numbers)), name
    assert len({tuple(numbers) for numbers in told.values()}) == len(told)
    assert len(cases()) == 20 and {c.is_gpt for c in cases()} == {True, False} and {c.dtype for c in cases()} == {torch.float32, torch.float64}
