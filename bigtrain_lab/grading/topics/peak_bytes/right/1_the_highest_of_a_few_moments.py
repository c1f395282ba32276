from math import prod

from bigtrain_lab.models import GPTConfig, parameter_shapes


def answer(model, batch, optimizer, dtype):
    z, backward, gradients = dtype.itemsize, [], 0
    if isinstance(model, GPTConfig):
        L, S, D, H = model.layers, model.sequence, model.width, model.heads
        rows, classes = batch * S, model.vocabulary
        shapes = list(parameter_shapes(model, 0, model.pieces).values())
        block = 13 * rows * D + 3 * rows * D + 4 * rows + batch * H * S**2
        kept = L * block + 2 * rows * D + 2 * rows
    else:
        layers = list(zip(model, model[1:]))
        rows, classes = batch, model[-1]
        shapes = [shape for inner, outer in layers for shape in ((outer, inner), (outer,))]
        kept = rows * sum(model[1:-1])
        for i, (inner, outer) in reversed(list(enumerate(layers))):
            gradients += (inner + 1) * outer
            there = {"gradients": gradients, "activations": rows * sum(model[1 : i + 1])}
            backward.append(
                {**there, "temporaries": rows * outer + (rows * inner if i > 0 else 0) + 2}
            )
            if i > 0:
                backward.append({**there, "temporaries": 2 * rows * inner + 2})
    sizes = [prod(shape) for shape in shapes]
    weights, logits = sum(sizes), rows * classes
    state = {"sgd": 0, "momentum": weights, "adam": 2 * weights}[optimizer] * z
    state += 4 * len(shapes) if optimizer == "adam" else 0
    pairs = zip([0, *sizes], sizes)
    adam = max(before + 2 * now for before, now in pairs) if optimizer == "adam" else 0
    loss = {"activations": kept + logits, "temporaries": 2 * logits + rows + 2}
    update = {"gradients": weights, "temporaries": adam + 1}
    moments = [loss, *backward, update]
    highest = max(moments, key=lambda moment: sum(moment.values()))
    return {
        "weights": weights * z,
        "optimizer": state,
        **{kind: count * z for kind, count in highest.items()},
    }
