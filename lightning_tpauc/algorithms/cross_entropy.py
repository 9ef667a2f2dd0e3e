"""Cross-entropy, the baseline that knows nothing of the rectangle."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from lightning_tpauc.algorithms.base import Algorithm
from lightning_tpauc.functional.checks import require_range
from lightning_tpauc.functional.cross_entropy import two_class_cross_entropy
from lightning_tpauc.functional.tasks import TaskMasks

__all__ = ("CrossEntropy",)


class CrossEntropy(Algorithm):
    r"""Gradient descent on mean binary cross-entropy.

    .. math:: F(w) = \frac{1}{n} \Bigl( \omega \sum_i \log(1 + e^{-h_i}) + \sum_j \log(1 + e^{h_j}) \Bigr)

    Scores are **logits**: leave out any sigmoid. By default batches are drawn uniformly from the whole training set
    (``sampling == "uniform"``), as in the usual classification recipe, so a batch may lack positives. The
    class-balanced variant draws positives and negatives apart and gives each class the weight 1/2; it is another method
    and has to be named as such in a comparison. The method has no state. Compare with a learning rate tuned over a grid
    whose best value is not at its edge: an undertrained cross-entropy looks far worse than it is.

    Args:
        min_tpr: lower bound of the true positive rate, in [0, 1); only reported on, the loss ignores it.
        max_fpr: upper bound of the false positive rate, in (0, 1]; only reported on, the loss ignores it.
        balanced: draw class-balanced batches.
        pos_weight: :math:`\omega`, factor of each positive's term, above 0.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> import torch
        >>> algorithm = CrossEntropy()
        >>> algorithm.setup(num_positives=3)
        >>> pos = torch.tensor([0.0], requires_grad=True)
        >>> loss = algorithm(pos, torch.tensor([0.0]), index=torch.tensor([2]))
        >>> loss.backward()
        >>> loss.detach(), pos.grad
        (tensor(0.6931), tensor([-0.2500]))
    """

    #: The logistic function is part of the loss.
    takes_logits = True
    takes_tasks = True

    def __init__(
        self, min_tpr: float = 0.5, max_fpr: float = 0.5, *, balanced: bool = False, pos_weight: float = 1.0
    ) -> None:
        super().__init__(min_tpr, max_fpr)
        self.balanced = balanced
        self.pos_weight = require_range("pos_weight", pos_weight, 0.0, open_low=True)

    @property
    def sampling(self) -> Literal["pos_neg", "uniform", "full"]:
        """``"pos_neg"`` for the class-balanced variant, ``"uniform"`` otherwise."""
        return "pos_neg" if self.balanced else "uniform"

    def step(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        dual_neg_scores: Tensor,  # noqa: ARG002
        index: Tensor,  # noqa: ARG002
        masks: TaskMasks | None = None,
    ) -> Tensor:
        """The mean cross-entropy of the batch; either class may be missing from a uniform batch."""
        return two_class_cross_entropy(pos_scores, neg_scores, self.pos_weight, self.balanced, masks)
