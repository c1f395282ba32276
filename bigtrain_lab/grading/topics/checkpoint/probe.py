"""A checkpoint: fn runs in the forward without a graph, and again in the backward.

    answer(fn, *args, **kwargs) -> what fn returns; its gradients are fn's own, bit for bit

fn notes how often it ran, what it was given, what it drew and in which format, and which of its
tensors are alive. The truth is the same training without a checkpoint.
"""

from .bench import play

NAME, NEAR = "checkpoint", 0.0
FORBIDS = tuple(
    f"torch.utils.checkpoint.{name}"
    for name in (
        "checkpoint",
        "checkpoint_sequential",
        "CheckpointFunction",
        "_checkpoint_without_reentrant_generator",
        "_CheckpointFrame",
        "_checkpoint_hook",
        "_recomputation_hook",
        "create_selective_checkpoint_contexts",
    )
)
X, FIXED, Y, TWO = "x", "x without gradient", "the last output", [0, 1]


def call(*args, under=None, **named) -> list:
    return [args, named, under]


def scenes(draw):
    rows, seed, n = draw.randint(3, 6), draw.randrange(10**6), draw.randint(2, 5)
    plain, both = call(X), [call(X), call(X)]
    masked = [call(X, X, mask=FIXED), call(X, n, mask=None)]
    for name, calls, more in (
        ("checkpoint(fn, x)", [plain], {}),
        ("an input that needs no gradient", [call(FIXED)], {}),
        ("a fn that uses dropout", [plain], {"share": 0.5}),
        ("dropout, an input that needs no gradient", [call(FIXED)], {"share": 0.5}),
        ("a .grad at each weight before", [plain], {"before": 1.0}),
        ("one call after another", [plain, call(Y)], {"backwards": [1]}),
        ("two micro-batches, backward of their sum", both, {"share": 0.5}),
        ("two micro-batches, backward of each", both, {"share": 0.5, "backwards": [0, 1]}),
        (
            "two micro-batches, the second's backward first",
            both,
            {"share": 0.5, "backwards": [1, 0]},
        ),
        ("checkpoint(fn, x, z)", [call(X, X)], {}),
        ("checkpoint(fn, x, z), z of whole numbers", [call(X, "whole numbers")], {}),
        (f"checkpoint(fn, x, {n})", [call(X, n)], {}),
        (f"checkpoint(fn, x, {n}, True, z)", [call(X, n, True, X)], {}),
        ("checkpoint(fn, x, None)", [call(X, None)], {}),
        ("checkpoint(fn, x, mask=mask)", [call(X, mask=FIXED)], {}),
        ("a mask and an input with one graph", [plain, call(Y, mask=Y)], {"backwards": [1]}),
        ("checkpoint(fn, x, z=z, mask=mask), with gradients", [call(X, z=X, mask=X)], {}),
        ("checkpoint(fn, x, mask=None)", [call(X, mask=None)], {}),
        ("a fn that returns a tuple of one tensor", [plain], {"results": [0]}),
        ("a fn that returns two tensors", [plain], {"results": TWO}),
        ("a fn that returns one tensor without gradient", [plain], {"results": [0, 2]}),
        (
            "dropout, and one of two results used",
            [plain],
            {"share": 0.5, "results": TWO, "used": 0},
        ),
        (
            "a fn that returns two tensors, one of an input of its own, which is not used",
            [call(X, late=X)],
            {"results": TWO, "used": 0},
        ),
        ("two micro-batches, each with its mask", masked, {"share": 0.5}),
        *(
            (
                f"the forward under {first}, the backward under {second}",
                [call(X, under=first)],
                {"under": second},
            )
            for first, second in (
                ("bfloat16", None),
                ("float16", None),
                (None, "bfloat16"),
                ("bfloat16", "float16"),
            )
        ),
        (
            "the forward under bfloat16, where a weight is used twice",
            [call(X, under="bfloat16")],
            {"twice": True},
        ),
        (
            "one forward under autocast and one without, with dropout",
            [call(X, under="bfloat16", mask=1.0), call(X, mask=1.0)],
            {"share": 0.5},
        ),
        ("checkpoint(fn, x) under torch.no_grad()", [plain], {"graph": False}),
    ):
        yield f"{name}, x of {rows} rows", {"seed": seed, "rows": rows, "calls": calls} | more


def shown(inputs: dict, came: dict) -> dict:
    """All that came, and what of it plain training gives otherwise."""
    right = play(lambda fn, *args, **named: fn(*args, **named), **inputs)
    return came | {
        "other than in plain training": [
            name
            for name in right
            if name.startswith(("the output", "gradient")) and came[name] != right[name]
        ]
    }
