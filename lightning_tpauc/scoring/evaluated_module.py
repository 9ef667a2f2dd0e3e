"""A LightningModule that reports how well it ranks examples, and predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lightning_tpauc.algorithms.base import shrunk_rectangle
from lightning_tpauc.data.batch import EvalBatch
from lightning_tpauc.data.labels import check_loader
from lightning_tpauc.lightning_fixes.subclassing import duty, refuse_taken
from lightning_tpauc.lightning_fixes.unsupported import log_replicated
from lightning_tpauc.metrics import ObjectiveRatios
from lightning_tpauc.metrics.objective import wants_algorithm_scores
from lightning_tpauc.metrics.reporting import (
    IGNORED,
    FurtherMetrics,
    Rectangle,
    TaskMetrics,
    as_rectangles,
    build_metrics,
    further_metrics,
    is_ours,
    split_by_kind,
    validated_areas,
)
from lightning_tpauc.scoring.labelled_data import inputs_and_target, inputs_to_predict, labels_to_evaluate
from lightning_tpauc.scoring.labels import Labels
from lightning_tpauc.scoring.scoring_module import ScoringModule
from lightning_tpauc.training.guards import AreaWarnings

#: Name of the one validation metric that is no single number, and so is not logged.
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
        #: Validates the weights that a new run starts from.
        self.trained_start = TrainedStart()
        self.area_warnings = AreaWarnings()
        #: Metrics of all data loaders but the first, during an evaluation; the first one's are the two above.
        self._further_metrics: list[MetricCollection | TaskMetrics] = []
        #: Of each label, the objective of the last validation's scores divided by that of a constant model, at growing
        #: tightness.
        self.held_out_ratios: list[list[float]] = []

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
        return TaskMetrics(labels.keys, each, joint)

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
        """Return raw scores, the decisions on them and, for batches of a ``PosNegDataModule``, their ``example_id``."""
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
        self, first: MetricCollection | TaskMetrics, several: list[tuple[str, MetricCollection | TaskMetrics]]
    ) -> None:
        # Every rank computes the same metrics, even if it had no batch, since computing them is a collective.
        for number, (suffix, metrics) in enumerate(several):
            checks = self.trainer.sanity_checking
            self._set_grid(metrics, self.objective_grid() if number == 0 else ())
            values = metrics.compute() if not checks or self.trained_start.is_measured else {}
            ratios = values.pop(f"{metrics.prefix}{RATIOS}", None)
            if number == 0 and ratios is not None:
                self.held_out_ratios = (ratios if ratios.ndim > 1 else ratios[None]).tolist() if ratios.numel() else []
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


class TrainedStart:
    """Validates the weights that a new run starts from, by Lightning's sanity check on all validation data.

    These weights are the first candidate for those that training leaves in the model. If they were trained before,
    every ``ModelCheckpoint`` that follows a metric of ours saves them, too. The check does not change the run's random
    numbers, and other callbacks do not notice it: schedules and patience begin with the training as usual. A resumed
    run has no such check.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Tensor] | None = None
        self._steps: Any = None
        self._saves = False

    @property
    def is_measured(self) -> bool:
        """Whether the present sanity check measures the start."""
        return self._metrics is not None

    def prepare(self, trainer: Trainer, *, is_trained: bool) -> None:
        """Extend the coming sanity check to all validation data, if a callback uses the result.

        Args:
            trainer: whose callbacks keep the best weights or save them.
            is_trained: whether the weights were trained before. If not, ``num_sanity_val_steps=0`` turns the check off.
        """
        self._metrics = None
        monitors = [saver.monitor for saver in trainer.checkpoint_callbacks if isinstance(saver, ModelCheckpoint)]
        self._saves = is_trained and any(name is not None and is_ours(name) for name in monitors)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        keeps = any(getattr(callback, "keep_best", False) for callback in callbacks)
        if self._saves or (keeps and (is_trained or trainer.num_sanity_val_steps != 0)):
            self._metrics = {}
            self._steps, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, math.inf

    def note(self, name: str, value: Tensor) -> None:
        """Store a metric of the starting weights."""
        if self._metrics is not None:
            self._metrics[name] = value

    def end(self, trainer: Trainer) -> None:
        """Restore the Trainer's number of sanity steps, also after an error."""
        if self._steps is not None:
            trainer.num_sanity_val_steps, self._steps = self._steps, None

    def offer(self, trainer: Trainer, keep: Callable[[float, float, int], None] | None) -> None:
        """Keep and save the starting weights, once everything that a checkpoint holds is ready.

        Args:
            trainer: whose callbacks save.
            keep: is called with ``val/tpauc``, ``val/auroc`` and the number of steps, 0; ``None`` for nobody.
        """
        self.end(trainer)
        measured, self._metrics = self._metrics or {}, None
        if keep is not None and measured:
            keep(*validated_areas(measured), 0)
        for saver in trainer.checkpoint_callbacks if self._saves else ():
            if isinstance(saver, ModelCheckpoint) and saver.monitor in measured:
                saver._save_topk_checkpoint(trainer, {**saver._monitor_candidates(trainer), **measured})
