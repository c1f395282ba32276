"""The optimizers that menus offer: name -> learning rate -> weights -> torch's optimizer."""

import torch

OPTIMIZERS = {
    "sgd": lambda rate: lambda weights: torch.optim.SGD(weights, rate),
    "momentum": lambda rate: lambda weights: torch.optim.SGD(weights, rate, momentum=0.9),
    "adam": lambda rate: lambda weights: torch.optim.Adam(weights, rate),
}
