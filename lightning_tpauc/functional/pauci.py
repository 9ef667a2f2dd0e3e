r"""PAUCI, one function per line: the instance-wise minimax loss, its variables, and the recursive gradient estimate.

The variables :math:`x = (a, b, s_p, s_n, \lambda_a, \lambda_b, \gamma)` are one tensor of shape ``(7,)`` in this order.
With :math:`r(z) = \log(1 + e^{\kappa z}) / \kappa` and scores in [0, 1] the saddle function is

.. math:: L = s_p + \frac{1}{\theta_0} E_P\, r\bigl((h - a)^2 - 2 (1 + \gamma) h - s_p\bigr)
    + s_n + \frac{1}{\theta_1} E_N\, r\bigl((h - b)^2 + 2 (1 + \gamma) h - s_n\bigr)
    - \gamma^2 - \lambda_b (b - 1 - \gamma) + \lambda_a (a + \gamma),

minimised over the weights and the first six variables, maximised over :math:`\gamma`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

#: Names of the entries of x.
VARIABLES = ("a", "b", "s_pos", "s_neg", "lambda_a", "lambda_b", "gamma")


def instance_loss(
    pos_scores: Tensor, neg_scores: Tensor, variables: Tensor, theta0: float, theta1: float, kappa: float
) -> Tensor:
    r"""The saddle function L, differentiable with respect to the scores.

    Args:
        pos_scores: float tensor ``(S,)`` in [0, 1].
        neg_scores: float tensor ``(B,)`` in [0, 1].
        variables: float tensor ``(7,)``, x.
        theta0: one minus the lower bound of the true positive rate, in (0, 1].
        theta1: the upper bound of the false positive rate, in (0, 1].
        kappa: sharpness of the smooth positive part r, above 0.

    Returns:
        Scalar tensor.

    Example:
        >>> x = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0])
        >>> instance_loss(torch.tensor([0.9]), torch.tensor([0.1]), x, theta0=0.5, theta1=0.5, kappa=4.0)
        tensor(1.2260)
    """
    a, b, s_pos, s_neg, lambda_a, lambda_b, gamma = variables.unbind()
    pos_risk = softplus(kappa * _pos_excess(pos_scores, variables), threshold=40.0).mean() / (kappa * theta0)
    neg_risk = softplus(kappa * _neg_excess(neg_scores, variables), threshold=40.0).mean() / (kappa * theta1)
    constraint = lambda_a * (a + gamma) - lambda_b * (b - 1.0 - gamma)
    return s_pos + pos_risk + s_neg + neg_risk - gamma.square() + constraint


@torch.no_grad()
def variable_gradient(
    pos_scores: Tensor, neg_scores: Tensor, variables: Tensor, theta0: float, theta1: float, kappa: float
) -> Tensor:
    r"""The derivatives of L with respect to x, in closed form.

    Example:
        >>> x = torch.zeros(7)
        >>> variable_gradient(torch.zeros(1), torch.zeros(1), x, theta0=0.5, theta1=0.5, kappa=4.0)
        tensor([0., 0., 0., 0., 0., 1., 0.])
    """
    a, b, _, _, lambda_a, lambda_b, gamma = variables.unbind()
    pos_slope = torch.sigmoid(kappa * _pos_excess(pos_scores, variables)) / theta0
    neg_slope = torch.sigmoid(kappa * _neg_excess(neg_scores, variables)) / theta1
    grad_gamma = 2.0 * ((neg_slope * neg_scores).mean() - (pos_slope * pos_scores).mean() - gamma)
    return torch.stack(
        [
            (2.0 * pos_slope * (a - pos_scores)).mean() + lambda_a,
            (2.0 * neg_slope * (b - neg_scores)).mean() - lambda_b,
            1.0 - pos_slope.mean(),
            1.0 - neg_slope.mean(),
            a + gamma,
            1.0 + gamma - b,
            grad_gamma + lambda_a + lambda_b,
        ]
    )


def project_variables(target: Tensor, variables: Tensor) -> Tensor:
    r"""The nearest point of :math:`a, b \in [0, 1], s_p \in [-4, 1], s_n \in [0, 5], \lambda_a, \lambda_b \ge 0,
    \gamma \in [\max(-a, b - 1), 1]`.

    Args:
        target: float tensor ``(7,)``, the point to project.
        variables: float tensor ``(7,)``, whose a and b bound :math:`\gamma`: all variables move at once, so these are
            the values from before the step.

    Returns:
        Float tensor ``(7,)``.

    Example:
        >>> x = torch.tensor([0.5, 0.75, 0.0, 0.0, 0.0, 0.0, 0.0])
        >>> project_variables(torch.tensor([2.0, -1.0, -9.0, 9.0, -1.0, 3.0, -1.0]), x)
        tensor([ 1.0000,  0.0000, -4.0000,  5.0000,  0.0000,  3.0000, -0.2500])
    """  # noqa: D205 - the set does not fit one line
    a, b, s_pos, s_neg, lambda_a, lambda_b, gamma = target.unbind()
    lowest_gamma = torch.maximum(-variables[0], variables[1] - 1.0)
    return torch.stack(
        [
            a.clamp(0.0, 1.0),
            b.clamp(0.0, 1.0),
            s_pos.clamp(-4.0, 1.0),
            s_neg.clamp(0.0, 5.0),
            lambda_a.clamp_min(0.0),
            lambda_b.clamp_min(0.0),
            torch.maximum(gamma, lowest_gamma).clamp_max(1.0),
        ]
    )


def step_fraction(step: Tensor, k: float, m: float, dtype: torch.dtype = torch.float64) -> Tensor:
    r"""How far a step goes, :math:`\eta_t = \min\{1, k / (m + t)^{1/3}\}`.

    The theory asks for :math:`m \ge k^3`, where the bound by 1 never acts; above 1 the relaxed step would leave the
    set.

    Example:
        >>> step_fraction(torch.tensor(17), k=1.0, m=10.0)
        tensor(0.3333, dtype=torch.float64)
    """
    return (k * (m + step.to(dtype)).pow(-1.0 / 3.0)).clamp_max(1.0)


def relaxed_step(variables: Tensor, estimate: Tensor, fraction: Tensor, nu: float, rho: float) -> Tensor:
    r"""Projected descent, ascent for :math:`\gamma`, then :math:`x \leftarrow x + \eta_t (\tilde x - x)`.

    Args:
        variables: float tensor ``(7,)``, x.
        estimate: float tensor ``(7,)``, v, the estimate of the gradient.
        fraction: float tensor ``()`` in (0, 1], :math:`\eta_t`.
        nu: step size :math:`\nu` of the minimised variables.
        rho: step size of :math:`\gamma`.

    Example:
        >>> x = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0])
        >>> relaxed_step(x, torch.ones(7), torch.tensor(0.5), nu=0.5, rho=0.5)
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.0000, 0.0000, 0.2500])
    """
    target = torch.cat([variables[:6] - nu * estimate[:6], variables[6:] + rho * estimate[6:]])
    return variables + fraction.to(variables.dtype) * (project_variables(target, variables) - variables)


def recursive_estimate(gradient: Tensor, previous_gradient: Tensor, estimate: Tensor, keep: Tensor) -> Tensor:
    r"""The variance-reduced estimate :math:`v \leftarrow g_t + (1 - c\,\eta_{t-1}^2)(v - g_{t-1})`.

    Both gradients come from the same batch, :math:`g_{t-1}` at the point before the last step.

    Example:
        >>> recursive_estimate(torch.tensor(1.0), torch.tensor(3.0), torch.tensor(2.0), torch.tensor(0.5))
        tensor(0.5000)
    """
    return gradient + keep.to(gradient.dtype) * (estimate - previous_gradient)


@torch.no_grad()
def recursive_estimates_(
    differences: Sequence[Tensor], estimates: Sequence[Tensor], keep: Tensor, fraction: Tensor
) -> list[Tensor]:
    r"""The same estimate for the model's weights, whose two gradients were accumulated into one.

    Args:
        differences: :math:`g_t - (1 - c\,\eta_{t-1}^2)\, g_{t-1}` of every weight; overwritten with the direction of
            the step, :math:`\eta_t v`.
        estimates: v of every weight so far, same shapes.
        keep: float tensor ``()``, :math:`1 - c\,\eta_{t-1}^2`.
        fraction: float tensor ``()``, :math:`\eta_t`.

    Returns:
        The new estimates v.

    Example:
        >>> gradient = torch.tensor(1.0) - 0.5 * torch.tensor(3.0)
        >>> recursive_estimates_([gradient], [torch.tensor(2.0)], torch.tensor(0.5), torch.tensor(0.1))
        [tensor(0.5000)]
        >>> gradient
        tensor(0.0500)
    """
    new = [estimate * keep.to(estimate.dtype) for estimate in estimates]
    torch._foreach_add_(new, [difference.to(v.dtype) for difference, v in zip(differences, new, strict=True)])
    for difference, v in zip(differences, new, strict=True):
        difference.copy_(v * fraction.to(v.dtype))
    return new


def _pos_excess(scores: Tensor, variables: Tensor) -> Tensor:
    return (scores - variables[0]).square() - 2.0 * (1.0 + variables[6]) * scores - variables[2]


def _neg_excess(scores: Tensor, variables: Tensor) -> Tensor:
    return (scores - variables[1]).square() + 2.0 * (1.0 + variables[6]) * scores - variables[3]
