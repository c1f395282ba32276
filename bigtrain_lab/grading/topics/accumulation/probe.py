"""Gradient accumulation: what each micro-batch counts in each update, read in the gradient.

gradient of a window = sum_i grad L_i / N    L_i summed loss of micro-batch i, N all its tokens
"""

import math

NAME, NEAR = "accumulation", 1e-12


def scenes(draw):
    k, equal, slope = draw.randint(3, 5), draw.randint(5, 30), draw.uniform(1e6, 9e6)
    short = 2 * k + draw.randint(1, k - 2)
    small, large = draw.uniform(0.05, 0.5), 80 * slope

    def scene(name, lengths, k=k, slope=1.0, bad=None, clip=None, scaled=False):
        """Micro-batch `bad` has an infinite loss."""
        inputs = {
            "k": k,
            "lengths": lengths,
            "pads": [draw.randint(0, 9) for _ in lengths],
            "slopes": [math.inf if i == bad else slope for i in range(len(lengths))],
            "clip": clip,
            "scaled": scaled,
        }
        of = ", ".join(map(str, lengths))
        besides = ("" if clip is None else f", clip={clip:g}") + ", a scaler" * scaled
        return f"{name}: micro-batches of {of} tokens, k={k}{besides}", inputs

    def unequal(n):
        return [draw.choice((1, 2, 4, 8, 16)) * draw.randint(3, 9) + i % 3 for i in range(n)]

    yield scene("one window", [equal] * k)
    yield scene("two windows", [equal] * 2 * k)
    yield scene("one window of unequal lengths", unequal(k))
    yield scene("two windows of unequal lengths", unequal(2 * k))
    single = [1] * (k - 2) + [0, equal] + [1] * k
    yield scene("windows with single tokens, and none", single)
    yield scene("windows with single tokens, and one of none", single + [0] * k)
    yield scene("a short last window", [equal] * short)
    yield scene("a short last window of unequal lengths", unequal(short))
    yield scene("a small limit", unequal(3 * k), slope=slope, clip=small)
    yield scene("a large limit", unequal(3 * k), slope=slope, clip=large)
    yield scene("a loss scaler", unequal(3 * k), scaled=True)
    yield scene("a scaler and a small limit", unequal(3 * k), slope=slope, clip=small, scaled=True)
    yield scene("a scaler and a limit of 0", unequal(3 * k), slope=slope, clip=0.0, scaled=True)
    yield scene(
        "a short last window, a scaler and a small limit",
        unequal(short),
        slope=slope,
        clip=small,
        scaled=True,
    )
    first, second = draw.randrange(k), draw.randrange(k, 2 * k)
    yield scene("an infinite loss", unequal(3 * k), bad=first)
    yield scene(f"an infinite loss of micro-batch {first}", unequal(3 * k), bad=first, scaled=True)
    told = f"an infinite loss of micro-batch {second}"
    yield scene(told, unequal(3 * k), bad=second, scaled=True)
    yield scene(told, unequal(3 * k), slope=slope, bad=second, clip=small, scaled=True)
    yield from (scene("10 micro-batches", unequal(10), k) for k in (1, 2, 3, 4, 5, 6, 7, 10, 13))


def shown(inputs: dict, came: dict) -> dict:
    return {
        "updates": len(came["updates"]),
        "how much a micro-batch counts [update] [micro-batch]": [
            each[0] for each in came["updates"]
        ],
        "gradients of the other weights [update] [weight]": [
            [number for weight in each[1:] for number in weight[:1]] for each in came["updates"]
        ],
        "tokens of a forward [update] [forward]": came["forwards"][:-1],
        "learning rates [update] [group]": came["rates"],
        "weights or optimizer's state changed before each update, and after the last": came[
            "between steps"
        ],
        "scale at the end": came["scale"],
        "bytes kept for backwards as a forward begins, at most": came["waiting"],
        "earlier graphs alive as a forward begins, but the last": max(0, came["alive"] - 1),
        "gradients held as a forward begins, 2 or more": max(2, came["copies"]),
    }
