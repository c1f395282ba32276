import torch


class answer:
    def __init__(self, layers, parts, group):
        self.layers, self.parts, self.group = layers, parts, group

    def whole(self, i):
        return self.group.all_gather(self.parts[i])

    def forward(self, x):
        self.inputs = [x]
        for i, layer in enumerate(self.layers):
            x, _ = layer.forward(self.whole(i)[: layer.numel], x)
            self.inputs.append(x)
        return self.inputs.pop()

    def backward(self, dy):
        gradients = []
        for i, layer in reversed(list(enumerate(self.layers))):
            x = self.inputs.pop().requires_grad_()
            flat = self.whole(i).requires_grad_()  # with its padding, so its gradient is padded
            y, _ = layer.forward(flat[: layer.numel], x)
            dy, gradient = torch.autograd.grad(y, (x, flat), dy)
            del y, flat
            gradients.insert(0, self.group.reduce_scatter(gradient, "mean"))
        return gradients
