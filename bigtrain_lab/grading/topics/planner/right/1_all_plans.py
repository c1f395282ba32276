from itertools import product


def answer(layers, devices, batch, memory, layer):
    found = []
    for pp, rows, recompute in product(range(1, devices + 1), range(1, batch + 1), (False, True)):
        if devices % pp or layers % pp:
            continue
        dp, own = devices // pp, layers // pp
        if batch % (dp * rows):
            continue
        m = batch // (dp * rows)
        turn = own * (rows * layer["forward"] + layer["launch"]) * (4 if recompute else 3)
        step = (m + pp - 1) * turn
        if dp > 1:
            step += own * layer["average"]
        alive = min(m, pp)
        left = layer["input"] if recompute else layer["kept"]
        held = own * (layer["state"] + alive * rows * left)
        if recompute:
            held += rows * layer["kept"]
        if held <= memory:
            found.append((step, (dp, pp, rows, recompute)))
    return min(found)[1] if found else None
