"""Twenty seeded sizes with their accounts, and the numbers that each known mistake in a `peak_bytes` gives on them.

A mistake is an account of its own: without some storages (Adam's v), with some more (a dx that nobody needs), or without some of
its moments (the update). So its numbers follow from the right account, to the byte.
"""

import random
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from itertools import cycle
from math import prod
from typing import NamedTuple

import torch

from ..dry_run import Account, Held
from ..models import GPTConfig, gpt_steps, mlp_steps

SIZES, SEED = 20, 2
AT_THE_LOSS = ("new_zeros", "scatter_add", "_log_softmax")  # the gradient of the log-softmax, in two storages, and itself
BENDS, LOGITS_GRADIENT = ("relu", "gelu"), "_log_softmax_backward_data"
KINDS = ("weights", "gradients", "optimizer", "activations", "temporaries")


class Case:
    """One size, and its account: as the ledger sees it, or with torch unobserved."""

    def __init__(self, model: GPTConfig | tuple[int, ...], batch: int, optimizer: str, dtype: torch.dtype, watched: bool = True):
        self.model, self.batch, self.optimizer, self.dtype, self.watched = model, batch, optimizer, dtype, watched

    def __str__(self) -> str:
        how = f"batch {self.batch}, {self.optimizer}, {str(self.dtype).removeprefix('torch.')}"
        if not self.is_gpt:
            return f"an MLP of the widths {self.model}, {how}"
        c = self.model
        return (f"a GPT of {c.layers} layer{'s' * (c.layers > 1)}, width {c.width}, {c.heads} head{'s' * (c.heads > 1)}, sequence {c.sequence}, "
                f"vocabulary {c.vocabulary}{', tied' * c.tied}, {how}")

    @property
    def is_gpt(self) -> bool:
        return isinstance(self.model, GPTConfig)

    @cached_property
    def account(self) -> Account:
        return self.counted()

    @cached_property
    def unobserved(self) -> "Case":
        return Case(self.model, self.batch, self.optimizer, self.dtype, watched=False)

    def counted(self, tied: bool | None = None, batch: int | None = None, bias: bool = True) -> Account:
        batch = batch or self.batch
        if not self.is_gpt:
            return mlp_steps(self.model, batch, self.optimizer, self.dtype, bias=bias, watched=self.watched)
        config = self.model if tied is None else type(self.model)(**{**vars(self.model), "tied": tied})
        return gpt_steps(config, batch, self.optimizer, watched=self.watched)

    def changed(self, change: Callable[[Held], int]) -> int:
        """The peak if each storage had the bytes that `change` says."""
        return Account(tuple(row._replace(bytes=change(row)) for row in self.account.rows), self.account.moments).peak_bytes

    def without(self, *endings: str, kinds: Iterable[str] = (), made: str = "") -> int:
        """The peak without storages of these names, which may be how a name ends (`made` in this kind of action), or of these kinds."""
        return self.changed(lambda row: 0 if row.kind in kinds or made in row.made and row.name.endswith(endings or ("\0",)) else row.bytes)

    def is_heads(self, row: Held) -> bool:
        """Whether it is the storage of q, k and v."""
        return (row.name, row.made[1:2]) == ("clone", "F") and row.bytes == 3 * self.batch * self.model.sequence * self.model.width * self.dtype.itemsize

    def highest(self, of: Callable[[str, str], bool]) -> int:
        """The most at those moments (action, name) alone."""
        return max((level for level, moment in zip(self.account.levels, self.account.moments) if of(*moment)), default=0)

    def of(self, *kinds: str) -> int:
        """Bytes of what outlives a backward."""
        after = self.account.after("0B1")
        return sum(after.get(kind, 0) for kind in kinds)

    # -- some bytes -------------------------------------------------------------------------------------------------

    @property
    def inputs_bytes(self) -> int:
        return self.batch * (self.model.sequence * 8 if self.is_gpt else self.model[0] * self.dtype.itemsize)

    @property
    def logits_bytes(self) -> int:
        return self.batch * (self.model.sequence * self.model.vocabulary if self.is_gpt else self.model[-1]) * self.dtype.itemsize

    @property
    def table_bytes(self) -> int:
        """Of a tied table."""
        return prod((self.model.vocabulary, self.model.width, self.dtype.itemsize)) if self.is_gpt and self.model.tied else 0

    @property
    def moment_bytes(self) -> int:
        """Of one of Adam's moments, or momentum's."""
        return self.of("weights") if self.optimizer != "sgd" else 0

    @property
    def quantities(self) -> dict[str, int]:
        """What a wrong answer may have too much or too little of."""
        found = {"the optimizer's state": self.of("optimizer"), "the weights, or their gradients": self.of("weights"),
                 "one moment of the optimizer": self.moment_bytes, "one tensor of logits": self.logits_bytes, "two tensors of logits": 2 * self.logits_bytes,
                 "the inputs": self.inputs_bytes, "one number": self.dtype.itemsize, "two numbers": 2 * self.dtype.itemsize}
        if not self.is_gpt:
            found["one number a sample"] = self.batch * self.dtype.itemsize
            found |= {f"a tensor of batch x {width}": self.batch * width * self.dtype.itemsize for width in self.model[1:-1]}
        if self.optimizer == "adam":
            found["Adam's step counts, 4 bytes a tensor"] = 4 * sum(row.name.endswith(" step") for row in self.account.rows)
        return {name: count for name, count in found.items() if count}


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
        if moment.action[1] == "U" or moment.name in (*AT_THE_LOSS, LOGITS_GRADIENT):
            found.append(case)
    return tuple(found)


