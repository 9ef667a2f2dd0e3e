r"""STACO, one function per line of the algorithm.

Symbols, with the names used here: :math:`y` ``dual_weights``, :math:`s` ``thresholds`` (one per positive), :math:`s'`
``global_threshold``, :math:`\theta_0 = 1 -` ``min_tpr``, :math:`\theta_1 =` ``max_fpr``. Labels such as (eqn:y) are
those of the paper's source (Zhou, Wang, Thai, Yang, TMLR 2025). :math:`\gamma = \infty` turns each line of STACO2 into
STACO1's.

All functions are pure. Per-positive arguments, :math:`y`, :math:`s`, the risks :math:`g_i`, ``excess`` and ``active``
(the mean of :math:`(\ell_{ij} - s_i)_+` over the negatives j, and the share of them with :math:`\ell_{ij} > s_i`), hold
the entries of the sampled positives only, shape ``(S,)``; all others are numbers, or tensors ``()``. For K labels they
have shape ``(K, S)``, and what is ``()`` here has shape ``(K,)``; see :mod:`lightning_tpauc.functional.pairwise`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_tpauc.functional.pairwise import add_scaled, column, number

#: How fast the unit of the loss follows the batches: it forgets all but e^-1 of a value in 20 steps.
_UNIT_RATE = 0.05
#: The unit stays above this share of a constant model's loss: below it there is nothing left to learn, and a unit that
#: went on to fall would leave global thresholds where they are, without end in units of the loss.
_LEAST_UNIT = 1e-3


def loss_unit_step(unit: Tensor, batch_loss: Tensor, constant_loss: float) -> Tensor:
    r"""The running mean :math:`L \leftarrow L + 0.05\,(L_B - L)`, in which step sizes without a unit are measured.

    :math:`y` has no unit; :math:`s` and :math:`s'` have the loss's. So :math:`\alpha` is the inverse of a loss, and
    :math:`\beta` and :math:`\beta'` are losses: one set of numbers can't suit raw scores, probabilities and every
    margin. :math:`\alpha / L`, :math:`\beta L` and :math:`\beta' L` can. :math:`L_B` is the batch's mean loss on the
    hardest :math:`\theta_1` of the negatives, :func:`~lightning_tpauc.functional.tail_mean_loss`. L, 0 before the first
    step, is at first the batch's own, and at least a thousandth of :math:`\ell(0)`, the loss of a constant model.

    Example:
        >>> loss_unit_step(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0]), constant_loss=1.0)
        tensor([1.0500, 2.0000])
    """
    batch_loss = batch_loss.to(unit.dtype)  # scores may be in double precision where the state is not
    updated = torch.where(unit > 0, torch.lerp(unit, batch_loss, _UNIT_RATE), batch_loss)
    return updated.clamp_min(max(_LEAST_UNIT * constant_loss, torch.finfo(updated.dtype).tiny ** 0.5))


def bounded_loss_unit(unit: Tensor, batch_loss: Tensor, constant_loss: float = 0.0) -> Tensor:
    r"""The unit :math:`\max(L, L_B)` of the weights' loss: an outlying batch makes no step larger.

    Methods that return their last iterate and not an average take :math:`\max(L, L_B, \ell(0))`. Then a model that fits
    well, whose loss is far below that of a constant one, makes smaller steps.
    """
    return torch.maximum(unit, batch_loss.to(unit.dtype)).clamp_min(constant_loss)


def per_positive_risk(thresholds: Tensor, excess: Tensor, theta1: float | Tensor) -> Tensor:
    r"""The CVaR of each positive: :math:`g_i(w, s_i; B) = s_i + \frac{1}{\theta_1|B|}\sum_j (\ell_{ij} - s_i)_+`.

    Example:
        >>> per_positive_risk(torch.tensor([0.5]), torch.tensor([0.1]), theta1=0.5)
        tensor([0.7000])
    """
    return add_scaled(thresholds, excess, 1.0 / theta1)


def dual_weight_step(
    dual_weights: Tensor, risk: Tensor, global_threshold: Tensor, alpha: float | Tensor, theta0: float | Tensor
) -> Tensor:
    r"""Line 1, (eqn:y) and (eqn:yy): :math:`y_i \leftarrow \Pi_{[0,1]}(y_i + \alpha (g_i - s') / \theta_0)`.

    Example:
        >>> dual_weight_step(torch.tensor([0.5, 0.9]), torch.tensor([0.2, 1.0]), torch.tensor(0.4), 0.5, 0.5)
        tensor([0.3000, 1.0000])
    """
    return (dual_weights + (risk - column(global_threshold)) * column(alpha / theta0)).clamp_(0.0, 1.0)


def threshold_step(
    thresholds: Tensor,
    dual_weights: Tensor,
    active: Tensor,
    beta: float | Tensor,
    theta0: float | Tensor,
    theta1: float | Tensor,
    anchor: Tensor | None = None,
    gamma: float | Tensor = math.inf,
) -> Tensor:
    r"""Line 2, (eqn:s) and (eqn:ss), with the new :math:`y_i`; without an ``anchor`` that of STACO1.

    .. math:: s_i \leftarrow s_i - \frac{\beta}{\theta_0}\Bigl( y_i \bigl(1 - \tfrac{|\{j: \ell_{ij} > s_i\}|}
        {\theta_1 |\tilde B|}\bigr) + \tfrac{1}{\gamma}(s_i - s_{0,i}) \Bigr)

    The paper's bracket divides the proximal term by :math:`\theta_0` as well; so does this function.

    Example:
        >>> threshold_step(torch.tensor([0.5]), torch.tensor([1.0]), torch.tensor([1.0]), 0.1, theta0=0.5, theta1=0.5)
        tensor([0.7000])
    """
    if isinstance(theta1, Tensor):
        gradient = dual_weights - dual_weights * active / column(theta1)
    else:
        gradient = torch.addcmul(dual_weights, dual_weights, active, value=-1.0 / theta1)
    if anchor is not None:
        gradient = gradient + (thresholds - anchor) / column(gamma)
    return thresholds - gradient * column(beta / theta0)


def excess_weights(
    dual_weights: Tensor, theta0: float | Tensor, theta1: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    r"""Line 3, what each positive's mean excess loss counts for: :math:`y_i / (S \theta_0 \theta_1)`.

    Example:
        >>> excess_weights(torch.tensor([0.5, 1.0]), theta0=0.5, theta1=0.5)
        tensor([1., 2.])
    """
    return dual_weights / column(number(dual_weights, mask) * theta0 * theta1)


def minmax_loss(
    weighted_excess: Tensor,
    dual_weights: Tensor,
    thresholds: Tensor,
    global_threshold: Tensor,
    theta0: float | Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Line 3, the function whose gradient (eqn:w) and (eqn:ww) follow, with the new :math:`y_i` and the old s and s'.

    .. math:: \frac{1}{S}\sum_i y_i \frac{g_i(w, s_i; \tilde B) - s'}{\theta_0} + s'
        = \sum_i \frac{y_i}{S\theta_0\theta_1} \frac{1}{|\tilde B|} \sum_j (\ell_{ij} - s_i)_+
        + \frac{1}{S\theta_0} \sum_i y_i (s_i - s') + s'

    ``weighted_excess`` is the first sum of the second form, with the graph. The value is the minibatch value of the
    min-max problem (eq:tpauc_minmax), not the objective F: it need not fall while training makes progress.

    Example:
        >>> minmax_loss(torch.tensor(0.3), torch.tensor([1.0, 0.5]), torch.tensor([0.1, 0.6]), torch.tensor(0.2), 0.5)
        tensor(0.6000)
    """
    rest = (dual_weights * (thresholds - column(global_threshold))).sum(-1)
    count = number(dual_weights, mask)
    if isinstance(count, Tensor) or isinstance(theta0, Tensor):
        return weighted_excess + (global_threshold + rest / (count * theta0))
    return weighted_excess + torch.add(global_threshold, rest, alpha=1.0 / (count * theta0))


def global_threshold_step(
    global_threshold: Tensor, mean_dual_weight: Tensor, beta_prime: float | Tensor, theta0: float | Tensor
) -> Tensor:
    r"""Line 4, (eqn:sp), with the new y: :math:`s' \leftarrow s' - \beta'(1 - \frac{1}{\theta_0 S}\sum_i y_i)`.

    Example:
        >>> global_threshold_step(torch.tensor(1.0), torch.tensor(0.75), beta_prime=0.1, theta0=0.5)
        tensor(1.0500)
    """
    return global_threshold + (mean_dual_weight - theta0) * (beta_prime / theta0)
