"""The metrics that validation and test report: their names, those of several labels, and further ones."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from lightning_tpauc.errors import ArgumentError, silent
from lightning_tpauc.functional.checks import check_rectangle, eager, widest_float
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.metrics.base import ScoreMetric
from lightning_tpauc.metrics.objective import ExactObjective
from lightning_tpauc.metrics.operating_points import FPRAtMinTPR, TPRAtMaxFPR
from lightning_tpauc.metrics.tpauc import TwoWayPartialAUROC

_AT_THRESHOLD = "(sensitivity|specificity|precision)_at_threshold"
_LARGER = rf"(val|test)/(auroc|tpr_at_max_fpr|{_AT_THRESHOLD}|tpauc(_tpr[0-9p]+_fpr[0-9p]+)?)(/.+)?"
_SMALLER = r"(val|test)/(objective|fpr_at_min_tpr)(/.+)?"

FurtherMetrics = Mapping[str, Metric] | Sequence[Metric] | Metric
#: Target of rows that metrics leave out; see :class:`~lightning_tpauc.data.batch.EvalBatch`.
IGNORED = -1
#: Names of what is logged beside the metrics, and of one that is not.
_TAKEN = ("loss", "objective_ratios", "threshold")


def better_mode(name: str) -> Literal["max", "min"] | None:
    """Whether a larger or a smaller value of one of our metrics is better; ``None`` for others.

    Example:
        >>> [better_mode(name) for name in ("val/tpauc", "test/tpauc_tpr25_fpr75", "val/objective", "val/auroc_loss")]
        ['max', 'max', 'min', None]
    """
    if re.fullmatch(_LARGER, name):
        return "max"
    return "min" if re.fullmatch(_SMALLER, name) else None


def is_ours(name: str) -> bool:
    """Whether our validation logs a metric of this name."""
    return name.startswith("val/") and better_mode(name) is not None


def validated_areas(metrics: Mapping[str, Any]) -> tuple[float, float]:
    """``val/tpauc`` and ``val/auroc`` of the first data loader; nan if they were not logged."""
    names = [(f"val/{area}", f"val/{area}/dataloader_idx_0") for area in ("tpauc", "auroc")]
    tpauc, auroc = (float(metrics.get(one, metrics.get(other, math.nan))) for one, other in names)
    return tpauc, auroc


def passes_below(tpr: float, min_tpr: float, max_fpr: float) -> str:
    """What an area of 0 means: how high the ROC curve comes at the rectangle's right border.

    Example:
        >>> passes_below(0.7132, 0.8, 0.2)
        'the ROC curve passes below the rectangle (at 20% false alarms it finds 71.3% of the positives, not 80%)'
    """
    found = f"at {100 * max_fpr:g}% false alarms it finds {100 * tpr:.3g}% of the positives, not {100 * min_tpr:g}%"
    return f"the ROC curve passes below the rectangle ({found})"


def further_metrics(given: FurtherMetrics | None) -> dict[str, FurtherMetric]:
    """What came in as ``metrics``, by the names that they are logged under; a sequence has its classes' names.

    Raises:
        ArgumentError: if it holds something else than metrics, or two of one name.
    """
    if given is None:
        return {}
    collected: Any = given  # a collection is a mapping, but not to type checkers
    try:
        parsed = MetricCollection(collected) if not isinstance(collected, MetricCollection) else collected
    except (TypeError, ValueError) as error:
        msg = f"Expected `metrics` to be torchmetrics, alone, in a list or by name in a dictionary: {error}"
        raise ArgumentError(msg) from error
    for name, metric in parsed.items(copy_state=False):
        if getattr(metric, "num_classes", None) is not None:  # it would take a score for the number of a class
            msg = f"Scores have no classes: for {name!r} in `metrics` take the binary metric, `task='binary'`."
            raise ArgumentError(msg)
    return {name: FurtherMetric(metric.clone()) for name, metric in parsed.items(copy_state=False)}


class FurtherMetric(ScoreMetric):
    """Feeds a metric with the examples that count, and with what it expects, once all scores are there.

    Ours get raw scores. Those that decide, which have ``threshold = 0.5`` or are not torchmetrics' own, get numbers
    above 0.5 exactly for the examples that the module decides to be positive: the sigmoid of the scores less the
    module's threshold. All others, and while there is no threshold, get the plain sigmoid: it is in float64, where it
    keeps the order up to a score of 36, and also applied where all scores happen to lie in [0, 1].

    Args:
        metric: takes ``(preds, target)``, both ``(N,)`` or ``(N, K)``, and computes one number.
        row: ``(K,)`` for a metric of K labels at once, which has ``num_labels``.

    Attributes:
        cuts: the thresholds of the raw scores that decide, one, or one of each of K labels; ``None`` is none.
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    def __init__(self, metric: Metric, row: tuple[int, ...] = ()) -> None:
        super().__init__(ignore_index=IGNORED, validate_args=False, row=row)
        self.metric = metric
        self.cuts: Sequence[float | None] = [None] * math.prod(row)
        for part in metric.modules():
            if isinstance(part, Metric):  # this one has the scores of all processes already
                part.distributed_available_fn = _alone

    @eager
    def compute(self) -> Tensor:
        """The metric's value; nan if no example counts.

        Raises:
            ArgumentError: if it is not one number, which is what loggers take, or counts what was not measured.
        """
        scores, target = self.collected()
        counted = (target >= 0).reshape(len(target), -1).any(1)
        scores, target = scores[counted], target[counted].long()
        kind = type(self.metric).__name__
        if bool((target < 0).any()) and getattr(self.metric, "ignore_index", None) != IGNORED:
            msg = f"{kind} of `metrics` would count entries that were not measured: pass `ignore_index=-1` to it."
            raise ArgumentError(msg)
        if not len(scores):
            return torch.tensor(math.nan, device=self.device)
        self.metric.reset()
        self.metric.update(self._expected(scores), target)
        value: Any = self.metric.compute()
        self.metric.reset()
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            msg = f"Expected each of `metrics` to compute one number, but {kind} gave {got}."
            raise ArgumentError(msg)
        return value.reshape(())

    def _expected(self, scores: Tensor) -> Tensor:
        if isinstance(self.metric, ScoreMetric):
            return scores
        scores = scores.to(widest_float(scores.device))
        if not _decides(self.metric):
            return scores.sigmoid()
        columns = [_judged(own, cut) for own, cut in zip(scores.reshape(len(scores), -1).T, self.cuts, strict=True)]
        return torch.stack(columns, 1).reshape(scores.shape)


