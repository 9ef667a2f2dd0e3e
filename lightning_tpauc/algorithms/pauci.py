"""PAUCI, instance-wise minimax optimisation of partial AUC (Shao, Xu, Yang, Bao, Huang: NeurIPS 2022)."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lightning_tpauc.algorithms.base import Algorithm, PreviousScores
from lightning_tpauc.functional.checks import eager, require_range
from lightning_tpauc.functional.pairwise import common_dtype

#: Names of the entries of ``PAUCI.variables``.
VARIABLES = ("a", "b", "s_pos", "s_neg", "lambda_a", "lambda_b", "gamma")


class RecursiveAlgorithm(Algorithm):
    r"""An algorithm that steps along :math:`v_t = g_t(w_t) + \kappa_t (v_{t-1} - g_t(w_{t-1}))`.

    Both gradients :math:`g_t` are taken on the same batch. One step of the caller is

    1. under the previous weights: scores of the batch, backward of :meth:`previous_loss`;
    2. under the current weights, *without* clearing the gradients: scores, the algorithm itself with
       ``previous=PreviousScores(...)``, backward of its loss. The gradients now hold
       :math:`g_t(w_t) - \kappa_t\, g_t(w_{t-1})`;
    3. :meth:`estimate_` turns them into the direction of the step and returns the new :math:`v_t`;
    4. the optimizer's step.

    At the first step, part 1 and ``previous`` are left out and the estimates are zeros.
    """

    needs_previous = "gradients"

    @abstractmethod
    def previous_loss(self, pos_scores: Tensor, neg_scores: Tensor) -> Tensor:
        r"""A loss whose gradient is :math:`-\kappa_t\, g_t(w_{t-1})`; changes no state.

        Args:
            pos_scores: float tensor ``(S,)``, scores of the batch's positives under the previous weights.
            neg_scores: float tensor ``(B~,)``, scores of its negatives.

        Returns:
            Scalar tensor, differentiable with respect to both.
        """

    @abstractmethod
    def estimate_(self, gradients: Sequence[Tensor], estimates: Sequence[Tensor]) -> list[Tensor]:
        r"""Turn the accumulated gradients into the step's direction; called after the algorithm's own step.

        Args:
            gradients: :math:`g_t(w_t) - \kappa_t\, g_t(w_{t-1})`, one per weight, overwritten with the direction.
            estimates: :math:`v_{t-1}`, one per weight.

        Returns:
            :math:`v_t`, one per weight.
        """


class PAUCI(RecursiveAlgorithm):
    r"""Instance-wise minimax loss for two-way partial AUC with accelerated stochastic gradient descent ascent.

    From Shao, Xu, Yang, Bao, Huang: Asymptotically Unbiased Instance-wise Regularized Partial AUC Optimization: Theory
    and Algorithm, NeurIPS 2022. A square loss with margin 1 on **scores in [0, 1]** (apply a sigmoid first), made
    instance-wise by a minimax form, with smooth quantile terms :math:`r(z) = \log(1 + e^{\kappa z}) / \kappa` in place
    of pairs:

    .. math:: \min_{w, a, b, s_p, s_n, \lambda_a, \lambda_b} \max_{\gamma} \;
        s_p + \frac{E_P\, r((h - a)^2 - 2 (1 + \gamma) h - s_p)}{\theta_0}
        + s_n + \frac{E_N\, r((h - b)^2 + 2 (1 + \gamma) h - s_n)}{\theta_1}
        - \gamma^2 - \lambda_b (b - 1 - \gamma) + \lambda_a (a + \gamma)

    One step is :math:`\tilde x = \Pi(x - \nu v)`, :math:`x \leftarrow x + \eta_t (\tilde x - x)` with
    :math:`\eta_t = k / (m + t)^{1/3}`, **ascent** for :math:`\gamma`, and
    :math:`v \leftarrow g_t(x_t) + (1 - c_1 \eta_{t-1}^2)(v - g_t(x_{t-1}))` with both gradients on the new batch
    (:math:`c_2` for :math:`\gamma`). The weights take part: the optimizer's learning rate is their :math:`\nu`, and
    the direction that it receives is :math:`\eta_t v`, so that plain SGD performs the rule; momentum would be a second
    one. Decided where the source is silent or its code differs: :math:`\eta_t` and :math:`c\,\eta_t^2` are capped at
    1, beyond which a step would leave the set; :math:`\gamma \in [\max(-a, b - 1), 1]` uses a and b from before the
    step; the start is :math:`a = b = s_p = s_n = 0.5`, :math:`\lambda_a = \lambda_b = 0, \gamma = 1`, as in the
    authors' code, whose descent on :math:`\gamma` is not followed; the learning-rate schedule multiplies all step
    sizes. :math:`\Pi` projects on :math:`a, b \in [0, 1]`, :math:`s_p \in [-4, 1]`, :math:`s_n \in [0, 5]` and
    :math:`\lambda_a, \lambda_b \ge 0`.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        kappa: sharpness :math:`\kappa` of r, above 0; tuned in [2, 6].
        width: w, above 0: the unbiased form (arXiv 2512.01213), :math:`r(z) = \max_{y \in [0, 1]} y z + w y (1 - y)`,
            which is 0 below -w and z above w; it has no :math:`\kappa`.
        nu: step size :math:`\nu` of a, b, :math:`s_p, s_n, \lambda_a, \lambda_b`; tuned in [0, 1].
        rho: step size of :math:`\gamma` (the source's :math:`\lambda`); tuned in [0, 1].
        k: numerator of :math:`\eta_t`, above 0; tuned in [1, 10].
        m: offset in :math:`\eta_t`, at least 1; tuned in [10, 100].
        c1: decay :math:`c_1` of the estimate for the minimised variables and the weights, at least 0.
        c2: decay :math:`c_2` of the estimate for :math:`\gamma`, at least 0.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> algorithm = PAUCI(min_tpr=0.5, max_fpr=0.5)
        >>> algorithm.setup(num_positives=2)
        >>> pos = torch.tensor([0.9, 0.2], requires_grad=True)
        >>> algorithm(pos, torch.tensor([0.1, 0.6]), index=torch.tensor([0, 1])).backward()
        >>> bool((pos.grad < 0).all()), algorithm.variables.shape
        (True, torch.Size([7]))
    """

    #: The variables a and b, and the margin of the square loss, lie in [0, 1].
    takes_probabilities = True
    #: At a higher rate networks collapse, since the steps do not shrink as the source's do.
    default_lr = 0.002
    step_sizes: ClassVar[dict[str, str]] = dict.fromkeys(("variables", "previous_variables", "estimate"), "nu")

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        *,
        kappa: float = 2.0,
        width: float | None = None,
        nu: float = 0.1,
        rho: float = 0.1,
        k: float = 1.0,
        m: float = 10.0,
        c1: float = 1.0,
        c2: float = 1.0,
    ) -> None:
        super().__init__(min_tpr, max_fpr)
        self.kappa = require_range("kappa", kappa, 0.0, open_low=True)
        self.width = None if width is None else require_range("width", width, 0.0, open_low=True)
        self.nu, self.rho = require_range("nu", nu, 0.0), require_range("rho", rho, 0.0)
        self.k = require_range("k", k, 0.0, open_low=True)
        self.m = require_range("m", m, 1.0)  # the first step's recursion reaches back to t = -1
        self.c1, self.c2 = require_range("c1", c1, 0.0), require_range("c2", c2, 0.0)
        start = (0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 1.0)
        self.add_state("variables", "vector", fill=start)
        self.add_state("previous_variables", "vector", fill=start)
        self.add_state("estimate", "vector", fill=(0.0,) * len(VARIABLES))
        self.add_state("steps", "scalar", fill=0, dtype=torch.int32)

    def diagnostics(self) -> dict[str, Tensor]:
        """The seven variables."""
        return dict(zip(VARIABLES, self.variables.clone().unbind(), strict=True))

    @eager
    def previous_loss(self, pos_scores: Tensor, neg_scores: Tensor) -> Tensor:
        r""":math:`-(1 - c_1 \eta_{t-1}^2) L` at the previous variables."""
        pos, neg, variables = self._common(pos_scores, neg_scores, self.previous_variables)
        return -self._keep(self.steps - 1, self.c1).to(variables.dtype) * self._saddle(pos, neg, variables)

    def estimate_(self, gradients: Sequence[Tensor], estimates: Sequence[Tensor]) -> list[Tensor]:
        r"""The direction :math:`\eta_t v_t`, and the new :math:`v_t`."""
        # The algorithm's own step has already been counted.
        fraction, keep = self._fraction(self.steps - 1), self._keep(self.steps - 2, self.c1)
        with torch.no_grad():
            new = [estimate * keep.to(estimate.dtype) for estimate in estimates]
            torch._foreach_add_(new, [gradient.to(v.dtype) for gradient, v in zip(gradients, new, strict=True)])
            for gradient, v in zip(gradients, new, strict=True):
                gradient.copy_(v * fraction.to(v.dtype))
        return new

    def step(
        self, pos_scores: Tensor, neg_scores: Tensor, _: Tensor, __: Tensor, previous: PreviousScores | None = None
    ) -> Tensor:
        """A step with the recursive estimate, or with the plain gradient where nothing is known of ``previous``."""
        pos, neg, variables = self._common(pos_scores, neg_scores, self.variables)
        loss = self._saddle(pos, neg, variables)
        estimate = self._gradient(pos, neg, variables)
        if previous is not None:
            old = self._gradient(*self._common(*previous, self.previous_variables))
            keep = torch.stack([self._keep(self.steps - 1, self.c1)] * 6 + [self._keep(self.steps - 1, self.c2)])
            estimate = estimate + keep.to(estimate.dtype) * (self.estimate.to(old.dtype) - old)
        nu, rho = self.step_scale * self.nu, self.step_scale * self.rho
        target = torch.cat([variables[:6] - nu * estimate[:6], variables[6:] + rho * estimate[6:]])
        fraction = self._fraction(self.steps).to(variables.dtype)
        self.previous_variables.copy_(self.variables)
        self.variables.copy_(variables + fraction * (_projected(target, variables) - variables))
        self.estimate.copy_(estimate)
        self.steps.add_(1)
        return loss

    def _saddle(self, pos_scores: Tensor, neg_scores: Tensor, variables: Tensor) -> Tensor:
        """The saddle function, differentiable with respect to the scores."""
        a, b, s_pos, s_neg, lambda_a, lambda_b, gamma = variables.unbind()
        theta0, theta1 = self.thetas()
        pos_excess = (pos_scores - a).square() - 2.0 * (1.0 + gamma) * pos_scores - s_pos
        neg_excess = (neg_scores - b).square() + 2.0 * (1.0 + gamma) * neg_scores - s_neg
        pos_risk, neg_risk = (self._quantile_term(excess).mean() for excess in (pos_excess, neg_excess))
        constraint = lambda_a * (a + gamma) - lambda_b * (b - 1.0 - gamma)
        return s_pos + pos_risk / theta0 + s_neg + neg_risk / theta1 - gamma.square() + constraint

    def _gradient(self, pos_scores: Tensor, neg_scores: Tensor, variables: Tensor) -> Tensor:
        """The derivatives of the saddle function with respect to the variables."""
        with torch.enable_grad():
            moved = variables.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._saddle(pos_scores.detach(), neg_scores.detach(), moved), moved)
        return gradient

    def _quantile_term(self, excess: Tensor) -> Tensor:
        """The r of the formula."""
        if self.width is None:
            return softplus(self.kappa * excess, threshold=40.0) / self.kappa
        # its derivative; the maximum over y is there, so that r may be differentiated at a constant y
        slope = (0.5 + excess.detach() / (2.0 * self.width)).clamp(0.0, 1.0)
        return slope * excess + self.width * slope * (1.0 - slope)

    def _keep(self, step: Tensor, decay: float) -> Tensor:
        r""":math:`1 - c\,\eta_t^2`."""
        return 1.0 - (decay * self._fraction(step).square()).clamp_max(1.0)

    def _fraction(self, step: Tensor) -> Tensor:
        r"""How far a step goes, :math:`\eta_t = \min\{1, k / (m + t)^{1/3}\}`."""
        return (self.k * (self.m + step.to(self.variables.dtype)).pow(-1.0 / 3.0)).clamp_max(1.0)

    @staticmethod
    def _common(pos_scores: Tensor, neg_scores: Tensor, variables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dtype = common_dtype(pos_scores, neg_scores, variables)
        # A copy: the loss keeps it for backward while the state moves on.
        return pos_scores.to(dtype), neg_scores.to(dtype), variables.to(dtype, copy=True)


def _projected(target: Tensor, variables: Tensor) -> Tensor:
    """The nearest point of the set; all variables move at once, so a and b from before the step bound gamma."""
    centres, s_pos, s_neg, multipliers, gamma = torch.split(target, [2, 1, 1, 2, 1])
    gamma = torch.maximum(gamma, torch.maximum(-variables[:1], variables[1:2] - 1.0)).clamp_max(1.0)
    bounded = centres.clamp(0.0, 1.0), s_pos.clamp(-4.0, 1.0), s_neg.clamp(0.0, 5.0), multipliers.clamp_min(0.0)
    return torch.cat([*bounded, gamma])
