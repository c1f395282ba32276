"""What is wrong with a `peak_bytes` of one's own: the mistake, then the mend.

    peak_bytes(model, batch, optimizer, dtype) -> bytes, or {kind: bytes at the peak}

Twenty seeded sizes (memory_mistakes.py): MLPs, on which every byte counts, and transformers whose peak is at the loss or in the
update, on which 1% may be missing. The ledger's count is right, and so is that of torch unobserved, which is a few numbers less.
A wrong answer is compared with those that each known mistake would give: on all twenty, then where it is wrong, then by what it
has too much or too little of.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from numbers import Real

import torch

from ..core import MEMORY_KINDS
from .memory_mistakes import KINDS, MISTAKES, SIZES, Case, Mistake, cases

__all__ = ["KINDS", "MISTAKES", "cases", "peak_findings", "right"]

NEAR = 0.01  # of the right number: for transformers, and for telling a mistake


def peak_findings(peak_bytes: Callable) -> list[str]:
    """Sentences about `peak_bytes(model, batch, optimizer, dtype)`; empty when right.

    model      the widths of an MLP, as (16, 64, 10): Linear layers with bias, ReLU or tanh between; or a GPTConfig
    batch      samples        optimizer   "sgd", "momentum", "adam"        dtype   of weights and activations
    returns    bytes: a number, or {kind: bytes} at the peak, with the kinds weights, gradients, optimizer, activations, temporaries
    """
    told, kinds = [], []
    for case in cases():
        try:
            answer = peak_bytes(case.model, case.batch, case.optimizer, case.dtype)
        except Exception as error:  # a student's code: whatever it raises is a finding
            return [f"On {case} your function raised {type(error).__name__}: {error}. Call it alone with these."]
        if isinstance(answer, Mapping):
            if strange := set(answer) - set(MEMORY_KINDS):
                return [f"{', '.join(map(repr, sorted(map(str, strange))))} is no kind of memory: take of {', '.join(MEMORY_KINDS)}."]
            counts = {kind: number_of(value) for kind, value in answer.items()}
            if None in counts.values():
                kind = next(kind for kind, count in counts.items() if count is None)
                return [f"On {case} your function gave {answer[kind]!r} for {kind}: let each kind have a number of bytes."]
            kinds.append((case, counts))
            answer = sum(counts.values())
        if (number := number_of(answer)) is None:
            return [f"On {case} your function gave {answer!r}: return a number of bytes."]
        told.append(number)
    wrong = [(case, number) for case, number in zip(cases(), told) if not right(case, number)]
    if wrong:
        return [known(told) or of_another_unit(told) or of_another_format(wrong) or known_where_wrong(told) or plainly(wrong)]
    return kind_findings(kinds)


def number_of(value) -> int | float | None:
    """A count of bytes as Python has it, be it numpy's, torch's or a fraction; None where it is none."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not (isinstance(value, Real) or hasattr(value, "__index__")) or isinstance(value, torch.Tensor):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # an array of several numbers, or far too large a one
        return None
    if not math.isfinite(number) or number < 0:
        return None
    return int(number) if number == int(number) else number


def right(case: Case, number: float) -> bool:
    return any(abs(number - count) <= (NEAR * count if case.is_gpt else 0) for count in (case.account.peak_bytes, case.unobserved.account.peak_bytes))


# -- which mistake ----------------------------------------------------------------------------------------------------


def known(told: list[float]) -> str | None:
    """The mistake that explains all numbers."""
    return next((mistake.sentence for mistake in MISTAKES if any(
        all(explained(case, number, its) for case, number, its in zip(cases(), told, way)) for way in ways(mistake))), None)


def known_where_wrong(told: list[float]) -> str | None:
    """The mistake that explains the numbers that are wrong, of MLPs if any of these is, and speaks least against the others."""
    rows = [(at, case, number) for at, (case, number) in enumerate(zip(cases(), told))]
    wrong = [row for row in rows if not right(*row[1:])]
    is_gpt = wrong[0][1].is_gpt
    rows, wrong = ([row for row in some if row[1].is_gpt == is_gpt] for some in (rows, wrong))
    found = []
    for mistake in MISTAKES:
        for way in ways(mistake):
            if all(explained(case, number, way[at]) for at, case, number in wrong):
                against = sum(not explained(case, number, way[at]) for at, case, number in rows)
                found.append((against, sum(abs(number - way[at]) for at, case, number in wrong), mistake.sentence))
    if not found:
        return None
    least = min(each[:2] for each in found)
    sentences = dict.fromkeys(sentence for *how, sentence in found if tuple(how) == least)
    if len(sentences) > 2:  # then the numbers do not tell
        return None
    return f"{len(wrong)} of {SIZES} sizes are wrong, {'transformers' if is_gpt else 'MLPs'}; the first is {wrong[0][1]}. " + " Or: ".join(sentences)


