r"""SOTA's update of the thresholds, the one part in which it differs from STACO2."""

from __future__ import annotations

from torch import Tensor

from lightning_tpauc.functional.tasks import column, number

__all__ = ("full_threshold_step", "sparse_threshold_gradient")


def sparse_threshold_gradient(
    dual_weights: Tensor,
    active: Tensor,
    theta0: float | Tensor,
    theta1: float | Tensor,
    mask: Tensor | None = None,
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

    Returns:
        Float tensor ``(n_pos,)``.

    Example:
        >>> import torch
        >>> full_threshold_step(torch.tensor([1.0]), torch.tensor([0.5]), torch.zeros(1), beta=1.0, gamma=1.0)
        tensor([0.2500])
    """
    ratio = beta / (gamma * (thresholds.numel() if num_positives is None else num_positives))
    return (thresholds + ratio * anchor - beta * gradient) / (1.0 + ratio)
