"""A LightningModule that reports how well it ranks examples, and predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lightning_tpauc.algorithms.base import shrunk_rectangle
from lightning_tpauc.data.core.batch import EvalBatch
from lightning_tpauc.data.core.subset_indices import check_loader
from lightning_tpauc.lightning_fixes.hooks import duty
from lightning_tpauc.lightning_fixes.mixing import refuse_taken
from lightning_tpauc.lightning_fixes.unsupported import log_replicated
from lightning_tpauc.metrics import ObjectiveRatios
from lightning_tpauc.metrics.further import FurtherMetrics, further_metrics
from lightning_tpauc.metrics.objective import wants_algorithm_scores
from lightning_tpauc.metrics.per_task import TaskMetrics, split_by_kind
from lightning_tpauc.metrics.reporting import IGNORED, Rectangle, as_rectangles, build_metrics
from lightning_tpauc.scoring.area_warnings import AreaWarnings
from lightning_tpauc.scoring.labelled_batches import inputs_and_target, inputs_to_predict
from lightning_tpauc.scoring.labels import Labels
from lightning_tpauc.scoring.labels_of_data import labels_to_evaluate
from lightning_tpauc.scoring.scoring_module import ScoringModule
from lightning_tpauc.scoring.trained_start import TrainedStart

__all__ = ("EvaluatedModule",)

#: Name of the only metric of a validation that is not a number and is not logged.
RATIOS = "objective_ratios"


class EvaluatedModule(ScoringModule):
    """Validates, tests and predicts.

    Args:
        rectangles: further (min_tpr, max_fpr) pairs to report.
        log_objective: also report the exact training objective F, on the evaluated data.
        metrics: torchmetrics to report beside ours.
        **kwargs: of :class:`~lightning_tpauc.scoring.scoring_module.ScoringModule`.

    Raises:
        ArgumentError: if a rectangle is not inside the unit square.
    """

    def __init__(
        self,
        rectangles: Sequence[tuple[float, float]] = (),
        log_objective: bool = False,
        metrics: FurtherMetrics | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        refuse_taken(self, "trained_start", "area_warnings")
        self._reported = as_rectangles(rectangles), log_objective, further_metrics(metrics)
        self.val_metrics: MetricCollection | TaskMetrics = self._metrics("val/")
        self.test_metrics: MetricCollection | TaskMetrics = self._metrics("test/")
        #: Measures the weights that a new run starts from.
        self.trained_start = TrainedStart()
        self.area_warnings = AreaWarnings()
        #: Metrics of all data loaders but the first, during an evaluation; the first one's are the two above.
        self._further_metrics: list[MetricCollection | TaskMetrics] = []
        #: Objective of the last validation's scores divided by that of a constant model, at growing tightness.
        self.held_out_ratios: list[float] = []

    # ---------------------------------------------------------------- evaluation

    @duty("before")
    def setup(self, stage: str) -> None:
        """Learn from the data which labels there are."""
        labels = labels_to_evaluate(self, self.trainer, stage)
        self.knows_labels = self.knows_labels or stage == TrainerFn.FITTING
        if labels != self.trained_labels:
            self.evaluate_labels(labels)

    def evaluate_for(self, min_tpr: float, max_fpr: float) -> None:
        """Report the rectangle that a checkpoint was trained for as ``tpauc``."""
        self.algorithm.min_tpr, self.algorithm.max_fpr = min_tpr, max_fpr
        self.evaluate_labels(self.trained_labels)

    def evaluate_labels(self, labels: Labels | None) -> None:
        """Report metrics of each of several labels and their means, or of the only one."""
        self.trained_labels = labels
        self.val_metrics = self._metrics("val/").to(self.device)
        self.test_metrics = self._metrics("test/").to(self.device)
        self._further_metrics.clear()

    def _metrics(self, prefix: str) -> MetricCollection | TaskMetrics:
        labels, further = self.trained_labels, self._reported[2]
        if labels is None:
            return self._metrics_of_label(self.algorithm.min_tpr, self.algorithm.max_fpr, prefix, further)
        of_label, of_all = split_by_kind(further)
        each = [self._metrics_of_label(*own, prefix, of_label) for own in labels.rectangles(self.algorithm)]
        joint = MetricCollection(dict(of_all), prefix=prefix) if of_all else None
        return TaskMetrics(labels.keys, each, joint, labels.weights)

    def _metrics_of_label(
        self, min_tpr: float, max_fpr: float, prefix: str, further: Mapping[str, Metric]
    ) -> MetricCollection:
        others, log_objective, _ = self._reported
        surrogate = getattr(self.algorithm, "surrogate", None) if log_objective else None
        own = Rectangle(min_tpr, max_fpr)
        metrics = build_metrics(own, others, log_objective, surrogate, self._objective_activation, prefix, further)
        if prefix == "val/" and self.algorithm.can_shrink_rectangle:
            metrics.add_metrics({RATIOS: self._ratios()})
        return metrics

    def _ratios(self) -> ObjectiveRatios:
        surrogate = getattr(self.algorithm, "surrogate", "hinge")
        return ObjectiveRatios((), surrogate, self._objective_activation, ignore_index=IGNORED)

    def objective_grid(self) -> Sequence[float]:
        """Values of the algorithm's ``tightness`` at which this evaluation computes the objective; none by default."""
        return ()

    @duty("after", cooperative=False)
    def validation_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> None:  # noqa: ARG002
        """Collect raw scores and targets, separately for each data loader."""
        self._evaluate(self.val_metrics, batch, dataloader_idx)

    @duty("after", cooperative=False)
    def test_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> None:  # noqa: ARG002
        """Collect raw scores and targets, separately for each data loader."""
        self._evaluate(self.test_metrics, batch, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:  # noqa: ARG002
        """Raw scores, what is decided on them and, for batches of a ``PosNegDataModule``, which examples they are."""
        if isinstance(batch, EvalBatch):
            real = batch.example_id >= 0
            scores = self.raw_scores(batch.inputs)[real]
            return {"example_id": batch.example_id[real], "score": scores, **self._decided(scores)}
        scores = self.raw_scores(inputs_to_predict(batch, self._known_layout(batch)))
        return {"score": scores, **self._decided(scores)}

    def _decided(self, scores: Tensor) -> dict[str, Tensor]:
        return self.operating_point.decide(scores) if self.operating_point is not None else {}

    @duty("before")
    def on_validation_epoch_start(self) -> None:
        """Forget what an interrupted validation has collected, and check the loaders."""
        _check_loaders(self.trainer.val_dataloaders)
        self._forget_batches(self.val_metrics)

    @duty("before")
    def on_test_epoch_start(self) -> None:
        """Forget what an interrupted test has collected, and check the loaders."""
        _check_loaders(self.trainer.test_dataloaders)
        self._forget_batches(self.test_metrics)

    @duty("before")
    def on_predict_epoch_start(self) -> None:
        """Check the loaders."""
        _check_loaders(self.trainer.predict_dataloaders)

    @duty("after", cooperative=False)
    def on_validation_epoch_end(self) -> None:
        """Log ``val/tpauc`` and the other metrics; the sanity check logs nothing, since it sees only a few batches.

        If there are several data loaders, the second one's value is ``val/tpauc/dataloader_idx_1``.
        """
        self._log_metrics(self.val_metrics, self.loader_metrics("val"))

    @duty("after", cooperative=False)
    def on_test_epoch_end(self) -> None:
        """Log ``test/tpauc`` and the other metrics, named as in validation."""
        self._log_metrics(self.test_metrics, self.loader_metrics("test"))

    def _evaluate(self, first: MetricCollection | TaskMetrics, batch: Any, dataloader_idx: int) -> None:
        inputs, target = inputs_and_target(batch, self._known_layout(batch), self.num_labels)
        metrics = self._metrics_of(first, dataloader_idx + 1)[-1]
        collection = metrics[0] if isinstance(metrics, TaskMetrics) else metrics
        own = {"algorithm_scores": self.algorithm_scores(inputs)} if wants_algorithm_scores(collection) else {}
        metrics.update(self.raw_scores(inputs), target, **own)

    def _known_layout(self, batch: Any) -> Any:
        datamodule: Any = getattr(self._trainer, "datamodule", None)
        if self.input_layout is None and not isinstance(batch, EvalBatch) and hasattr(datamodule, "input_layout"):
            self.input_layout = datamodule.input_layout()  # before the first step of a training
        return self.input_layout

    def _metrics_of(
        self, first: MetricCollection | TaskMetrics, num_loaders: int
    ) -> list[MetricCollection | TaskMetrics]:
        while len(self._further_metrics) < num_loaders - 1:
            self._further_metrics.append(self._metrics(first.prefix or "").to(self.device))
        return [first, *self._further_metrics][:num_loaders]

    def loader_metrics(self, stage: Literal["val", "test"]) -> list[tuple[str, MetricCollection | TaskMetrics]]:
        """The metrics of each data loader, with what their names end in if there are several."""
        validates = stage == "val"
        first = self.val_metrics if validates else self.test_metrics
        num_loaders = len(self.trainer.num_val_batches if validates else self.trainer.num_test_batches)
        several = self._metrics_of(first, num_loaders)
        return [(f"/dataloader_idx_{k}" if num_loaders > 1 else "", metrics) for k, metrics in enumerate(several)]

    def _log_metrics(
        self,
        first: MetricCollection | TaskMetrics,
        several: list[tuple[str, MetricCollection | TaskMetrics]],
    ) -> None:
        # Every rank computes the same metrics, even if it had no batch, since computing them is a collective.
        for number, (suffix, metrics) in enumerate(several):
            checks = self.trainer.sanity_checking
            self._set_grid(metrics, self.objective_grid() if number == 0 else ())
            values = metrics.compute() if not checks or self.trained_start.is_measured else {}
            ratios = values.pop(f"{metrics.prefix}{RATIOS}", None)
            if number == 0 and ratios is not None:
                self.held_out_ratios = ratios.tolist()
            for name, value in values.items():
                if checks:
                    self.trained_start.note(name + suffix, value)
                else:
                    log_replicated(self, name + suffix, value, prog_bar=name == f"{metrics.prefix}tpauc")
            if not checks:
                self.area_warnings.look_at(self, metrics, values, suffix)
        self._forget_batches(first)

    def _set_grid(self, metrics: MetricCollection | TaskMetrics, grid: Sequence[float]) -> None:
        labels = self.trained_labels
        own = (
            [(self.algorithm.min_tpr, self.algorithm.max_fpr)] if labels is None else labels.rectangles(self.algorithm)
        )
        collections = [metrics] if isinstance(metrics, MetricCollection) else [metrics[k] for k in range(len(metrics))]
        for rectangle, collection in zip(own, collections, strict=True):
            for metric in collection.values(copy_state=False):
                if isinstance(metric, ObjectiveRatios):
                    metric.rectangles = [shrunk_rectangle(*rectangle, tightness) for tightness in grid]

    def _forget_batches(self, first: MetricCollection | TaskMetrics) -> None:
        first.reset()
        self._further_metrics.clear()


def _check_loaders(loaders: Any) -> None:
    for loader in CombinedLoader(loaders).flattened:
        check_loader(loader)
