r"""The dual variables that are optimal for fixed scores, exact or from two scores on the rectangle's borders.

The min-max form has a threshold :math:`s_i` and a dual weight :math:`y_i` for every positive, and a global threshold
:math:`s'`; see :mod:`lightning_tpauc.functional.staco`. For a non-decreasing surrogate the same negatives cost every
positive most, and the lowest positives cost most, so that the optimum for given scores is

.. math:: s_i = \ell(c - h_i), \qquad y_i = 1[h_i \le p]

with one c for all positives, the :math:`\lceil \theta_1 n_- \rceil`-th highest score of a negative, and p, the
:math:`\lceil \theta_0 n_+ \rceil`-th lowest score of a positive. Positives on the border share what is left of
:math:`\theta_0`; then :math:`s'` drops out of the value, and no gradient depended on it. During training c and p are
running means of the batches' own; :func:`~lightning_tpauc.functional.exact_duals` takes the whole training set's.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import as_float_tensor, check_finite, check_rectangle, check_scores
from lightning_tpauc.functional.pairwise import TaskMasks, ceil_count, column, common_dtype, constant, number, ranked
from lightning_tpauc.functional.staco import in_double, tail_risk
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate


class ExactDuals(NamedTuple):
    r"""Optimal dual variables of the min-max form.

    Attributes:
        s: ``(n_pos,)``, thresholds :math:`s_i`, each a minimiser of :math:`g_i(w, s_i)`.
        y: ``(n_pos,)``, dual weights in [0, 1] whose mean is :math:`\theta_0`.
        s_prime: ``()``, global threshold :math:`s'`, a minimiser of :math:`f(g, s')`.
    """

    s: Tensor
    y: Tensor
    s_prime: Tensor


def require_monotone(surrogate: Surrogate, what: str) -> None:
    """Raise :class:`ArgumentError` for a surrogate by which the hardest negatives differ between positives."""
    if not surrogate.monotone:
        raise ArgumentError(
            f"{what} needs a non-decreasing surrogate, but {surrogate.name!r} falls again left of -margin. Set "
            "`dual_init='zeros'` and `stage_restart='ones'`, or use 'squared_hinge'."
        )


@torch.no_grad()
def exact_duals(
    pos_scores: Tensor,
    neg_scores: Tensor,
    min_tpr: float = 0.5,
    max_fpr: float = 0.5,
    surrogate: str | Surrogate = "hinge",
    margin: float = 1.0,
    scale: float = 1.0,
    pos_weight: Tensor | None = None,
) -> ExactDuals:
    r"""Solve the min-max form for s, s' and y while the scores stay fixed.

    The CVaR form is :math:`\min_{s, s'} s' + \frac{1}{\theta_0 n_+} \sum_i (g_i - s')_+` with
    :math:`g_i = s_i + \frac{1}{\theta_1 n_-} \sum_j (\ell_{ij} - s_i)_+`, and the min-max form writes
    :math:`(\cdot)_+` as a maximum over :math:`y_i \in [0, 1]`. Quantiles minimise both levels. Because :math:`\ell` is
    non-decreasing, the highest negatives cost every positive most: with c the
    :math:`\lceil \theta_1 n_- \rceil`-th highest negative,

    .. math::
        s_i = \ell(c - h_i), \qquad s' = \text{the } \lceil \theta_0 n_+ \rceil\text{-th largest } g_i, \qquad
        y_i = 1 \text{ if } g_i > s', \; 0 \text{ if } g_i < s',

    and all positives with :math:`g_i = s'` get the one share that makes the mean of y equal :math:`\theta_0`. This
    holds for whole and for fractional :math:`\theta n`.

    Args:
        pos_scores: float tensor ``(n_pos,)``; entry i belongs to positive i.
        neg_scores: float tensor ``(n_neg,)``: all negatives, or a sample of them.
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`; it must be monotone.
        margin: m of the hinge and ramp surrogates.
        scale: factor inside the logistic surrogate.
        pos_weight: float tensor ``(n_pos,)``, what each positive counts for, above 0; ``None``: all alike. Only ratios
            matter: whole numbers stand for so many copies.

    Returns:
        :class:`ExactDuals` in the dtype of the scores, at least float32; all nan where an accelerator holds scores that
        are not finite. Time is O(n log n) for the hinge and ramp surrogates;
        ``logistic`` and registered ones evaluate :math:`n_+ \lceil \theta_1 n_- \rceil` pairs in blocks.

    Raises:
        ArgumentError: if an argument is malformed, if a score on the CPU is not finite, or if the surrogate is not
            monotone: then each positive has its own hardest negatives, on both sides, and c does not exist.

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, -2.0])
        >>> s, y, s_prime = exact_duals(pos, neg, min_tpr=0.5, max_fpr=0.5)
        >>> s, y  # theta_0 n_+ = 1.5: the lowest positive, and half of the next
        (tensor([1.5000, 0.5000, 0.0000]), tensor([1.0000, 0.5000, 0.0000]))
    """
    min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
    pos_scores, neg_scores = check_scores(pos_scores, "pos_scores"), check_scores(neg_scores, "neg_scores")
    check_finite(pos_scores, "pos_scores")
    check_finite(neg_scores, "neg_scores")
    loss = get_surrogate(surrogate, margin, scale)
    require_monotone(loss, "The exact solution")
    dtype = common_dtype(pos_scores, neg_scores)
    # Quantiles of sums that differ in the last digits.
    pos, neg = in_double(pos_scores), in_double(neg_scores)
    s, risk = tail_risk(pos, neg, max_fpr, loss)
    weight = None if pos_weight is None else as_float_tensor(pos_weight, "pos_weight").to(risk)
    y, s_prime = _upper_quantile(risk, 1.0 - min_tpr, weight)
    # What the check of the scores did not read on an accelerator shows in every result.
    nan_if_not_finite = (pos.sum() + neg.sum()) * 0.0
    s, y, s_prime = (x + nan_if_not_finite for x in (s, y, s_prime))
    return ExactDuals(s.to(dtype), y.to(dtype), s_prime.to(dtype))


def _upper_quantile(g: Tensor, theta: float, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""The y of mean :math:`\theta_0` that maximises the sum of y_i g_i, and the quantile at its border."""
    if weight is None:
        weight = torch.ones_like(g)
        s_prime = torch.topk(g, max(1, ceil_count(theta, g.shape[0])), sorted=False).values.min()
    else:
        order = g.argsort(descending=True)
        reached = weight[order].cumsum(0) / weight.sum()
        rank = int((reached < theta - 1e-12).sum())  # a sum of shares is exact up to rounding
        s_prime = g[order[min(rank, g.shape[0] - 1)]]
    # Equal scores give equal g up to the order of summation, so a few ulps still count as a tie.
    tied = (g - s_prime).abs() <= 4.0 * torch.finfo(g.dtype).eps * s_prime.abs()
    above = ((g > s_prime) & ~tied).to(g.dtype)
    share = ((theta * weight.sum() - (above * weight).sum()) / (tied * weight).sum()).clamp(0.0, 1.0)
    return torch.where(tied, share, above), s_prime


def border_scores(
    pos_scores: Tensor,
    neg_scores: Tensor,
    theta0: float | Tensor,
    theta1: float | Tensor,
    masks: TaskMasks | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The scores on the rectangle's borders, ``()`` each.

    They are p, the :math:`\lceil \theta_0 n_+ \rceil`-th lowest of the positives, and c, the
    :math:`\lceil \theta_1 n_- \rceil`-th highest of the negatives.
    """
    pos_mask, neg_mask = (None, None) if masks is None else (masks.pos, masks.neg)
    return ranked(pos_scores, theta0, pos_mask, largest=False), ranked(neg_scores, theta1, neg_mask)


def border_thresholds(pos_scores: Tensor, neg_border: Tensor, surrogate: Surrogate) -> Tensor:
    r"""Each positive's threshold :math:`s_i = \ell(c - h_i)`, lowered so that a negative on the border is active.

    A pair is active where :math:`\ell_{ij} > s_i`. Exact thresholds lie where they are equal, for one negative of each
    positive, and for all of a model that starts at zero. Left there, rounding would decide about each pair, so that
    another number of processes trained otherwise, and equal scores would never move. So the border is lowered by 64
    units in the last place of the scores, and the loss there by as many of its own: more than two forward passes of
    one model differ by. 0 stays 0.
    """
    pos = pos_scores.to(common_dtype(pos_scores, neg_border))
    t, slack = column(neg_border.to(pos.dtype)) - pos, 64.0 * torch.finfo(pos.dtype).eps
    return surrogate.value(t.sub(torch.hypot(t, pos), alpha=slack)) * (1.0 - slack)


def border_weights(
    pos_scores: Tensor, pos_border: Tensor, theta0: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    r"""Each positive's dual weight :math:`y_i = 1[h_i \le p]`.

    Where positives lie on the border itself, as all of a constant model do, each gets the one share that makes the mean
    :math:`\theta_0`, as far as it can.
    """
    dtype, device = common_dtype(pos_scores, pos_border), pos_scores.device
    # Two forward passes of one example differ in the last digits, so the border has two edges, in either order.
    slack, least = 64.0 * torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    factors, offsets = constant((1.0 - slack, 1.0 + slack), dtype, device), constant((-least, least), dtype, device)
    edges = torch.addcmul(offsets, pos_border.to(dtype).unsqueeze(-1), factors)
    below = pos_scores.unsqueeze(-2) < edges.unsqueeze(-1)  # (2, S)
    if mask is not None:
        below = below & mask.unsqueeze(-2)
    below = below.to(dtype)
    first, second = below.sum(-1).unbind(-1)
    share = ((theta0 * number(pos_scores, mask) - first) / (second - first)).clamp(0.0, 1.0).nan_to_num(0.0)
    return torch.lerp(below[..., 0, :], below[..., 1, :], column(share))
