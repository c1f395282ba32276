"""The optimizers that menus offer: name -> learning rate -> weights -> optimizer."""

import torch

from ..techniques.lamb import LAMB
from ..techniques.lars import LARS

OPTIMIZERS = {
    "sgd": lambda rate: lambda weights: torch.optim.SGD(weights, rate),
    "momentum": lambda rate: lambda weights: torch.optim.SGD(weights, rate, momentum=0.9),
    "adam": lambda rate: lambda weights: torch.optim.Adam(weights, rate),
    "adamw": lambda rate: lambda weights: torch.optim.AdamW(weights, rate),
    "lars": lambda rate: lambda weights: LARS(weights, rate),
    "lamb": lambda rate: lambda weights: LAMB(weights, rate),
}