@cache
def ways(mistake: Mistake) -> list[tuple[float, ...]]:
    """Each way of making it, as its numbers for all cases: by the ledger's count, then by torch's own."""
    return [way for counts in (cases(), [case.unobserved for case in cases()]) for way in zip(*map(mistake.numbers, counts))]


def explained(case: Case, number: float, its: float) -> bool:
    """Whether a mistake that gives `its` explains a number: of a wrong one, nearly all that is wrong with it."""
    off, peak = abs(number - its), case.account.peak_bytes
    return off <= NEAR * peak and (right(case, number) or off <= (0.5 if case.is_gpt else 0.1) * abs(number - peak))


def of_another_unit(told: list[float]) -> str:
    """Of answers that are all far below the weights alone, whatever else is wrong with them."""
    case, number = cases()[0], told[0]
    if not all(0 < number < case.of("weights") / 20 for case, number in zip(cases(), told)):
        return ""
    return f"On {case} you gave {number:,}, and its weights alone are {case.of('weights'):,} bytes. In MB? Return bytes."


def of_another_format(wrong: list[tuple[Case, float]]) -> str:
    """Of answers that are short on float64 and right elsewhere."""
    if not all(case.dtype == torch.float64 and number < 0.6 * case.account.peak_bytes for case, number in wrong):
        return ""
    return f"{len(wrong)} of {SIZES} sizes are wrong, all of them float64, whose values take 8 bytes and not 4: use dtype.itemsize."


def plainly(wrong: list[tuple[Case, float]]) -> str:
    """The first wrong number, or the first that is off by exactly one thing that has a name, if most of these are."""
    alike: dict[tuple, list] = {}
    for case, number in wrong:
        for name, count in case.quantities.items():
            for gap in (number - case.account.peak_bytes, number - case.unobserved.account.peak_bytes):
                if abs(gap) == count and not case.is_gpt:
                    alike.setdefault((name, gap > 0), []).append((case, number))
    (case, number), exactly = wrong[0], ""
    if alike:
        (name, _), those = max(alike.items(), key=lambda item: len({str(case) for case, _ in item[1]}))
        if 2 * len(those) >= sum(not case.is_gpt for case, _ in wrong):
            (case, number), exactly = those[0], f", exactly {name}"
    account = case.account
    if exactly and abs(number - account.peak_bytes) != case.quantities[name]:
        account = case.unobserved.account
    moment, gap = account.moments[account.peak_moment], number - account.peak_bytes
    parts = ", ".join(f"{kind} {count:,}" for kind, count in account.kinds(account.peak_moment).items())
    where = {"F": "forward", "B": "backward", "U": "update"}[moment.action[1]]
    return (f"{len(wrong)} of {SIZES} sizes are wrong. On {case} you gave {number:,} bytes, {abs(gap):,.0f} too {'many' if gap > 0 else 'few'}{exactly}. "
            f"The peak is in the {where} of step {int(moment.action[2:]) + 1}, when {moment.name} is made: {parts}.")


def kind_findings(kinds: list[tuple[Case, Mapping]]) -> list[str]:
    """Of answers whose totals are right."""
    for case, answer in kinds:
        account = min((case.account, case.unobserved.account), key=lambda one: abs(one.peak_bytes - sum(answer.values())))
        expected = account.kinds(account.peak_moment)
        off = [kind for kind in expected | dict(answer) if abs(answer.get(kind, 0) - expected.get(kind, 0)) > NEAR * case.account.peak_bytes]
        if "gradients" in off and "activations" in off and answer.get("gradients", 0) < expected.get("gradients", 0):
            return ["The total is right and the kinds are not: a weight's gradient outlives the backward. It is no activation: count it as gradients."]
        if off:
            told = "; ".join(f"{kind} {answer.get(kind, 0):,}, not {expected.get(kind, 0):,}" for kind in off)
            return [f"The total is right and the kinds are not: on {case} {told}."]
    return []