# -- what each mistake gives ------------------------------------------------------------------------------------------


class Mistake(NamedTuple):
    """`numbers`: what an answer with this mistake may give for a case, each in its own way of making it."""

    name: str
    sentence: str
    numbers: Callable[[Case], list[float]]


def first_dx(case: Case) -> int:
    """With the gradient of the inputs beside the first layer's."""
    account = case.account
    if case.is_gpt:
        return account.peak_bytes
    more = [Held("0 input gradient", "temporaries", case.inputs_bytes, at, 1 + account.moments.index((moment.action, "end")), moment.action)
            for at, moment in enumerate(account.moments) if moment.name == "0.weight gradient"]
    return Account((*account.rows, *more), account.moments).peak_bytes


def one_pair(case: Case) -> int:
    """With each of the update's denominators let go before the next tensor's temporaries are there."""
    account, rows = case.account, []
    for row in account.rows:
        if row.name == "div" and "U" in row.made:
            row = row._replace(dies=row.born + 1)
        rows.append(row)
    return Account(tuple(rows), account.moments).peak_bytes


def sums_of_moments(case: Case) -> list[int]:
    """The bars of a chart of moments added up: at the loss, in each layer's backward, in the update; or the highest of each."""
    steps = [(level, *moment) for level, moment in zip(case.account.levels, case.account.moments) if moment.action[2:] == "1"]
    loss = max(level for level, action, name in steps if at_the_loss(action, name))
    update = max(level for level, action, name in steps if in_update(action, name))
    layers = [level for level, action, name in steps if name.endswith(".bias gradient")]
    bends = [level for level, action, name in steps if name == "threshold_backward"]
    return [loss + update, loss + max(layers + bends) + update, loss + sum(layers) + update, loss + sum(layers + bends) + update,
            loss + max(layers + bends), max(layers + bends) + update]


def nothing_saved_at_the_loss(case: Case) -> int:
    saved = sum(row.bytes for row in case.account.rows if row.made == "0F1" and row.name in BENDS)
    return max(case.highest(at_the_loss) - saved, case.highest(lambda *moment: not at_the_loss(*moment)))


def in_update(action: str, name: str) -> bool:
    """The end of the backward is as the update is without temporaries."""
    return action[1:2] == "U" or action[1:2] == "B" and name == "end"


def at_the_loss(action: str, name: str) -> bool:
    return action[1:2] == "F" or name in ("ones_like", "neg", LOGITS_GRADIENT, *AT_THE_LOSS) or action[1:2] == "B" and name == "div"


