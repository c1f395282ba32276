"""An operator policy: inside `with policy(dtype):` products of matrices compute in 16 bits, what is
delicate in float32, and everything else as it was.

2,049 - 2,048 is 0 in 16 bits and 300^2 is inf in fp16, so values tell in which type an operator
computed, also where its result was cast after. Source: Micikevicius et al. 2018 (arXiv:1710.03740),
section 3.3.
"""

from .bench import AFTER, BETWEEN, DELICATE, INSIDE, OTHERS, PRODUCTS

NAME, NEAR = "precision-policy", 1e-5
FORBIDS = (
    "torch.amp.autocast_mode.autocast",
    "torch.cuda.amp.autocast",
    "torch.cpu.amp.autocast",
    "torch.set_autocast_enabled",
    "torch.set_autocast_dtype",
)
MIXED = "x + y", "x * y"


def scenes(draw):
    size, n, top = draw.randint(3, 6), draw.choice((128, 192)), draw.uniform(301, 350)
    to_top = [[1 + (top - 1) * (row * n + at) / (4 * n - 1) for at in range(n)] for row in range(4)]
    # rows whose sum is 1 in float32 and 0 in 16 bits
    rows, ones = [[2049, -2048] + [0] * (size - 2)] * size, [[1] * size] * size
    threes, odd = [300] * 4, 2049 + 2 * size
    integers = [
        ["x.sum()", [[odd], "int64"]],
        ["x.sum()", [[True] * size, "bool"]],
        ["x @ y", [[[odd]], "int64"], [[[2]], "int64"]],
    ]
    doubles = [[name, [rows, "float64"], [ones, "float64"]] for name in PRODUCTS]
    doubles += [[name, [rows, "float64"]] for name in DELICATE]
    for kind, other in (("float16", "bfloat16"), ("bfloat16", "float16")):
        narrow = [[name, [threes, kind], [threes, kind]] for name in OTHERS]
        wide = [[name, [to_top, "float32"]] for name in DELICATE]
        both = [[name, [rows, "float32"], [ones, "float32"]] for name in ("x @ y", "F.linear")]
        after = [*both, ["x.exp()", [ones, kind]]]
        for name, calls, *more in (
            *(
                (
                    f"{name}, {of} and float32, {size} x {size}",
                    [[name, [rows, of], [ones, "float32"]]],
                )
                for of in ("float32", other)
                for name in PRODUCTS
            ),
            *(
                (f"{name}, {4 * n} numbers of {kind} from 1 to {top:.1f}", [[name, [to_top, kind]]])
                for name in DELICATE
            ),
            *(
                (f"{name}, {of} and float32", [[name, [threes, of], [threes, "float32"]]])
                for of, names in (("float32", OTHERS), (kind, MIXED))
                for name in names
            ),
            (f"{kind} stays {kind} in other operators", narrow),
            (f"delicate operators, {4 * n} numbers of float32 from 1 to {top:.1f}", wide),
            ("integers and bools", integers),
            ("float64", doubles),
            ("no error, then operators after the with block", after, {"places": [AFTER]}),
            (
                "an error, then operators after the with block",
                after,
                {"places": [AFTER], "fails": True},
            ),
            (
                f"a block inside one of {other}",
                after,
                {"places": [INSIDE, BETWEEN, AFTER], "outer": other},
            ),
            (
                f"a block inside one of {other}, ended by an error that is caught between",
                after,
                {"places": [BETWEEN, AFTER], "outer": other, "fails": True},
            ),
        ):
            yield f"{name}, under {kind}", dict(*more, dtype=kind, calls=calls)


def shown(inputs: dict, came: dict) -> dict:
    row = {
        f"{what} of {name}, {place}": value
        for place, of_place in came["found"].items()
        for (name, *_), found in zip(inputs["calls"], of_place)
        for what, value in found.items()
    }
    kept = "the block kept its error from the caller"
    return row | {kept: came[kept]}
