"""Compares scores: values, areas of resamples that are the same for all methods, paired differences, and a verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import fpr_at_min_tpr, tpr_at_max_fpr, two_way_partial_auroc
from lightning_tpauc.functional.bootstrap import Resamples
from lightning_tpauc.functional.checks import rankable
from lightning_tpauc.functional.roc import exact_area

#: Methods are level where the whole interval of their difference lies within this.
MARGIN = 0.01
#: What models from elsewhere are compared with, beside the baseline.
OURS = "STACO"
#: All resamples together draw at most this many scores. Of 1000, larger sets get fewer, since theirs differ less.
_DRAWS = 1_000_000_000

Rectangle = tuple[float, float]


@dataclass
class Outcome:
    """What one training yields.

    Attributes:
        scores: float tensor ``(N, K)`` for K labels: on the test data, or on the validation data if there are none.
        target: integer tensor ``(N, K)``: 1, 0, and -1 for what was not measured.
        groups: the number of each example's group, such as its patient, int64 ``(N,)``; ``None`` if there are none.
        failed: why there is nothing else, if the numbers became infinite: a result about the setting.
        seconds: wall-clock time of the training, validations included.
        examples: how many were trained on.
        optimizer: what the weights were trained by.
        validation: TPAUC and AUROC on validation data of the weights that are kept, those that validated best.
        kept_start: whether no later weights validated better than the first ones.
        curve: ``step``, ``examples`` and ``tpauc`` of each validation.
        weights: the weights that are kept.
    """

    scores: Tensor = field(default_factory=torch.Tensor)
    target: Tensor = field(default_factory=torch.Tensor)
    groups: Tensor | None = None
    failed: str = ""
    seconds: float = 0.0
    examples: int = 0
    optimizer: str = ""
    validation: tuple[float, float] = (-1.0, -1.0)
    kept_start: bool = False
    curve: list[dict[str, float]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)

    def of_labels(self) -> list[tuple[Tensor, Tensor]]:
        """Scores and targets of the examples of each label that were measured."""
        columns = zip(self.scores.unbind(1), self.target.unbind(1), strict=True)
        return [(scores[target >= 0], target[target >= 0]) for scores, target in columns]


def have_both(target: Tensor) -> Tensor:
    """Of each of K labels, whether a positive and a negative were measured; bool tensor ``(K,)``."""
    return (target == 1).any(0) & (target == 0).any(0)


class Difference(NamedTuple):
    """How far a method is ahead of the baseline.

    Attributes:
        estimate: mean difference over the runs.
        lower: lower end of its 95% interval.
        upper: upper end of its 95% interval.
        data_error: the part of its standard error that comes from the finite number of evaluated examples.
        training_error: the part that comes from the runs; nan for a single run, whose interval lacks it.
    """

    estimate: float
    lower: float
    upper: float
    data_error: float = 0.0
    training_error: float = math.nan


@dataclass(frozen=True)
class LabelResults:
    """One of several labels.

    Attributes:
        name: what the data call it.
        rectangle: the (min_tpr, max_fpr) that it was trained for.
        num_positives: of the evaluated examples, those of all folds together.
        num_negatives: the same of the examples that were measured negative.
        tpauc: by method, the mean in ``rectangle`` over the runs that have both classes; nan if none has.
        differences: by method, the difference of TPAUC to the baseline in ``rectangle``; empty if there is none.
    """

    name: str
    rectangle: Rectangle
    num_positives: int
    num_negatives: int
    tpauc: Mapping[str, float]
    differences: Mapping[str, Difference]

    @property
    def has_value(self) -> bool:
        """Whether some run has both classes."""
        return not any(map(math.isnan, self.tpauc.values()))


@dataclass(frozen=True)
class Results:
    """All that a report shows; a method that failed is in ``failed`` alone.

    Attributes:
        rectangles: (min_tpr, max_fpr) pairs; the first one was trained for.
        baseline: name of the method that the others are compared with.
        runs: by method, the outcomes of its runs; all other values come from their scores.
        values: by method, float64 ``(runs, K, M)``: the M :func:`measures` of each run and label, nan where a label
            lacks a class.
        intervals: by method, TPAUC in the first rectangle with its 95% interval.
        differences: by method, the difference of TPAUC to the baseline, one for each rectangle.
        num_resamples: number of bootstrap resamples that the intervals are made of.
        labels: the results of each label; with several labels, all else shows the mean.
        part: ``"test"`` or ``"validation"``: which data were scored in the end.
        failed: by method, why it has no values.
        beside: by the name of a model from elsewhere, STACO's TPAUC less that of the model.
    """

    rectangles: Sequence[Rectangle]
    baseline: str
    runs: Mapping[str, Sequence[Outcome]]
    values: Mapping[str, Tensor] = field(default_factory=dict)
    intervals: Mapping[str, Difference] = field(default_factory=dict)
    differences: Mapping[str, Sequence[Difference]] = field(default_factory=dict)
    num_resamples: int = 0
    labels: Sequence[LabelResults] = ()
    part: str = "test"
    failed: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Difference] = field(default_factory=dict)

    @property
    def valued(self) -> list[LabelResults]:
        """The labels that the means are of."""
        return [label for label in self.labels if label.has_value]

    def verdict(self, method: str, rectangle: int = 0) -> str:
        """In plain words whether a method is ahead of the baseline in a rectangle, by its number."""
        return self._verdict(self.differences[method][rectangle], method, self.baseline)

    def verdict_beside(self, other: str) -> str:
        """In plain words whether STACO is ahead of a model from elsewhere."""
        return self._verdict(self.beside[other], OURS, other)

    def _verdict(self, found: Difference, method: str, other: str) -> str:
        untrained = [name for name in self.untrained if name in (method, other)]
        positives = min((label.num_positives for label in self.valued), default=0)
        return verdict(found, other, untrained, positives, len(self.runs[method]))

    @property
    def untrained(self) -> list[str]:
        """The methods of which some run kept its first weights."""
        return [name for name, runs in self.runs.items() if any(run.kept_start for run in runs)]


# ---------------------------------------------------------------- values


def evaluate(
    scores: Mapping[str, Sequence[Outcome]],
    baseline: str,
    rectangles: Sequence[Rectangle],
    labels: Sequence[tuple[str, Rectangle]],
    folds: int = 1,
    others: Sequence[str] = (),
) -> Results:
    """Values, intervals and differences of scores.

    Run k of all methods has the same examples in the same order. ``labels`` are the name of each and the rectangle that
    it was trained for; the further rectangles are measured as well. ``folds`` runs have examples of their own. STACO is
    compared with ``others`` as well.
    """
    if not scores:
        return Results(rectangles, baseline, scores)
    wanted = [[own, *rectangles[1:]] for _, own in labels]
    values = {name: torch.stack([_measured(run, wanted) for run in runs]) for name, runs in scores.items()}
    num_scores = sum(run.scores.numel() for runs in scores.values() for run in runs) * len(rectangles)
    num_resamples = max(200, min(1000, _DRAWS // max(1, num_scores)))
    period = period_of(paired(scores), folds)
    areas = resampled_areas(scores, wanted, num_resamples, period=period)

    # as `resampled_areas`: of each run by rectangle, the mean over the labels, and each label
    of_runs = {
        name: torch.cat([own.nanmean(1, keepdim=True), own], 1)[..., : len(rectangles)].transpose(1, 2)
        for name, own in values.items()
    }

    def ahead_of(name: str, other: str) -> list[list[Difference]]:
        return _intervals(of_runs[name] - of_runs[other], areas[name] - areas[other], period == 1)

    ahead = {name: ahead_of(name, baseline) for name in scores if name != baseline} if baseline in scores else {}
    beside = {name: ahead_of(OURS, name)[0][0] for name in others} if OURS in scores else {}
    target = torch.cat(paired(scores)[: 1 if period == 1 else folds])
    of_labels = []
    for k, (label, own) in enumerate(labels):
        counts = int((target[:, k] == 1).sum()), int((target[:, k] == 0).sum())
        tpauc = {name: float(own[:, 0, 1 + k].nanmean()) for name, own in of_runs.items()}
        there = {name: found[0][1 + k] for name, found in ahead.items() if not math.isnan(tpauc[name])}
        of_labels.append(LabelResults(label, own, *counts, tpauc, there))
    intervals = {name: _intervals(own, areas[name], period == 1)[0][0] for name, own in of_runs.items()}
    differences = {name: [row[0] for row in found] for name, found in ahead.items()}
    return Results(
        rectangles, baseline, scores, values, intervals, differences, num_resamples, of_labels, beside=beside
    )


def measures(rectangles: Sequence[Rectangle]) -> list[str]:
    """Names of all that is measured of a label: the areas in the rectangles, and four others."""
    areas = [f"tpauc_{min_tpr:g}_{max_fpr:g}" for min_tpr, max_fpr in rectangles[1:]]
    return ["tpauc", *areas, "auroc", "average_precision", "tpr_at_max_fpr", "fpr_at_min_tpr"]


def _measured(run: Outcome, wanted: Sequence[Sequence[Rectangle]]) -> Tensor:
    """The :func:`measures` of each label, float64 ``(K, M)``."""
    from sklearn.metrics import average_precision_score

    rows = []
    for own, rectangles in zip(run.of_labels(), wanted, strict=True):
        if not have_both(own[1]):
            rows.append([math.nan] * len(measures(rectangles)))
            continue
        scores, target = own
        min_tpr, max_fpr = rectangles[0]
        values = [float(two_way_partial_auroc(*own, *rectangle)) for rectangle in (*rectangles, (0.0, 1.0))]
        values.append(average_precision_score(target.numpy(), scores.double().numpy()))
        rows.append([*values, float(tpr_at_max_fpr(*own, max_fpr)), float(fpr_at_min_tpr(*own, min_tpr))])
    return torch.tensor(rows, dtype=torch.float64)


def _intervals(of_runs: Tensor, resampled: Tensor, same_examples: bool) -> list[list[Difference]]:
    """Means over the runs of ``(runs, R, 1 + K)`` values, with intervals that hold the error of data and of training.

    The variance of ``resampled``, ``(num_resamples, R, 1 + K)``, is that of the finite data. Runs on the same examples
    differ by their training alone, runs on examples of their own by both. The interval is Student's t, whose degrees of
    freedom are those of a sum of two variances (Satterthwaite, Biometrics Bulletin 1946), of which the runs' has one
    less than there are runs.
    """
    from scipy.stats import t

    count = (~of_runs.isnan()).sum(0)
    data, training = _variance(resampled), _variance(of_runs) / count
    if not same_examples:
        training = (training - data).clamp_min(0.0)
    known = training.nan_to_num(0.0)
    freedom = (data + known).square() * (count - 1) / known.square()
    half = torch.from_numpy(t.ppf(0.975, freedom.nan_to_num(math.inf).clamp_min(1.0))) * (data + known).sqrt()
    estimate = of_runs.nanmean(0)
    shown = torch.stack([estimate, estimate - half, estimate + half, data.sqrt(), training.sqrt()], -1)
    return [[Difference(*numbers) for numbers in row] for row in shown.tolist()]


def _variance(values: Tensor) -> Tensor:
    """The unbiased variance over the first dimension of the values that are there; nan of fewer than two."""
    count = (~values.isnan()).sum(0)
    return (values - values.nanmean(0)).square().nansum(0) / (count - 1).where(count > 1, math.nan)


# ---------------------------------------------------------------- resamples


def resampled_areas(
    methods: Mapping[str, Sequence[Outcome]],
    rectangles: Sequence[Sequence[Rectangle]],
    num_resamples: int = 1000,
    seed: int = 0,
    period: int = 1,
) -> dict[str, Tensor]:
    """TPAUC of every method in stratified resamples that are the same for all of them.

    A resample draws examples with replacement, or groups of them, in the strata of :func:`strata`: with one label as
    many of each class as there are. An example is drawn with all its labels, as it was measured. Run k is evaluated on
    the same examples as run ``k + period``, and they share their draw. So the spread is the error of the finite data,
    and nothing of that of training.

    ``rectangles`` are (min_tpr, max_fpr) pairs of each label, as many for each.

    Returns:
        By method, a float64 tensor ``(num_resamples, R, 1 + K)`` for R rectangles of K labels: means over the runs,
        first of the mean over the labels, then of each. A label that lacks a class in a resample has no value there,
        which is nan, and counts in no mean.
    """
    targets = paired(methods)
    scores = {name: [rankable(run.scores).cpu() for run in runs] for name, runs in methods.items()}
    if not all(have_both(target).any() for target in targets):
        raise ArgumentError("Methods can't be compared on data of one class: take test data that have both.")
    first = next(iter(methods.values()))[:period]
    resamples = [Resamples(strata(run.target), run.groups, seed + k) for k, run in enumerate(first)]
    found: dict[str, list[Tensor]] = {name: [] for name in methods}
    for _ in tqdm(range(num_resamples), desc="resampling", delay=2):
        rows = [own.draw() for own in resamples]
        for name, runs in scores.items():
            drawn = [(run[rows[r % period]], targets[r][rows[r % period]]) for r, run in enumerate(runs)]
            found[name].append(torch.stack([_areas(*own, rectangles) for own in drawn]).nanmean(0))
    return {name: torch.stack(areas) for name, areas in found.items()}


def paired(methods: Mapping[str, Sequence[Outcome]]) -> list[Tensor]:
    """The targets of the runs, which are the same for all methods."""
    first = [run.target for run in next(iter(methods.values()))]
    for name, runs in methods.items():
        same = len(runs) == len(first) and all(torch.equal(r.target, t) for r, t in zip(runs, first, strict=True))
        if not same:
            raise ArgumentError(f"The runs of {name!r} were evaluated on other examples than those before.")
    return first


def period_of(targets: Sequence[Tensor], folds: int = 1) -> int:
    """After how many runs the same examples come again: 1, the number of folds, or the number of runs."""
    periods = (p for p in (1, folds) if all(torch.equal(own, targets[k % p]) for k, own in enumerate(targets)))
    return next(periods, len(targets))


def strata(target: Tensor) -> Tensor:
    """Numbers of what resamples draw apart, of each row: with one label the positives and the negatives.

    Each example belongs to the rarest label that it is positive for, the first of equally rare ones; those that are
    positive for none come last. So each resample has as many positives of the rarest label as the data, and of the
    others nearly as many. A stratum for each combination of labels would often be a single example, which never varies.

    Example:
        >>> strata(torch.tensor([[1, 0], [1, 1], [0, -1], [1, -1]]))
        tensor([1, 0, 2, 1])
    """
    positive = target == 1
    rarest_first = positive.sum(0).argsort(stable=True)
    return positive[:, rarest_first].int().argmax(1).where(positive.any(1), positive.shape[1])


def _areas(scores: Tensor, target: Tensor, wanted: Sequence[Sequence[Rectangle]]) -> Tensor:
    """Areas by rectangle, ``(R, 1 + K)``: the mean over the labels, and each."""
    values = []
    for own, label, rectangles in zip(scores.T, target.T, wanted, strict=True):
        pos, neg = own[label == 1], own[label == 0]
        values.append([exact_area(pos, neg, *r) if len(pos) and len(neg) else math.nan for r in rectangles])
    areas = torch.tensor(values, dtype=torch.float64).T
    return torch.cat([areas.nanmean(1, keepdim=True), areas], 1)


# ---------------------------------------------------------------- words


def verdict(
    found: Difference, baseline: str, untrained: Sequence[str] = (), num_positives: int = 0, num_runs: int = 1
) -> str:
    """In plain words whether a method is ahead of the baseline.

    They are level if the whole interval lies within .010 of 0. Else one is ahead if the interval does not contain 0. If
    it does, the data can't tell, and the words say what would. A single run is provisional, since its interval lacks
    the noise of training. Nothing can be said where one of them, in ``untrained``, has learnt nothing.

    Example:
        >>> verdict(Difference(0.04, 0.02, 0.06, 0.008, 0.004), "cross-entropy")
        'ahead by .040, 95% interval .020 to .060'
        >>> verdict(Difference(0.004, -0.012, 0.02, 0.008, 0.001), "cross-entropy", (), 500, 3)
        "can't tell: +.004, 95% interval -.012 to .020; 3,500 more positives would"
    """
    estimate, lower, upper, *_ = found
    interval = f"{short(estimate, sign='+')}, 95% interval {short(lower)} to {short(upper)}"
    if untrained:
        who = f"{' and '.join(untrained)} never validated better than {'its' if len(untrained) == 1 else 'their'}"
        return f"open ({interval}): {who} first weights"
    if math.isnan(found.training_error):
        return f"provisional ({interval}): one run says nothing of the noise of training; repeat with `seeds`"
    if lower >= -MARGIN and upper <= MARGIN:
        return f"level within {short(MARGIN)}: keep {baseline} ({interval})"
    if lower > 0:
        return f"ahead by {short(estimate)}, 95% interval {short(lower)} to {short(upper)}"
    if upper < 0:
        return f"behind by {short(-estimate)}, 95% interval {short(-upper)} to {short(-lower)}: keep {baseline}"
    return f"can't tell: {interval}; {_what_would_tell(found, num_positives, num_runs)} would"


def _what_would_tell(found: Difference, num_positives: int, num_runs: int) -> str:
    """How many more positives, or seeds, would leave 0 out, or keep the interval within the margin."""
    wanted = (max(abs(found.estimate), MARGIN - abs(found.estimate)) / 2.0) ** 2
    parts = {"positives": (num_positives, found.data_error), "seeds": (num_runs, found.training_error)}
    total, words = sum(error**2 for _, error in parts.values()), []
    for name, (count, error) in parts.items():
        left = wanted - (total - error**2)  # of the variance, when that of the other is as it is
        if left > 0 and (more := count * (error**2 / left - 1)) > 0:
            digits = 1 if name == "seeds" else 10 ** max(0, int(math.log10(max(more, 1.0))) - 1)
            words.append(f"{max(1, math.ceil(more / digits)) * digits:,} more {name}")
    return " or ".join(words) or "more positives and more seeds together"


def short(value: float, sign: str = "") -> str:
    """Three decimals, without the zero before the point."""
    text = f"{value:{sign}.3f}".replace("-0.000", "0.000")
    return text.replace("0.", ".", 1) if abs(value) < 0.9995 else text
