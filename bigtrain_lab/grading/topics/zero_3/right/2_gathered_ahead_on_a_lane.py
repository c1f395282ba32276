import torch


class answer:
    def __init__(self, layers, parts, group):
        self.layers, self.parts, self.group = layers, parts, group
        self.lane, self.coming = group.lane(), {}

    def launch(self, i):
        if 0 <= i < len(self.layers) and i not in self.coming:
            self.coming[i] = self.lane.launch(lambda group: group.all_gather(self.parts[i]))

    def whole(self, i, following):
        self.launch(i)
        flat = self.coming.pop(i).wait()
        self.launch(following)
        return flat[: self.layers[i].numel]

    def forward(self, x):
        self.saved = {}
        for i, layer in enumerate(self.layers):
            x, self.saved[i] = layer.forward(self.whole(i, following=i + 1), x)
        return x

    def reduce(self, i, gradient):
        padded = torch.zeros(self.group.size * len(self.parts[i]), dtype=gradient.dtype)
        padded[: len(gradient)] = gradient
        return self.lane.launch(lambda group: group.reduce_scatter(padded, "mean"))

    def backward(self, dy):
        launched = {}
        for i, layer in reversed(list(enumerate(self.layers))):
            flat = self.whole(i, following=i - 1)
            dy, gradient = layer.backward(flat, self.saved.pop(i), dy)
            launched[i] = self.reduce(i, gradient)
        return [launched[i].wait() for i in range(len(self.layers))]
