"""What validation and test measure: the metrics of each data loader, and the weights that a new run starts from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from typing_extensions import override

from lightning_tpauc.algorithms.base import TIGHTNESS_GRID, shrunk_rectangle
from lightning_tpauc.data.batch import EvalBatch
from lightning_tpauc.data.labels import check_loader
from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.lightning_fixes.unsupported import log_replicated
from lightning_tpauc.metrics import ObjectiveRatios
from lightning_tpauc.metrics.objective import wants_algorithm_scores
from lightning_tpauc.metrics.reporting import (
    IGNORED,
    LabelMetrics,
    Rectangle,
    build_metrics,
    is_ours,
    passes_below,
    split_by_kind,
    validated_areas,
)
from lightning_tpauc.scoring.forward import ScoringModel
from lightning_tpauc.scoring.labelled_data import inputs_and_target, labels_to_evaluate

#: Name of the one validation metric that is no single number, and so is not logged.
RATIOS = "objective_ratios"

Stage = Literal["val", "test"]


class Evaluation(Callback):
    """Scores the batches of validations and tests, and logs ``val/tpauc``, ``test/tpauc`` and the other metrics.

    A module adds this callback by itself. A ``validation_step`` or ``test_step`` of the module's class runs beside it.
    The values of the second of several data loaders are named ``val/tpauc/dataloader_idx_1``, and so on.

    Attributes:
        start: validates the weights that a new run starts from.
        warnings: warns of areas that are 0 or nan.
    """

    def __init__(self) -> None:
        self.start = StartValidation()
        self.warnings = AreaWarnings()
        self._further: list[LabelMetrics] = []  # of all data loaders but the first

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Learn from the data which labels there are."""
        module: ScoringModel = pl_module  # type: ignore[assignment]
        module.trained_labels = labels_to_evaluate(module, trainer, stage)
        module.knows_labels = module.knows_labels or stage == TrainerFn.FITTING

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.start.end(trainer)

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(pl_module, "val", trainer.val_dataloaders)  # type: ignore[arg-type]

    @override
    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(pl_module, "test", trainer.test_dataloaders)  # type: ignore[arg-type]

    @override
    def on_predict_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _check_loaders(trainer.predict_dataloaders)

    # before the steps, which may take entries out of the batch
    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        with trainer.precision_plugin.val_step_context():
            self._collect(pl_module, "val", batch, dataloader_idx)  # type: ignore[arg-type]

    @override
    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        with trainer.precision_plugin.test_step_context():
            self._collect(pl_module, "test", batch, dataloader_idx)  # type: ignore[arg-type]

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(pl_module, self.of_loaders(pl_module, "val"))  # type: ignore[arg-type]

    @override
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(pl_module, self.of_loaders(pl_module, "test"))  # type: ignore[arg-type]

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._forget(pl_module, "val")  # type: ignore[arg-type]

    @override
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._forget(pl_module, "test")  # type: ignore[arg-type]

    def of_loaders(self, module: ScoringModel, stage: Stage) -> list[tuple[str, LabelMetrics]]:
        """The metrics of each data loader, with what their names end in if there are several."""
        trainer = module.trainer
        count = len(trainer.num_val_batches if stage == "val" else trainer.num_test_batches)
        several = [self._of_loader(module, stage, k) for k in range(count)]
        return [(f"/dataloader_idx_{k}" if count > 1 else "", metrics) for k, metrics in enumerate(several)]

    def _of_loader(self, module: ScoringModel, stage: Stage, number: int) -> LabelMetrics:
        while len(self._further) < number:
            self._further.append(make_metrics(module, stage).to(module.device))
        return module._collected[stage] if number == 0 else self._further[number - 1]

    def _begin(self, module: ScoringModel, stage: Stage, loaders: Any) -> None:
        _check_loaders(loaders)
        wanted = module.trained_labels, module.algorithm.min_tpr, module.algorithm.max_fpr
        if wanted != module._collected_for:  # a checkpoint that was loaded after `setup` may change them
            module._collected = {name: make_metrics(module, name) for name in ("val", "test")}
            module._collected_for = wanted
        self._forget(module, stage)
        module._collected[stage].to(module.device)

    def _forget(self, module: ScoringModel, stage: Stage) -> None:
        module._collected[stage].reset()
        self._further.clear()

    def _collect(self, module: ScoringModel, stage: Stage, batch: Any, dataloader_idx: int) -> None:
        inputs, target = inputs_and_target(batch, known_layout(module, batch), module._num_labels)
        metrics = self._of_loader(module, stage, dataloader_idx)
        asked = wants_algorithm_scores(metrics.each[0])
        seen_by_algorithm = {"algorithm_scores": module.algorithm_scores(inputs)} if asked else {}
        metrics.update(module.raw_scores(inputs), target, **seen_by_algorithm)

    def _log(self, module: ScoringModel, of_loaders: list[tuple[str, LabelMetrics]]) -> None:
        # every rank computes the same metrics, even if it had no batch, since computing them is a collective
        trainer = module.trainer
        for number, (suffix, metrics) in enumerate(of_loaders):
            _set_tightness(module, metrics, _tightness_to_look_at(module) if number == 0 else ())
            point, outputs = module.operating_point, module._num_labels or 1
            metrics.judge_by([None] * outputs if point is None else point.thresholds)
            values = metrics.compute() if not trainer.sanity_checking or self.start.is_measured else {}
            ratios = values.pop(f"{metrics.prefix}{RATIOS}", None)
            if number == 0 and ratios is not None:
                of_labels = ratios if ratios.ndim > 1 else ratios[None]
                module.training_state.note_ratios(of_labels.tolist() if ratios.numel() else [])
            if trainer.sanity_checking:
                self.start.note(values, suffix)
                continue
            for name, value in values.items():
                log_replicated(module, name + suffix, value, prog_bar=name == f"{metrics.prefix}tpauc")
            self.warnings.look_at(module, metrics, values, suffix)


