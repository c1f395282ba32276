"""The ingredients of a training as data: what each changes, which pairs there are, and what each
pair must show."""

from itertools import combinations

from bigtrain_lab.order.schedule import Schedule

KINDS = {  # one of a kind goes into a training
    "pipeline": ("gpipe", "1f1b", "interleaved", "zb-h1", "pipedream"),
    "precision": ("bf16", "fp16 with scaler"),
    "recompute": ("keep-none", "sqrt", "selective"),
    "accumulation": ("accumulation",),
    "clipping": ("clipping",),
    "weights": ("tied weights",),
    "frozen": ("frozen parameters",),
    "optimizer": ("SGD momentum", "Adam", "LAMB"),
    "hooks": ("user's hooks",),
    "replicas": ("data parallel", "zero-1", "zero-2", "zero-3"),
    "slices": ("tensor slicing", "sequence parallel"),
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
SYNCHRONOUS = tuple(name for name in KINDS["pipeline"] if not Schedule.named(name).asynchronous)

ZERO = {"zero-1": 1, "zero-2": 2, "zero-3": 3}
UNITS = {"bf16": 2**-8, "fp16 with scaler": 2**-11}
REORDERED = {
    "clipping",
    "tied weights",
    *KINDS["replicas"],
    *KINDS["slices"],
}  # their sums run in another order than in one process, and so round otherwise
LATE = (
    "pipedream updates each stage at times of its own, with no gradient of a whole window for"
    " {0}: leave {0} out, or take a synchronous schedule."
)
REFUSED = {  # with pipedream, and what of a recipe it leaves no room for
    "bf16": "precision",
    "fp16 with scaler": "precision",
    "accumulation": "weights",
    "clipping": "clip",
    "tied weights": "tied",
    "data parallel": "replicas",
    **dict.fromkeys(ZERO, "replicas"),
    "tensor slicing": "slices",
    "sequence parallel": "slices",
}
ONE_RANK = "one rank"  # of each replica, which runs all stages: no pipeline


def pairs() -> list[tuple[str, str]]:
    return [(a, b) for a, b in combinations(KIND_OF, 2) if KIND_OF[a] != KIND_OF[b]]


def shown() -> list[tuple[str, ...]]:
    """What is trained: all pairs, and many ingredients at once."""
    return [
        *pairs(),
        (
            "1f1b",
            "bf16",
            "sqrt",
            "accumulation",
            "clipping",
            "tied weights",
            "Adam",
            "user's hooks",
            "data parallel",
        ),
        (
            "1f1b",
            "sqrt",
            "accumulation",
            "clipping",
            "tied weights",
            "LAMB",
            "data parallel",
            "tensor slicing",
        ),
        (
            "1f1b",
            "bf16",
            "sqrt",
            "accumulation",
            "clipping",
            "tied weights",
            "frozen parameters",
            "Adam",
            "user's hooks",
            "zero-1",
        ),
        (
            "interleaved",
            "accumulation",
            "clipping",
            "tied weights",
            "LAMB",
            "zero-1",
            "sequence parallel",
        ),
        (
            "bf16",
            "sqrt",
            "accumulation",
            "clipping",
            "frozen parameters",
            "Adam",
            "user's hooks",
            "zero-3",
        ),
    ]


def training(pair: tuple[str, ...]) -> dict[str, str]:
    """kind -> ingredient of the training that shows this pair; one without a schedule of its own
    takes the next in turn."""
    chosen = {KIND_OF[name]: name for name in pair}
    return {"pipeline": SYNCHRONOUS[shown().index(pair) % len(SYNCHRONOUS)]} | chosen


HOOKS = (
    "A parameter that the plan cuts has hooks, which its slices would not have: register hooks on"
    " the sliced model."
)


def refusal(pair: tuple[str, ...]) -> str | None:
    if pair[0] == "user's hooks" and pair[1] in KINDS["slices"]:
        return HOOKS
    if pair[0] == "pipedream" and pair[1] in REFUSED:
        return LATE.format(REFUSED[pair[1]])


def tolerance(pair: tuple[str, ...]) -> float:
    """How far the pair's training may be off one process: 0 means bit for bit."""
    unit = next(
        (
            UNITS[name] * (3 if {*KINDS["slices"], *ZERO} & set(pair) else 1)
            for name in pair
            if name in UNITS
        ),
        1e-12,
    )
    return unit if REORDERED & set(pair) or pair[0] == "pipedream" else 0.0


def verdict(pair: tuple[str, str]) -> str:
    off = tolerance(pair)
    return (
        "refused"
        if refusal(pair)
        else (
            "equal"
            if not off
            else (
                "1e-12"
                if off == 1e-12
                else (
                    f"{'3 x ' * (off not in UNITS.values())}2^{(off if off in UNITS.values() else off / 3).hex().partition('p')[2]}"
                )
            )
        )
    )


def table() -> str:
    """docs/compose.md."""
    names = list(KIND_OF)
    cells = {pair: verdict(pair) for pair in pairs()}
    rows = [f"| {' | '.join(['', *names[1:]])} |", "|---" * len(names) + "|"]
    for at, a in enumerate(names[:-1]):
        rows.append(
            f"| {' | '.join([a, *('' if b in names[: at + 1] else cells.get((a, b), '–') for b in names[1:])])} |"
        )
    sentences = [f"* pipedream with {each}: {refusal(('pipedream', each))}" for each in REFUSED] + [
        f"* user's hooks with tensor slicing: {HOOKS}",
    ]
    return "\n".join(
        [
            TITLE,
            *rows,
            "",
            "Refused when the recipe is made, or when its stages are:",
            "",
            *sentences,
            "",
        ]
    )


TITLE = """# Techniques in pairs

Each pair was trained by a Recipe on two ranks, with data parallel, ZeRO or tensor slicing on four (replicas of a pipeline of two stages, or slices of its layers; sequence parallel: slices of its tokens too), and compared with the same
training in one process, a plain loop of torch: the losses, the final weights, and how often each hook ran. A pair without a schedule in it was trained by one of the four synchronous schedules in turn. `make bench ARGS=compose` trains all
of them again and writes this page; `tests/compose` holds it to be true.

* equal: bit for bit
* 1e-12: relative to each tensor's norm in float64, where sums run in another order
* 2^-8, 2^-11: the unit of bf16 and of fp16, where sums run in another order
* 3 x 2^-8, 3 x 2^-11: a product that two slices share, and a half gradient that ZeRO sums, is rounded in each and once more in their sum
* refused: in the sentence below
* –: two of a kind
"""
