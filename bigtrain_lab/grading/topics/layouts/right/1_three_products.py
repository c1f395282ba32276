def answer(equation, sizes, layout, axes):
    left, right = equation.split("->")
    x, w = (each.split() for each in left.split(","))
    y = right.split()
    found = []
    for name, made, factors in (("Y", y, x + w), ("dX", x, y + w), ("dW", w, y + x)):
        part = 4
        for dim in made:
            part *= sizes[dim] // axes[layout[dim]] if dim in layout else sizes[dim]
        for dim in dict.fromkeys(factors):
            if dim not in made and dim in layout:
                axis = layout[dim]
                found.append((name, axis, 2 * (axes[axis] - 1) * part // axes[axis]))
    return found