def _decides(metric: Metric) -> bool:
    """Whether a metric, or what it wraps, calls examples positive whose probability is above 0.5."""
    parts = [part for part in metric.modules() if isinstance(part, Metric)]
    cuts = [part.threshold for part in parts if isinstance(getattr(part, "threshold", None), float)]
    return 0.5 in cuts or (not cuts and not type(metric).__module__.startswith("torchmetrics."))


def _judged(scores: Tensor, cut: float | None) -> Tensor:
    """Numbers in [0, 1] in the order of the scores, above 0.5 exactly where a score reaches ``cut``."""
    if cut is None:
        return scores.sigmoid()
    half = scores.new_tensor(0.5)
    beyond = torch.nextafter(half, half.new_ones(()))  # torchmetrics asks for more than 0.5
    moved = (scores - cut).sigmoid()  # nan where both are infinite
    return torch.where(scores >= cut, moved.nan_to_num(1.0).clamp(min=beyond), moved.nan_to_num(0.0).clamp(max=half))


def _alone() -> bool:
    return False


class Rectangle(NamedTuple):
    """Lower bound of the true positive rate and upper bound of the false positive rate."""

    min_tpr: float
    max_fpr: float


def as_rectangles(pairs: Any) -> list[Rectangle]:
    """Check the argument ``rectangles``.

    Raises:
        ArgumentError: if it is no sequence of pairs of numbers, or if a rectangle is not inside the unit square.
    """
    try:
        rectangles = [Rectangle(*pair) for pair in pairs]
    except TypeError:
        msg = (
            f"Expected `rectangles` to be a list of pairs (min_tpr, max_fpr), such as [(0.7, 0.3)], but got {pairs!r}."
        )
        raise ArgumentError(msg) from None
    return [Rectangle(*check_rectangle(*rectangle)) for rectangle in rectangles]


