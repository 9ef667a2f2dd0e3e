"""What the methods are compared with: cross-entropy, and the exact objective on the whole training set."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lightning_tpauc.algorithms.base import Algorithm, PairwiseAlgorithm
from lightning_tpauc.functional.checks import require_range
from lightning_tpauc.functional.pairwise import TaskMasks, common_dtype, number, there
from lightning_tpauc.functional.staco import tpauc_objective
from lightning_tpauc.functional.surrogates import Surrogate


class CrossEntropy(Algorithm):
    r"""Gradient descent on mean binary cross-entropy.

    .. math:: F(w) = \frac{1}{n} \Bigl( \omega \sum_i \log(1 + e^{-h_i}) + \sum_j \log(1 + e^{h_j}) \Bigr)

    Scores are **logits**: leave out any sigmoid. By default batches are drawn uniformly from the whole training set
    (``sampling == "uniform"``), as in the usual classification recipe, so a batch may lack positives. The
    class-balanced variant draws positives and negatives apart and gives each class the weight 1/2: another method,
    which a comparison has to name. The model is the average of the late weights, as :class:`STACO`'s is: that alone
    often brings most of what a partial-AUC loss seems to bring. The method has no state. Compare with a learning rate
    tuned over a grid whose best value is not at its edge: an undertrained cross-entropy looks far worse than it is.

    Args:
        min_tpr: lower bound of the true positive rate, in [0, 1); only reported on, the loss ignores it.
        max_fpr: upper bound of the false positive rate, in (0, 1]; only reported on, the loss ignores it.
        balanced: draw class-balanced batches.
        pos_weight: :math:`\omega`, factor of each positive's term, above 0.
        average: whether the model has the average of the weights; else the last ones, or those that validated best.

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
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        *,
        balanced: bool = False,
        pos_weight: float = 1.0,
        average: bool = True,
    ) -> None:
        super().__init__(min_tpr, max_fpr)
        self.balanced, self.average = balanced, average
        self.averages_iterates = average
        self.sampling = "pos_neg" if balanced else "uniform"
        self.pos_weight = require_range("pos_weight", pos_weight, 0.0, open_low=True)

    def step(self, pos_scores: Tensor, neg_scores: Tensor, *_: Tensor, masks: TaskMasks | None = None) -> Tensor:
        """The mean cross-entropy of the batch; either class may be missing from a uniform batch."""
        dtype = common_dtype(pos_scores, neg_scores)
        pos_losses, neg_losses = softplus(-pos_scores.to(dtype)), softplus(neg_scores.to(dtype))
        pos_mask, neg_mask = (None, None) if masks is None else (masks.pos, masks.neg)
        pos_sum = self.pos_weight * there(pos_losses, pos_mask).sum(-1)
        neg_sum = there(neg_losses, neg_mask).sum(-1)
        if self.balanced:
            return 0.5 * (pos_sum / number(pos_losses, pos_mask) + neg_sum / number(neg_losses, neg_mask))
        both = None if masks is None else torch.cat(masks[:2], -1)
        return (pos_sum + neg_sum) / number(torch.cat([pos_losses, neg_losses], -1), both)


class FullBatch(PairwiseAlgorithm):
    r"""Descent on the exact objective F, with its exact gradient, in every step.

    .. math:: F(w) = \frac{1}{k_1 k_2} \sum_{i \in S^\uparrow_+[1, k_1]} \sum_{j \in S^\downarrow_-[1, k_2]}
        \ell(h_j - h_i), \qquad k_1 = \lfloor \theta_0 n_+ \rfloor, \; k_2 = \lfloor \theta_1 n_- \rfloor

    For linear models, and heads on frozen embeddings: each step takes the scores of all positives and all negatives, so
    there are no samples, no dual variables and no step sizes beside the optimizer's, and O(n log n) makes it cheap (see
    :func:`~lightning_tpauc.functional.tpauc_objective`). Any optimizer works; :class:`torch.optim.LBFGS` wants a smooth
    surrogate, such as ``"squared_hinge"``. One step is one epoch. In a rectangle that the model can't reach, training
    pushes all scores together, and F is l(0): widen the rectangle.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: ``"squared_hinge"``, ``"hinge"``, ``"square"``, ``"logistic"``, ``"ramp"``, ``"smooth_ramp"`` or a
            registered one; ``"logistic"`` and most registered ones take :math:`k_1 k_2` evaluations.
        margin: as in :class:`STACO`.
        scale: as in :class:`STACO`.

    Raises:
        ArgumentError: if an argument is out of range, and in a step if the rectangle holds no example of a class.

    Example:
        >>> import torch
        >>> algorithm = FullBatch(min_tpr=0.5, max_fpr=0.5)
        >>> algorithm.setup(num_positives=2)
        >>> pos = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> loss = algorithm(pos, torch.tensor([0.5, -2.0]), index=torch.tensor([0, 1]))
        >>> loss.backward()
        >>> loss.detach(), pos.grad
        (tensor(1.5000), tensor([-1.,  0.]))
    """

    sampling = "full"
    default_warmup = 0.0

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        *,
        surrogate: str | Surrogate = "hinge",
        margin: float | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(min_tpr, max_fpr, surrogate, margin, scale, "absolute")

    def diagnostics(self) -> dict[str, Tensor]:
        """None: nothing is remembered."""
        return {}

    def step(self, pos_scores: Tensor, neg_scores: Tensor, *_: Tensor) -> Tensor:
        """The exact objective of all scores."""
        return tpauc_objective(pos_scores, neg_scores, self.min_tpr, self.max_fpr, self.surrogate)
