r"""AUC margin loss and its stochastic gradient steps (PESG), one function per line.

The saddle-point problem over the weights w, the class centres a, b and the dual variable c is

.. math:: \min_{w, a, b} \max_{c \ge 0} \; E_P (h - a)^2 + E_N (h - b)^2 + 2 c\,(m + E_N h - E_P h) - c^2

with batch means :math:`E_P, E_N` over positives and negatives and the margin m.

In all functions ``pos_scores`` is ``(S,)``, ``neg_scores`` ``(B,)``, ``centres`` (a, b), its gradient and its anchor
``(2,)``, and ``dual``, c, ``()``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def aucm_loss(pos_scores: Tensor, neg_scores: Tensor, centres: Tensor, dual: Tensor, margin: float) -> Tensor:
    r"""The saddle function, differentiable with respect to the scores.

    Example:
        >>> aucm_loss(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([0.5, 0.0]), torch.tensor(0.5), margin=0.5)
        tensor(-0.5000)
    """
    a, b = centres.unbind()
    gap = margin + neg_scores.mean() - pos_scores.mean()
    return (pos_scores - a).square().mean() + (neg_scores - b).square().mean() + 2.0 * dual * gap - dual.square()


def centre_gradient(pos_scores: Tensor, neg_scores: Tensor, centres: Tensor) -> Tensor:
    r"""Derivatives with respect to (a, b): :math:`2(a - E_P h)` and :math:`2(b - E_N h)`.

    Example:
        >>> centre_gradient(torch.tensor([1.0]), torch.tensor([0.25]), torch.zeros(2))
        tensor([-2.0000, -0.5000])
    """
    return 2.0 * (centres - torch.stack([pos_scores.mean(), neg_scores.mean()]))


def centre_direction(centres: Tensor, gradient: Tensor, anchor: Tensor, proximal: float, weight_decay: float) -> Tensor:
    r"""The bracket of :math:`v \leftarrow v - \eta(\nabla F + \lambda_0 (v - v_{ref}) + \mathrm{wd}\, v)` for a and b.

    Example:
        >>> centre_direction(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.zeros(2), proximal=0.25, weight_decay=0.5)
        tensor([0.7500, 0.0000])
    """
    return gradient + proximal * (centres - anchor) + weight_decay * centres


def margin_dual_step(dual: Tensor, centres: Tensor, eta: float, margin: float) -> Tensor:
    r"""The ascent :math:`c \leftarrow [c + \eta(2(m + b - a) - 2c)]_+`.

    The centres stand in for the batch means: at their optimum :math:`a = E_P h, b = E_N h`.

    Example:
        >>> margin_dual_step(torch.tensor(0.0), torch.tensor([0.25, 0.25]), eta=0.1, margin=0.5)
        tensor(0.1000)
    """
    a, b = centres.unbind()
    return (dual + eta * (2.0 * (margin + b - a) - 2.0 * dual)).clamp_min(0.0)
