"""A tiny training loop in plain torch: can the model learn a rule that it should be able to learn?"""

import torch
from torch.nn import functional


def count_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def assert_all_gradients_flow(model, inputs):
    """Every parameter gets a finite gradient, and none is zero throughout."""
    scores = model.train()(inputs)
    # Squared distances to distinct values: a plain sum is constant after batch normalisation.
    (scores - torch.linspace(0.1, 1, scores.numel())).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def fit(model, inputs, target, steps, lr):
    """Cross-entropy with Adam; returns the share of training examples ranked on the right side of zero."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(model(inputs), target.float()).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return ((model(inputs) > 0) == (target > 0)).float().mean().item()
