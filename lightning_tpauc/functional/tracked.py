r"""The optimal dual variables of a monotone surrogate from two scores, those on the borders of the rectangle.

The min-max form has a threshold :math:`s_i` and a dual weight :math:`y_i` for every positive, and a global threshold
:math:`s'`; see :mod:`lightning_tpauc.functional.staco`. For a non-decreasing surrogate the same negatives cost every
positive most, and the lowest positives cost most, so that the optimum for given scores is

.. math:: s_i = \ell(c - h_i), \qquad y_i = 1[h_i \le p]

with one c for all positives, the :math:`\lceil \theta_1 n_- \rceil`-th highest score of a negative, and p, the
:math:`\lceil \theta_0 n_+ \rceil`-th lowest score of a positive. Positives on the border share what is left of
:math:`\theta_0`; then :math:`s'` drops out of the value, and no gradient depended on it. During training c and p are
running means of the batches' own. All that a pair counts for is :math:`1[h_i \le p]\,1[h_j \ge c]\,\ell_{ij} / (S B
\theta_0 \theta_1)`. All functions are pure; :func:`~lightning_tpauc.functional.exact_duals` gives the same duals for
scores that are those of the whole training set.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tpauc.functional.checks import common_dtype
from lightning_tpauc.functional.duals import activate_ties
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.functional.tasks import TaskMasks, column, highest, number

__all__ = ("border_scores", "border_step", "border_thresholds", "border_weights")

#: How fast the borders follow the batches: they forget all but e^-1 of a value in ten steps.
_BORDER_RATE = 0.1


def border_scores(
    pos_scores: Tensor,
    neg_scores: Tensor,
    min_tpr: float | Tensor,
    max_fpr: float | Tensor,
    masks: TaskMasks | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The scores of the positive and of the negative on the rectangle's borders, p and c.

    Args:
        pos_scores: float tensor ``(n_pos,)``.
        neg_scores: float tensor ``(n_neg,)``.
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        masks: which scores of K tasks are there, of shapes ``(K, n_pos)`` and ``(K, n_neg)``.

    Returns:
        p, the :math:`\lceil \theta_0 n_+ \rceil`-th lowest of the positives, and c, the
        :math:`\lceil \theta_1 n_- \rceil`-th highest of the negatives, both ``()``.

    Example:
        >>> border_scores(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.0, 4.0, -1.0, 1.0]), 0.5, 0.25)
        (tensor(2.), tensor(4.))
    """
    pos_mask, neg_mask = (None, None) if masks is None else (masks.pos, masks.neg)
    return -highest(-pos_scores, 1.0 - min_tpr, pos_mask), highest(neg_scores, max_fpr, neg_mask)


def border_step(border: Tensor, batch_border: Tensor, steps: Tensor) -> Tensor:
    r"""The running mean :math:`c \leftarrow c + 0.1\,(c_B - c)`, at first the batch's own.

    Args:
        border: float tensor ``()``, c.
        batch_border: float tensor ``()``, :math:`c_B`.
        steps: int tensor ``()``, how many batches the mean has seen.

    Returns:
        Float tensor ``()`` of ``border``'s dtype.

    Example:
        >>> border_step(torch.tensor(1.0), torch.tensor(2.0), torch.tensor(4))
        tensor(1.1000)
        >>> border_step(torch.tensor(1.0), torch.tensor(2.0), torch.tensor(0))
        tensor(2.)
    """
    batch_border = batch_border.to(border.dtype)
    return torch.where(steps > 0, torch.lerp(border, batch_border, _BORDER_RATE), batch_border)


def border_thresholds(pos_scores: Tensor, neg_border: Tensor, surrogate: Surrogate) -> Tensor:
    r"""Each positive's threshold :math:`s_i = \ell(c - h_i)`, lowered so that a negative on the border is active.

    Args:
        pos_scores: float tensor ``(S,)``, :math:`h_i`.
        neg_border: float tensor ``()``, c.
        surrogate: a monotone surrogate.

    Returns:
        Float tensor ``(S,)``; see :func:`~lightning_tpauc.functional.duals.activate_ties`.

    Example:
        >>> from lightning_tpauc.functional.surrogates import get_surrogate
        >>> border_thresholds(torch.tensor([0.0, 2.0]), torch.tensor(0.5), get_surrogate("hinge", margin=1.0))
        tensor([1.5000, 0.0000])
    """
    pos = pos_scores.to(common_dtype(pos_scores, neg_border))
    return activate_ties(surrogate.value(column(neg_border.to(pos.dtype)) - pos), pos, surrogate)


def border_weights(
    pos_scores: Tensor, pos_border: Tensor, theta0: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    r"""Each positive's dual weight :math:`y_i = 1[h_i \le p]`.

    Where positives lie on the border itself, as all of a constant model do, each gets the one share that makes the mean
    :math:`\theta_0`, as far as it can.

    Args:
        pos_scores: float tensor ``(S,)``, :math:`h_i`.
        pos_border: float tensor ``()``, p.
        theta0: one minus the lower bound of the true positive rate, in (0, 1].
        mask: bool tensor ``(K, S)`` of K tasks: which positives are there; the others get 0.

    Returns:
        Float tensor ``(S,)`` in [0, 1].

    Example:
        >>> border_weights(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor(1.5), theta0=0.25)
        tensor([1., 1., 0., 0.])
        >>> border_weights(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor(1.0), theta0=0.5)
        tensor([0.3333, 0.3333, 1.0000, 0.3333])
    """
    dtype = common_dtype(pos_scores, pos_border)
    border = column(pos_border.to(dtype))
    distance = pos_scores.to(dtype) - border
    # Two forward passes of one example differ in the last digits.
    slack = 64.0 * torch.finfo(dtype).eps * border.abs()
    tied, below = distance.abs() <= slack, distance < -slack
    if mask is not None:
        tied, below = tied & mask, below & mask
    weights = below.to(dtype)
    left = theta0 * number(distance, mask) - weights.sum(-1)
    return torch.where(tied, column((left / tied.sum(-1)).clamp(0.0, 1.0)), weights)
