import numpy as np


def answer(model, batch, optimizer, dtype):
    gpt, z = hasattr(model, "vocabulary"), dtype.itemsize
    if gpt:
        S, D, V = model.sequence, model.width, model.vocabulary
        block = [D, D, 3 * D * D, 3 * D, D * D, D, D, D, 4 * D * D, 4 * D, 4 * D * D, D]
        tensors = [V * D, S * D] + block * model.layers + [D, D] + [V * D] * (not model.tied)
        n = batch * S
        saved = [16 * n * D + 4 * n + batch * model.heads * S * S] * model.layers + [
            2 * n * D + 2 * n
        ]
    else:
        tensors = [count for a, b in zip(model, model[1:]) for count in (a * b, b)]
        n, V, saved = batch, model[-1], [batch * width for width in model[1:-1]]
    P = sum(tensors)
    levels, now = [], P + P * ["sgd", "momentum", "adam"].index(optimizer)

    def make(count):
        nonlocal now
        now += count
        levels.append(now)

    for each in saved:
        make(each)
    make(3 * n * V + 2)
    make(-2 * n * V)
    if gpt:
        make(P - 2 - n * V - sum(saved))
    else:
        for i in reversed(range(len(model) - 1)):
            make(tensors[2 * i] + tensors[2 * i + 1] + (n * model[i] if i else 0))
            make(-n * model[i + 1])
            if i:
                make(n * model[i])
                make(-n * model[i] - saved.pop())
        make(-2)
    make(1)
    held = 0
    for count in tensors if optimizer == "adam" else ():
        make(2 * count)
        make(-held - count)
        held = count
    return np.int64(max(levels) * z + (4 * len(tensors) if optimizer == "adam" else 0))