KNOWN = (
    ("weights_only", "That is the model alone: its gradients, the optimizer's state and the activations live beside it. Add what is alive "
     "together.", lambda case: [case.of("weights")]),
    ("weights_times_four_only", "Right for state, but 0 bytes of activations: they grow with batch x length. Add what autograd saves, "
     "and what is alive beside it.", lambda case: [case.of("weights", "gradients", "optimizer"), 4 * case.of("weights")]),
    ("no_optimizer_state", "Short by exactly 8 bytes a parameter: Adam's m and v. Add the state that the optimizer keeps between steps.",
     lambda case: [case.without(kinds=["optimizer"]), case.account.peak_bytes - case.of("optimizer")]),
    ("first_step_peak", "You gave step 1's peak; m and v do not exist in it. They are born in the first update: take the second step.",
     lambda case: [case.account.peak_of(0)]),
    ("one_moment", "Short by one of Adam's moments: it keeps two of the weights' size, m and v.",
     lambda case: [case.without(" exp_avg_sq")]),
    ("no_step_counts", "Short by 4 bytes a tensor: Adam keeps a step count for each.", lambda case: [case.without(" step")]),
    ("counts_views_twice", "Q, K and V are views of one storage: counted 3 times. Count a storage once, whole, however many views it has.",
     lambda case: [case.changed(lambda row, n=n: row.bytes * (n if case.is_gpt and case.is_heads(row) else 1)) for n in (3, 2, 4)]),
    ("tied_twice", "Tied embedding and output share one storage. Count it once, and its gradient and state too.",
     lambda case: [case.counted(tied=False).peak_bytes, *(case.account.peak_bytes + share * case.table_bytes for share in (1, 2, 3, 4))]),
    ("mb_is_mib", "Off by 4.86%: 1 MB = 10^6, 1 MiB = 2^20 bytes. Give bytes.",
     lambda case: [case.account.peak_bytes * 2**20 / 10**6, case.account.peak_bytes * 10**6 / 2**20]),
    ("sums_instead_of_peak", "You added all bytes ever made; a peak is what is alive together. Take the highest moment: where activations are "
     "at their most, hardly a gradient is there.",
     lambda case: [*(sum(row.bytes for row in case.account.rows if row.made[2:] in ("", *steps)) for steps in (("0", "1"), ("0",), ("1",))),
                   *(sum(map(case.account.peak, kinds)) for kinds in (KINDS, KINDS[:-1]))]),
    ("moments_added", "You added moments: each is all that is alive at once, the weights among it. Take the highest of them, not their sum.", sums_of_moments),
    ("two_logits", "Short by one tensor of logits: at the loss three of batch x classes are alive together, the log-softmax, its gradient and the logits' "
     "gradient. Count three.", lambda case: [case.without(*AT_THE_LOSS[:2]), case.account.peak_bytes - case.logits_bytes]),
    ("one_logits", "Short by two tensors of logits: at the loss three of batch x classes are alive together, the log-softmax, its gradient and the logits' "
     "gradient. Count three.", lambda case: [case.without(*AT_THE_LOSS), case.account.peak_bytes - 2 * case.logits_bytes]),
    ("first_dx", "You counted dx of the first layer: nobody asks for a gradient of the inputs, so it is never made. Leave it out.", lambda case: [first_dx(case)]),
    ("inputs_counted", "You counted the inputs: they are the caller's, there before the step. Leave them out.",
     lambda case: [case.account.peak_bytes + case.inputs_bytes]),
    ("no_update_moment", "The update's moment is missing, or its temporaries: beside weights, gradients and state Adam makes sqrt(v) and a denominator, each of "
     "the size of the tensor in hand, and keeps a denominator until the next one is there.",
     lambda case: [case.highest(lambda *moment: not in_update(*moment)), case.without("sqrt", "div", made="U"), case.without("sqrt"),
                   case.without("div", made="U"), one_pair(case)]),
    ("no_loss_moment", "The moment of the loss is missing, where all activations are alive and three tensors of batch x classes. Take the highest of all three kinds "
     "of moments.", lambda case: [case.highest(lambda *moment: not at_the_loss(*moment)),
                                  case.highest(lambda *moment: not at_the_loss(*moment) and not in_update(*moment))]),
    ("no_backward_moments", "The backward's moments are missing, where gradients are there and activations still. Take the highest of all three kinds of moments.",
     lambda case: [case.highest(lambda *moment: in_update(*moment) or at_the_loss(*moment))]),
    ("at_the_loss_only", "That is the moment of the loss alone. Take the highest of all three kinds of moments: loss, backward, update.",
     lambda case: [case.highest(at_the_loss)]),
    ("update_only", "That is the update alone. Take the highest of all three kinds of moments: loss, backward, update.", lambda case: [case.highest(in_update)]),
    ("no_gradients", "The gradients are missing: one of each weight's size, from its backward to zero_grad().", lambda case: [case.without(kinds=["gradients"])]),
    ("no_activations", "The activations are missing: what the forward saves for the backward, of each sample.",
     lambda case: [case.without(kinds=["activations"]), case.without(*BENDS), nothing_saved_at_the_loss(case)]),
    ("no_temporaries", "What lives for a moment is missing: gradients of activations on their way, the two temporaries of Adam.",
     lambda case: [case.without(kinds=["temporaries"])]),
    ("no_biases", "The biases are missing: a Linear layer has one number an output beside its matrix, with gradient and state.",
     lambda case: [case.changed(lambda row: 0 if ".bias" in row.name else row.bytes), case.counted(bias=False).peak_bytes]),
    ("one_sample", "Activations and temporaries grow with the batch: you counted one sample.", lambda case: [case.counted(batch=1).peak_bytes]),
)
MISTAKES = tuple(Mistake(*known) for known in KNOWN)
