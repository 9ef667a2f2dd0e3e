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
        num_labels: number of tasks, K; every one gets a score of its own.

    Raises:
        ArgumentError: ``num_features`` or ``num_labels`` is not an int of at least 1.

    Example:
        >>> import torch
        >>> Linear(num_features=3)(torch.ones(2, 3))
        tensor([0., 0.], grad_fn=<SqueezeBackward1>)
    """

    def __init__(self, num_features: int, bias: bool = True, num_labels: int = 1) -> None:
        super().__init__()
        check_size("num_labels", num_labels)
        check_size("num_features", num_features)
        self.linear = nn.Linear(num_features, num_labels, bias=bias)
        for parameter in self.linear.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map features ``(N, num_features)`` to scores ``(N,)``, or ``(N, num_labels)`` with several."""
        scores: Tensor = self.linear(inputs)
        return scores.squeeze(1)
