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
        scores: float tensor ``(N,)``, or ``(N, K)`` of several labels.
        target: integer tensor of that shape: 1, 0, and of several labels -1 for what was not measured.
    """

    scores: Tensor
    target: Tensor

    def of_labels(self) -> list[Evaluated]:
        """The examples of each label that were measured; of the only one, all.

        Example:
            >>> run = Evaluated(torch.tensor([[0.1, 0.2], [0.3, 0.4]]), torch.tensor([[1, -1], [0, 1]]))
            >>> [label.target.tolist() for label in run.of_labels()]
            [[1, 0], [1]]
        """
        if self.target.ndim == 1:
            return [self]
        columns = zip(self.scores.unbind(1), self.target.unbind(1), strict=True)
        return [Evaluated(scores[known], target[known]) for scores, target in columns for known in [target >= 0]]

    @property
    def is_rankable(self) -> bool:
        """Whether there are both classes."""
        return bool((self.target == 1).any()) and bool((self.target == 0).any())


def num_resamples_for(num_scores: int) -> int:
    """Number of resamples for this many scores (examples x runs x methods): 1000; of huge sets fewer, at least 200.

    Example:
        >>> num_resamples_for(100_000), num_resamples_for(10**9)
        (1000, 200)
    """
    return max(200, min(1000, _DRAWS // max(1, num_scores)))


def resampled_areas(
    methods: Mapping[str, Sequence[Evaluated]],
    rectangles: Sequence[Rectangle],
    num_resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    own: Sequence[Rectangle] = (),
) -> dict[str, Tensor]:
    r"""TPAUC of every method in stratified resamples that are the same for all of them.

    A resample draws runs (seeds or folds) with replacement, and of each class as many examples as there are, with
    replacement. Runs that were evaluated on the same examples share their draw. So the spread includes the error of the
    finite data. With R runs it also includes a part of the error of training, :math:`(R - 1) / R` of its variance; with
    one run it includes nothing of that.

    Of several labels, an example is drawn with all its labels, as it was measured, in the strata of :func:`strata`.
    A label that lacks a class in a resample has no value there, and the mean is that of the others, as in validation.

    Args:
        methods: by method, its runs; run k of all methods has the same examples in the same order.
        rectangles: (min_tpr, max_fpr) pairs.
        num_resamples: number of resamples.
        seed: of the draws.
        progress: is handed the numbers of the resamples, and may show how many are done.
        own: of each of several labels, the rectangle that takes the place of the first one.

    Returns:
        By method, a float64 tensor ``(num_resamples, len(rectangles))``: means over the drawn runs. Of K labels it is
        ``(num_resamples, len(rectangles), 1 + K)``: first the mean over the labels, then each, nan where it has none.

    Raises:
        ArgumentError: if the runs are not paired, or a class is missing (of several labels: of each of them).
    """
    targets = paired(methods)
    shared = all(torch.equal(target, targets[0]) for target in targets)
    split = {name: [_columns(run.scores) for run in runs] for name, runs in methods.items()}
    if not all(any(label.is_rankable for label in Evaluated(t, t).of_labels()) for t in targets):
        msg = "Methods can't be compared on data that lack a class."
        raise ArgumentError(msg)
    groups = [strata(target) for target in targets]
    demanded = [[first, *rectangles[1:]] for first in own or rectangles[:1]]
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[Tensor]] = {name: [] for name in methods}
    for _ in progress(range(num_resamples)):
        drawn = torch.randint(len(targets), (len(targets),), generator=generator).tolist()
        rows = [_draw(groups[0], generator)] * len(drawn) if shared else [_draw(groups[r], generator) for r in drawn]
        classes = [_by_class(own_rows, targets[r]) for own_rows, r in zip(rows, drawn, strict=True)]
        for name, runs in split.items():
            areas = [_areas(runs[r], label, demanded) for r, label in zip(drawn, classes, strict=True)]
            found[name].append(_mean_of_runs(areas))
    return {name: torch.stack(areas) for name, areas in found.items()}


def paired(methods: Mapping[str, Sequence[Evaluated]]) -> list[Tensor]:
    """The targets of the runs, which are the same for all methods.

    Raises:
        ArgumentError: if they are not.

    Example:
        >>> paired({"a": [Evaluated(torch.zeros(2), torch.tensor([0, 1]))]})
        [tensor([0, 1])]
    """
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
        target: integer tensor ``(N,)`` of 0 and 1, or ``(N, K)``, where it may be -1.

    Example:
        >>> [rows.tolist() for rows in strata(torch.tensor([[1, 0], [1, 1], [0, -1], [1, -1]]))]
        [[0, 3], [1], [2]]
    """
    positive = target.reshape(len(target), -1) == 1
    rarest_first = positive.sum(0).argsort(stable=True)
    found = rarest_first[positive[:, rarest_first].int().argmax(1)].where(positive.any(1), positive.shape[1])
    rows = [(found == label).nonzero().squeeze(1) for label in range(positive.shape[1] + 1)]
    return [own for own in rows if len(own)]


def _draw(groups: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    return [rows[torch.randint(len(rows), (len(rows),), generator=generator)] for rows in groups]


def _by_class(rows: Sequence[Tensor], target: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of each label, the drawn rows of positives and of negatives."""
    if target.ndim == 1:
        return [(rows[0], rows[1])]
    drawn = torch.cat(list(rows))
    return [(drawn[label == 1], drawn[label == 0]) for label in target[drawn].unbind(1)]


def _columns(scores: Tensor) -> Tensor:
    """Scores ``(K, N)`` as areas rank them."""
    return rankable(scores).cpu().reshape(len(scores), -1).T.contiguous()


def _areas(scores: Tensor, classes: Sequence[tuple[Tensor, Tensor]], demanded: Sequence[Sequence[Rectangle]]) -> Tensor:
    """Areas by rectangle, ``(R,)``; of several labels ``(R, 1 + K)``, first the mean of those that have one."""
    values = []
    for column, (pos, neg), rectangles in zip(scores, classes, demanded, strict=True):
        drawn = column[pos], column[neg]
        there = len(pos) > 0 and len(neg) > 0
        values.append([exact_area(*drawn, *rectangle) if there else math.nan for rectangle in rectangles])
    areas = torch.tensor(values, dtype=torch.float64).T
    return areas[:, 0] if len(classes) == 1 else torch.cat([areas.nanmean(1, keepdim=True), areas], 1)


def _mean_of_runs(areas: Sequence[Tensor]) -> Tensor:
    """Of each area, the mean over the runs that have it."""
    stacked = torch.stack(list(areas))
    count = (~stacked.isnan()).sum(0)
    total = torch.zeros_like(areas[0])
    for own in areas:
        total += (own / count).nan_to_num(0.0)
    return total.where(count > 0, math.nan)
