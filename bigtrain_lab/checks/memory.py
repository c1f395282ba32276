"""What is wrong with a `peak_bytes` of one's own: the mistake, then the mend.

    peak_bytes(model, batch, optimizer, dtype) -> bytes, or {kind: bytes at the peak}

Twenty seeded sizes: MLPs, on which every byte counts, and transformers whose peak is at the loss or in the update, on which 1%
may be missing. A mistake is an account of its own: it gives other numbers, on these sizes and not on those. So an answer is
compared with the right numbers first, and then with those that each known mistake would give on all twenty.
"""

import random
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from itertools import cycle
from math import prod
from typing import NamedTuple

import torch

from ..core import MEMORY_KINDS
from ..models import Account, GPTConfig, gpt_steps, mlp_steps
from ..models.tape import Held

SIZES, SEED = 20, 2
KINDS = ("weights", "gradients", "optimizer", "activations", "temporaries")
NEAR = 0.01  # of the right number: for transformers, and for telling a mistake


class Case:
    """One size, and its account."""

    def __init__(self, model: GPTConfig | tuple[int, ...], batch: int, optimizer: str, dtype: torch.dtype):
        self.model, self.batch, self.optimizer, self.dtype = model, batch, optimizer, dtype

    def __str__(self) -> str:
        how = f"batch {self.batch}, {self.optimizer}, {str(self.dtype).removeprefix('torch.')}"
        if not self.is_gpt:
            return f"an MLP of the widths {self.model}, {how}"
        c = self.model
        return (f"a GPT of {c.layers} layers, width {c.width}, {c.heads} heads, sequence {c.sequence}, vocabulary {c.vocabulary}"
                f"{', tied' * c.tied}, {how}")

    @property
    def is_gpt(self) -> bool:
        return isinstance(self.model, GPTConfig)

    @cached_property
    def account(self) -> Account:
        return self.counted()

    def counted(self, tied: bool | None = None) -> Account:
        if not self.is_gpt:
            return mlp_steps(self.model, self.batch, self.optimizer, self.dtype)
        config = self.model if tied is None else type(self.model)(**{**vars(self.model), "tied": tied})
        return gpt_steps(config, self.batch, self.optimizer)

    def changed(self, change: Callable[[Held], int]) -> int:
        """The peak if each storage had the bytes that `change` says."""
        return Account(tuple(row._replace(bytes=change(row)) for row in self.account.rows), self.account.moments).peak_bytes

    def of(self, *kinds: str) -> int:
        """Bytes of what outlives a backward."""
        after = self.account.after("B1")
        return sum(after.get(kind, 0) for kind in kinds)


@cache
def cases() -> tuple[Case, ...]:
    """Half MLPs, half transformers; of these every third is tied."""
    draw, found = random.Random(SEED), []
    optimizers, tied = cycle(("adam", "adam", "momentum", "adam", "sgd")), cycle((True, False, False))
    while len(found) < SIZES // 2:
        widths = tuple(draw.randint(4, 80) for _ in range(draw.randint(2, 5)))
        found.append(Case(widths, draw.choice((2, 5, 40, 150)), next(optimizers), draw.choice((torch.float32, torch.float32, torch.float64))))
    while len(found) < SIZES:
        heads = draw.choice((1, 2, 4))
        config = GPTConfig(layers=draw.randint(1, 4), width=heads * draw.randint(4, 10), heads=heads, sequence=draw.randint(8, 24),
                           vocabulary=draw.randint(300, 900), tied=next(tied))
        case = Case(config, draw.choice((1, 2, 6, 8)), next(optimizers), config.dtype)
        account = case.account
        moment = account.moments[account.peak_moment]
        if moment.action[0] == "U" or "log_probabilities" in moment.name or "logits" in moment.name:
            found.append(case)
    return tuple(found)


class Mistake(NamedTuple):
    """`numbers`: what an answer with this mistake may give for a case, each in its own way of making it."""

    name: str
    sentence: str
    numbers: Callable[[Case], list[float]]


def state(case: Case) -> int:
    return case.of("weights", "gradients", "optimizer")


