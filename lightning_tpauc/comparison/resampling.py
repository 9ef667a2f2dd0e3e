"""Scores of runs, and areas of stratified resamples of them, for one label or several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import rankable
from lightning_tpauc.functional.roc import exact_area

#: All resamples together draw at most this many scores. Larger sets get fewer resamples, since theirs differ less.
_DRAWS = 1_000_000_000

Rectangle = tuple[float, float]


class Evaluated(NamedTuple):
    """Scores of one run.

    Attributes:
        scores: float tensor ``(N, K)`` of K labels.
        target: integer tensor ``(N, K)``: 1, 0, and -1 for what was not measured.
    """

    scores: Tensor
    target: Tensor

    def of_labels(self) -> list[tuple[Tensor, Tensor]]:
        """Scores and targets of the examples of each label that were measured.

        Example:
            >>> run = Evaluated(torch.tensor([[0.1, 0.2], [0.3, 0.4]]), torch.tensor([[1, -1], [0, 1]]))
            >>> [target.tolist() for _, target in run.of_labels()]
            [[1, 0], [1]]
        """
        columns = zip(self.scores.unbind(1), self.target.unbind(1), strict=True)
        return [(scores[target >= 0], target[target >= 0]) for scores, target in columns]


def have_both(target: Tensor) -> Tensor:
    """Of each of K labels, whether a positive and a negative were measured; bool tensor ``(K,)``."""
    return (target == 1).any(0) & (target == 0).any(0)


def num_resamples_for(num_scores: int) -> int:
    """Number of resamples for this many scores (examples x runs x methods): 1000; of huge sets fewer, at least 200."""
    return max(200, min(1000, _DRAWS // max(1, num_scores)))


def resampled_areas(
    methods: Mapping[str, Sequence[Evaluated]],
    rectangles: Sequence[Sequence[Rectangle]],
    num_resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> dict[str, Tensor]:
    r"""TPAUC of every method in stratified resamples that are the same for all of them.

    A resample draws runs (seeds or folds) with replacement, and examples with replacement, in the strata of
    :func:`strata`: with one label as many of each class as there are. An example is drawn with all its labels, as it
    was measured. Runs that were evaluated on the same examples share their draw. So the spread includes the error of
    the finite data. With R runs it also includes a part of the error of training, :math:`(R - 1) / R` of its variance;
    with one run it includes nothing of that.

    Args:
        methods: by method, its runs; run k of all methods has the same examples in the same order.
        rectangles: (min_tpr, max_fpr) pairs of each label, as many for each.
        num_resamples: number of resamples.
        seed: of the draws.
        progress: is handed the numbers of the resamples, and may show how many are done.

    Returns:
        By method, a float64 tensor ``(num_resamples, R, 1 + K)`` for R rectangles of K labels: means over the drawn
        runs, first of the mean over the labels, then of each. A label that lacks a class in a resample has no value
        there, which is nan, and counts in no mean.

    Raises:
        ArgumentError: if the runs are not paired, or all labels lack a class.
    """
    targets = paired(methods)
    shared = all(torch.equal(target, targets[0]) for target in targets)
    columns = {name: [rankable(run.scores).cpu().T.contiguous() for run in runs] for name, runs in methods.items()}
    if not all(have_both(target).any() for target in targets):
        msg = "Methods can't be compared on data that lack a class."
        raise ArgumentError(msg)
    groups = [strata(target) for target in targets]
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[Tensor]] = {name: [] for name in methods}
    for _ in progress(range(num_resamples)):
        drawn = torch.randint(len(targets), (len(targets),), generator=generator).tolist()
        rows = [_draw(groups[0], generator)] * len(drawn) if shared else [_draw(groups[r], generator) for r in drawn]
        classes = [_by_class(own, targets[r]) for own, r in zip(rows, drawn, strict=True)]
        for name, runs in columns.items():
            areas = [_areas(runs[r], own, rectangles) for r, own in zip(drawn, classes, strict=True)]
            found[name].append(torch.stack(areas).nanmean(0))
    return {name: torch.stack(areas) for name, areas in found.items()}


def paired(methods: Mapping[str, Sequence[Evaluated]]) -> list[Tensor]:
    """The targets of the runs, which are the same for all methods."""
    first = [run.target for run in next(iter(methods.values()))]
    for name, runs in methods.items():
        same = len(runs) == len(first) and all(torch.equal(r.target, t) for r, t in zip(runs, first, strict=True))
        if not same:
            msg = f"The runs of {name!r} were evaluated on other examples than those of the other methods."
            raise ArgumentError(msg)
    return first


def strata(target: Tensor) -> list[Tensor]:
    """Rows that resamples draw apart: with one label the positives and the negatives.

    Each example belongs to the rarest label that it is positive for, the first of equally rare ones; those that are
    positive for none come last. So each resample has as many positives of the rarest label as the data, and of the
    others nearly as many. A stratum for each combination of labels would often be a single example, which never varies.

    Args:
        target: integer tensor ``(N, K)`` of 1, 0 and -1.

    Example:
        >>> [rows.tolist() for rows in strata(torch.tensor([[1, 0], [1, 1], [0, -1], [1, -1]]))]
        [[0, 3], [1], [2]]
    """
    positive = target == 1
    rarest_first = positive.sum(0).argsort(stable=True)
    rarest = rarest_first[positive[:, rarest_first].int().argmax(1)].where(positive.any(1), positive.shape[1])
    rows = [(rarest == label).nonzero().squeeze(1) for label in range(positive.shape[1] + 1)]
    return [own for own in rows if len(own)]


def _draw(groups: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    return torch.cat([rows[torch.randint(len(rows), (len(rows),), generator=generator)] for rows in groups])


def _by_class(rows: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of each label, the drawn rows of positives and of negatives."""
    return [(rows[label == 1], rows[label == 0]) for label in target[rows].unbind(1)]


def _areas(scores: Tensor, classes: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Sequence[Rectangle]]) -> Tensor:
    """Areas by rectangle, ``(R, 1 + K)``: the mean over the labels, and each."""
    values = []
    for column, (pos, neg), rectangles in zip(scores, classes, wanted, strict=True):
        there = len(pos) > 0 and len(neg) > 0
        values.append([exact_area(column[pos], column[neg], *r) if there else math.nan for r in rectangles])
    areas = torch.tensor(values, dtype=torch.float64).T
    return torch.cat([areas.nanmean(1, keepdim=True), areas], 1)
