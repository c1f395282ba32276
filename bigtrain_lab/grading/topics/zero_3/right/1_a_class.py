import torch


class answer:
    def __init__(self, layers, parts, group):
        self.layers, self.parts, self.group = layers, parts, group

    def whole(self, i):
        return self.group.all_gather(self.parts[i])[: self.layers[i].numel]

    def forward(self, x):
        self.saved = []
        for i, layer in enumerate(self.layers):
            x, saved = layer.forward(self.whole(i), x)
            self.saved.append(saved)
        return x

    def backward(self, dy):
        gradients = [None] * len(self.layers)
        for i in reversed(range(len(self.layers))):
            dy, whole = self.layers[i].backward(self.whole(i), self.saved.pop(), dy)
            padding = self.group.size * len(self.parts[i]) - len(whole)
            whole = torch.nn.functional.pad(whole, (0, padding))
            gradients[i] = self.group.reduce_scatter(whole, "mean")
        return gradients
