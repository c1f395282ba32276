"""The most bytes alive together in two training steps, from shapes alone.

    peak_bytes(model, batch, optimizer, dtype) -> bytes, or {kind: bytes} at the peak
    peak = max over moments: at the loss, in each layer's backward, in the update

The truth is the ledger's count of the step itself, run on meta tensors; a torch that nobody
observes holds a few numbers less, and is right too. First MLPs within 1%, where a large mistake is
told from another; then MLPs to the byte; then transformers within 1%, whose peak is at the loss or
in the update.
"""

from .bench import KINDS

NAME, NEAR = "peak-bytes", 0.01
ALLOWS = tuple(f"bigtrain_lab.{name}" for name in ("models", "train", "techniques", "order"))
FORBIDS = tuple(
    f"bigtrain_lab.models.steps.{name}"
    for name in ("gpt_steps", "mlp_steps", "translator_steps", "peak_bytes", "training")
)
BY_KIND = (
    "MLPs of many samples and SGD",
    "MLPs of many samples and Adam",
    "transformers and Adam",
    "transformers of one sample and Adam",
)
# The widths' ranges, by where the peak is.
LOSS, SQUARE, LINEAR = (
    ((5, 12), (20, 30), (40, 50)),
    ((5, 12), (34, 40), (26, 32)),
    ((4, 8), (38, 42), (43, 47)),
)
DEEP = ((5, 12), (20, 30), (20, 30), (40, 50))
UPDATE, NARROW = ((20, 40), (30, 60), (10, 20)), ((8, 15), (30, 40), (40, 60))
LAYER, WIDE = ((10, 30), (60, 90), (60, 90), (4, 9)), ((100, 150), (12, 20), (4, 9))
# A GPT's heads, numbers a head, sequence and vocabulary.
AT_LOSS, LONG = ((4,), (4, 6), (12, 20), (300, 500)), ((4,), (3, 4), (24, 32), (200, 300))
IN_UPDATE, ONE = ((2, 4), (8, 10), (8, 10), (300, 500)), ((1, 2), (16, 20), (6, 10), (60, 100))
SMALL, TIED = ((2,), (5, 8), (8, 12), (300, 500)), ((1, 2), (9, 12), (8, 12), (700, 900))
MANY, FEW, SOME = (100, 200), (1, 3), (60, 120)  # samples


def scenes(draw):
    """Two sizes of 1% tell a mistake from another that gives the same by chance; to the byte one is
    enough."""
    groups = {
        f"{name}, within 1%": {"sizes": sizes, "by_kind": False}
        for name, sizes in (mlps(draw) | gpts(draw)).items()
    }
    exact = mlps_to_the_byte(draw)
    yield from list(groups.items())[:9]
    yield from (
        (f"MLP {number} of {len(exact)}, to the byte", {"sizes": [size], "by_kind": False})
        for number, size in enumerate(exact, 1)
    )
    yield from list(groups.items())[9:]
    for name in BY_KIND:
        first = groups[f"{name}, within 1%"]["sizes"][:1]
        yield f"{name}, within 1%, by kind", {"sizes": first, "by_kind": True}


def mlp(draw, widths, batch, optimizer, dtype="float32") -> dict:
    return {
        "model": [draw.randint(*ends) for ends in widths],
        "batch": draw.randint(*batch),
        "optimizer": optimizer,
        "dtype": dtype,
    }


def gpt(draw, layers, sizes, batch, optimizer, tied=False, dtype="float32") -> dict:
    heads, each, sequence, vocabulary = sizes
    heads = draw.choice(heads)
    model = {
        "layers": draw.randint(*layers),
        "width": heads * draw.randint(*each),
        "heads": heads,
        "sequence": draw.randint(*sequence),
        "vocabulary": draw.randint(*vocabulary),
        "tied": tied,
    }
    return {"model": model, "batch": draw.randint(*batch), "optimizer": optimizer, "dtype": dtype}


def mlps(draw) -> dict[str, list]:
    return {
        name: [mlp(draw, *each) for each in two]
        for name, *two in (
            ("MLPs of many samples and SGD", (LOSS, MANY, "sgd"), (SQUARE, MANY, "sgd")),
            ("MLPs of more layers", (DEEP, MANY, "sgd"), (DEEP, MANY, "sgd")),
            ("MLPs of few samples and SGD", (UPDATE, FEW, "sgd"), (NARROW, FEW, "sgd")),
            ("MLPs of wide hidden layers", (LAYER, SOME, "sgd"), (LAYER, SOME, "sgd")),
            ("MLPs of wide inputs", (WIDE, SOME, "sgd"), (WIDE, SOME, "sgd")),
            ("MLPs with momentum", (LOSS, MANY, "momentum"), (UPDATE, FEW, "momentum")),
            ("MLPs of many samples and Adam", (LOSS, MANY, "adam"), (LAYER, SOME, "adam")),
            ("MLPs of few samples and Adam", (UPDATE, FEW, "adam"), (NARROW, FEW, "adam")),
            (
                "MLPs of float64",
                (LOSS, MANY, "adam", "float64"),
                (UPDATE, FEW, "momentum", "float64"),
            ),
        )
    }


