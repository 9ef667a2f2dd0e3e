"""SOTA, the exact method that STACO improves on, and SOTAs, its soft form (Zhu, Li, Wang, Wu, Yang: ICML 2022)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import PairwiseAlgorithm
from lightning_tpauc.algorithms.duals import Duals, PerPositiveDuals
from lightning_tpauc.algorithms.staco import STACO
from lightning_tpauc.algorithms.state import put_, take
from lightning_tpauc.functional.checks import common_dtype, require_range
from lightning_tpauc.functional.pairwise import TaskMasks, column, in_play, number
from lightning_tpauc.functional.surrogates import Surrogate

# Pairs per block: 32 MB for a temporary in double precision.
_BLOCK = 1 << 22


def sparse_threshold_gradient(
    dual_weights: Tensor, active: Tensor, theta0: float | Tensor, theta1: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    r"""The entries of the sampled positives in the unbiased gradient with respect to the vector s.

    .. math:: G_i = \frac{n_+}{S} \cdot \frac{1}{n_+} \cdot \frac{y_i}{\theta_0}
        \Bigl( 1 - \frac{\mathrm{active}_i}{\theta_1} \Bigr)

    Args:
        dual_weights: float tensor ``(S,)`` in [0, 1], :math:`y_i`.
        active: float tensor ``(S,)`` in [0, 1], share of negatives whose loss exceeds :math:`s_i`.
        theta0: one minus the lower bound of the true positive rate, in (0, 1].
        theta1: the upper bound of the false positive rate, in (0, 1].
        mask: bool tensor ``(K, S)`` of K tasks: which positives are there.

    Returns:
        Float tensor ``(S,)``; all other entries of G are 0.

    Example:
        >>> import torch
        >>> sparse_threshold_gradient(torch.tensor([1.0, 0.5]), torch.tensor([1.0, 0.0]), theta0=0.5, theta1=0.5)
        tensor([-1.0000,  0.5000])
    """
    return dual_weights * (1.0 - active / column(theta1)) / column(theta0 * number(dual_weights, mask))


def full_threshold_step(
    thresholds: Tensor,
    gradient: Tensor,
    anchor: Tensor,
    beta: float | Tensor,
    gamma: float | Tensor,
    num_positives: int | Tensor | None = None,
) -> Tensor:
    r"""The proximal step on all thresholds, in closed form.

    .. math:: \arg\min_z \langle G, z \rangle + \frac{|z - s_0|^2}{2 \gamma n_+} + \frac{|z - s|^2}{2 \beta}
        = \frac{s + r s_0 - \beta G}{1 + r}, \qquad r = \frac{\beta}{\gamma n_+}

    Args:
        thresholds: float tensor ``(n_pos,)``, s.
        gradient: float tensor ``(n_pos,)``, G.
        anchor: float tensor ``(n_pos,)``, :math:`s_0`.
        beta: step size, at least 0: a number, or a tensor that is ``()`` or has an entry for each threshold.
        gamma: proximal parameter, above 0: as ``beta``.
        num_positives: :math:`n_+`, one number or one for each threshold; the number of thresholds if ``None``.

    Example:
        >>> import torch
        >>> full_threshold_step(torch.tensor([1.0]), torch.tensor([0.5]), torch.zeros(1), beta=1.0, gamma=1.0)
        tensor([0.2500])
    """
    ratio = beta / (gamma * (thresholds.numel() if num_positives is None else num_positives))
    return (thresholds + ratio * anchor - beta * gradient) / (1.0 + ratio)


@torch.no_grad()
def log_mean_exp_loss(
    pos_scores: Tensor, neg_scores: Tensor, surrogate: Surrogate, lam: float | Tensor, masks: TaskMasks | None = None
) -> Tensor:
    r"""For every positive, :math:`\log E_N \exp(\ell_{ij} / \lambda)`.

    Args:
        pos_scores: float tensor ``(S,)``.
        neg_scores: float tensor ``(B,)``.
        surrogate: the pairwise loss.
        lam: :math:`\lambda`, above 0: a number, or a tensor ``()``; of K tasks also ``(K,)``.
        masks: which scores of K tasks are there; scores then have a leading K.

    Returns:
        Float tensor ``(S,)``; minus infinity for a task without negatives. Memory O(S + B) plus one block of pairs.

    Example:
        >>> from lightning_tpauc.functional.surrogates import get_surrogate
        >>> log_mean_exp_loss(torch.tensor([0.0]), torch.tensor([100.0, 0.0]), get_surrogate("hinge"), lam=1.0)
        tensor([99.8069])
    """
    scale = column(column(lam))
    rows = []
    for pos in torch.split(pos_scores, _rows(neg_scores), dim=-1):
        exponents = surrogate.value(neg_scores.unsqueeze(-2) - pos.unsqueeze(-1)) / scale
        if masks is not None:
            exponents = exponents.masked_fill(~masks.neg.unsqueeze(-2), -torch.inf)
        rows.append(torch.logsumexp(exponents, dim=-1))
    if masks is None:
        return torch.cat(rows) - math.log(neg_scores.numel())
    return torch.cat(rows, dim=-1) - column(number(neg_scores, masks.neg).log())


def log_moving_average(log_average: Tensor, log_value: Tensor, rate: float) -> Tensor:
    r"""Logarithm of :math:`u \leftarrow (1 - \gamma) u + \gamma x` for positive u and x.

    Example:
        >>> log_moving_average(torch.tensor(1.0).log(), torch.tensor(3.0).log(), rate=0.5).exp()
        tensor(2.)
    """
    if rate == 1.0:
        return log_value.clone()
    return torch.logaddexp(log_average + math.log1p(-rate), log_value + math.log(rate))


def log_outer_mean(log_inner: Tensor, lam: float, lam_prime: float, mask: Tensor | None = None) -> Tensor:
    r"""Logarithm of :math:`E_P\, u_i^{\lambda / \lambda'}`.

    Args:
        log_inner: float tensor ``(S,)``, :math:`\log u_i`.
        lam: :math:`\lambda`, above 0.
        lam_prime: :math:`\lambda'`, above 0.
        mask: bool tensor ``(K, S)`` of K tasks: which positives are there.

    Returns:
        Float tensor ``()``; of tasks ``(K,)``, minus infinity where no positive is there.

    Example:
        >>> log_outer_mean(torch.tensor([4.0, 16.0]).log(), lam=0.5, lam_prime=1.0).exp()
        tensor(3.)
    """
    powers = log_inner * (lam / lam_prime)
    if mask is None:
        return torch.logsumexp(powers, dim=0) - math.log(log_inner.numel())
    return torch.logsumexp(powers.masked_fill(~mask, -torch.inf), dim=-1) - number(powers, mask).log()


def log_pair_weights(log_inner: Tensor, log_outer: Tensor, lam: float, lam_prime: float) -> Tensor:
    r"""The part of :math:`\log p_{ij}` that depends on i only: :math:`(\lambda / \lambda' - 1) \log u_i - \log v`.

    Returns:
        Float tensor ``(S,)``; :math:`p_{ij}` is the exponential of it plus :math:`\ell_{ij} / \lambda`.

    Example:
        >>> log_pair_weights(torch.tensor([2.0]), torch.tensor(1.0), lam=1.0, lam_prime=2.0)
        tensor([-2.])
    """
    return (lam / lam_prime - 1.0) * log_inner - column(log_outer)


def weighted_pair_loss(
    pos_scores: Tensor,
    neg_scores: Tensor,
    log_weights: Tensor,
    surrogate: Surrogate,
    lam: float | Tensor,
    masks: TaskMasks | None = None,
) -> Tensor:
    r"""The mean of :math:`p_{ij} \ell_{ij}` over all pairs, with constant :math:`p_{ij}`.

    Returns:
        Scalar tensor, or ``(K,)``, differentiable with respect to the scores. The gradients are computed with the
        value, so the graph holds S + B numbers instead of the S x B pairs.

    Example:
        >>> from lightning_tpauc.functional.surrogates import get_surrogate
        >>> pos = torch.zeros(1, requires_grad=True)
        >>> loss = weighted_pair_loss(pos, torch.zeros(2), torch.tensor([-0.5]), get_surrogate("hinge"), lam=1.0)
        >>> loss.backward()
        >>> loss.detach(), pos.grad
        (tensor(0.5000), tensor([-1.]))
    """
    constants = pos_scores.detach(), neg_scores.detach(), log_weights
    value, pos_grad, neg_grad = _pair_sums(*constants, surrogate, lam, masks)
    linear = (pos_scores * pos_grad).sum(-1) + (neg_scores * neg_grad).sum(-1)
    return value + (linear - linear.detach())


@torch.no_grad()
def _pair_sums(
    pos_scores: Tensor,
    neg_scores: Tensor,
    log_weights: Tensor,
    surrogate: Surrogate,
    lam: float | Tensor,
    masks: TaskMasks | None,
) -> tuple[Tensor, Tensor, Tensor]:
    if masks is None:
        pairs: float | Tensor = pos_scores.numel() * neg_scores.numel()
    else:
        pairs = column(column(number(pos_scores, masks.pos) * number(neg_scores, masks.neg)))
        log_weights = log_weights.masked_fill(~masks.pos, -torch.inf)
    value, neg_grad, pos_grads = pos_scores.new_zeros(pos_scores.shape[:-1]), torch.zeros_like(neg_scores), []
    rows, scale = _rows(neg_scores), column(column(lam))
    blocks = zip(torch.split(pos_scores, rows, dim=-1), torch.split(log_weights, rows, dim=-1), strict=True)
    for pos, log_weight in blocks:
        t = neg_scores.unsqueeze(-2) - pos.unsqueeze(-1)
        loss = surrogate.value(t)
        exponents = log_weight.unsqueeze(-1) + loss / scale
        if masks is not None:
            exponents = exponents.masked_fill(~masks.neg.unsqueeze(-2), -torch.inf)
        weight = torch.exp(exponents).div_(pairs)
        value += (weight * loss).sum((-2, -1))
        slope = weight.mul_(surrogate.derivative(t))
        neg_grad += slope.sum(-2)
        pos_grads.append(-slope.sum(-1))
    return value, torch.cat(pos_grads, dim=-1), neg_grad


def _rows(neg_scores: Tensor) -> int:
    return max(1, _BLOCK // neg_scores.numel())


# The logarithm of the averages' start, zero: finite, so that state can be checked for infinities, and so small that the
# first step gives exactly what minus infinity would give.
_LOG_ZERO = -1e30


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
    kinds_of_duals: ClassVar[dict[str, type[Duals]]] = {"per_positive": _FullVectorDuals}

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


class SOTAs(PairwiseAlgorithm):
    r"""Stochastic optimisation of the KL-regularised, smooth two-way partial AUC loss.

    The hardest positives and negatives are weighted softly instead of cut out (Zhu, Li, Wang, Wu, Yang: When AUC meets
    DRO: Optimizing Partial AUC for Deep Learning with Non-Convex Convergence Guarantee, ICML 2022):

    .. math:: F(w) = \lambda' \log E_P \Bigl( E_N \exp(\ell_{ij} / \lambda) \Bigr)^{\lambda / \lambda'}

    One call updates the inner averages
    :math:`u_i \leftarrow (1 - \gamma_0) u_i + \gamma_0 E_N \exp(\ell_{ij}/\lambda)` of the batch's positives, then
    :math:`v \leftarrow (1 - \gamma_1) v + \gamma_1 E_P u_i^{\lambda/\lambda'}` with the new :math:`u_i`, and returns
    the mean of :math:`p_{ij} \ell_{ij}` with the constant weights
    :math:`p_{ij} = u_i^{\lambda/\lambda' - 1} \exp(\ell_{ij}/\lambda) / v`. Both averages start at 0 and are kept as
    logarithms, so nothing overflows. The rectangle enters only through :math:`\lambda'` (smaller: harder positives, as
    a larger ``min_tpr``) and :math:`\lambda` (smaller: harder negatives, as a smaller ``max_fpr``). The step sizes of
    the averages aren't scaled with the learning rate: the source keeps them.

    Args:
        min_tpr: lower bound of the true positive rate, in [0, 1); only reported on.
        max_fpr: upper bound of the false positive rate, in (0, 1]; only reported on.
        surrogate: name of the pairwise loss, or a :class:`~lightning_tpauc.functional.Surrogate`.
        margin: as in :class:`STACO`.
        scale: as in :class:`STACO`.
        step_units: what :math:`\lambda` and :math:`\lambda'` are measured in. ``"loss"``: :math:`\lambda L` and
            :math:`\lambda' L` are taken, and the weights' loss is divided by :math:`L`, the running mean of the loss on
            the hardest :math:`\theta_1` of the negatives, or the batch's own or a constant model's where that is more:
            the same numbers then suit any score, surrogate and margin. ``"absolute"``: as they are, as in the source.
        lam: :math:`\lambda`, above 0; the source tunes it, absolute, in {0.1, 1, 10}.
        lam_prime: :math:`\lambda'`, above 0; the same grid.
        gamma0: rate of the inner averages, in (0, 1].
        gamma1: rate of the outer average, in (0, 1].

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> import torch
        >>> algorithm = SOTAs(lam=0.1, lam_prime=1.0)
        >>> algorithm.setup(num_positives=4)
        >>> loss = algorithm(torch.tensor([-50.0]), torch.tensor([50.0, 0.0]), index=torch.tensor([3]))
        >>> loss.isfinite()
        tensor(True)
    """

    takes_tasks = True

    log_u: Tensor
    log_v: Tensor

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        *,
        surrogate: str | Surrogate = "hinge",
        margin: float | None = None,
        scale: float | None = None,
        step_units: Literal["loss", "absolute"] = "loss",
        lam: float = 3.0,
        lam_prime: float = 3.0,
        gamma0: float = 0.9,
        gamma1: float = 0.9,
    ) -> None:
        super().__init__(min_tpr, max_fpr, surrogate, margin, scale, step_units)
        self.lam = require_range("lam", lam, 0.0, open_low=True)
        self.lam_prime = require_range("lam_prime", lam_prime, 0.0, open_low=True)
        self.gamma0 = require_range("gamma0", gamma0, 0.0, 1.0, open_low=True)
        self.gamma1 = require_range("gamma1", gamma1, 0.0, 1.0, open_low=True)
        self.add_state("log_u", "positive", fill=_LOG_ZERO)
        self.add_state("log_v", "scalar", fill=_LOG_ZERO)

    def diagnostics(self) -> dict[str, Tensor]:
        r"""The running estimate of F, :math:`\lambda' \log v`, in its unit, and the unit of the loss."""
        return {**super().diagnostics(), "soft_objective": self.lam_prime * self.log_v.mean()}

    def step(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        dual_neg_scores: Tensor,  # noqa: ARG002
        index: Tensor,
        masks: TaskMasks | None = None,
    ) -> Tensor:
        """Updates of u, then v; the loss has the new values."""
        dtype = common_dtype(pos_scores, neg_scores, self.log_v)
        pos, neg = pos_scores.to(dtype), neg_scores.to(dtype)
        unit, _ = self.update_units(pos, neg, bounded=True, masks=masks)
        lam = self.lam * unit
        inner = log_mean_exp_loss(pos, neg, self.surrogate, lam, masks)
        log_u = log_moving_average(take(self.log_u, index).to(dtype), inner, self.gamma0)
        pos_mask = None if masks is None else masks.pos
        if pos_mask is not None:
            log_u = torch.where(pos_mask, log_u, _LOG_ZERO)
        outer = log_outer_mean(log_u, self.lam, self.lam_prime, pos_mask)
        log_v = in_play(log_moving_average(self.log_v.to(dtype), outer, self.gamma1), self.log_v.to(dtype), masks)
        put_(self.log_u, index, log_u)
        self.log_v.copy_(log_v)
        log_weights = log_pair_weights(log_u, log_v, self.lam, self.lam_prime)
        return self.per_unit(weighted_pair_loss(pos, neg, log_weights, self.surrogate, lam, masks), unit)
