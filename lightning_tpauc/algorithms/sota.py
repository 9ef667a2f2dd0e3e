"""SOTA, the exact method that STACO improves on, and SOTAs, its soft form (Zhu, Li, Wang, Wu, Yang: ICML 2022)."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lightning_tpauc.algorithms.base import PairwiseAlgorithm
from lightning_tpauc.algorithms.staco import STACO, Batch, PerPositiveDuals
from lightning_tpauc.functional.checks import require_range
from lightning_tpauc.functional.pairwise import (
    Pairs,
    TaskMasks,
    column,
    common_dtype,
    in_play,
    number,
    put_,
    with_gradients,
)
from lightning_tpauc.functional.staco import threshold_gradient
from lightning_tpauc.functional.surrogates import Surrogate

# The logarithm of the averages' start, zero: finite, so that state can be checked for infinities, and so small that the
# first step gives exactly what minus infinity would give.
_LOG_ZERO = -1e30


class _FullVectorDuals(PerPositiveDuals):
    """Every step changes all thresholds."""

    threshold_kind = "dense"

    def descend_thresholds(self, batch: Batch, _: Tensor, y: Tensor, active: Tensor, unit: float | Tensor) -> None:
        """All thresholds, by the proximal step of :class:`SOTA`."""
        own, masks, (theta0, theta1) = self.own, batch.masks, batch.thetas
        sampled, gradient = number(y, batch.pos_mask), torch.zeros_like(own.s)
        put_(gradient, batch.index, threshold_gradient(y, active, theta1) / column(theta0 * sampled))
        beta, gamma = own.step_scale * own.beta * unit, own.gamma * unit if own.has_stages else own.gamma
        beta, gamma = own.of_each_positive(beta), own.of_each_positive(gamma)
        count: float | Tensor = own.s.numel()
        if masks is not None:
            count = own.of_each_positive(own.of_tasks["counts"].to(own.s.dtype))
        ratio = beta / (gamma * count)
        new = (own.s + ratio * own.s_anchor - beta * gradient) / (1.0 + ratio)
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

    for the sampled i and :math:`G_i = 0` elsewhere, so that every step changes all :math:`n_+` entries. A step takes
    O(n_pos) time instead of O(S), and at the same ``beta`` moves each threshold S times less. The source has no public
    code and leaves details open; decided here: y and s use the two independent batches of negatives as in STACO2,
    :math:`G` takes the new y, and the options for the start and the stages are STACO's.

    Args:
        min_tpr: as in :class:`STACO`, and so are all arguments but two.
        beta: step size of the proximal step on s, at least 0.
        gamma: proximal parameter of the stages, above 0 and finite.

    Raises:
        ArgumentError: if an argument is out of range, or if ``"exact"`` comes with a surrogate that isn't monotone.

    Example:
        >>> algorithm = SOTA(dual_init="zeros", beta=1.0, gamma=1.0)
        >>> algorithm.setup(num_positives=3)
        >>> loss = algorithm(torch.tensor([0.2, 0.9]), torch.tensor([0.8]), torch.tensor([0.8]), torch.tensor([0, 2]))
        >>> algorithm.s
        tensor([0.9375, 0.0000, 0.9375])
    """

    #: The method is compared as it was published.
    can_shrink_rectangle = False
    kinds_of_duals: ClassVar[dict[str, type[PerPositiveDuals]]] = {"per_positive": _FullVectorDuals}

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

    With ``alpha``, the inner averages take the step of SCENT (Wei, Zhou, Wang, Lin, Yang: A Geometry-Aware Efficient
    Algorithm for Compositional Entropic Risk Minimization, arXiv 2602.02877), a proximal mirror step on
    :math:`\nu_i = \log u_i`: the same line with :math:`\alpha u_i / (1 + \alpha u_i)`, of the old :math:`u_i`, in the
    place of :math:`\gamma_0`. Averages that are far too large fall fast. The first visit of a positive takes the
    batch's mean itself.

    Args:
        min_tpr: lower bound of the true positive rate, in [0, 1); only reported on.
        max_fpr: upper bound of the false positive rate, in (0, 1]; only reported on.
        surrogate: name of the pairwise loss, or a :class:`~lightning_tpauc.functional.Surrogate`.
        margin: as in :class:`STACO`.
        scale: as in :class:`STACO`.
        step_units: as in :class:`SONX`, for :math:`\lambda` and :math:`\lambda'`.
        lam: :math:`\lambda`, above 0; the source tunes it, absolute, in {0.1, 1, 10}.
        lam_prime: :math:`\lambda'`, above 0; the same grid.
        gamma0: rate of the inner averages, in (0, 1]; not used with ``alpha``.
        gamma1: rate of the outer average, in (0, 1].
        alpha: step size :math:`\alpha` of SCENT, above 0, for instance :math:`e^{-4}`. ``None``: the fixed rate.

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
        alpha: float | None = None,
    ) -> None:
        super().__init__(min_tpr, max_fpr, surrogate, margin, scale, step_units)
        self.lam = require_range("lam", lam, 0.0, open_low=True)
        self.lam_prime = require_range("lam_prime", lam_prime, 0.0, open_low=True)
        self.gamma0 = require_range("gamma0", gamma0, 0.0, 1.0, open_low=True)
        self.gamma1 = require_range("gamma1", gamma1, 0.0, 1.0, open_low=True)
        self.alpha = None if alpha is None else require_range("alpha", alpha, 0.0, open_low=True)
        self.add_state("log_u", "positive", fill=_LOG_ZERO)
        self.add_state("log_v", "scalar", fill=_LOG_ZERO)

    def diagnostics(self) -> dict[str, Tensor]:
        r"""The running estimate of F, :math:`\lambda' \log v`, in its unit, and the unit of the loss."""
        return {**super().diagnostics(), "soft_objective": self.lam_prime * self.log_v.mean()}

    def step(
        self, pos_scores: Tensor, neg_scores: Tensor, _: Tensor, index: Tensor, masks: TaskMasks | None = None
    ) -> Tensor:
        """Updates of u, then v; the loss has the new values."""
        dtype = common_dtype(pos_scores, neg_scores, self.log_v)
        pos, neg = pos_scores.to(dtype), neg_scores.to(dtype)
        pos_mask, neg_mask = (None, None) if masks is None else (masks.pos, masks.neg)
        unit = self.update_units(Pairs(pos, neg, torch.zeros_like(pos), self.surrogate, masks), bounded=True)[0]
        with torch.no_grad():
            # logarithms, since the exponentials themselves would overflow
            differences = neg.unsqueeze(-2) - pos.unsqueeze(-1)
            losses = self.surrogate.value(differences)
            exponents = losses / column(column(self.lam * unit))
            exponents = _exponents_there(exponents, None if neg_mask is None else neg_mask.unsqueeze(-2))
            inner = torch.logsumexp(exponents, dim=-1) - column(_log_number(neg, neg_mask))
            before = self.log_u.take(index).to(dtype)
            if self.alpha is None:
                log_u = _log_moving_average(before, inner, self.gamma0)
            else:
                log_u = _log_mirror_step(before, inner, self.alpha)
            if pos_mask is not None:
                log_u = torch.where(pos_mask, log_u, _LOG_ZERO)
            ratio = self.lam / self.lam_prime
            powers = _exponents_there(log_u * ratio, pos_mask)
            outer = torch.logsumexp(powers, dim=-1) - _log_number(powers, pos_mask)
            log_v = in_play(_log_moving_average(self.log_v.to(dtype), outer, self.gamma1), self.log_v.to(dtype), masks)
            put_(self.log_u, index, log_u)
            self.log_v.copy_(log_v)
            # log p_ij - l_ij / lambda
            log_weights = _exponents_there((ratio - 1.0) * log_u - column(log_v), pos_mask)
            num_pairs = number(pos, pos_mask) * number(neg, neg_mask)
            weights = torch.exp(log_weights.unsqueeze(-1) + exponents).div_(column(column(num_pairs)))
            value = (weights * losses).sum((-2, -1))
            slopes = weights.mul_(self.surrogate.derivative(differences))
        return with_gradients(value, pos, neg, -slopes.sum(-1), slopes.sum(-2)) / unit


def _exponents_there(exponents: Tensor, mask: Tensor | None) -> Tensor:
    return exponents if mask is None else exponents.masked_fill(~mask, -torch.inf)


def _log_number(scores: Tensor, mask: Tensor | None) -> float | Tensor:
    count = number(scores, mask)
    return count.log() if isinstance(count, Tensor) else math.log(count)


def _log_moving_average(log_average: Tensor, log_value: Tensor, rate: float) -> Tensor:
    r"""Logarithm of :math:`u \leftarrow (1 - \gamma) u + \gamma x` for positive u and x."""
    if rate == 1.0:
        return log_value.clone()
    return torch.logaddexp(log_average + math.log1p(-rate), log_value + math.log(rate))


def _log_mirror_step(log_average: Tensor, log_value: Tensor, alpha: float) -> Tensor:
    r"""The moving average with rate :math:`\alpha u / (1 + \alpha u)`; the value itself where u is still 0."""
    logit = log_average + math.log(alpha)
    moved = torch.logaddexp(log_average + logsigmoid(-logit), log_value + logsigmoid(logit))
    return torch.where(log_average > 0.5 * _LOG_ZERO, moved, log_value)