def mlps_to_the_byte(draw) -> list[dict]:
    optimizers, dtypes = ("sgd", "momentum", "adam", "adam"), ("float32", "float64")
    waist = [(8, 14), (60, 90), (60, 90), (2, 4), (100, 140)]
    loss = mlp(draw, LOSS, (45, 70), "adam")
    return [
        mlp(draw, LOSS, (45, 70), "sgd"),
        mlp(draw, [(8, 14), (90, 120)], (30, 40), "sgd"),
        mlp(draw, LINEAR, (18, 22), "sgd"),
        mlp(draw, UPDATE, FEW, "sgd"),
        mlp(draw, LAYER, (20, 60), "sgd"),
        mlp(draw, WIDE, SOME, "momentum"),
        loss,
        mlp(draw, UPDATE, FEW, "adam"),
        mlp(draw, UPDATE, FEW, "adam", "float64"),
        mlp(draw, NARROW, FEW, "adam"),
        mlp(draw, LAYER, (20, 60), "adam", "float64"),
        *(
            mlp(
                draw,
                [(4, 80)] * draw.randint(2, 5),
                (2, 150),
                draw.choice(optimizers),
                draw.choice(dtypes),
            )
            for _ in range(3)
        ),
        mlp(draw, [(4, 20), (40, 80)], MANY, "sgd"),
        *(mlp(draw, waist[::way], (20, 40), "sgd") for way in (1, -1)),
        loss | {"batch": loss["batch"] + 7, "optimizer": "momentum", "dtype": "float64"},
        loss | {"optimizer": "sgd"},
        loss | {"dtype": "float64"},
        mlp(draw, [(20000, 21000)] * 4, (500, 900), "adam"),
    ]


def gpts(draw) -> dict[str, list]:
    drawn = draw.choice(("sgd", "momentum", "adam"))
    made = {
        name: [gpt(draw, *each) for each in some]
        for name, *some in (
            (
                "transformers of one layer and SGD",
                ((1, 1), SMALL, (4, 6), "sgd"),
                ((1, 1), SMALL, (10, 14), "sgd"),
            ),
            (
                "transformers of more layers and long sequences",
                ((3, 4), LONG, (2, 4), "sgd"),
                ((2, 3), LONG, (2, 4), "sgd"),
            ),
            (
                "transformers and Adam",
                ((2, 3), AT_LOSS, (3, 5), "adam"),
                ((2, 3), AT_LOSS, (7, 9), "adam"),
            ),
            (
                "tied transformers and Adam",
                ((1, 2), TIED, (4, 6), "adam", True),
                ((1, 2), TIED, (9, 12), "adam", True),
            ),
            (
                "transformers of one sample and Adam",
                ((2, 2), IN_UPDATE, (1, 1), "adam"),
                ((2, 2), IN_UPDATE, (1, 1), "adam"),
            ),
            (
                "transformers of one sample and momentum",
                ((2, 3), ONE, (1, 1), "momentum"),
                ((1, 2), ONE, (1, 1), "momentum"),
            ),
            (
                "transformers of float64",
                (
                    (1, 2),
                    ((2, 4), (4, 6), (8, 16), (300, 600)),
                    (2, 6),
                    "adam",
                    False,
                    "float64",
                ),
            ),
            (
                "transformers drawn",
                ((1, 4), ((1, 2), (6, 10), (16, 24), (300, 600)), (4, 8), "momentum", True),
                ((1, 3), ((1, 2, 4), (4, 8), (8, 24), (300, 900)), (3, 8), drawn),
            ),
        )
    }
    one, two = made["tied transformers and Adam"]
    two["model"] = one["model"]  # another batch of the same
    made["MLPs of bfloat16"] = [
        mlp(draw, LOSS, MANY, "sgd", "bfloat16"),
        mlp(draw, UPDATE, FEW, "adam", "bfloat16"),
    ]
    return made


def shown(inputs: dict, came: list) -> dict:
    sizes = [*map(title, inputs["sizes"])]
    if inputs["by_kind"]:
        kinds = [[*each, sum(each)] if len(each) > 1 else None for each in came]
        return {f"{', '.join(KINDS)}, all of {size}": each for size, each in zip(sizes, kinds)}
    if len(sizes) == 1 and not isinstance(inputs["sizes"][0]["model"], dict):
        return {sizes[0]: f"{came[0]:,}"}  # a text, so to the byte
    return dict(zip(sizes, came))


def title(size: dict) -> str:
    model, how = size["model"], f"batch {size['batch']}, {size['optimizer']}, {size['dtype']}"
    if not isinstance(model, dict):
        return f"an MLP of the widths {tuple(model)}, {how}"
    return (
        f"a GPT of {model['layers']} layer{'s' * (model['layers'] > 1)}, width {model['width']},"
        f" {model['heads']} heads, sequence {model['sequence']}, vocabulary"
        f" {model['vocabulary']}{', tied' * model['tied']}, {how}"
    )