def metric_name(rectangle: Rectangle) -> str:
    """Name under which a rectangle's area is logged, with the bounds in percent; the trained one's is also ``tpauc``.

    ``p`` stands for the decimal point, since names of modules and fields of a checkpoint's file name can't hold a dot.

    Example:
        >>> metric_name(Rectangle(0.25, 0.75)), metric_name(Rectangle(0.5, 0.125))
        ('tpauc_tpr25_fpr75', 'tpauc_tpr50_fpr12p5')
    """
    tpr, fpr = (f"{100 * bound:.6g}".replace(".", "p") for bound in rectangle)
    return f"tpauc_tpr{tpr}_fpr{fpr}"


def build_metrics(
    trained: Rectangle,
    others: Sequence[Rectangle],
    log_objective: bool,
    surrogate: Surrogate | None,
    score_activation: Literal["identity", "sigmoid"] | None,
    prefix: str,
    further: Mapping[str, Metric] | None = None,
) -> MetricCollection:
    """Metrics over one shared store of scores.

    They are the area ``tpauc`` in the trained rectangle and in others, ``auroc``, the points at which the ROC curve
    crosses the trained rectangle's borders (``tpr_at_max_fpr``, ``fpr_at_min_tpr``) and, if asked, ``objective``.

    Args:
        trained: the rectangle that training maximises.
        others: rectangles to report by their names; the trained one may be among them.
        log_objective: whether to report the exact training objective, with its ``surrogate`` (hinge if ``None``).
        surrogate: see ``log_objective``.
        score_activation: of :class:`ExactObjective`.
        prefix: ``"val/"`` or ``"test/"``.
        further: other metrics to report, by name; each collection has its own copies.

    Raises:
        ArgumentError: if one of these has a name of ours.
    """
    areas = {"tpauc": trained, "auroc": Rectangle(0.0, 1.0), **{metric_name(other): other for other in others}}
    metrics: dict[str, Metric] = {name: TwoWayPartialAUROC(*own, ignore_index=IGNORED) for name, own in areas.items()}
    metrics["tpr_at_max_fpr"] = TPRAtMaxFPR(trained.max_fpr, ignore_index=IGNORED)
    metrics["fpr_at_min_tpr"] = FPRAtMinTPR(trained.min_tpr, ignore_index=IGNORED)
    if log_objective:
        metrics["objective"] = ExactObjective(
            *trained, surrogate=surrogate or "hinge", score_activation=score_activation, ignore_index=IGNORED
        )
    taken = sorted({*metrics, *_TAKEN} & {*(further or {})})
    if taken:
        msg = f"`metrics` has {taken[0]!r}, a name that ours are logged under. Give it another: `{{'mine': metric}}`."
        raise ArgumentError(msg)
    metrics.update({name: metric.clone() for name, metric in (further or {}).items()})
    return MetricCollection(dict(metrics), prefix=prefix)


