r"""The mean loss of every positive over its hardest share of the negatives: its conditional value at risk."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tpauc.functional.checks import check_rectangle, check_scores, common_dtype
from lightning_tpauc.functional.pairwise import mean_excess
from lightning_tpauc.functional.rectangle import ceil_count
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate
from lightning_tpauc.functional.tasks import TaskMasks, column, highest, masked_mean

__all__ = ("in_double", "tail_mean_loss", "tail_risk")

# Pairs whose losses are ranked at once, where nothing but ranking them all will do.
_BLOCK = 1 << 22


@torch.no_grad()
def tail_mean_loss(
    pos_scores: Tensor,
    neg_scores: Tensor,
    max_fpr: float | Tensor = 0.5,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 0.5,
    scale: float = 1.0,
    masks: TaskMasks | None = None,
) -> Tensor:
    r"""The mean over all positives of the mean loss over the hardest :math:`\theta_1` share of the negatives.

    .. math:: \frac{1}{n_+} \sum_i \min_s \Bigl( s + \frac{1}{\theta_1 n_-} \sum_j (\ell_{ij} - s)_+ \Bigr)

    Where :math:`\theta_1 n_-` is no whole number, the last of the hardest negatives counts in part. The hardest are the
    highest for a monotone surrogate, and each positive's own for another.

    Args:
        pos_scores: float tensor ``(n_pos,)``.
        neg_scores: float tensor ``(n_neg,)``.
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the hinge, square and ramp surrogates.
        scale: factor inside the logistic surrogate.
        masks: which scores of K tasks are there; scores then have a leading K, and ``max_fpr`` may be a float64 tensor
            ``(K,)``.

    Returns:
        Tensor ``()``, or ``(K,)`` for tasks, without a graph, in the dtype of the scores, at least float32. Nothing
        waits for the device. Time is O(n log n) where sorting evaluates the surrogate; the others take all pairs, in
        blocks.

    Raises:
        ArgumentError: if an argument is malformed.

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0]), torch.tensor([0.5, -2.0, -0.25])
        >>> tail_mean_loss(pos, neg, max_fpr=0.5, surrogate="hinge")  # 1.5 negatives: (1 + 0.25 / 2) / 1.5 and 0
        tensor(0.3750)
    """
    if masks is None:
        _, max_fpr = check_rectangle(0.0, max_fpr)  # type: ignore[arg-type]  # a number, where there is one task
        check_scores(pos_scores, "pos_scores")
        check_scores(neg_scores, "neg_scores")
    loss = get_surrogate(surrogate, margin, scale)
    _, risk = tail_risk(in_double(pos_scores), in_double(neg_scores), max_fpr, loss, masks)
    return masked_mean(risk, None if masks is None else masks.pos).to(common_dtype(pos_scores, neg_scores))


def tail_risk(
    pos: Tensor, neg: Tensor, theta: float | Tensor, loss: Surrogate, masks: TaskMasks | None = None
) -> tuple[Tensor, Tensor]:
    r"""Each positive's threshold :math:`s_i`, and its mean loss over the hardest share of the negatives.

    Args:
        pos: float tensor ``(n_pos,)``.
        neg: float tensor ``(n_neg,)``.
        theta: the share, :math:`\theta_1`, in (0, 1].
        loss: any surrogate.
        masks: see :func:`tail_mean_loss`.

    Returns:
        :math:`s_i`, the :math:`\lceil \theta_1 n_- \rceil`-th largest loss, and
        :math:`s_i + \frac{1}{\theta_1 n_-} \sum_j (\ell_{ij} - s_i)_+`, both ``(n_pos,)``.

    Example:
        >>> from lightning_tpauc.functional.surrogates import get_surrogate
        >>> tail_risk(torch.zeros(1), torch.tensor([0.5, 0.25, -2.0]), 0.5, get_surrogate("hinge"))
        (tensor([0.7500]), tensor([0.9167]))
    """
    if masks is not None:
        return _tail_risk_of_tasks(pos, neg, theta, loss, masks)
    assert isinstance(theta, float)  # noqa: S101  # one task has one rectangle
    num_neg = neg.shape[0]
    rank = max(1, ceil_count(theta, num_neg))
    share = 1.0
    if loss.monotone:
        # The other negatives exceed no threshold, so their terms are 0.
        neg, share = torch.topk(neg, rank, sorted=False).values, rank / num_neg
        s = loss.value(neg.min() - pos)
    elif loss.pieces:
        s = _two_sided_threshold(pos, neg, rank, loss)
    else:
        rows = torch.split(pos, max(1, _BLOCK // num_neg))
        s = torch.cat([torch.topk(loss.value(neg - row.unsqueeze(1)), rank).values[:, -1] for row in rows])
    excess = mean_excess(pos, neg, s, loss) * share
    return s, s + excess / theta


def _tail_risk_of_tasks(
    pos: Tensor, neg: Tensor, theta: float | Tensor, loss: Surrogate, masks: TaskMasks
) -> tuple[Tensor, Tensor]:
    """The ranks of tasks differ and are not known on the host, so all negatives stay, sorted."""
    if loss.monotone:
        border = highest(neg, theta, masks.neg).clamp_min(torch.finfo(neg.dtype).min)
        s = loss.value(border.unsqueeze(-1) - pos)
    else:
        pairs = loss.value(neg.unsqueeze(-2) - pos.unsqueeze(-1))
        s = highest(pairs, column(theta), masks.neg.unsqueeze(-2).expand_as(pairs)).nan_to_num(neginf=0.0)
    excess = mean_excess(pos, neg, s, loss, masks)
    return s, s + excess / column(theta)


def in_double(scores: Tensor) -> Tensor:
    """``scores`` in float64 where the device has it."""
    return scores.to(torch.float32 if scores.device.type == "mps" else torch.float64)


def _two_sided_threshold(pos: Tensor, neg: Tensor, rank: int, loss: Surrogate) -> Tensor:
    """The ``rank``-th largest loss of each positive, where the loss grows with the distance from one score.

    The negatives that cost least are then neighbours in order; bisection finds where they start.
    """
    up = neg.sort().values
    least = neg.shape[0] - rank  # how many are cheaper
    centre = pos - loss.pieces[0].margin
    low, high = torch.zeros_like(pos, dtype=torch.int64), torch.full_like(pos, rank, dtype=torch.int64)
    for _ in range(rank.bit_length()):
        middle = (low + high) // 2
        inside = middle.clamp(max=rank - 1)
        right = (centre - up[inside] > up[inside + least] - centre) & (low < high)
        low, high = torch.where(right, middle + 1, low), torch.where(right, high, middle)
    below = loss.value(up[(low - 1).clamp(min=0)] - pos)
    above = loss.value(up[(low + least).clamp(max=neg.shape[0] - 1)] - pos)
    cheaper = torch.where(low == 0, above, torch.minimum(below, above))
    return torch.where(low == rank, below, cheaper)
