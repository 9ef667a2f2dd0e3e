"""SONX for two-way partial AUC (Hu, Zhu, Yang: NeurIPS 2023)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import PairwiseAlgorithm, PreviousScores, TrainingScores, scores_of_tasks
from lightning_tpauc.functional import staco as lines
from lightning_tpauc.functional.checks import check_choice, require_range
from lightning_tpauc.functional.duals import border_thresholds, exact_duals
from lightning_tpauc.functional.pairwise import Pairs, put_, ranked
from lightning_tpauc.functional.surrogates import Surrogate


class SONX(PairwiseAlgorithm):
    r"""Single-loop method for non-smooth weakly convex compositional problems, applied to the exact CVaR-CVaR loss.

    From Hu, Zhu, Yang: Non-Smooth Weakly-Convex Finite-sum Coupled Compositional Optimization, NeurIPS 2023. With
    :math:`\psi_i(w, s_i) = s_i + E_N (\ell_{ij} - s_i)_+ / \theta_1` it solves

    .. math:: \min_{w, s, s'} \; E_P \Bigl( s' + \frac{(\psi_i(w, s_i) - s')_+}{\theta_0} \Bigr)

    One call tracks the risk of the batch's positives,

    .. math:: u_i \leftarrow (1 - \tau) u_i + \tau \psi_i(w_t, s_{i,t})
        + \gamma \bigl( \psi_i(w_t, s_{i,t}) - \psi_i(w_{t-1}, s_{i,t-1}) \bigr),

    steps :math:`s_i \leftarrow s_i - \beta q_i (1 - \mathrm{active}_i / \theta_1) / S` and
    :math:`s' \leftarrow s' - \beta' (1 - E_P q_i)` with :math:`q_i = 1[u_i > s'] / \theta_0`, and returns a loss whose
    gradient is :math:`E_P q_i \nabla \psi_i`. Decided where the source is silent or leaves doubt: :math:`q_i` uses the
    :math:`u_i` from *before* the update, as printed; :math:`u_i` starts as :math:`\psi_i` at the first visit; s and s'
    start at 0, since from 1 no pair would be active for a long time. For :math:`\gamma > 0` a step needs the same
    batch's scores under the previous weights (:attr:`needs_previous`); without them, as at the very first step, the
    correction is left out. :math:`s_{i,t-1}` is kept by the algorithm.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: name of the pairwise loss, or a :class:`~lightning_tpauc.functional.Surrogate`.
        margin: as in :class:`STACO`.
        scale: as in :class:`STACO`.
        step_units: as in :class:`STACO`; the weights' loss is divided by :math:`L`, or by the batch's own or a constant
            model's where that is larger.
        tau: rate of the moving average, in (0, 1].
        gamma: weight of the correction, at least 0; 0 needs no second forward pass. Tuned in {0, 1e-3, 1e-2, 1e-1}.
        beta: step size of the thresholds; note the division by S.
        beta_prime: step size :math:`\beta'` of the global threshold.
        dual_init: ``"zeros"`` or ``"ones"`` for s and s', or ``"exact"``: their minimisers for the initial weights,
            from the training scores.

    Raises:
        ArgumentError: if an argument is out of range, or if ``"exact"`` comes with a surrogate that isn't monotone.

    Example:
        >>> algorithm = SONX(min_tpr=0.5, max_fpr=0.5)
        >>> algorithm.setup(num_positives=3)
        >>> pos = torch.tensor([0.2, 0.9], requires_grad=True)
        >>> algorithm(pos, torch.tensor([0.1, 0.8]), index=torch.tensor([0, 2])).backward()
        >>> pos.grad
        tensor([-1.6000, -1.6000])
    """

    step_sizes: ClassVar[dict[str, str]] = {"s": "beta", "s_replaced": "beta", "s_prime": "beta_prime"}

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        *,
        surrogate: str | Surrogate = "hinge",
        margin: float | None = None,
        scale: float | None = None,
        step_units: Literal["loss", "absolute"] = "loss",
        tau: float = 0.9,
        gamma: float = 0.0,
        beta: float = 1.0,
        beta_prime: float = 1.0,
        dual_init: Literal["exact", "ones", "zeros"] = "zeros",
    ) -> None:
        super().__init__(min_tpr, max_fpr, surrogate, margin, scale, step_units)
        self.tau = require_range("tau", tau, 0.0, 1.0, open_low=True)
        self.gamma = require_range("gamma", gamma, 0.0)
        self.beta = require_range("beta", beta, 0.0)
        self.beta_prime = require_range("beta_prime", beta_prime, 0.0)
        check_choice(dual_init, "dual_init", ("exact", "ones", "zeros"))
        self.dual_init = dual_init
        self.require_monotone_if_exact("dual_init")
        self.needs_previous = "scores" if self.gamma > 0 else None
        start = 1.0 if dual_init == "ones" else 0.0
        self.add_state("u", "positive")
        self.add_state("s", "positive", fill=start)
        self.add_state("s_prime", "scalar", fill=start)
        self.add_state("s_replaced", "positive")
        self.add_state("s_changed_at", "positive", fill=-1, dtype=torch.int32)
        self.add_state("steps", "scalar", fill=0, dtype=torch.int32)

    def diagnostics(self) -> dict[str, Tensor]:
        r""":math:`s'`, the mean threshold, the share of positives above :math:`s'`, and the unit of the loss."""
        return {
            **super().diagnostics(),
            "s_prime": self.s_prime.clone(),
            "mean_s": self.s.mean(),
            "selected": (self.u > self.s_prime).to(self.u.dtype).mean(),
        }

    def needs_scores(self, event: Literal["start", "restart"]) -> bool:
        """Whether the exact solution is asked for; there are no stages."""
        return event == "start" and self.dual_init == "exact"

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None = None) -> None:
        """Set s and s' to the minimisers for the initial weights, if asked for."""
        if scores is not None and self.dual_init == "exact":
            (scores,) = scores_of_tasks(scores)
            rectangle, weight = (self.min_tpr, self.max_fpr), self.positive_weights
            duals = exact_duals(*scores, *rectangle, surrogate=self.surrogate, pos_weight=weight)
            border = ranked(scores.neg_scores, self.max_fpr, None)
            self.s.copy_(border_thresholds(scores.pos_scores, border, self.surrogate))
            # below its own tie as well: equal risks are selected
            self.s_prime.copy_(duals.s_prime * (1.0 - 64.0 * torch.finfo(duals.s_prime.dtype).eps))

    def step(
        self, pos_scores: Tensor, neg_scores: Tensor, _: Tensor, index: Tensor, previous: PreviousScores | None = None
    ) -> Tensor:
        r"""One step; the correction is left out for :math:`\gamma = 0`, and where nothing is known of ``previous``."""
        s, (theta0, theta1) = self.s[index], self.thetas()
        pairs = Pairs(pos_scores, neg_scores, s, self.surrogate)
        unit = self.update_units(pairs, bounded=True)[0]
        tail = theta1 * pairs.num_neg
        risk = lines.per_positive_risk(s, pairs.totals[0], tail)
        u = self.u[index].where(self.s_changed_at[index] >= 0, risk)
        selected = (u > self.s_prime).to(u.dtype)  # theta_0 q_i
        weights = lines.pair_weights(selected, theta0, tail, unit)
        value = lines.minmax_value(weights, risk - self.s_prime, self.s_prime, tail, unit)
        loss = pairs.attached(lambda: value, weights)
        u = (1.0 - self.tau) * u + self.tau * risk
        if previous is not None:
            before = self.s_replaced[index].where(self.s_changed_at[index] == self.steps - 1, s)
            pos, neg = (scores.detach() for scores in previous)
            excess, _ = Pairs(pos, neg, before, self.surrogate).totals
            u = u + self.gamma * (risk - lines.per_positive_risk(before, excess, tail))
        beta = self.step_scale * self.beta * unit / selected.numel()
        new = s - lines.threshold_gradient(selected, pairs.active, theta1) * (beta / theta0)
        beta_prime = self.step_scale * self.beta_prime
        self.s_prime.copy_(lines.global_threshold_step(self.s_prime, selected.mean(), beta_prime, theta0, unit))
        put_(self.u, index, u)
        put_(self.s_replaced, index, s)
        put_(self.s, index, new)
        put_(self.s_changed_at, index, self.steps.expand(index.shape))
        self.steps.add_(1)
        return loss