def evaluation_of(trainer: Trainer) -> Evaluation:
    """The Trainer's :class:`Evaluation`."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
    return next(callback for callback in callbacks if isinstance(callback, Evaluation))


def known_layout(module: ScoringModel, batch: Any) -> Any:
    """What the inputs consist of, which tells inputs from labels in batches of other loaders than ours."""
    datamodule: Any = getattr(module._trainer, "datamodule", None)
    if module.input_layout is None and not isinstance(batch, EvalBatch) and hasattr(datamodule, "input_layout"):
        module.input_layout = datamodule.input_layout()  # before the first step of a training
    return module.input_layout


def _check_loaders(loaders: Any) -> None:
    for loader in CombinedLoader(loaders).flattened:
        check_loader(loader)


# -------------------------------------------------------------------- which metrics


@torch.inference_mode(False)
def make_metrics(module: ScoringModel, stage: Stage) -> LabelMetrics:
    """The metrics of a data loader: what the module's algorithm, labels and arguments say."""
    labels, algorithm, further = module.trained_labels, module.algorithm, module._reported[2]
    if labels is None:
        only = _metrics_of_label(module, (algorithm.min_tpr, algorithm.max_fpr), f"{stage}/", further)
        return LabelMetrics([only])
    of_label, of_all = split_by_kind(further)
    each = [_metrics_of_label(module, rectangle, f"{stage}/", of_label) for rectangle in labels.rectangles(algorithm)]
    joint = MetricCollection(dict(of_all), prefix=f"{stage}/") if of_all else None
    return LabelMetrics(each, labels.keys, joint)


def _metrics_of_label(
    module: ScoringModel, rectangle: tuple[float, float], prefix: str, further: Mapping[str, Metric]
) -> MetricCollection:
    others, log_objective, _ = module._reported
    surrogate = getattr(module.algorithm, "surrogate", None)
    activation = module._objective_activation
    metrics = build_metrics(
        Rectangle(*rectangle),
        others,
        log_objective,
        surrogate if log_objective else None,
        activation,
        prefix,
        further,
    )
    if prefix == "val/" and module.algorithm.can_shrink_rectangle:
        metrics.add_metrics(
            {RATIOS: ObjectiveRatios((), surrogate or "hinge", score_activation=activation, ignore_index=IGNORED)}
        )
    return metrics


def _tightness_to_look_at(module: ScoringModel) -> Sequence[float]:
    """The whole grid if the rectangle shrinks; else its ends, which the advice looks at. Nothing outside of fit."""
    trainer = module.trainer
    if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
        return ()
    return TIGHTNESS_GRID if module.training_state.rectangle_schedule is not None else (0.0, 1.0)


def _set_tightness(module: ScoringModel, metrics: LabelMetrics, grid: Sequence[float]) -> None:
    labels, algorithm = module.trained_labels, module.algorithm
    rectangles = [(algorithm.min_tpr, algorithm.max_fpr)] if labels is None else labels.rectangles(algorithm)
    for rectangle, collection in zip(rectangles, metrics.each, strict=True):
        for metric in collection.values(copy_state=False):
            if isinstance(metric, ObjectiveRatios):
                metric.rectangles = [shrunk_rectangle(rectangle[0], rectangle[1], tightness) for tightness in grid]


