"""The linear model of the paper's convex experiments."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_tpauc.models.checks import check_size

__all__ = ("Linear",)


class Linear(nn.Module):
    """Linear scores h_w(x) = w^T x (+ b).

    Weights start at zero: with a convex surrogate the objective is convex in w, so no random start is needed and runs
    with different seeds differ by their batches alone. The bias shifts all scores alike, so the pairwise losses leave
    it where it is; cross-entropy needs it.

    Args:
        num_features: number of features of an example.
        bias: whether to add b.

    Raises:
        ArgumentError: ``num_features`` is not an int of at least 1.

    Example:
        >>> import torch
        >>> Linear(num_features=3)(torch.ones(2, 3))
        tensor([0., 0.], grad_fn=<SqueezeBackward1>)
    """

    def __init__(self, num_features: int, bias: bool = True) -> None:
        super().__init__()
        check_size("num_features", num_features)
        self.linear = nn.Linear(num_features, 1, bias=bias)
        for parameter in self.linear.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map features ``(N, num_features)`` to scores ``(N,)``."""
        scores: Tensor = self.linear(inputs)
        return scores.squeeze(1)
