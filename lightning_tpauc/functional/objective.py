"""The exact objective that all methods of this package approximate, and how near it is to that of a constant model."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import (
    check_rectangle,
    check_scores,
    rankable,
)
from lightning_tpauc.functional.pairwise import (
    evaluate_pairs,
    floor_count,
)
from lightning_tpauc.functional.roc import sorted_ranks
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate

# Scores of a class that tell enough of a ratio; more would take longer than the steps between two of its evaluations.
_MOST_SORTED, _MOST_PAIRED = 2**16, 2**10


def tpauc_objective(
    pos_scores: Tensor,
    neg_scores: Tensor,
    min_tpr: float = 0.5,
    max_fpr: float = 0.5,
    surrogate: str | Surrogate = "hinge",
    margin: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    r"""Mean surrogate loss over the hardest positives and negatives: the surrogate of 1 - TPAUC.

    .. math::
        F = \frac{1}{k_1 k_2} \sum_{i \in S^\uparrow_+[1, k_1]} \sum_{j \in S^\downarrow_-[1, k_2]} \ell(h_j - h_i),
        \qquad k_1 = \lfloor \theta_0 n_+ \rfloor, \; k_2 = \lfloor \theta_1 n_- \rfloor

    (eq. ``tpauc-o``, normalised) with the :math:`k_1` lowest positives and the :math:`k_2` highest negatives. They are
    chosen by score for every surrogate, so for ``square``, which falls left of -m, this is not the CVaR form.
    Differentiable with respect to all scores, which may come as arrays or lists as well; where ties straddle the border
    of the selection, they share the gradient alike. At equal scores of all examples, as of weights that are zero, any
    choice among them could point uphill.

    Args:
        pos_scores: float tensor ``(n_pos,)``, larger means more positive.
        neg_scores: float tensor ``(n_neg,)``.
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the hinge and square surrogates.
        scale: factor inside the logistic surrogate.

    Returns:
        Scalar tensor, at least 0. Time and memory are O(n log n) for all surrogates but ``logistic`` and registered
        ones without a :class:`~lightning_tpauc.functional.PowerForm`, which take :math:`k_1 k_2` evaluations in blocks.
        nan if any score is, selected or not: it may belong to the rectangle.

    Raises:
        ArgumentError: if the rectangle holds no positive or no negative, or an argument is malformed.

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0]), torch.tensor([0.5, -2.0])
        >>> tpauc_objective(pos, neg, min_tpr=0.5, max_fpr=0.5)  # one pair: 1 + 0.5 - 0
        tensor(1.5000)
    """
    min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
    pos_scores, neg_scores = check_scores(pos_scores, "pos_scores"), check_scores(neg_scores, "neg_scores")
    num_pos = _selected(1.0 - min_tpr, pos_scores.shape[0], f"min_tpr={min_tpr}", "positive")
    num_neg = _selected(max_fpr, neg_scores.shape[0], f"max_fpr={max_fpr}", "negative")
    lowest = _hardest(pos_scores, num_pos, largest=False)
    largest = _hardest(neg_scores, num_neg, largest=True)
    # Surrogates are never negative, so the excess over a threshold of 0 is the loss itself.
    zeros = torch.zeros_like(lowest)
    pairs = evaluate_pairs(lowest, largest, zeros, surrogate=surrogate, margin=margin, scale=scale)
    # By a factor, since asking for the truth would wait for the device.
    broken = pos_scores.isnan().any() | neg_scores.isnan().any()
    value = pairs.weighted_sum(torch.ones_like(zeros))
    return value / num_pos * torch.where(broken, math.nan, 1.0).to(value.dtype)


@torch.no_grad()
def objective_ratio(
    pos_scores: Tensor,
    neg_scores: Tensor,
    min_tpr: float = 0.5,
    max_fpr: float = 0.5,
    surrogate: str | Surrogate = "hinge",
    margin: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    r"""The objective F over :math:`\ell(0)`, that of a model that scores all examples alike.

    Near 1 the rectangle is out of reach: there the constant model minimises F, whatever convex surrogate is taken.

    Arguments and errors are those of :func:`tpauc_objective`.

    Returns:
        Scalar tensor, at least 0; of a class with more than 65,536 scores, or 1,024 where the surrogate can't be
        sorted, evenly spaced quantiles stand for all. nan where the rectangle holds no positive or no negative, and 0
        where :math:`\ell(0) = 0`, since no model is worse than a constant one then.

    Example:
        >>> pos, neg = torch.tensor([0.5, 1.0]), torch.tensor([0.0, -2.0])
        >>> objective_ratio(pos, neg, min_tpr=0.0, max_fpr=1.0, surrogate="hinge", margin=1.0)
        tensor(0.1250)
    """
    loss = get_surrogate(surrogate, margin, scale)
    most = _MOST_SORTED if loss.power is not None else _MOST_PAIRED
    pos_scores = _thinned(check_scores(pos_scores, "pos_scores", allow_empty=True), most)
    neg_scores = _thinned(check_scores(neg_scores, "neg_scores", allow_empty=True), most)
    constant = loss.value(pos_scores.new_zeros(()))
    if not floor_count(1.0 - min_tpr, pos_scores.shape[0]) or not floor_count(max_fpr, neg_scores.shape[0]):
        return torch.full_like(constant, torch.nan)
    objective = tpauc_objective(pos_scores, neg_scores, min_tpr, max_fpr, surrogate=loss)
    return torch.where(constant > 0, objective / constant, torch.zeros_like(objective))


def _thinned(scores: Tensor, most: int) -> Tensor:
    every = -(-scores.numel() // most)
    return scores if every <= 1 else sorted_ranks(rankable(scores), 0, scores.numel())[every // 2 :: every]


def _hardest(scores: Tensor, count: int, largest: bool) -> Tensor:
    """The ``count`` largest or smallest scores; those equal to the last of them share its gradient, nan spoils all."""
    chosen = torch.topk(scores, count, largest=largest, sorted=False).values
    last = chosen.detach().amin() if largest else chosen.detach().amax()
    tied = scores == last
    shared = last + torch.where((tied & last.isfinite()) | scores.isnan(), scores - last, 0.0).sum() / tied.sum()
    return torch.where(chosen == last, shared, chosen)


def _selected(theta: float, n: int, bound: str, kind: str) -> int:
    count = floor_count(theta, n)
    if count < 1:
        # ceil(1 / theta) examples make theta n reach 1.
        needed = next(m for m in range(max(1, int(1.0 / theta)), int(1.0 / theta) + 3) if floor_count(theta, m) >= 1)
        msg = (
            f"The rectangle with {bound} needs at least {needed} {kind} scores, but got {n}. "
            "Widen the rectangle, or evaluate on more examples."
        )
        raise ArgumentError(msg)
    return count
