"""STACO's dual variables: variables of each positive, as in the paper, or two tracked scores that they follow from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import PairwiseAlgorithm, TrainingScores
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.duals import (
    activate_ties,
    border_scores,
    border_step,
    border_thresholds,
    border_weights,
    exact_duals,
)
from lightning_tpauc.functional.pairwise import TaskMasks, add_, column, in_play, masked_mean, put_, take, there
from lightning_tpauc.functional.staco import dual_weight_step, global_threshold_step, threshold_step


class Batch(NamedTuple):
    """What a step knows of its batch, without a graph.

    Attributes:
        pos: float tensor ``(S,)``, scores of the positives.
        dual_neg: float tensor ``(B,)``, scores of the negatives that the dual variables follow.
        index: which positives these are; of several labels their places.
        unit: L, in which step sizes are measured.
        masks: which scores of K labels are there.
    """

    pos: Tensor
    dual_neg: Tensor
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a batch
    unit: Tensor | float
    masks: TaskMasks | None

    @property
    def pos_mask(self) -> Tensor | None:
        """Which positives are there; ``None`` for one label."""
        return None if self.masks is None else self.masks.pos

    @property
    def dual_masks(self) -> TaskMasks | None:
        """The masks of ``pos`` and ``dual_neg``."""
        return None if self.masks is None else self.masks.with_dual_negatives


class DualAlgorithm(PairwiseAlgorithm):
    """An algorithm with dual variables: the settings and the state that its :class:`Duals` work on."""

    alpha: float
    beta: float
    beta_prime: float
    gamma: float
    dual_init: Literal["exact", "ones", "zeros"]
    stage_restart: Literal["exact", "ones"]

    y: Tensor
    s: Tensor
    s_prime: Tensor
    s_anchor: Tensor
    s_moments: Tensor
    s_prime_sum: Tensor
    stage_steps: Tensor
    neg_border: Tensor
    pos_border: Tensor
    border_steps: Tensor


class PerPositiveDuals:
    r"""The paper's variables, which follow gradients: :math:`y_i` and :math:`s_i` of each positive, and :math:`s'`.

    They are part of the algorithm's declared state, from which checkpoints, device moves and roll-back follow. The
    average of s over a stage costs O(S) a step, since only the S sampled entries change. With the change
    :math:`\Delta_{k,i}` of entry i in step k, the moment :math:`M_i = \sum_k (k - 1) \Delta_{k,i}` gives the mean of
    the K iterates as :math:`s_{K,i} - M_i / K`: the change of step k is missing from the k - 1 iterates before it.

    Args:
        algorithm: whose variables these are; its settings are complete.

    Raises:
        ArgumentError: if its settings do not suit the kind.
    """

    #: The value of ``STACO(duals=...)`` that chooses this kind.
    kind: ClassVar[str] = "per_positive"
    #: Which argument is the step size of which variable.
    step_sizes: ClassVar[dict[str, str]] = {
        "y": "alpha",
        "s": "beta",
        "s_moments": "beta",
        "s_prime": "beta_prime",
        "s_prime_sum": "beta_prime",
    }
    #: Whether any batch gives the variables their start.
    starts_from_batch: ClassVar[bool] = False
    #: Kind of the thresholds' state: whether a step changes those of its positives, or all.
    _threshold_kind: Literal["positive", "dense"] = "positive"

    def __init__(self, algorithm: DualAlgorithm) -> None:
        self.algorithm = algorithm
        if (msg := self.misfit(algorithm)) is not None:
            raise ArgumentError(msg)
        others = algorithm.declared
        self._declare()
        self._names = algorithm.declared - others

    def withdraw(self) -> None:
        """Take the variables back from the algorithm's state, for those of another kind."""
        for name in self._names:
            self.algorithm.remove_state(name)

    @staticmethod
    def misfit(algorithm: DualAlgorithm) -> str | None:
        """Why an algorithm with these arguments can't have such variables; ``None`` if it can."""
        used = ("dual_init", "stage_restart") if algorithm.has_stages else ("dual_init",)
        exact = [name for name in used if getattr(algorithm, name) == "exact"]
        if not exact or algorithm.surrogate.monotone:
            return None
        return (
            f"`{exact[0]}='exact'` needs a non-decreasing surrogate, but {algorithm.surrogate.name!r} falls again on "
            "the left of -margin, so the hardest negatives differ between positives. "
            "Set `dual_init='zeros'` and `stage_restart='ones'`, or use 'squared_hinge'."
        )

    def _declare(self) -> None:
        own = self.algorithm
        start = 0.0 if own.dual_init == "zeros" else 1.0
        own.add_state("y", "positive", fill=1.0)
        own.add_state("s", self._threshold_kind, fill=start)
        own.add_state("s_prime", "scalar", fill=start)
        own.add_state("s_anchor", "positive", fill=start)
        own.add_state("s_moments", self._threshold_kind)
        own.add_state("s_prime_sum", "scalar")
        own.add_state("stage_steps", "scalar", dtype=torch.int32)

    @property
    def global_threshold(self) -> Tensor:
        """:math:`s'`, shape ``()``."""
        return self.algorithm.s_prime

    def thresholds(self, batch: Batch) -> Tensor:
        """The thresholds ``(S,)`` of the sampled positives that the step goes by."""
        return take(self.algorithm.s, batch.index)

    def ascend(self, batch: Batch, risk: Tensor) -> Tensor:
        """Line 1: the new dual weights ``(S,)`` of the sampled positives, given their risks."""
        own = self.algorithm
        alpha, (theta0, _) = own.step_scale * own.alpha / batch.unit, own.thetas_of(own.y)
        y = there(dual_weight_step(take(own.y, batch.index), risk, own.s_prime, alpha, theta0), batch.pos_mask)
        put_(own.y, batch.index, y)
        return y

    def descend(self, batch: Batch, s: Tensor, y: Tensor, active: Tensor) -> None:
        """Lines 2 and 4, given the thresholds, the new dual weights and the share of active pairs, all ``(S,)``."""
        own, unit, masks = self.algorithm, batch.unit, batch.masks
        # the proximal term divides s by gamma, and has no unit where gamma has that of s; STACO1 has no such term
        gamma = own.gamma * unit if own.has_stages else own.gamma
        self._descend_thresholds(batch, s, y, active, own.step_scale * own.beta * unit, gamma)
        mean = masked_mean(y, batch.pos_mask)
        beta_prime = own.step_scale * own.beta_prime * unit
        s_prime = global_threshold_step(own.s_prime, mean, beta_prime, own.thetas_of(own.s)[0])
        own.s_prime.copy_(in_play(s_prime, own.s_prime, masks))
        own.stage_steps.add_(1 if masks is None else masks.pos.any(-1))
        own.s_prime_sum.add_(in_play(own.s_prime, 0.0, masks))

    def _descend_thresholds(
        self, batch: Batch, s: Tensor, y: Tensor, active: Tensor, beta: float | Tensor, gamma: float | Tensor
    ) -> None:
        own = self.algorithm
        anchor = take(own.s_anchor, batch.index) if own.has_stages else None
        new = threshold_step(s, y, active, beta, *own.thetas_of(own.s), anchor=anchor, gamma=gamma)
        new = new if batch.masks is None else torch.where(batch.masks.pos, new, s)
        put_(own.s, batch.index, new)
        add_(own.s_moments, batch.index, (new - s) * column(own.stage_steps))

    def diagnostics(self) -> dict[str, Tensor]:
        r""":math:`s'`, and the means of :math:`s_i` and :math:`y_i`."""
        own = self.algorithm
        return {
            "s_prime": own.s_prime.mean(),
            "mean_s": own.entries(own.s).mean(),
            "mean_y": own.entries(own.y).mean(),
        }

    def averages(self) -> tuple[Tensor, Tensor]:
        r""":math:`(\bar s, \bar s')` over the stage's iterates so far; O(n_pos)."""
        own = self.algorithm
        s_bar = own.s - own.s_moments / own.of_each_positive(own.stage_steps).clamp(min=1)
        s_prime_bar = torch.where(own.stage_steps > 0, own.s_prime_sum / own.stage_steps.clamp(min=1), own.s_prime)
        return s_bar, s_prime_bar

    def start_from_batch(self, batch: Batch, started: list[bool]) -> None:
        """Start each label, if it has no start, from the first batch that it is in; set its entry of ``started``.

        The start is exact on the batch's own positives. The others get its mean threshold, which keeps them out of the
        dead zone of a start from ones.
        """
        own = self.algorithm
        each = [(batch.index, batch.pos, batch.dual_neg)]
        if batch.dual_masks is not None:
            rows = zip(batch.index, batch.pos, batch.dual_neg, *batch.dual_masks[:2], strict=True)
            each = [(places[is_pos], pos[is_pos], neg[is_neg]) for places, pos, neg, is_pos, is_neg in rows]
        for label, (places, pos, neg) in enumerate(each):
            if not started[label] and pos.numel() and neg.numel():
                self._solve(label, TrainingScores(pos, neg), places)
                own.entries(own.s_anchor, label).copy_(own.entries(own.s, label))
                started[label] = True

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        """The exact solution, or what the state was filled with."""
        self._solve_all(scores)
        self._anchor()

    def finish_stage(self) -> None:
        r""":math:`(s, s') \leftarrow (\bar s, \bar s')`; these are the next anchors."""
        s_bar, s_prime_bar = self.averages()
        self.algorithm.s.copy_(s_bar)
        self.algorithm.s_prime.copy_(s_prime_bar)
        self._anchor()

    def restart(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        r""":math:`y \leftarrow 1`, or the exact solution."""
        self.algorithm.y.fill_(1.0)
        if scores is not None:
            self._solve_all(scores)
            self._anchor()

    def _anchor(self) -> None:
        own = self.algorithm
        own.s_anchor.copy_(own.s)
        for accumulator in (own.s_moments, own.s_prime_sum, own.stage_steps):
            accumulator.zero_()

    def _solve_all(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        for label, of_label in enumerate([] if scores is None else self.algorithm.scores_of_tasks(scores)):
            self._solve(label, of_label, None)

    def _solve(self, label: int, scores: TrainingScores, places: Tensor | None) -> None:
        """The exact solution of one label; ``places`` say which positives the scores belong to, if not to all."""
        own = self.algorithm
        min_tpr, max_fpr = own.rectangles[label]
        weight = own.positive_weights if places is None else None
        s, y, s_prime = exact_duals(*scores, min_tpr, max_fpr, surrogate=own.surrogate, pos_weight=weight)
        s = activate_ties(s, scores.pos_scores, own.surrogate)
        if places is None:
            own.entries(own.s, label).copy_(s)
            own.entries(own.y, label).copy_(y)
        else:
            own.entries(own.s, label).copy_(s.mean())
            own.entries(own.y, label).fill_(1.0 - min_tpr)
            put_(own.s, places, s)
            put_(own.y, places, y)
        (own.s_prime if own.num_tasks is None else own.s_prime[label]).copy_(s_prime)


# ---------------------------------------------------------------- two tracked scores

# What steers the variables of each positive, and what STACO has where nobody says otherwise.
_STEERING = {"alpha": 1.0, "beta": 1.0, "beta_prime": 1.0, "dual_init": "exact", "stage_restart": "exact"}


class TrackedDuals(PerPositiveDuals):
    r"""The optimal dual variables, given two scores on the rectangle's borders: running means over the batches.

    See :mod:`lightning_tpauc.functional.duals`. Nothing is kept for a positive, and nothing has a step size.
    """

    kind = "tracked"
    step_sizes: ClassVar[dict[str, str]] = {}
    starts_from_batch = True

    @staticmethod
    def misfit(algorithm: DualAlgorithm) -> str | None:
        """They need a monotone surrogate, and have nothing that steers the other kind."""
        if not algorithm.surrogate.monotone:
            return (
                f"`duals='tracked'` needs a non-decreasing surrogate, but {algorithm.surrogate.name!r} falls again on "
                "the left of -margin, so no one score is the border for all. Set `duals='per_positive'` with "
                "`dual_init='zeros'` and `stage_restart='ones'`, or use 'squared_hinge'."
            )
        for name, default in _STEERING.items():
            value = getattr(algorithm, name)
            if value != default:
                return (
                    f"`{name}={value!r}` is for dual variables that each positive has of its own, which "
                    f"duals='tracked' does without. Leave out `{name}`, or set `duals='per_positive'`."
                )
        return None

    def _declare(self) -> None:
        self.algorithm.add_state("neg_border", "scalar")
        self.algorithm.add_state("pos_border", "scalar")
        self.algorithm.add_state("border_steps", "scalar", dtype=torch.int32)

    @property
    def global_threshold(self) -> Tensor:
        r"""0: :math:`s'` cancels where the mean of y is :math:`\theta_0`, and no gradient depends on it."""
        return torch.zeros_like(self.algorithm.neg_border)

    def thresholds(self, batch: Batch) -> Tensor:
        r"""The borders take in the batch; then :math:`s_i = \ell(c - h_i)`."""
        own = self.algorithm
        self._move(*border_scores(batch.pos, batch.dual_neg, *own.thetas, batch.dual_masks), batch.masks)
        return border_thresholds(batch.pos, own.neg_border, own.surrogate)

    def ascend(self, batch: Batch, risk: Tensor) -> Tensor:  # noqa: ARG002
        r""":math:`y_i = 1[h_i \le p]`."""
        own = self.algorithm
        return border_weights(batch.pos, own.pos_border, own.thetas_of(own.pos_border)[0], batch.pos_mask)

    def descend(self, batch: Batch, s: Tensor, y: Tensor, active: Tensor) -> None:
        """Nothing is left to do."""

    def diagnostics(self) -> dict[str, Tensor]:
        """The two borders."""
        return {name: getattr(self.algorithm, name).mean() for name in ("neg_border", "pos_border")}

    def averages(self) -> tuple[Tensor, Tensor]:
        """Raise :class:`UnsupportedError`."""
        msg = "`duals='tracked'` keeps no thresholds to average. Set `duals='per_positive'`."
        raise UnsupportedError(msg)

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        """The borders of ``scores``, or of the next batch."""
        own = self.algorithm
        own.border_steps.zero_()
        if scores is None:
            return
        borders = []
        for (pos, neg), (min_tpr, max_fpr) in zip(own.scores_of_tasks(scores), own.rectangles, strict=True):
            counted = pos if own.positive_weights is None else _copies(pos, own.positive_weights)
            borders.append(border_scores(counted, neg, 1.0 - min_tpr, max_fpr))
        pos_border, neg_border = (torch.stack(each).view_as(own.pos_border) for each in zip(*borders, strict=True))
        self._move(pos_border, neg_border, None)

    def finish_stage(self) -> None:
        """The averaged weights have other scores: begin anew."""
        self.algorithm.border_steps.zero_()

    restart = start

    def _move(self, pos: Tensor, neg: Tensor, masks: TaskMasks | None) -> None:
        own = self.algorithm
        for border, of_batch in ((own.pos_border, pos), (own.neg_border, neg)):
            border.copy_(in_play(border_step(border, of_batch, own.border_steps), border, masks))
        own.border_steps.add_(1 if masks is None else masks.pos.any(-1))


def _copies(scores: Tensor, weight: Tensor) -> Tensor:
    """Ten times as many scores, in which each is as frequent as its weight says, give or take one copy."""
    ends, count = weight.cumsum(0), 10 * scores.numel()
    places = (torch.arange(count, device=weight.device, dtype=weight.dtype) + 0.5) / count * ends[-1]
    return scores[torch.searchsorted(ends, places).clamp(max=scores.numel() - 1)]
