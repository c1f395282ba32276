"""What is wrong with a `checkpoint` of one's own: the mistake, then the mend.

    checkpoint(fn, *args, **kwargs)     right: fn's output; the plain run's gradients, bit for bit, added to those that are there; the
                                        random numbers that the plain run would draw afterwards; nothing of fn's inside held in
                                        between nor afterwards; fn run twice, once in the forward and once in the backward

fn is a witness (witness.py): it writes down each time it runs what it was given, what it drew, in which number format it computed
and what it made, so that a wrong gradient is told by its cause. Only loss.backward() is asked for: an autograd Function can be right,
and so can a second run that stops as soon as all is there that the backward needs.
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from ..core import Impossible
from .witness import MADE, Witness, plainly, start, step


def checkpoint_findings(checkpoint: Callable) -> list[str]:
    """Sentences about `checkpoint(fn, *args, **kwargs)`, for functions of tensors that return a tensor; empty when it is right."""
    findings = []
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for probe in WHERE:
            try:
                found = probe(checkpoint)
            except Impossible as error:
                found = str(error)
            except Exception as error:  # a student's code: whatever it raises is a finding
                found = f"Your function raised {type(error).__name__}: {error}. {WHERE[probe]}"
            if found and found not in findings:
                findings.append(found)
                if probe in (gradients, memory):  # without these the others say little
                    break
    return findings


# -- the probes -------------------------------------------------------------------------------------------------


def gradients(checkpoint: Callable) -> str:
    found, right = (step(call, Witness(), {"the input": start()}) for call in (checkpoint, plainly))
    if not torch.equal(found.output, right.output):
        return "The output is not fn's: call fn once, on the very arguments, and return what it returns."
    if none := found.without_gradient():
        return f"No gradient reached {' and '.join(none)}: in the backward run fn with a graph, and take that graph's backward."
    wrong = found.unlike(right)
    if not wrong:
        return ""
    what = f"The gradient of {' and '.join(wrong)} is wrong"
    if wrong == ["the input"] and torch.equal(found.gradients["the input"], 2 * right.gradients["the input"]):
        return f"{what}, exactly twice the right one: detach the arguments before the second run, else its backward adds to their .grad itself."
    if all(torch.allclose(found.gradients[name], right.gradients[name]) for name in wrong):
        return (f"The gradient of {' and '.join(wrong)} differs in its last bits: the same operations on the same arguments, in the same memory layout, "
                "give the same bits.")
    if not found.unlike(step(plainly, Witness(), {"the input": start()}, loss=Tensor.sum)):
        return f"{what}: it is that of the output's sum. Hand the second graph dL/dy, which your backward is given."
    return f"{what}: in the backward run fn on the arguments of the forward, and hand it dL/dy."


def memory(checkpoint: Callable) -> str:
    witness = Witness()
    y = checkpoint(witness, start())
    if len(witness.runs) != 1:
        return f"fn ran {len(witness.runs)} times in the forward: once is enough."
    if held := witness.alive():
        return (f"{'Peak equals keep-all: after' if held == MADE else 'After'} the forward {held} of {MADE} tensors inside fn are still held. "
                "The first forward must run without a graph, or with one whose saved tensors are let go.")
    witness.backward(y.sum())
    if len(witness.runs) == 1:
        return ("fn did not run again in the backward, so what it made was kept in another form, as copies. Keep the arguments alone, and run fn "
                "on them again.")
    if len(witness.runs) > 2:
        return f"fn ran {len(witness.runs)} times: once in the forward and once in the backward is enough."
    if witness.alive():
        return "What the recompute made is still held after the backward: let its graph go, and keep none of its tensors."
    return ""


def random_numbers(checkpoint: Callable) -> str:
    found, right = (step(call, Witness(share=0.5), {"the input": start()}) for call in (checkpoint, plainly))
    drawn = [run.drawn for run in (*right.runs[:1], *found.runs)]
    if not torch.equal(drawn[0], drawn[1]):
        return "The first forward drew other numbers than the plain run: do not seed, only note the state that is there."
    if any(again is None or not torch.equal(again, drawn[0]) for again in drawn[2:]) or found.unlike(right):
        return ("The second forward drew another dropout mask: gradient of a different function. Note torch.get_rng_state() before the first "
                "forward, and set it before the second.")
    if not torch.equal(found.later[:3], right.later[:3]):
        return "Numbers drawn after the forward are not those of the plain run: note the random state before fn, and set it in the backward only."
    if not torch.equal(found.later, right.later):
        return ("The gradient is right, but later random numbers repeat: restore the state after the recompute too, to what it was just before.")
    return ""


def formats(checkpoint: Callable) -> str:
    for forward, backward in ((torch.bfloat16, None), (torch.float16, None), (None, torch.bfloat16)):
        witness, x, left = Witness(), start(), None
        with under(forward):
            y = checkpoint(witness, x)
        try:
            with under(backward):
                witness.backward(y.float().square().sum())
        except Exception as error:  # often the consequence of what is looked for
            left = error
        used = [str(run.dtype).removeprefix("torch.") for run in witness.runs]
        if len(set(used)) > 1:
            where = ", the backward under autocast" if backward else ""
            return (f"{used[0]} forward, {used[1]} recompute{where}: note in the forward whether autocast is on and in which format, "
                    "and run the second forward under the same.")
        if left:
            raise left
        if torch.is_autocast_enabled("cpu"):
            torch.set_autocast_enabled("cpu", False)
            return "Autocast is still on after your backward: enter it as a context, which ends."
    return ""


def under(dtype: torch.dtype | None):
    return torch.autocast("cpu", dtype) if dtype else nullcontext()


def arguments(checkpoint: Callable) -> str:
    for second in (start() * 0.3 + 1, torch.arange(24).reshape(4, 6)):
        inputs = lambda: {"the input": start(), "the second input": second.detach().clone().requires_grad_(second.requires_grad)}
        try:
            found = step(checkpoint, witness := Witness(), inputs())
        except TypeError as error:
            if witness.runs and witness.runs[0].given[0] == 2:
                raise
            return f"A second argument was refused ({error}): take *args, and hand all of them to fn both times."
        given = [run.given[0] for run in found.runs]
        if set(given) != {2}:
            which = "the forward" if given[0] != 2 else "the recompute"
            return f"fn takes two arguments here and was given {min(given)} in {which}: keep *args, all of them, and hand them to fn both times."
        if wrong := found.unlike(step(plainly, Witness(), inputs())):
            return (f"With two inputs the gradient of {' and '.join(wrong)} is wrong: hand fn both in their order, and return a gradient for each "
                    "that needs one.")
    return ""


def keywords(checkpoint: Callable) -> str:
    inputs, mask = {"the input": start()}, lambda: (start(False) > 0).float().requires_grad_()
    witness, left = Witness(), None
    try:
        y = checkpoint(witness, *inputs.values(), mask=mask())
    except TypeError as error:
        return f"`mask=` was refused ({error}): take **kwargs, and hand them to fn both times."
    try:
        witness.backward(y.sum())
    except Exception as error:
        left = error
    masked = ["mask" in run.given[1] for run in witness.runs]
    if not all(masked):
        return ("`mask=` did not reach the recompute: keep kwargs beside args, and hand both to fn again." if masked[0] else
                "`mask=` did not reach the forward: take **kwargs, and hand them to fn both times.")
    if left:
        raise left
    found, right = (step(call, Witness(), {"the input": start(), "`mask=`": mask()}) for call in (checkpoint, plainly))
    wrong = found.unlike(right)
    if wrong == ["`mask=`"]:
        return ("`mask=` needs a gradient too, and got none or another: hand fn the very tensor in the recompute, or make it an input of the Function.")
    return f"With `mask=` the gradient of {' and '.join(wrong)} is another: hand the same mask to the second forward." if wrong else ""


def gradients_before(checkpoint: Callable) -> str:
    found, right = (step(call, Witness(), {"the input": start()}, before=1.0) for call in (checkpoint, plainly))
    if wrong := found.unlike(right):
        return (f"Gradients were there before the step, as in accumulation, and those of {' and '.join(wrong)} are not added to: let backward() add to "
                ".grad, and neither clear nor set it.")
    return ""


def one_after_another(checkpoint: Callable) -> str:
    def both(call):
        first, second = Witness(), Witness()
        return step(lambda fn, x: call(second, call(fn, x)), first, {"the input": start()}, beside=second)
    found, right = both(checkpoint), both(plainly)
    wrong = found.unlike(right) or [name for name in found.gradients if len(found.runs) > 2]
    if wrong:
        return (f"Right alone, but with one call after another the gradient of {wrong[0]} is {'asked for again' if len(found.runs) > 2 else 'wrong'}: detach "
                "the arguments before the second run, and keep each call's own by itself (in ctx, not in one place for all).")
    return ""


def input_without_gradient(checkpoint: Callable) -> str:
    witness = Witness()
    y = checkpoint(witness, start(False))
    if y.requires_grad:
        witness.backward(y.sum())
    if all(p.grad is not None for p in witness.linear.parameters()):
        return ""
    return ("With an input that needs no gradient the weights got none: autograd leaves a Function out where no input of it needs one. Give it one "
            "more that does, an empty tensor, or use saved-tensor hooks.")


WHERE = {
    gradients: "Call it alone: checkpoint(torch.sin, torch.ones(3, requires_grad=True)).sum().backward().",
    memory: "That was with a function of one tensor, twice in a row.",
    random_numbers: "That was with a function that uses dropout.",
    formats: "That was under `with torch.autocast(\"cpu\", ...):` in bfloat16, then float16, the backward outside it; then the other way round.",
    arguments: "That was checkpoint(fn, x, z), z of floats or of whole numbers.",
    keywords: "That was checkpoint(fn, x, mask=mask).",
    gradients_before: "That was with a .grad at each weight before the step.",
    one_after_another: "That was checkpoint(second, checkpoint(first, x)): the second one's input comes from a graph.",
    input_without_gradient: "That was with an input that needs no gradient.",
}
