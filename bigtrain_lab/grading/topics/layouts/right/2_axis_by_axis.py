import numpy as np


def answer(equation, sizes, layout, axes):
    inputs, _, y = equation.partition("->")
    x, _, w = inputs.partition(",")
    tensors = {"dX": x.split(), "dW": w.split(), "Y": y.split()}
    for axis, n in axes.items():
        dims = [
            dim
            for dim, each in layout.items()
            if each == axis and any(dim in t for t in tensors.values())
        ]
        if not dims:
            continue
        for name, dims_of in tensors.items():
            if dims[0] not in dims_of:
                share = np.prod([n_of(dim, layout, axes) for dim in dims_of])
                yield (
                    name,
                    axis,
                    np.prod([sizes[dim] for dim in dims_of]) / share * 4 * 2 * (n - 1) / n,
                )


def n_of(dim, layout, axes):
    return axes[layout[dim]] if dim in layout else 1
