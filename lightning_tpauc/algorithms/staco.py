"""STACO1 and STACO2 (Zhou, Wang, Thai, Yang: TMLR 2025), and where their dual variables come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import PairwiseAlgorithm, TrainingScores, scores_of_tasks
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional import duals
from lightning_tpauc.functional import staco as lines
from lightning_tpauc.functional.checks import check_choice, require_positive, require_range
from lightning_tpauc.functional.pairwise import (
    Pairs,
    TaskMasks,
    add_,
    column,
    dot,
    in_play,
    masked_mean,
    number,
    put_,
    ranked,
    there,
)
from lightning_tpauc.functional.surrogates import Surrogate


class Batch(NamedTuple):
    """What a step knows of its batch, without a graph: scores, and places of the positives."""

    pos: Tensor
    dual_neg: Tensor
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a batch
    thetas: tuple[float | Tensor, float | Tensor]
    masks: TaskMasks | None

    @property
    def pos_mask(self) -> Tensor | None:
        """Which positives are there; ``None`` for one label."""
        return None if self.masks is None else self.masks.pos

    @property
    def dual_masks(self) -> TaskMasks | None:
        """The masks of ``pos`` and ``dual_neg``."""
        return None if self.masks is None else self.masks.with_dual_negatives


class PerPositiveDuals:
    r"""The paper's variables, which follow gradients: :math:`y_i` and :math:`s_i` of each positive, and :math:`s'`.

    The average of s over a stage costs O(S) a step, since only the S sampled entries change. With the change
    :math:`\Delta_{k,i}` of entry i in step k, the moment :math:`M_i = \sum_k (k - 1) \Delta_{k,i}` gives the mean of
    the K iterates as :math:`s_{K,i} - M_i / K`: the change of step k is missing from the k - 1 iterates before it.
    """

    #: Kind of the thresholds' state: whether a step changes those of its positives, or all.
    threshold_kind: Literal["positive", "dense"] = "positive"
    #: Whether any batch gives the variables their start.
    starts_from_batch: ClassVar[bool] = False
    #: Whether no threshold is ever below 0.
    nonnegative: ClassVar[bool] = False

    def __init__(self, algorithm: STACO) -> None:
        others = set(algorithm.state_specs)
        self.own = algorithm
        self.declare()
        self.names = set(algorithm.state_specs) - others
        algorithm.starts_from_batch = self.starts_from_batch

    def declare(self) -> None:
        """Add the variables to the algorithm's state."""
        start = 0.0 if self.own.dual_init == "zeros" else 1.0
        self.own.add_state("y", "positive", fill=1.0)
        self.own.add_state("s", self.threshold_kind, fill=start)
        self.own.add_state("s_prime", "scalar", fill=start)
        self.own.add_state("s_anchor", "positive", fill=start)
        self.own.add_state("s_moments", self.threshold_kind)
        self.own.add_state("s_prime_sum", "scalar")
        self.own.add_state("stage_steps", "scalar", dtype=torch.int32)

    @property
    def global_threshold(self) -> Tensor | None:
        """:math:`s'`, shape ``()``."""
        return self.own.s_prime

    def thresholds(self, batch: Batch) -> Tensor:
        """The thresholds ``(S,)`` of the sampled positives that the step goes by."""
        return self.own.s.take(batch.index)

    def ascend(self, batch: Batch, gap: Tensor, unit: float | Tensor) -> Tensor:
        """Line 1: the new dual weights ``(S,)`` of the sampled positives, given their risks less :math:`s'`."""
        alpha, y = self.own.step_scale * self.own.alpha, self.own.y.take(batch.index)
        y = there(lines.dual_weight_step(y, gap, alpha, batch.thetas[0], unit), batch.pos_mask)
        put_(self.own.y, batch.index, y)
        return y

    def descend(self, batch: Batch, s: Tensor, y: Tensor, pairs: Pairs, unit: float | Tensor) -> None:
        """Lines 2 and 4, given the thresholds, the new dual weights, all ``(S,)``, and the pairs."""
        masks, theta0 = batch.masks, batch.thetas[0]
        self.descend_thresholds(batch, s, y, pairs.active, unit)
        mean, beta_prime = masked_mean(y, batch.pos_mask), self.own.step_scale * self.own.beta_prime
        s_prime = lines.global_threshold_step(self.own.s_prime, mean, beta_prime, theta0, unit)
        self.own.s_prime = in_play(s_prime.to(self.own.s_prime.dtype), self.own.s_prime, masks)
        self.own.stage_steps.add_(1 if masks is None else masks.pos.any(-1))
        self.own.s_prime_sum.add_(in_play(self.own.s_prime, 0.0, masks))

    def descend_thresholds(self, batch: Batch, s: Tensor, y: Tensor, active: Tensor, unit: float | Tensor) -> None:
        """Line 2."""
        # the proximal term divides s by gamma, and has no unit where gamma has that of s; STACO1 has no such term
        offset = s - self.own.s_anchor.take(batch.index) if self.own.has_stages else None
        gradient = there(
            lines.threshold_gradient(y, active, batch.thetas[1], offset, self.own.gamma * unit), batch.pos_mask
        )
        beta = self.own.step_scale * self.own.beta / batch.thetas[0]
        if isinstance(beta, Tensor) or not isinstance(unit, Tensor):
            beta, unit = 1.0, beta * unit
        gradient = gradient * column(unit)
        add_(self.own.s, batch.index, gradient, -beta)
        add_(self.own.s_moments, batch.index, gradient * column(self.own.stage_steps), -beta)

    def diagnostics(self) -> dict[str, Tensor]:
        r""":math:`s'`, and the means of :math:`s_i` and :math:`y_i`."""
        return {
            "s_prime": self.own.s_prime.mean(),
            "mean_s": self.own.entries(self.own.s).mean(),
            "mean_y": self.own.entries(self.own.y).mean(),
        }

    def averages(self) -> tuple[Tensor, Tensor]:
        r""":math:`(\bar s, \bar s')` over the stage's iterates so far; O(n_pos)."""
        own, steps = self.own, self.own.stage_steps.clamp(min=1)
        s_bar = own.s - own.s_moments / own.of_each_positive(steps)
        return s_bar, torch.where(own.stage_steps > 0, own.s_prime_sum / steps, own.s_prime)

    def start_from_batch(self, batch: Batch, started: list[bool]) -> None:
        """Start each label, if it has no start, from the first batch that it is in; set its entry of ``started``.

        The start is exact on the batch's own positives. The others get its mean threshold, which keeps them out of the
        dead zone of a start from ones.
        """
        each = [(batch.index, batch.pos, batch.dual_neg)]
        if batch.dual_masks is not None:
            rows = zip(batch.index, batch.pos, batch.dual_neg, *batch.dual_masks[:2], strict=True)
            each = [(places[is_pos], pos[is_pos], neg[is_neg]) for places, pos, neg, is_pos, is_neg in rows]
        for label, (places, pos, neg) in enumerate(each):
            if not started[label] and pos.numel() and neg.numel():
                self._solve(label, TrainingScores(pos, neg), places)
                self.own.entries(self.own.s_anchor, label).copy_(self.own.entries(self.own.s, label))
                started[label] = True

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        """The exact solution, or what the state was filled with."""
        for label, of_label in enumerate([] if scores is None else scores_of_tasks(scores)):
            self._solve(label, of_label)
        self._anchor()

    def finish_stage(self) -> None:
        r""":math:`(s, s') \leftarrow (\bar s, \bar s')`; these are the next anchors."""
        s_bar, s_prime_bar = self.averages()
        self.own.s.copy_(s_bar)
        self.own.s_prime.copy_(s_prime_bar)
        self._anchor()

    def restart(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        r""":math:`y \leftarrow 1`, or the exact solution."""
        self.own.y.fill_(1.0)
        if scores is not None:
            self.start(scores)

    def _anchor(self) -> None:
        self.own.s_anchor.copy_(self.own.s)
        for accumulator in (self.own.s_moments, self.own.s_prime_sum, self.own.stage_steps):
            accumulator.zero_()

    def _solve(self, label: int, scores: TrainingScores, places: Tensor | None = None) -> None:
        """The exact solution of one label; ``places`` say which positives the scores belong to, if not to all."""
        min_tpr, max_fpr = self.own.rectangles[label]
        weight = self.own.positive_weights if places is None else None
        _, y, s_prime = duals.exact_duals(*scores, min_tpr, max_fpr, surrogate=self.own.surrogate, pos_weight=weight)
        s = duals.border_thresholds(scores.pos_scores, ranked(scores.neg_scores, max_fpr, None), self.own.surrogate)
        if places is None:
            self.own.entries(self.own.s, label).copy_(s)
            self.own.entries(self.own.y, label).copy_(y)
        else:
            self.own.entries(self.own.s, label).copy_(s.mean())
            self.own.entries(self.own.y, label).fill_(1.0 - min_tpr)
            put_(self.own.s, places, s)
            put_(self.own.y, places, y)
        (self.own.s_prime if self.own.tasks is None else self.own.s_prime[label]).copy_(s_prime)


#: How fast the borders follow the batches: they forget all but e^-1 of a value in ten steps.
_BORDER_RATE = 0.1
# What steers the variables of each positive, and what STACO has where nobody says otherwise.
_STEERING = {"alpha": 1.0, "beta": 1.0, "beta_prime": 1.0, "dual_init": "exact", "stage_restart": "exact"}


def _steering(algorithm: STACO) -> list[str]:
    return [name for name, default in _STEERING.items() if getattr(algorithm, name) != default]


class TrackedDuals(PerPositiveDuals):
    r"""The optimal dual variables, given two scores on the rectangle's borders: running means over the batches.

    See :mod:`lightning_tpauc.functional.duals`. Nothing is kept for a positive, and nothing has a step size.
    """

    starts_from_batch = nonnegative = True

    @staticmethod
    def check(algorithm: STACO) -> None:
        """They need a monotone surrogate, and have nothing that steers the other kind."""
        duals.require_monotone(algorithm.surrogate, "`duals='tracked'`")
        for name in _steering(algorithm):
            raise ArgumentError(
                f"`{name}={getattr(algorithm, name)!r}` is for dual variables of each positive, which duals='tracked' "
                f"does without. Leave out `{name}`, or set `duals='per_positive'`."
            )

    def declare(self) -> None:
        """Two borders, and how fast they follow the next batch."""
        self.own.add_state("neg_border", "scalar")
        self.own.add_state("pos_border", "scalar")
        self.own.add_state("border_rate", "scalar", fill=1.0)

    @property
    def global_threshold(self) -> None:
        r""":math:`s'` cancels where the mean of y is :math:`\theta_0`, and no gradient depends on it."""

    def thresholds(self, batch: Batch) -> Tensor:
        r"""The borders take in the batch; then :math:`s_i = \ell(c - h_i)`."""
        self._move(*duals.border_scores(batch.pos, batch.dual_neg, *self.own.thetas(), batch.dual_masks), batch.masks)
        return duals.border_thresholds(batch.pos, self.own.neg_border, self.own.surrogate)

    def ascend(self, batch: Batch, gap: Tensor, unit: float | Tensor) -> Tensor:  # noqa: ARG002
        r""":math:`y_i = 1[h_i \le p]`."""
        return duals.border_weights(batch.pos, self.own.pos_border, batch.thetas[0], batch.pos_mask)

    def descend(self, *_: Any) -> None:
        """Nothing is left to do."""

    def diagnostics(self) -> dict[str, Tensor]:
        """The two borders."""
        return {name: getattr(self.own, name).mean() for name in ("neg_border", "pos_border")}

    def averages(self) -> tuple[Tensor, Tensor]:
        """Raise :class:`UnsupportedError`."""
        raise UnsupportedError("`duals='tracked'` keeps no thresholds to average. Set `duals='per_positive'`.")

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        """The borders of ``scores``, or of the next batch."""
        self.own.border_rate.fill_(1.0)
        if scores is None:
            return
        borders = []
        for (pos, neg), (min_tpr, max_fpr) in zip(scores_of_tasks(scores), self.own.rectangles, strict=True):
            counted = pos if self.own.positive_weights is None else _copies(pos, self.own.positive_weights)
            borders.append(duals.border_scores(counted, neg, 1.0 - min_tpr, max_fpr))
        pos_border, neg_border = (torch.stack(each).view_as(self.own.pos_border) for each in zip(*borders, strict=True))
        self._move(pos_border, neg_border, None)

    def finish_stage(self) -> None:
        """The averaged weights have other scores: begin anew."""
        self.own.border_rate.fill_(1.0)

    restart = start

    def _move(self, pos: Tensor, neg: Tensor, masks: TaskMasks | None) -> None:
        r"""The running means :math:`c \leftarrow c + 0.1\,(c_B - c)`, at first the batch's own."""
        own = self.own
        for name, of_batch in (("pos_border", pos), ("neg_border", neg)):
            border = getattr(own, name)
            setattr(own, name, in_play(torch.lerp(border, of_batch.to(border.dtype), own.border_rate), border, masks))
        if masks is None:
            own.border_rate.fill_(_BORDER_RATE)
        else:
            own.border_rate.masked_fill_(masks.pos.any(-1), _BORDER_RATE)


def _copies(scores: Tensor, weight: Tensor) -> Tensor:
    """Ten times as many scores, in which each is as frequent as its weight says, give or take one copy."""
    ends, count = weight.cumsum(0), 10 * scores.numel()
    places = (torch.arange(count, device=weight.device, dtype=weight.dtype) + 0.5) / count * ends[-1]
    return scores[torch.searchsorted(ends, places).clamp(max=scores.numel() - 1)]


class STACO(PairwiseAlgorithm):
    r"""Trains for the part of the ROC curve with TPR >= ``min_tpr`` and FPR <= ``max_fpr``; set these two, no others.

    A stochastic primal-dual double block-coordinate algorithm for the min-max form of the CVaR-CVaR objective, with
    :math:`\theta_0 = 1 -` ``min_tpr``, :math:`\theta_1 =` ``max_fpr`` and pairwise losses
    :math:`\ell_{ij} = \ell(h_j - h_i)`:

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
        margin: m of the surrogate, in units of the score. ``None``: 1, or 0.25 if the module applies a sigmoid, whose
            slope at 0 is 0.25.
        scale: factor inside the logistic surrogate. If ``None``: 1, or 4 where the module applies a sigmoid.
        step_units: what the step sizes are measured in. ``"loss"``: in the size of the loss, so that the same numbers
            suit any score, surrogate and margin. The steps are :math:`\alpha / L`, :math:`\beta L` and
            :math:`\beta' L`, and :math:`\gamma L` for :math:`s`; :math:`L` is the running mean of the loss on the
            hardest :math:`\theta_1` of the negatives. The weights' loss is divided by :math:`L`, or by the batch's
            value if that is larger. ``"absolute"``: the numbers as they are, as in the paper.
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
        ArgumentError: if an argument is out of range, if ``"exact"`` or ``"tracked"`` comes with a surrogate that isn't
            monotone, or if an argument belongs to variables that ``"tracked"`` does not have.

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
    #: Few or wrong positives are memorised later; elsewhere it costs nothing, since the rectangle shrinks that long.
    default_warmup = 0.3
    takes_tasks = True
    #: Where the dual variables may come from, by what ``duals`` calls it.
    kinds_of_duals: ClassVar[dict[str, type[PerPositiveDuals]]] = {
        "per_positive": PerPositiveDuals,
        "tracked": TrackedDuals,
    }

    step_sizes: ClassVar[dict[str, str]] = {
        "y": "alpha",
        "s": "beta",
        "s_moments": "beta",
        "s_prime": "beta_prime",
        "s_prime_sum": "beta_prime",
    }
    averages_iterates = True
    s_prime: Tensor

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
        check_choice(duals, "duals", (*self.kinds_of_duals, None))
        check_choice(dual_init, "dual_init", ("exact", "ones", "zeros"))
        check_choice(stage_restart, "stage_restart", ("exact", "ones"))
        self.duals, self.dual_init, self.stage_restart = duals, dual_init, stage_restart
        self.share_negatives = share_negatives
        self.needs_dual_negatives, self.has_stages = not share_negatives, math.isfinite(self.gamma)
        if duals == "tracked":
            TrackedDuals.check(self)
        else:
            self.require_monotone_if_exact("dual_init", *(["stage_restart"] if self.has_stages else []))
        self.add_state("active_share", "scalar", fill=1.0)
        self._duals: PerPositiveDuals = self.kinds_of_duals[duals or "per_positive"](self)
        #: Whether the dual variables of each task have their start.
        self._started = [False]
        self._saved_lists["started"] = "_started"

    @property
    def proximal_coefficient(self) -> float:
        r""":math:`1 / (\gamma\theta_0)`, 0 for STACO1; of several labels the weighted mean."""
        if not self.has_stages:  # asked for in every step
            return 0.0
        each = [1.0 / (self.gamma * (1.0 - low)) for low, _ in self.rectangles]
        weights = [1.0] if self.tasks is None else [task.weight for task in self.tasks]
        return sum(w * c for w, c in zip(weights, each, strict=True)) / sum(weights)

    def diagnostics(self) -> dict[str, Tensor]:
        r"""The unit of the loss, ``active_share``, and what the kind of dual variables has to report.

        ``active_share`` is the share of pairs that moved the weights over the last steps: the loss of such a pair
        exceeds its threshold, and the pair counts as much as its dual weight. It is :math:`\theta_0\theta_1` at the
        optimum. Per-positive variables report :math:`s'`, the mean threshold, and the mean dual weight,
        :math:`\theta_0` at the optimum; tracked ones report the two borders.
        """
        return {**super().diagnostics(), "active_share": self.active_share.mean(), **self._duals.diagnostics()}

    def needs_scores(self, event: Literal["start", "restart"]) -> bool:
        """Whether the exact solution is asked for."""
        return self.dual_init == "exact" if event == "start" else self.has_stages and self.stage_restart == "exact"

    def choose_state(self, num_labels: int) -> None:
        """16 bytes a positive in single precision, none if tracked."""
        fits = "tracked" in self.kinds_of_duals and self.surrogate.monotone and not _steering(self)
        kind = self.kinds_of_duals[self.duals or ("tracked" if fits and num_labels > 1 else "per_positive")]
        if type(self._duals) is not kind:
            for name in self._duals.names:
                del self.state_specs[name]
            self._duals = kind(self)
        self._started = [self.dual_init != "exact" or self.starts_from_batch] * num_labels

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
        batch = Batch(pos, dual_neg, index, self.thetas(self.active_share.dtype), masks)
        (theta0, theta1), pos_mask = batch.thetas, batch.pos_mask
        if not all(self._started):
            self._duals.start_from_batch(batch, self._started)
        s = self._duals.thresholds(batch)
        dual = None if self.share_negatives else dual_neg_scores
        pairs = Pairs(pos_scores, neg_scores, s, self.surrogate, masks, dual, nonnegative=self._duals.nonnegative)
        unit, of_loss = self.update_units(pairs.dual)
        self.loss_scale = of_loss
        # line 1, on the dual negatives
        s_prime, tail = self._duals.global_threshold, theta1 * pairs.num_neg

        def gap_of(pairs: Pairs) -> Tensor:
            risk = lines.per_positive_risk(s, pairs.totals[0], theta1 * pairs.num_neg)
            return risk if s_prime is None else risk - column(s_prime)

        gap = gap_of(pairs.dual)
        y = self._duals.ascend(batch, gap, unit)

        # line 3, the loss for the weights, on the other negatives
        weights = lines.pair_weights(y, theta0, tail, of_loss, pos_mask)
        loss = pairs.attached(
            lambda: lines.minmax_value(weights, gap if dual is None else gap_of(pairs), s_prime, tail, of_loss), weights
        )
        # lines 2 and 4
        self._duals.descend(batch, s, y, pairs, unit)
        share = dot(pairs.totals[1], y) / (number(y, pos_mask) * pairs.num_neg)
        self.active_share.lerp_(in_play(share.to(self.active_share.dtype), self.active_share, masks), 0.05)
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
