"""STACO1 and STACO2 (Zhou, Wang, Thai, Yang: TMLR 2025)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import Task, TrainingScores
from lightning_tpauc.algorithms.duals import Batch, DualAlgorithm, PerPositiveDuals, TrackedDuals
from lightning_tpauc.errors import CheckpointError
from lightning_tpauc.functional.checks import check_choice, require_positive, require_range
from lightning_tpauc.functional.pairwise import TaskMasks, evaluate_pairs, in_play, masked_mean
from lightning_tpauc.functional.staco import excess_weights, minmax_loss, per_positive_risk
from lightning_tpauc.functional.surrogates import Surrogate


class STACO(DualAlgorithm):
    r"""Stochastic primal-dual double block-coordinate algorithm for two-way partial AUC.

    Solves the min-max form of the CVaR-CVaR objective, with :math:`\theta_0 = 1 -` ``min_tpr``,
    :math:`\theta_1 =` ``max_fpr`` and pairwise losses :math:`\ell_{ij} = \ell(h_j - h_i)`:

    .. math:: \min_{w, s, s'} \max_{y \in [0,1]^{n_+}} \frac{1}{n_+} \sum_i y_i \frac{g_i(w, s_i) - s'}{\theta_0} + s',
        \qquad g_i(w, s_i) = \frac{1}{n_-} \sum_j \Bigl( s_i + \frac{(\ell_{ij} - s_i)_+}{\theta_1} \Bigr)

    One call is one step: dual ascent on :math:`y_i` with one batch of negatives, descent on :math:`s_i` and on the
    weights with another, descent on :math:`s'`; see :mod:`lightning_tpauc.functional.staco`, one function per line.
    With ``gamma=math.inf`` this is STACO1, whose solution is the average of all iterates. With finite ``gamma`` it is
    STACO2: proximal terms pull :math:`s` and the weights to their values at the stage's start, and every stage starts
    from the previous one's averages.

    For a monotone surrogate the optimal dual variables follow from two scores: the negative on the border of the
    hardest :math:`\theta_1` and the positive on the border of the lowest :math:`\theta_0`. ``duals="tracked"`` takes
    running means of the batches' own instead of variables of each positive, and has no step sizes but the optimizer's;
    see :mod:`lightning_tpauc.functional.duals`.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: ``"squared_hinge"``, ``"hinge"``, ``"square"``, ``"logistic"``, ``"ramp"``, ``"smooth_ramp"`` or a
            registered one.
        margin: m of the surrogate, in units of the score. If ``None``: 1, or 0.25 where the module applies a sigmoid;
            0.25 is the sigmoid's slope at 0.
        scale: factor inside the logistic surrogate. If ``None``: 1, or 4 where the module applies a sigmoid.
        step_units: what the three step sizes are measured in. ``"loss"``: :math:`\alpha / L`, :math:`\beta L` and
            :math:`\beta' L` are taken, :math:`\gamma L` for :math:`s`, where :math:`L` is the running mean of
            the loss on the hardest :math:`\theta_1` of the negatives, and the weights' loss is divided by :math:`L`, or
            by the batch's own value where that is larger. The same numbers then suit any score, surrogate and margin.
            ``"absolute"``: as they are, as in the paper.
        duals: ``"per_positive"``: :math:`y_i` and :math:`s_i` are variables of each positive, as in the paper.
            ``"tracked"``: both follow from two running means, so ``alpha``, ``beta``, ``beta_prime``, ``dual_init`` and
            ``stage_restart`` must keep their defaults, and the surrogate must be monotone. ``None`` is
            ``"per_positive"`` for one task. For several tasks, which visit a positive rarely, it is ``"tracked"`` if
            the other arguments allow it.
        alpha: step size of the dual weights :math:`y`.
        beta: step size of the thresholds :math:`s`.
        beta_prime: step size :math:`\beta'` of the global threshold :math:`s'`.
        gamma: proximal parameter of STACO2; infinity is STACO1.
        dual_init: ``"exact"`` solves :math:`s, s', y` for the initial weights from the training scores; ``"ones"`` is
            the paper's start (:math:`s = s' = y = 1`); ``"zeros"`` sets :math:`s = s' = 0, y = 1`. With ``"ones"`` no
            pair is active, and the weights do not move, until :math:`s_i` has fallen below the largest loss.
        stage_restart: ``"exact"`` solves :math:`s, s', y` again at every stage's start; ``"ones"`` is the paper's
            :math:`y = 1` with averaged :math:`s, s'`.
        share_negatives: use one batch of negatives for all updates, instead of the paper's two independent ones. The
            pairs are then evaluated once, and a step scores fewer examples.

    Raises:
        ArgumentError: if an argument is out of range, if ``"exact"`` or ``"tracked"`` is asked for with a non-monotone
            surrogate, or if an argument steers variables that ``"tracked"`` does not have.

    Example:
        >>> algorithm = STACO(min_tpr=0.5, max_fpr=0.5, dual_init="zeros")
        >>> algorithm.setup(num_positives=3)
        >>> pos, neg = torch.tensor([0.2, 0.9], requires_grad=True), torch.tensor([0.1, 0.8])
        >>> loss = algorithm(pos, neg, neg.clone(), torch.tensor([0, 2]))
        >>> loss.backward()
        >>> pos.grad
        tensor([-1.6000, -1.6000])
    """

    #: The dual variables follow the rectangle.
    can_shrink_rectangle = True
    takes_tasks = True
    #: Where the dual variables may come from, by what ``duals`` calls it.
    kinds_of_duals: ClassVar[dict[str, type[PerPositiveDuals]]] = {
        "per_positive": PerPositiveDuals,
        "tracked": TrackedDuals,
    }

    active_share: Tensor

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        *,
        surrogate: str | Surrogate = "hinge",
        margin: float | None = None,
        scale: float | None = None,
        step_units: Literal["loss", "absolute"] = "loss",
        duals: Literal["per_positive", "tracked"] | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        beta_prime: float = 1.0,
        gamma: float = math.inf,
        dual_init: Literal["exact", "ones", "zeros"] = "exact",
        stage_restart: Literal["exact", "ones"] = "exact",
        share_negatives: bool = True,
    ) -> None:
        super().__init__(min_tpr, max_fpr, surrogate, margin, scale, step_units)
        self.alpha = require_range("alpha", alpha, 0.0)
        self.beta = require_range("beta", beta, 0.0)
        self.beta_prime = require_range("beta_prime", beta_prime, 0.0)
        self.gamma = require_positive("gamma", gamma, "STACO1")
        if duals is not None:
            check_choice(duals, "duals", tuple(self.kinds_of_duals))
        check_choice(dual_init, "dual_init", ("exact", "ones", "zeros"))
        check_choice(stage_restart, "stage_restart", ("exact", "ones"))
        self.duals, self.dual_init, self.stage_restart = duals, dual_init, stage_restart
        self.share_negatives = share_negatives
        self.add_state("active_share", "scalar", fill=1.0)
        self._duals: PerPositiveDuals = self.kinds_of_duals[duals or "per_positive"](self)
        #: Whether the dual variables of each task have their start.
        self._started = [False]

    @property
    def needs_dual_negatives(self) -> bool:
        """Whether a step uses a second, independent batch of negatives."""
        return not self.share_negatives

    @property
    def has_stages(self) -> bool:
        """Whether this is STACO2."""
        return math.isfinite(self.gamma)

    @property
    def averages_iterates(self) -> bool:
        """True: both variants return an average."""
        return True

    @property
    def proximal_coefficient(self) -> float:
        r""":math:`1 / (\gamma\theta_0)`, 0 for STACO1; of several labels the weighted mean."""
        each = [1.0 / (self.gamma * (1.0 - low)) for low, _ in self.rectangles]
        weights = [1.0] if self.tasks is None else [task.weight for task in self.tasks]
        return sum(w * c for w, c in zip(weights, each, strict=True)) / sum(weights)

    @property
    def step_sizes(self) -> dict[str, str]:
        """The step size of each variable."""
        return self._duals.step_sizes

    def diagnostics(self) -> dict[str, Tensor]:
        r"""The unit of the loss, ``active_share``, and what the kind of dual variables has to report.

        ``active_share`` is the share of pairs that moved the weights over the last steps: the loss of such a pair
        exceeds its threshold, and the pair counts as much as its dual weight. It is :math:`\theta_0\theta_1` at the
        optimum. Per-positive variables report :math:`s'`, the mean threshold, and the mean dual weight,
        :math:`\theta_0` at the optimum; tracked ones report the two borders.
        """
        return {**super().diagnostics(), "active_share": self.active_share.mean(), **self._duals.diagnostics()}

    @property
    def starts_from_batch(self) -> bool:
        """Whether the dual variables are tracked: a batch has borders of its own."""
        return self._duals.starts_from_batch

    def needs_scores(self, event: Literal["start", "restart"]) -> bool:
        """Whether the exact solution is asked for."""
        return self.dual_init == "exact" if event == "start" else self.has_stages and self.stage_restart == "exact"

    def setup(
        self,
        num_positives: int | Sequence[int | Task],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate 16 bytes a positive in single precision, none if tracked; see :meth:`Algorithm.setup`."""
        several = isinstance(num_positives, Sequence) and len(num_positives) > 1
        tracks = several and "tracked" in self.kinds_of_duals and TrackedDuals.misfit(self) is None
        kind = self.duals or ("tracked" if tracks else "per_positive")
        if kind != self._duals.kind:
            self._duals.withdraw()
            self._duals = self.kinds_of_duals[kind](self)
        super().setup(num_positives, device=device, dtype=dtype)
        from_scores = self.dual_init == "exact" and not self.starts_from_batch
        self._started = [not from_scores] * (self.num_tasks or 1)

    def state_dict(self) -> dict[str, Any]:
        """All that the algorithm remembers, with whether the dual variables (of each task) have had their start."""
        return {**super().state_dict(), "started": list(self._started)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, in place.

        Raises:
            CheckpointError: if the state belongs to other data, another algorithm or the other kind of duals.
        """
        self.check_num_positives(state)
        written = "tracked" if "neg_border" in state else "per_positive"
        if written != self._duals.kind:
            msg = (
                f"The checkpoint was written with duals={written!r}, but the algorithm has duals={self._duals.kind!r}. "
                f"Set `duals={written!r}`, or pass the checkpoint as `init_from` to start a new run from its weights."
            )
            raise CheckpointError(msg)
        super().load_state_dict({name: value for name, value in state.items() if name != "started"})
        self._started = list(state["started"])

    # ---------------------------------------------------------------- one step

    def step(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        dual_neg_scores: Tensor,
        index: Tensor,
        masks: TaskMasks | None = None,
    ) -> Tensor:
        """Lines 1 to 4, all with the values from before the step except the new dual weights."""
        pos, dual_neg = pos_scores.detach(), dual_neg_scores.detach()
        unit, of_loss = self.update_units(pos, dual_neg, masks=masks)
        batch = Batch(pos, dual_neg, index, unit, masks)
        pos_mask, (theta0, theta1) = batch.pos_mask, self.thetas_of(self.active_share)
        if not all(self._started):
            self._duals.start_from_batch(batch, self._started)
        s = self._duals.thresholds(batch)
        dual = None if self.share_negatives else dual_neg_scores
        pairs = evaluate_pairs(pos_scores, neg_scores, s, surrogate=self.surrogate, dual_neg_scores=dual, masks=masks)
        # line 1, on the dual negatives
        y = self._duals.ascend(batch, per_positive_risk(s, pairs.dual_excess, theta1))
        # line 3, the loss for the weights, on the other negatives
        weighted = pairs.weighted_sum(excess_weights(y, theta0, theta1, pos_mask))
        loss = self.per_unit(minmax_loss(weighted, y, s, self._duals.global_threshold, theta0, pos_mask), of_loss)
        # lines 2 and 4
        self._duals.descend(batch, s, y, pairs.active)
        share = in_play(masked_mean(pairs.active * y, pos_mask), self.active_share, masks)
        self.active_share.lerp_(share.to(self.active_share.dtype), 0.05)
        return loss

    # ---------------------------------------------------------------- stages

    def averages(self) -> tuple[Tensor, Tensor]:
        r"""The averages :math:`(\bar s, \bar s')` over the stage's iterates so far, at a cost of O(n_pos).

        Raises:
            UnsupportedError: if the duals are tracked.
        """
        return self._duals.averages()

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None = None) -> None:
        """Set the dual variables before the first step."""
        self._duals.start(scores if self.dual_init == "exact" else None)
        self._started = [True] * len(self._started)

    def finish_stage(self) -> None:
        r""":math:`(s, s') \leftarrow (\bar s, \bar s')`; these are the next anchors."""
        self._duals.finish_stage()

    def restart(self, scores: TrainingScores | Sequence[TrainingScores] | None = None) -> None:
        r""":math:`y \leftarrow 1`, or the exact solution for the averaged weights."""
        self._duals.restart(scores if self.stage_restart == "exact" else None)
