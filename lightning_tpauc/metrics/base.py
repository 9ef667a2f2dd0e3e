"""What all metrics share: the store of scores and labels or of counts, and how processes merge theirs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.checks import (
    check_ignore_index,
    check_preds_and_target,
    check_thresholds,
    eager,
    rankable,
)
from lightning_tpauc.functional.roc import (
    adjust_thresholds,
    binned_segments,
    confusion_counts,
    count_nan,
    nan_points,
    polyline_vertices,
)

#: Processes tell each other the dtype of their scores by its place here.
_DTYPES = (torch.float32, torch.float64, torch.int64)

Thresholds = int | Sequence[float] | Tensor | np.ndarray[Any, Any] | None


class ScoreMetric(Metric):
    """Base of metrics that need every score: collects them, detached and unchanged, until the epoch ends.

    All subclasses update in the same way, whatever they compute and whichever rows they leave out, so a
    :class:`~torchmetrics.MetricCollection` keeps one store for any number of them. It never shares that store with
    torchmetrics' own curves, which squash scores: the states have other names.

    Memory is O(N): 5 bytes per example for float32 scores, on each process for the examples of all when it computes.

    Args:
        ignore_index: label of rows that count for neither class.
        validate_args: check arguments, and the values of every batch; set to ``False`` to save a synchronisation with
            the device per batch.
        kwargs: see :class:`torchmetrics.Metric`.

    Raises:
        ArgumentError: if ``ignore_index`` is neither ``None`` nor an integer other than 0 and 1.
    """

    if TYPE_CHECKING:  # torch.jit.script reads annotations, and can't read those that are strings
        scores: list[Tensor]
        classes: list[Tensor]
        _score_row: tuple[int, ...]
        _label_row: tuple[int, ...]

    def __init__(self, ignore_index: int | None = None, validate_args: bool = True, **kwargs: Any) -> None:
        # A model that is made on the meta device can't make up first values: states start on the CPU there.
        with torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext():
            super().__init__(**kwargs)
        if validate_args:
            check_ignore_index(ignore_index)
        self.ignore_index = ignore_index
        self.validate_args = validate_args
        self._result_dtype = torch.float64
        #: Shape of the scores, and of the labels, of one example.
        self._score_row = self._label_row = ()

    def extra_repr(self) -> str:
        """The rectangle and the number of labels or classes, for ``print``."""
        names = ("min_tpr", "max_fpr", "num_labels", "num_classes")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names if hasattr(self, name))

    def collect_scores(self) -> None:
        """Declare the states of the store; called by subclasses at the end of ``__init__``."""
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("classes", default=[], dist_reduce_fx="cat")

    @torch.jit.unused
    @eager
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The value of one batch, which is collected as well; compiled code calls it outside of its graphs."""
        return super().forward(*args, **kwargs)

    @eager
    def update(self, preds: Tensor, target: Tensor) -> None:
        """Collect one batch, copied: whatever the caller does with its tensors afterwards does not matter.

        Args:
            preds: scores, tensor ``(N,)`` or ``(N, 1)`` of any float or integer dtype. float64 and integers are kept as
                they are, half precision is widened to float32.
            target: integer or bool tensor of the same shape: 1, 0, or ``ignore_index``.

        Raises:
            ArgumentError: if shapes differ or hold several scores per example; with ``validate_args`` also if
                ``target`` has other labels or ``preds`` holds nan.
        """
        self.check_batch(preds, target)
        scores = rankable(preds)
        copied = scores.clone(memory_format=torch.contiguous_format) if scores.dtype == preds.dtype else scores
        self.scores.append(copied.reshape(-1, *self._score_row))
        self.classes.append(self.encode(target).reshape(-1, *self._label_row))

    def check_batch(self, preds: Tensor, target: Tensor, *, unit_range: bool = False) -> None:
        """Raise :class:`ArgumentError` unless shapes, and with ``validate_args`` values, are those of a batch."""
        check_preds_and_target(preds, target, self.ignore_index, unit_range=unit_range, values=self.validate_args)

    def encode(self, target: Tensor) -> Tensor:
        """Targets as the store keeps them, which does not depend on ``ignore_index``."""
        return encode_labels(target)

    def collected(self) -> tuple[Tensor, Tensor]:
        """All scores and labels so far, each ``(N,)``; labels are 1, 0, or -1 for rows that count for neither class."""
        empty = torch.empty(0, *self._score_row, device=self.device)
        return (
            concatenate(self.scores, empty),
            concatenate(self.classes, self.encode(empty.new_empty(0, *self._label_row))),
        )

    @eager
    def gathered(self) -> tuple[Tensor, Tensor]:
        """:meth:`collected` of all processes, all of which have to call this."""
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        ):
            return self.collected()

    def result(self, value: Tensor) -> Tensor:
        """What ``compute`` returns: ``value`` in the dtype that :meth:`set_dtype` asks for."""
        return value.to(self._result_dtype)

    def reset(self) -> None:
        """Forget everything. Lists are replaced and not emptied: a wrapper may still hold them."""
        for name, default in self._defaults.items():
            if isinstance(default, list):
                setattr(self, name, [])
        super().reset()

    def set_dtype(self, dst_type: str | torch.dtype) -> ScoreMetric:
        """Return values in another dtype than float64, in float32 at least.

        What was collected keeps its dtype, here and when a model is cast: in a narrower one scores would tie, and
        counts be rounded.

        torchmetrics' ``BootStrapper`` needs it, whose tensor of quantiles has to have the dtype of the values:
        ``BootStrapper(metric.set_dtype(torch.float32), quantile=torch.tensor([0.05, 0.95]))``.
        """
        asked = torch.empty(0).type(dst_type).dtype
        self._result_dtype = torch.promote_types(torch.float32, asked)
        self._computed = None
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], *_: Any, **__: Any) -> Any:
        """Take over where ``fn`` moves tensors, and nothing else that it does to them.

        ``to_empty`` passes ``recurse``, which torchmetrics does not know; nothing lies below a metric.
        """
        return super()._apply(lambda state: state.to(fn(state.reshape(-1)[:0]).device))

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        """Merge ``incoming_state``, in which lists that processes have merged are one tensor each."""
        lists = {name for name, default in self._defaults.items() if isinstance(default, list)}
        joined = {n: [v] if n in lists and isinstance(v, Tensor) else v for n, v in incoming_state.items()}
        super()._reduce_states(joined)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one or several values; see :meth:`torchmetrics.Metric.plot`.

        Args:
            val: value, or several in a sequence, tensor or array; computed if ``None``.
            ax: matplotlib axes to draw into; a new figure if ``None``.

        Returns:
            The figure and the axes.

        Raises:
            MissingExtraError: if matplotlib is not installed.
        """
        import_extra("matplotlib", "plot")
        if isinstance(val, Sequence):
            val = [torch.as_tensor(single) for single in val]
        elif val is not None and not isinstance(val, Mapping):
            val = torch.as_tensor(val)
        return self._plot(val, ax)

    def _sync_dist(
        self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any | None = None
    ) -> None:
        if "scores" in self._defaults:
            self._agree_on_dtype(dist_sync_fn, process_group or self.process_group)
        super()._sync_dist(dist_sync_fn, process_group=process_group)

    def _agree_on_dtype(self, dist_sync_fn: Callable[..., Any], group: Any | None) -> None:
        """Make the states one tensor each, of the same dtype on every process.

        The base class would let a process without examples send float32 whatever the others send: gloo aborts then.
        """
        scores, classes = self.collected()
        if self.compute_on_cpu:  # the backend of a GPU gathers from the GPU
            scores, classes = scores.to(self.device), classes.to(self.device)
        own = torch.tensor(_DTYPES.index(scores.dtype) if scores.numel() else -1, device=scores.device)
        used = {int(code) for code in dist_sync_fn(own, group=group)} - {-1}
        self.scores = [scores.to(agreed_dtype(_DTYPES[code] for code in used or {0}))]
        self.classes = [classes]


def encode_labels(target: Tensor) -> Tensor:
    """Targets as int8: 1 and 0 as they are, anything else as -1."""
    positive, negative = target.detach() == 1, target.detach() == 0
    return positive.to(torch.int8) - (~(positive | negative)).to(torch.int8)


def concatenate(chunks: list[Tensor] | Tensor, empty: Tensor) -> Tensor:
    """Chunks as one tensor whose dtype holds all their numbers; ``empty`` if there are none."""
    if isinstance(chunks, Tensor):  # as the states are after processes have merged theirs
        return chunks
    if not chunks:
        return empty
    dtype = agreed_dtype(chunk.dtype for chunk in chunks)
    return torch.cat([chunk.to(dtype) for chunk in chunks])


def agreed_dtype(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """One dtype for scores in ``dtypes``: float64 for integers next to floats, as float32 merges those above 2^24."""
    distinct = set(dtypes)
    return distinct.pop() if len(distinct) == 1 else torch.float64


class AreaMetric(ScoreMetric):
    """Base of the areas below one ROC curve and below several: collects scores, or counts them at thresholds."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    if TYPE_CHECKING:
        num_nan: Tensor
    __jit_unused_properties__: ClassVar[list[str]] = [*ScoreMetric.__jit_unused_properties__, "confmat"]

    def collect(self, thresholds: Thresholds, counted_by: str = "") -> None:
        """Declare the states; called by subclasses at the end of ``__init__``.

        Args:
            thresholds: see :class:`TwoWayPartialAUROC`.
            counted_by: whatever else the counts depend on.
        """
        if self.validate_args and thresholds is not None:
            check_thresholds(thresholds)
        #: Ascending float64 tensor ``(T,)`` or ``None``. No buffer: half-precision plugins would round it.
        self.thresholds = None if thresholds is None else adjust_thresholds(thresholds)
        self._unit_range = isinstance(thresholds, Integral)
        if self.thresholds is None:
            self.collect_scores()
            return
        # A MetricCollection lets metrics share states whose names and first values agree. The first batch need not tell
        # two sets of thresholds apart, so the name has to.
        told_apart = self.thresholds.numpy(force=True).tobytes() + counted_by.encode()
        self._counts_name = f"confmat_{hashlib.blake2s(told_apart, digest_size=6).hexdigest()}"
        shape = (self.thresholds.shape[0], *self._score_row, 2, 2)
        counts = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self.add_state(self._counts_name, default=counts, dist_reduce_fx="sum")
        self.add_state("num_nan", default=counts.new_zeros(self._score_row), dist_reduce_fx="sum")

    @property
    def confmat(self) -> Tensor | None:
        """Confusion matrix at each threshold, int64 ``(T, 2, 2)`` or ``(T, K, 2, 2)``, or ``None``.

        It is indexed by threshold, column, label, and whether the score reaches the threshold.
        """
        return None if self.thresholds is None else getattr(self, self._counts_name)

    @eager
    def update(self, preds: Tensor, target: Tensor) -> None:
        """Collect one batch, or count it if there are thresholds.

        Args:
            preds: scores, tensor ``(N,)`` or ``(N, 1)``, or ``(N, K)`` for K labels or classes, of any float or integer
                dtype; larger means more positive.
            target: labels of the same shape, 1, 0, or ``ignore_index``; for classes ``(N,)``.

        Raises:
            ArgumentError: if shapes are others; with ``validate_args`` also if ``target`` has other labels, ``preds``
                holds nan, or ``thresholds`` is an int and a score lies outside [0, 1].
        """
        if self.thresholds is None:
            super().update(preds, target)
            return
        self.check_batch(preds, target, unit_range=self._unit_range)
        scores, labels = preds.reshape(-1, *self._score_row), self.columns(target.reshape(-1, *self._label_row))
        if not self.validate_args:
            self.num_nan = self.num_nan + count_nan(scores, labels).to(self.num_nan.device)
        counts: Tensor = getattr(self, self._counts_name)
        setattr(self, self._counts_name, counts + confusion_counts(scores, labels, self.thresholds).to(counts.device))

    def columns(self, target: Tensor) -> Tensor:
        """Labels in the shape of the scores: 1, 0, or anything else for what does not count."""
        return target


def binned_roc(counts: Tensor, num_nan: int, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The ROC polyline of confusion counts ``(T, 2, 2)``: ``(fpr, tpr, thresholds)``, each ``(V,)``."""
    if num_nan:
        return nan_points(counts.device)
    reached = torch.cat([thresholds.flip(0), thresholds.new_tensor([-math.inf])])
    return polyline_vertices(*binned_segments(counts), reached)


def scores_of_each(metrics: Any) -> list[tuple[Tensor, Tensor]]:
    """Scores and labels that the metrics of each label have collected, of all processes; a collective.

    Args:
        metrics: a ``MetricCollection`` of one label, or what holds one of each label as ``of_labels``.
    """
    collections = getattr(metrics, "of_labels", [metrics])
    return [
        next(m for m in collection.values(copy_state=False) if isinstance(m, ScoreMetric)).gathered()
        for collection in collections
    ]
