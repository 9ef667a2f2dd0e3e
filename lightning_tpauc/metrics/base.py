"""What all metrics share: the store of scores and labels or of counts, and how processes merge theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from lightning_tpauc.functional.checks import as_pair, as_weights, check_ignore_index, checked_pair, eager, rankable

#: Processes tell each other the dtype of their scores by its place here.
_DTYPES = (torch.float32, torch.float64, torch.int64)


class ScoreMetric(Metric):
    """Base of metrics that need every score: collects them, detached and unchanged, until the epoch ends.

    All subclasses store the same, so a :class:`~torchmetrics.MetricCollection` keeps one store for any number of them.
    It never shares that store with torchmetrics' own curves, which squash scores: the states have other names. Memory
    is 5 bytes per example for float32 scores; when a metric computes, each process has the examples of all.

    ``row`` is the shape of the scores, and of the labels, of one example; without ``keeps_scores`` something else is
    kept of them.
    """

    is_differentiable = False
    full_state_update = False
    plot_lower_bound = 0.0
    scores: list[Tensor]
    classes: list[Tensor]
    #: Empty unless an update came with weights.
    weights: list[Tensor]

    def __init__(
        self,
        ignore_index: int | None = None,
        validate_args: bool = True,
        *,
        row: tuple[int, ...] = (),
        keeps_scores: bool = True,
        **kwargs: Any,
    ) -> None:
        # A model that is made on the meta device can't make up first values: states start on the CPU there.
        with torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext():
            super().__init__(**kwargs)
        if validate_args:
            check_ignore_index(ignore_index, of_classes=bool(row))
        self.ignore_index = ignore_index
        self.validate_args = validate_args
        #: Shape of the scores, and of the labels, of one example.
        self._score_row = self._label_row = row
        for name in ("scores", "classes", "weights") if keeps_scores else ():
            self.add_state(name, default=[], dist_reduce_fx="cat")

    @eager
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The value of one batch, which is collected as well; compiled code calls it outside of its graphs."""
        return super().forward(*args, **kwargs)

    @eager
    def update(self, preds: Any, target: Any, sample_weight: Any = None) -> None:
        """Collect a copy of one batch, so that the caller may change its tensors afterwards.

        Args:
            preds: scores ``(N,)`` or ``(N, 1)``: a tensor, array, list or column of any float or integer dtype. float64
                and integers are kept as they are, half precision is widened to float32.
            target: labels of the same shape: 1, 0, or ``ignore_index``.
            sample_weight: what each example counts, ``(N,)``, at least 0; ``None`` is 1 for all.

        Raises:
            ArgumentError: if shapes differ or hold several scores per example; with ``validate_args`` also if
                ``target`` has other labels or ``preds`` holds nan.
        """
        preds, target = as_pair(preds, target, self.device, sample_weight=sample_weight)
        num_labels = self._score_row[0] if self._score_row else None
        pair = checked_pair(preds, target, self.ignore_index, num_labels=num_labels, values=self.validate_args)
        self.keep(*pair, sample_weight)

    def keep(self, preds: Tensor, target: Tensor, sample_weight: Any = None) -> None:
        """Store scores and labels that were checked, and their weights, if this or an earlier update has any."""
        if sample_weight is not None or self.weights:
            ones = torch.ones(len(preds), dtype=torch.float64, device=preds.device)
            weights = as_weights(ones if sample_weight is None else sample_weight, ones.neg())
            before = [torch.ones(len(own), dtype=torch.float64, device=own.device) for own in self.scores]
            self.weights = [*(self.weights or before), cast(Tensor, weights).to(preds.device)]
        scores = rankable(preds)
        copied = scores.clone(memory_format=torch.contiguous_format) if scores.dtype == preds.dtype else scores
        self.scores.append(copied.reshape(-1, *self._score_row))
        self.classes.append(self.encode(target).reshape(-1, *self._label_row))

    def encode(self, target: Tensor) -> Tensor:
        """Targets as int8: 1 and 0 as they are, anything else as -1, whatever ``ignore_index`` is."""
        positive, negative = target.detach() == 1, target.detach() == 0
        return positive.to(torch.int8) - (~(positive | negative)).to(torch.int8)

    def collected(self) -> tuple[Tensor, Tensor]:
        """All scores and labels so far, each ``(N,)``; labels are 1, 0, or -1 for rows that count for neither class."""
        empty = torch.empty(0, *self._score_row, device=self.device)
        return _joined(self.scores, empty), _joined(self.classes, self.encode(empty.new_empty(0, *self._label_row)))

    def collected_weights(self) -> Tensor | None:
        """The weights of all examples so far, float64 ``(N,)``; ``None`` if no update had any."""
        weights = _joined(self.weights, torch.empty(0, dtype=torch.float64))
        return weights if weights.numel() else None

    def gathered(self) -> tuple[Tensor, Tensor]:
        """:meth:`collected` of all processes, all of which have to call this."""
        return self._of_all(self.collected)

    @eager
    def _of_all(self, call: Callable[[], Any]) -> Any:
        """What ``call`` gives while this process has the states of all."""
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        ):
            return call()

    def reset(self) -> None:
        """Forget everything. Lists are replaced and not emptied: a wrapper may still hold them."""
        for name, default in self._defaults.items():
            if isinstance(default, list):
                setattr(self, name, [])
        super().reset()

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
        """Plot one value, or several in a sequence or tensor; see :meth:`torchmetrics.Metric.plot`."""
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
        own = _DTYPES.index(scores.dtype) if scores.numel() else -1
        told = torch.tensor([own, len(self.weights)], device=scores.device)
        codes, weighted = zip(*(each.tolist() for each in dist_sync_fn(told, group=group)), strict=True)
        used = {*codes} - {-1}
        if any(weighted):
            ones = torch.ones(len(scores), dtype=torch.float64, device=scores.device)
            self.weights = [torch.cat(self.weights).to(scores.device) if self.weights else ones]
        self.scores = [scores.to(_agreed(_DTYPES[code] for code in used or {0}))]
        self.classes = [classes]


def _joined(chunks: list[Tensor] | Tensor, empty: Tensor) -> Tensor:
    """Chunks as one tensor whose dtype holds all their numbers; ``empty`` if there are none."""
    if isinstance(chunks, Tensor):  # as the states are after processes have merged theirs
        return chunks
    dtype = _agreed(chunk.dtype for chunk in chunks or [empty])
    return torch.cat([chunk.to(dtype) for chunk in chunks or [empty]])


def _agreed(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """One dtype for scores in ``dtypes``: float64 for integers next to floats, as float32 merges those above 2^24."""
    distinct = set(dtypes)
    return distinct.pop() if len(distinct) == 1 else torch.float64