MISTAKES = (
    Mistake("weights_only", "That is the model alone: its gradients, the optimizer's state and the activations live beside it. Add what is alive "
            "together.", lambda case: [case.of("weights")]),
    Mistake("weights_times_four_only", "Right for state, but 0 bytes of activations: they grow with batch x length. Add what autograd saves, "
            "and what is alive beside it.", lambda case: [state(case), 4 * case.of("weights")]),
    Mistake("no_optimizer_state", "Short by exactly 8 bytes a parameter: Adam's m and v. Add the state that the optimizer keeps between steps.",
            lambda case: [case.changed(lambda row: 0 if row.kind == "optimizer" else row.bytes), case.account.peak_bytes - case.of("optimizer")]),
    Mistake("first_step_peak", "You gave step 1's peak; m and v do not exist in it. They are born in the first update: take the second step.",
            lambda case: [case.account.peak_of(0)]),
    Mistake("counts_views_twice", "Q, K and V are views of one storage: counted 3 times. Count a storage once, whole, however many views it has.",
            lambda case: [case.changed(lambda row, n=n: row.bytes * (n if row.name.endswith("qkv by head") else 1)) for n in (3, 2, 4)]),
    Mistake("tied_twice", "Tied embedding and output share one storage. Count it once, and its gradient and state too.",
            lambda case: [case.counted(tied=False).peak_bytes, *(case.account.peak_bytes + share * table(case) for share in (1, 2, 3, 4))]),
    Mistake("mb_is_mib", "Off by 4.86%: 1 MB = 10^6, 1 MiB = 2^20 bytes. Give bytes.",
            lambda case: [case.account.peak_bytes * 2**20 / 10**6, case.account.peak_bytes * 10**6 / 2**20]),
    Mistake("sums_instead_of_peak", "You added all bytes ever made; a peak is what is alive together. Take the highest moment: where activations are "
            "at their most, hardly a gradient is there.",
            lambda case: [*(sum(row.bytes for row in case.account.rows if row.made[1:] in ("", *steps)) for steps in (("0", "1"), ("0",), ("1",))),
                          *(sum(map(case.account.peak, kinds)) for kinds in (KINDS, KINDS[:-1]))]),
)


def table(case: Case) -> int:
    """Bytes of a tied table."""
    return prod((case.model.vocabulary, case.model.width, case.dtype.itemsize)) if case.is_gpt and case.model.tied else 0


def peak_findings(peak_bytes: Callable) -> list[str]:
    """Sentences about `peak_bytes(model, batch, optimizer, dtype)`; empty when right.

    model      the widths of an MLP, as (16, 64, 10): Linear layers with bias, ReLU or tanh between; or a GPTConfig
    batch      samples        optimizer   "sgd", "momentum", "adam"        dtype   of weights and activations
    returns    bytes: an int, or {kind: bytes} at the peak, with the kinds weights, gradients, optimizer, activations, temporaries
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
            kinds.append((case, answer))
            answer = sum(answer.values())
        if isinstance(answer, bool) or not isinstance(answer, (int, float)):
            return [f"On {case} your function gave {answer!r}: return a number of bytes."]
        told.append(answer)
    wrong = [(case, number) for case, number in zip(cases(), told) if not right(case, number)]
    if wrong:
        known = next((mistake.sentence for mistake in MISTAKES if made(mistake, told)), None)
        return [known or of_another_unit(told) or of_another_format(wrong) or plainly(*wrong[0], len(wrong))]
    return kind_findings(kinds)


def right(case: Case, number: float) -> bool:
    return abs(number - case.account.peak_bytes) <= (NEAR * case.account.peak_bytes if case.is_gpt else 0)


def made(mistake: Mistake, told: list[float]) -> bool:
    """Whether one way of making the mistake explains all the numbers."""
    ways = zip(*(mistake.numbers(case) for case in cases()))
    return any(all(abs(number - its) <= NEAR * case.account.peak_bytes for case, number, its in zip(cases(), told, way)) for way in ways)


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


def plainly(case: Case, number: float, how_many: int) -> str:
    account = case.account
    moment, gap = account.moments[account.peak_moment], number - account.peak_bytes
    parts = ", ".join(f"{kind} {count:,}" for kind, count in account.kinds(account.peak_moment).items())
    where = {"F": "forward", "B": "backward", "U": "update"}[moment.action[0]]
    return (f"{how_many} of {SIZES} sizes are wrong. On {case} you gave {number:,} bytes, {abs(gap):,.0f} too {'many' if gap > 0 else 'few'}. "
            f"The peak is in the {where} of step {int(moment.action[1:]) + 1}, when {moment.name} is made: {parts}.")


def kind_findings(kinds: list[tuple[Case, Mapping]]) -> list[str]:
    """Of answers whose totals are right."""
    for case, answer in kinds:
        expected = case.account.kinds(case.account.peak_moment)
        off = [kind for kind in expected | dict(answer) if abs(answer.get(kind, 0) - expected.get(kind, 0)) > NEAR * case.account.peak_bytes]
        if "gradients" in off and "activations" in off and answer.get("gradients", 0) < expected.get("gradients", 0):
            return ["The total is right and the kinds are not: a weight's gradient outlives the backward. It is no activation: count it as gradients."]
        if off:
            told = "; ".join(f"{kind} {answer.get(kind, 0):,}, not {expected.get(kind, 0):,}" for kind in off)
            return [f"The total is right and the kinds are not: on {case} {told}."]
    return []