class LabelMetrics(nn.Module):
    """The metrics of a data loader: a collection for the only label, or for each of K.

    Of several labels nothing is pooled, and an entry that was not measured, target -1, counts for nothing: each value
    is of one label, named ``prefix + metric + "/" + label``, and ``prefix + metric`` is the mean of those that are not
    nan. What is no single number, such as a value for each of several rectangles, has a row for each label.

    Args:
        collections: the metrics of each label, with one prefix.
        keys: names of the labels; ``None`` for a model of one label.
        joint: metrics of all labels at once.

    Example:
        >>> from torchmetrics.classification import BinaryAccuracy
        >>> collections = [MetricCollection({"accuracy": BinaryAccuracy()}, prefix="val/") for _ in range(2)]
        >>> metrics = LabelMetrics(collections, ["liver", "lung"])
        >>> metrics.update(torch.tensor([[0.9, 0.2], [0.1, 0.3]]), torch.tensor([[1, 1], [0, 0]]))
        >>> {name: float(value) for name, value in metrics.compute().items()}
        {'val/accuracy': 0.75, 'val/accuracy/liver': 1.0, 'val/accuracy/lung': 0.5}
    """

    def __init__(
        self,
        collections: Sequence[MetricCollection],
        keys: Sequence[str] | None = None,
        joint: MetricCollection | None = None,
    ) -> None:
        super().__init__()
        self.keys = None if keys is None else tuple(keys)
        self.of_labels = nn.ModuleList(collections)
        self.joint = joint

    @property
    def each(self) -> list[MetricCollection]:
        """The metrics of each label."""
        return list(self.of_labels)  # type: ignore[arg-type]

    @property
    def prefix(self) -> str:
        """What all names begin with."""
        return self.each[0].prefix or ""

    def update(self, scores: Tensor, target: Tensor, algorithm_scores: Tensor | None = None) -> None:
        """Take a batch.

        Args:
            scores: raw scores, ``(N,)``, or ``(N, K)`` of several labels.
            target: integers of the same shape: 1, 0, or -1 for what does not count.
            algorithm_scores: what the algorithm sees, of the same shape, for metrics that ask for it.

        Raises:
            ArgumentError: if there is another number of labels.
        """
        if self.keys is not None and target.shape != scores.shape:
            msg = (
                f"Expected a column of labels for each of the model's {len(self.keys)} outputs, shape "
                f"{tuple(scores.shape)}, but got {tuple(target.shape)}: the model was made for {', '.join(self.keys)}."
            )
            raise ArgumentError(msg)
        for k, metrics in enumerate(self.each):
            column = ... if self.keys is None else (slice(None), k)
            seen = {} if algorithm_scores is None else {"algorithm_scores": algorithm_scores[column]}
            metrics.update(scores[column], target[column], **seen)
        if self.joint is not None:
            self.joint.update(scores, target)

    def compute(self) -> dict[str, Tensor]:
        """All values by their names, on all processes; of several labels without a warning of those that have none."""
        if self.keys is None:
            return dict(self.each[0].compute())
        with silent():  # else K times the same, without the label's name
            found = [metrics.compute() for metrics in self.each]
        values: dict[str, Tensor] = {}
        for name in found[0]:
            of_labels = torch.stack([value[name] for value in found])
            if of_labels.ndim > 1:
                values[name] = of_labels
                continue
            values[name] = of_labels.to(torch.promote_types(of_labels.dtype, torch.float32)).nanmean()
            values.update({f"{name}/{key}": value for key, value in zip(self.keys, of_labels, strict=True)})
        return values | (self.joint.compute() if self.joint is not None else {})

    def reset(self) -> None:
        """Forget all batches."""
        for metrics in [*self.each, *([] if self.joint is None else [self.joint])]:
            metrics.reset()

    def judge_by(self, thresholds: Sequence[float | None]) -> None:
        """Let the further metrics judge the decisions at these thresholds of the raw scores, one of each label."""
        parts = [(metrics, [cut]) for metrics, cut in zip(self.each, thresholds, strict=True)]
        if self.joint is not None:
            parts.append((self.joint, list(thresholds)))
        for metrics, cuts in parts:
            for metric in metrics.values(copy_state=False):
                if isinstance(metric, FurtherMetric):
                    metric.cuts = cuts

    def scores_of_each(self) -> list[tuple[Tensor, Tensor]]:
        """Raw scores and labels of each label that were collected, of all processes; a collective."""
        each = (metrics.values(copy_state=False) for metrics in self.each)
        return [next(m for m in values if type(m) is TwoWayPartialAUROC).gathered() for values in each]


def split_by_kind(further: Mapping[str, FurtherMetric]) -> tuple[dict[str, FurtherMetric], dict[str, FurtherMetric]]:
    """Metrics of one label, which every label gets a copy of, and those of several, which say ``num_labels``."""
    counts = {name: getattr(metric.metric, "num_labels", None) for name, metric in further.items()}
    joint = {n: FurtherMetric(further[n].metric.clone(), (count,)) for n, count in counts.items() if count is not None}
    return {name: metric for name, metric in further.items() if name not in joint}, joint
