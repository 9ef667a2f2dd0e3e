"""AUC margin maximisation with PESG (Yuan, Yan, Sonka, Yang: ICCV 2021)."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import Algorithm
from lightning_tpauc.functional.checks import require_positive, require_range
from lightning_tpauc.functional.pairwise import common_dtype


class AUCM(Algorithm):
    r"""AUC margin loss, solved by the proximal epoch stochastic gradient method (PESG).

    Maximises the whole AUC through a saddle-point problem of O(S + B) terms (Yuan, Yan, Sonka, Yang: Large-scale Robust
    Deep AUC Maximization, ICCV 2021):

    .. math:: \min_{w, a, b} \max_{c \ge 0} \; E_P (h - a)^2 + E_N (h - b)^2 + 2 c\,(m + E_N h - E_P h) - c^2

    One call steps :math:`v \leftarrow v - \eta(\nabla + \lambda_0(v - v_{ref}) + \mathrm{wd}\,v)` for the centres
    :math:`v = (a, b)`, then :math:`c \leftarrow [c + \eta(2(m + b - a) - 2c)]_+` with the new a and b, and returns the
    saddle function at the values from before the step. The weights follow the rule of v: :math:`\eta` is the
    optimizer's learning rate, wd its weight decay, the momentum its momentum, and :math:`\lambda_0 (w - w_{ref})` is
    added as :attr:`proximal_coefficient`. At a stage's end the reference becomes the mean of the stage's iterates,
    while the iterates themselves go on (:attr:`stage_iterate` is ``"last"``); the first reference is the initial
    value. The published schedule also divides :math:`\eta` by 10 there: make the stages' ends the milestones of the
    learning-rate scheduler; a, b and c follow it through ``step_scale``. The published recipe has sigmoid scores in
    [0, 1]; any real scores are allowed.

    Args:
        min_tpr: lower bound of the true positive rate, in [0, 1); only reported on, the loss ignores it.
        max_fpr: upper bound of the false positive rate, in (0, 1]; only reported on, the loss ignores it.
        margin: m, in units of the score.
        eta: step size of a, b and c: the optimizer's initial learning rate.
        gamma: :math:`1 / \lambda_0`, the strength of the stages' references; infinity drops them and the stages.
        momentum: momentum of a and b, in [0, 1), as in :class:`torch.optim.SGD`.
        weight_decay: wd of a and b.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> algorithm = AUCM(eta=0.1, momentum=0.0)
        >>> algorithm.setup(num_positives=1)
        >>> loss = algorithm(torch.tensor([0.8]), torch.tensor([0.3]), index=torch.tensor([0]))
        >>> loss, algorithm.centres, algorithm.c
        (tensor(0.7300), tensor([0.1600, 0.0600]), tensor(0.0800))
    """

    #: The weights go on from the last iterate.
    stage_iterate = "last"
    step_sizes: ClassVar[dict[str, str]] = dict.fromkeys(("centres", "velocity", "anchor", "mean", "c"), "eta")

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        *,
        margin: float = 0.5,
        eta: float = 0.1,
        gamma: float = 500.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(min_tpr, max_fpr)
        self.margin = require_range("margin", margin, 0.0)
        self.eta = require_range("eta", eta, 0.0)
        self.gamma = require_positive("gamma", gamma, "no proximal term")
        self.has_stages = math.isfinite(self.gamma)
        self.momentum = require_range("momentum", momentum, 0.0, 1.0, open_high=True)
        self.weight_decay = require_range("weight_decay", weight_decay, 0.0)
        for name in ("centres", "velocity", "anchor", "mean"):
            self.add_state(name, "vector", fill=(0.0, 0.0))
        self.add_state("c", "scalar")
        self.add_state("stage_steps", "scalar", dtype=torch.int32)

    @property
    def proximal_coefficient(self) -> float:
        r""":math:`\lambda_0 = 1 / \gamma`."""
        return 1.0 / self.gamma

    def diagnostics(self) -> dict[str, Tensor]:
        """The centres and the dual variable."""
        return dict(zip("abc", torch.stack([*self.centres, self.c]), strict=True))

    def step(self, pos_scores: Tensor, neg_scores: Tensor, *_: Tensor) -> Tensor:
        """Steps of a, b, then c; the loss has their old values."""
        dtype = common_dtype(pos_scores, neg_scores, self.c)
        pos, neg = pos_scores.to(dtype), neg_scores.to(dtype)
        centres, c = self.centres.to(dtype, copy=True), self.c.to(dtype, copy=True)
        a, b = centres.unbind()
        gap = self.margin + neg.mean() - pos.mean()
        loss = (pos - a).square().mean() + (neg - b).square().mean() + 2.0 * c * gap - c.square()
        eta = self.step_scale * self.eta
        gradient = 2.0 * (centres - torch.stack([pos.detach().mean(), neg.detach().mean()]))
        direction = gradient + self.proximal_coefficient * (centres - self.anchor) + self.weight_decay * centres
        self.velocity.mul_(self.momentum).add_(direction)
        self.centres.sub_(self.velocity, alpha=eta)
        # the centres stand in for the batch means: at their optimum a = E_P h, b = E_N h
        slope = 2.0 * (self.margin + self.centres[1] - self.centres[0]) - 2.0 * self.c
        self.c.copy_((self.c + eta * slope).clamp_min(0.0))
        self.stage_steps.add_(1)
        self.mean.add_((self.centres - self.mean) / self.stage_steps)
        return loss

    def finish_stage(self) -> None:
        r""":math:`(a, b)_{ref} \leftarrow` the mean of (a, b) over the stage's steps; (a, b) stay."""
        self.anchor.copy_(torch.where(self.stage_steps > 0, self.mean, self.centres))
        self.mean.zero_()
        self.stage_steps.zero_()