# -------------------------------------------------------------------- the weights that a run starts from


class StartValidation:
    """Validates trained weights that a new run starts from, by Lightning's sanity check on all validation data.

    These weights are the first candidate for those that training leaves in the model, and every ``ModelCheckpoint``
    that follows a metric of ours saves them, too. The check does not change the run's random numbers, and other
    callbacks do not notice it: schedules and patience begin with the training as usual. Weights that were never trained
    are no candidate, and a resumed run has no such check.
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
        """Extend the coming sanity check to all validation data, if a callback uses the result."""
        self._metrics = None
        monitors = [saver.monitor for saver in trainer.checkpoint_callbacks if isinstance(saver, ModelCheckpoint)]
        self._saves = is_trained and any(name is not None and is_ours(name) for name in monitors)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        keeps = is_trained and any(getattr(callback, "keep_best", False) for callback in callbacks)
        if self._saves or keeps:
            self._metrics = {}
            self._steps, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, math.inf

    def note(self, values: Mapping[str, Tensor], suffix: str) -> None:
        """Store metrics of the starting weights."""
        if self._metrics is not None:
            self._metrics.update({name + suffix: value for name, value in values.items()})

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


# -------------------------------------------------------------------- areas that are 0 or nan

#: In a training, an area is said to be 0 after as many epochs in a row; at its end, the line on the threshold says so.
_EPOCHS = 3


class AreaWarnings:
    """Warns of areas of 0, and of labels that have none: in every evaluation, and once in a training.

    Attributes:
        told: whether the first data loader of this evaluation was said to have no threshold in the rectangle, which
            says as much as an area of 0.
    """

    def __init__(self) -> None:
        self.told = False
        self.forget()

    def forget(self) -> None:
        """Begin a new training."""
        self._said: set[str] = set()
        self._epochs: dict[str, set[int]] = {}

    def look_at(self, module: ScoringModel, metrics: LabelMetrics, values: Mapping[str, Tensor], suffix: str) -> None:
        """Warn of one data loader's values."""
        told, self.told = self.told, False
        fits, name = module.trainer.state.fn == TrainerFn.FITTING, f"{metrics.prefix}tpauc"
        areas = {"": values[name]} if metrics.keys is None else {key: values[f"{name}/{key}"] for key in metrics.keys}
        unknown = [key for key in areas if key and areas[key].isnan() and f"{name}{suffix} {key}" not in self._said]
        if unknown:
            self._said.update(f"{name}{suffix} {key}" for key in (unknown if fits else ()))
            why = "no positive or no negative example was there to rank. Means leave it out"
            rank_zero_warn(f"{name}{suffix} of {', '.join(unknown)} is nan: {why}.", category=TPAUCWarning)
        zero = [key for key, area in areas.items() if self._is_zero(f"{name}{suffix}/{key}", area, module)]
        if not zero or (told and not fits):
            return
        below = "the ROC curve passes below the rectangle"
        if metrics.keys is None:
            tpr = float(values[f"{metrics.prefix}tpr_at_max_fpr"])
            below = passes_below(tpr, module.algorithm.min_tpr, module.algorithm.max_fpr)
            if not fits and (auroc := float(values[f"{metrics.prefix}auroc"])) < 0.3:
                below += f"; AUROC {auroc:.3g} is far below chance: look which class is 1 here and in training"
        of = "" if metrics.keys is None else f" of {', '.join(zero)}"
        since = f" for {_EPOCHS} epochs" if fits else ""
        blind = ""
        if fits and not any(areas.values()):
            blind = (
                ". EarlyStopping and ModelCheckpoint can't tell such epochs apart: monitor "
                f"{metrics.prefix}tpr_at_max_fpr{suffix} or {metrics.prefix}auroc{suffix}, with mode='max'"
            )
        rank_zero_warn(f"{name}{suffix}{of} is 0{since}: {below}{blind}.", category=TPAUCWarning)

    def _is_zero(self, name: str, value: Tensor, module: ScoringModel) -> bool:
        """Whether an area is 0; in a training, in the last epochs in a row, and nobody has said so."""
        if float(value) != 0:
            self._epochs.pop(name, None)
            return False
        if module.trainer.state.fn != TrainerFn.FITTING:
            return True
        epochs = self._epochs.setdefault(name, set())
        epochs.add(module.current_epoch)
        persists = len(epochs) >= _EPOCHS and name not in self._said
        if persists:
            self._said.add(name)
        return persists
