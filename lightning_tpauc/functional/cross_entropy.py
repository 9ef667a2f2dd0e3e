"""Binary cross-entropy on the logits of two classes that may be empty."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from lightning_tpauc.functional.checks import check_scores, common_dtype

__all__ = ("two_class_cross_entropy",)


def two_class_cross_entropy(
    pos_scores: Tensor, neg_scores: Tensor, pos_weight: float = 1.0, balanced: bool = False
) -> Tensor:
    r"""Mean binary cross-entropy of raw logits.

    .. math:: \frac{1}{S + B} \Bigl( \omega \sum_i \log(1 + e^{-h_i}) + \sum_j \log(1 + e^{h_j}) \Bigr)

    Args:
        pos_scores: float tensor ``(S,)``, logits of positives; S may be 0.
        neg_scores: float tensor ``(B,)``, logits of negatives; B may be 0.
        pos_weight: :math:`\omega`, factor of each positive's term.
        balanced: give each class the weight 1/2 whatever S and B, instead of a weight in proportion to its size.

    Returns:
        Scalar tensor in [0, inf), at least float32; 0 for an empty batch.

    Raises:
        ArgumentError: if the scores are not one-dimensional float tensors.

    Example:
        >>> import torch
        >>> two_class_cross_entropy(torch.tensor([0.0, 1000.0]), torch.tensor([-1000.0, 0.0]))
        tensor(0.3466)
    """
    check_scores(pos_scores, "pos_scores", allow_empty=True)
    check_scores(neg_scores, "neg_scores", allow_empty=True)
    dtype = common_dtype(pos_scores, neg_scores)
    pos_sum = pos_weight * softplus(-pos_scores.to(dtype)).sum()
    neg_sum = softplus(neg_scores.to(dtype)).sum()
    num_pos, num_neg = pos_scores.numel(), neg_scores.numel()
    if balanced:
        return 0.5 * (pos_sum / max(num_pos, 1) + neg_sum / max(num_neg, 1))
    return (pos_sum + neg_sum) / max(num_pos + num_neg, 1)
