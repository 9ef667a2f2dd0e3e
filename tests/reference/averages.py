"""The polynomial-decay average in closed form."""

from math import prod

import torch


def polynomial_mean(iterates, decay=8):
    """Iterate k weighs k (k + 1) ... (k + decay - 1): that is what a step of (1 + decay) / (k + decay) comes to."""
    weights = torch.tensor([float(prod(range(k, k + decay))) for k in range(1, len(iterates) + 1)], dtype=torch.float64)
    stacked = torch.stack(list(iterates))
    return torch.tensordot(weights / weights.sum(), stacked.double(), 1).to(stacked.dtype)
