"""How far the metric of a finite test set may lie from that of its population."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.functional.checks import as_groups, check_count, check_rectangle, eager, require_range
from lightning_tpauc.functional.roc import exact_area, ranked_classes, split_groups


class BootstrapInterval(NamedTuple):
    """Result of :func:`bootstrap_interval`.

    Attributes:
        estimate: the value on the data themselves, float64 tensor of shape ``()``.
        lower: lower end of the interval, float64 tensor of shape ``()``.
        upper: upper end of the interval, float64 tensor of shape ``()``.
    """

    estimate: Tensor
    lower: Tensor
    upper: Tensor


@eager
def bootstrap_interval(
    preds: Any,
    target: Any,
    min_tpr: float = 0.5,
    max_fpr: float | None = 0.5,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
    ignore_index: int | None = None,
    validate_args: bool = True,
    groups: Any = None,
    other_preds: Any = None,
) -> BootstrapInterval:
    r"""Confidence interval of the two-way partial AUC, or of a difference of two, by a stratified bootstrap.

    Every resample draws :math:`n_+` positives and :math:`n_-` negatives with replacement, each class from its own, and
    the interval runs between the quantiles :math:`(1 \mp c) / 2` of the resamples' values (the percentile interval). It
    shows the error of the finite test set, not that of training. If the curve is perfect on these data, or misses the
    rectangle, so is every resample's, and the interval is a point. With fewer than some 30 examples of a class inside
    the rectangle, take it as a lower bound of the uncertainty. If a patient has several rows, pass ``groups``: a
    resample then draws whole groups, as many with a positive, and as many without, as the data have.

    With ``other_preds``, scores of the same examples by another model, the interval is that of the difference,
    ``preds`` less ``other_preds``. Both use the same resamples, so that examples that are hard for both cancel out.

    The result is a function of the values and ``seed`` alone: neither the order of the samples nor the device matters.

    Args:
        preds: scores ``(N,)`` or ``(N, 1)``, a tensor, array or list of any real dtype; larger means more positive.
        target: labels of the same shape: 1, 0, or ``ignore_index``.
        min_tpr: lower bound of the true positive rate, in [0, 1).
        max_fpr: upper bound of the false positive rate, in (0, 1]; ``None`` is 1.
        confidence: c, share of data sets whose interval should contain the population's value, in (0, 1).
        num_resamples: number of resamples, at least 1. Time is O(N) for each.
        seed: seed of the draws, in 0 .. 2^63 - 1.
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values.
        groups: which rows belong together, such as those of a patient: numbers or texts, one each.
        other_preds: scores to compare with, of the shape of ``preds``.

    Returns:
        ``(estimate, lower, upper)``: float64 tensors of shape ``()``, on the CPU; all nan, with a
        :class:`TPAUCWarning`, if a class has no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> preds = torch.tensor([0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.4, 0.1])
        >>> target = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])
        >>> estimate, lower, upper = bootstrap_interval(preds, target, confidence=0.9)
        >>> bool(lower < estimate < upper)
        True
    """
    max_fpr = 1.0 if max_fpr is None else max_fpr
    if validate_args:
        min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
        require_range("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)
        check_count(num_resamples, "num_resamples", 1)
        check_count(seed, "seed", 0)
    columns = [preds] if other_preds is None else [preds, other_preds]
    ranked = [ranked_classes(own, target, ignore_index, validate_args, "two-way partial AUC") for own in columns]
    if any(undefined for *_, undefined in ranked):
        return BootstrapInterval(*torch.full((3,), math.nan, dtype=torch.float64))
    num_pos = len(ranked[0][0])
    scores = [torch.cat([pos.cpu(), neg.cpu()]) for pos, neg, _ in ranked]
    strata = (torch.arange(len(scores[0])) >= num_pos).long()
    codes = None
    if groups is None:  # sorted, so that equal draws mean equal resamples in whatever order the samples came
        order = torch.arange(len(strata))
        for key in (*reversed(scores), strata):
            order = order[key[order].argsort(stable=True)]
        scores = [own[order] for own in scores]
    else:
        codes = as_groups(torch.cat(split_groups(groups, target)))

    def value(rows: Tensor) -> float:
        positive = rows < num_pos
        parts = [(own[rows[positive]], own[rows[~positive]]) for own in scores]
        if not all(len(part) for part in parts[0]):
            return math.nan
        areas = [exact_area(*own, min_tpr, max_fpr) for own in parts]
        return areas[0] - sum(areas[1:])

    resamples = Resamples(strata, codes, int(seed))
    # One at a time: sorting a resample takes less than the dozen passes over it that many at once would share.
    values = torch.tensor([value(resamples.draw()) for _ in range(int(num_resamples))], dtype=torch.float64)
    tail = (1.0 - confidence) / 2
    lower, upper = values.nanquantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64))
    return BootstrapInterval(torch.tensor(value(torch.arange(len(strata))), dtype=torch.float64), lower, upper)


class Resamples:
    """Draws of examples with replacement, in each stratum as many as there are.

    With groups, these are drawn, with all their examples; a group belongs to the first stratum that one of its examples
    is of.

    Args:
        strata: the number of each example's stratum, int64 ``(N,)``.
        groups: the number of each example's group, int64 ``(N,)`` with every number from 0 on, or ``None``.
        seed: seed of the draws.

    Example:
        >>> resamples = Resamples(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 2]))
        >>> resamples.draw().tolist()
        [0, 1, 3, 3]
    """

    def __init__(self, strata: Tensor, groups: Tensor | None = None, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._sizes = None if groups is None else groups.bincount()
        if groups is not None and self._sizes is not None:
            self._order, self._ends = groups.argsort(stable=True), self._sizes.cumsum(0)
            strata = torch.full_like(self._sizes, len(strata)).scatter_reduce(0, groups, strata, "amin")
        each = [(strata == number).nonzero().squeeze(1) for number in range(int(strata.max()) + 1)]
        self._units = [own for own in each if len(own)]

    def draw(self) -> Tensor:
        """The rows of the next resample, stratum by stratum."""
        drawn = torch.cat([own[torch.randint(len(own), (len(own),), generator=self._generator)] for own in self._units])
        if self._sizes is None:
            return drawn
        sizes = self._sizes[drawn]
        shift = (self._ends[drawn] - sizes.cumsum(0)).repeat_interleave(sizes)
        return self._order[shift + torch.arange(len(shift))]
