"""Binary cross-entropy on the logits of two classes that may be empty."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from lightning_tpauc.functional.checks import check_scores, common_dtype
from lightning_tpauc.functional.tasks import TaskMasks, there


def two_class_cross_entropy(
    pos_scores: Tensor,
    neg_scores: Tensor,
    pos_weight: float = 1.0,
    balanced: bool = False,
    masks: TaskMasks | None = None,
) -> Tensor:
    r"""Mean binary cross-entropy of raw logits.

    .. math:: \frac{1}{S + B} \Bigl( \omega \sum_i \log(1 + e^{-h_i}) + \sum_j \log(1 + e^{h_j}) \Bigr)

    Args:
        pos_scores: float tensor ``(S,)``, logits of positives; S may be 0.
        neg_scores: float tensor ``(B,)``, logits of negatives; B may be 0.
        pos_weight: :math:`\omega`, factor of each positive's term.
        balanced: give each class the weight 1/2 whatever S and B, instead of a weight in proportion to its size.
        masks: which scores of K tasks are there; scores then have a leading K.

    Returns:
        Scalar tensor, or ``(K,)``, in [0, inf), at least float32; 0 for an empty batch.

    Raises:
        ArgumentError: if the scores are not one-dimensional float tensors.

    Example:
        >>> import torch
        >>> two_class_cross_entropy(torch.tensor([0.0, 1000.0]), torch.tensor([-1000.0, 0.0]))
        tensor(0.3466)
    """
    if masks is None:
        check_scores(pos_scores, "pos_scores", allow_empty=True)
        check_scores(neg_scores, "neg_scores", allow_empty=True)
    dtype = common_dtype(pos_scores, neg_scores)
    pos_losses, neg_losses = softplus(-pos_scores.to(dtype)), softplus(neg_scores.to(dtype))
    if masks is None:
        num_pos: int | Tensor = pos_scores.numel()
        num_neg: int | Tensor = neg_scores.numel()
        pos_sum, neg_sum = pos_losses.sum(), neg_losses.sum()
    else:
        num_pos, num_neg = masks.pos.sum(-1), masks.neg.sum(-1)
        pos_sum, neg_sum = there(pos_losses, masks.pos).sum(-1), there(neg_losses, masks.neg).sum(-1)
    pos_sum = pos_weight * pos_sum
    if balanced:
        return 0.5 * (pos_sum / _at_least_one(num_pos) + neg_sum / _at_least_one(num_neg))
    return (pos_sum + neg_sum) / _at_least_one(num_pos + num_neg)


def _at_least_one(number: int | Tensor) -> int | Tensor:
    return number.clamp_min(1) if isinstance(number, Tensor) else max(number, 1)
