"""SOTA, the exact method that STACO improves on (Zhu, Li, Wang, Wu, Yang: ICML 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightning_tpauc.algorithms.duals import PerPositiveDuals
from lightning_tpauc.algorithms.staco import STACO
from lightning_tpauc.algorithms.state import put_
from lightning_tpauc.functional.checks import require_range
from lightning_tpauc.functional.sota import full_threshold_step, sparse_threshold_gradient
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.functional.tasks import TaskMasks

__all__ = ("SOTA",)


class SOTA(STACO):
    r"""STACO2 with a full-vector update of the thresholds.

    From Zhu, Li, Wang, Wu, Yang: When AUC meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex
    Convergence Guarantee, ICML 2022. The min-max problem, its proximal stages and the updates of y, w and s' are
    those of :class:`STACO` with finite ``gamma``, but s moves as one vector, by an unbiased and sparse gradient G:

    .. math::
        s \leftarrow \arg\min_z \langle G, z \rangle + \frac{|z - s_0|^2}{2 \gamma n_+} + \frac{|z - s|^2}{2 \beta},
        \qquad G_i = \frac{y_i}{\theta_0 S} \Bigl( 1 - \frac{\mathrm{active}_i}{\theta_1} \Bigr)

    for the sampled i and :math:`G_i = 0` elsewhere, so that every step changes all :math:`n_+` entries. It exists
    to show what that costs: O(n_pos) time a step instead of O(S), and per-positive steps S times smaller at the same
    ``beta``. The source has no public code and leaves details open; decided here: y and s use the two independent
    batches of negatives as in STACO2, :math:`G` takes the new y, and the options for the start and the stages are
    STACO's.

    Args:
        min_tpr: as in :class:`STACO`.
        max_fpr: as in :class:`STACO`.
        surrogate: as in :class:`STACO`.
        margin: as in :class:`STACO`.
        scale: as in :class:`STACO`.
        step_units: as in :class:`STACO`.
        alpha: as in :class:`STACO`.
        beta: step size of the proximal step on s, at least 0.
        beta_prime: as in :class:`STACO`.
        gamma: proximal parameter of the stages, above 0 and finite.
        dual_init: as in :class:`STACO`.
        stage_restart: as in :class:`STACO`.
        share_negatives: as in :class:`STACO`.

    Raises:
        ArgumentError: if an argument is out of range, or if ``"exact"`` is asked for with a surrogate that isn't
            monotone.

    Example:
        >>> algorithm = SOTA(dual_init="zeros", beta=1.0, gamma=1.0)
        >>> algorithm.setup(num_positives=3)
        >>> loss = algorithm(torch.tensor([0.2, 0.9]), torch.tensor([0.8]), torch.tensor([0.8]), torch.tensor([0, 2]))
        >>> algorithm.s
        tensor([0.9375, 0.0000, 0.9375])
    """

    #: The method is compared as it was published.
    can_shrink_rectangle = False

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        *,
        surrogate: str | Surrogate = "hinge",
        margin: float | None = None,
        scale: float | None = None,
        step_units: Literal["loss", "absolute"] = "loss",
        alpha: float = 1.0,
        beta: float = 1.0,
        beta_prime: float = 1.0,
        gamma: float = 500.0,
        dual_init: Literal["exact", "ones", "zeros"] = "exact",
        stage_restart: Literal["exact", "ones"] = "exact",
        share_negatives: bool = False,
    ) -> None:
        super().__init__(
            min_tpr,
            max_fpr,
            surrogate=surrogate,
            margin=margin,
            scale=scale,
            step_units=step_units,
            alpha=alpha,
            beta=beta,
            beta_prime=beta_prime,
            gamma=gamma,
            dual_init=dual_init,
            stage_restart=stage_restart,
            share_negatives=share_negatives,
        )
        require_range("gamma", gamma, 0.0, open_low=True)
        self._duals = _FullVectorDuals(self)


class _FullVectorDuals(PerPositiveDuals):
    """Every step changes all thresholds."""

    _threshold_kind = "dense"

    def _descend_thresholds(
        self,
        index: Tensor,
        s: Tensor,  # noqa: ARG002
        y: Tensor,
        active: Tensor,
        beta: float | Tensor,
        gamma: float | Tensor,
        masks: TaskMasks | None,
    ) -> None:
        own = self.algorithm
        gradient = torch.zeros_like(own.s)
        sampled = sparse_threshold_gradient(y, active, *own.thetas, None if masks is None else masks.pos)
        put_(gradient, index, sampled)
        beta, gamma = own.of_each_positive(beta), own.of_each_positive(gamma)
        counts = None if masks is None else own.of_each_positive(own.task_counts.to(own.s.dtype))
        new = full_threshold_step(own.s, gradient, own.s_anchor, beta, gamma, counts)
        if masks is not None:
            new = torch.where(own.of_each_positive(masks.pos.any(-1)), new, own.s)
        own.s_moments.add_((new - own.s) * own.of_each_positive(own.stage_steps))
        own.s.copy_(new)
