import itertools

import torch


def answer(equation, sizes, layout, axes):
    x, w, y = (each.split() for each in equation.replace("->", ",").split(","))
    dims = list(dict.fromkeys(x + w))
    small = {dim: axes.get(layout.get(dim), 1) for dim in dims}

    def code(names):
        return "".join(chr(97 + dims.index(dim)) for dim in names)

    draw = torch.Generator().manual_seed(1)

    def value(names):
        return torch.rand([small[dim] for dim in names], generator=draw, dtype=torch.float64)

    a, b, g = value(x).requires_grad_(), value(w).requires_grad_(), value(y)
    whole = torch.einsum(f"{code(x)},{code(w)}->{code(y)}", a, b)
    whole.backward(g)
    places = [dict(zip(axes, at)) for at in itertools.product(*map(range, axes.values()))]

    def part(tensor, names, at):
        for k, dim in enumerate(names):
            if dim in layout:
                tensor = tensor.narrow(k, at[layout[dim]], 1)
        return tensor.detach()

    found = []
    for name, made, right in (("Y", y, whole), ("dX", x, a.grad), ("dW", w, b.grad)):
        own = []
        for at in places:
            p, q = part(a, x, at).requires_grad_(), part(b, w, at).requires_grad_()
            out = torch.einsum(f"{code(x)},{code(w)}->{code(y)}", p, q)
            out.backward(part(g, y, at))
            own.append({"Y": out.detach(), "dX": p.grad, "dW": q.grad}[name])
        wide = [axis for axis, n in axes.items() if n > 1]
        for summed in itertools.chain.from_iterable(
            itertools.combinations(wide, k) for k in range(len(wide) + 1)
        ):

            def alike(at, other, summed=summed):
                return all(other[a] == at[a] for a in axes if a not in summed)

            sums = [
                sum(one for one, other in zip(own, places) if alike(at, other)) for at in places
            ]
            if all(torch.allclose(one, part(right, made, at)) for one, at in zip(sums, places)):
                break
        size = 4
        for dim in made:
            size = size * sizes[dim] // small[dim]
        found += [(name, axis, 2 * (axes[axis] - 1) * size / axes[axis]) for axis in summed]
    return found
