r"""SOTA and SOTAs, the exact and the soft method of one paper, one function per line.

SOTA differs from STACO2 in the update of the thresholds alone. SOTAs keeps moving averages in log space:

.. math:: F(w) = \lambda' \log E_P \Bigl( E_N \exp(\ell_{ij} / \lambda) \Bigr)^{\lambda / \lambda'}

:math:`\exp(\ell / \lambda)` overflows single precision for :math:`\lambda = 0.1` from a loss of 8.9 on; its logarithm
never does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.functional.tasks import TaskMasks, column, number

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
