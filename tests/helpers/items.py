"""Data sets with items of every kind, over the same features and labels."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset

N = 60
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 5 == 2


class Items(Dataset):
    """Calls a function for each row; `attributes` stand beside it, as `targets` do in torchvision."""

    def __init__(self, make, n=N, **attributes):
        self.make = make
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self):
        return self.n

    def __getitem__(self, row):
        if not 0 <= row < self.n:
            raise IndexError(row)
        return self.make(row)


class BatchedItems(Items):
    def __getitems__(self, rows):
        self.asked = list(rows)
        return [self[row] for row in rows]


def pair(row):
    return X[row], int(Y[row])


def mapping(row):
    return {"x": X[row], "twice": 2 * X[row], "label": int(Y[row])}


def draw():
    """One number from each global generator."""
    return random.random(), float(np.random.rand()), torch.rand(()).item()  # noqa: S311  # no secrets


def noisy(row):
    """Features that show the state of all three global generators."""
    return torch.tensor([row, *draw()]), int(Y[row])
