"""What validation and test do: they measure scores."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.algorithms.base import TIGHTNESS_GRID, shrunk_rectangle
from lightning_tpauc.data.labels import check_loader
from lightning_tpauc.distributed import gather_objects
from lightning_tpauc.errors import TPAUCAdvice, warn_on_rank_zero
from lightning_tpauc.functional.roc import split_classes
from lightning_tpauc.functional.staco import objective_ratios
from lightning_tpauc.functional.surrogates import get_surrogate
from lightning_tpauc.lightning_fixes.unsupported import log_replicated
from lightning_tpauc.metrics import TwoWayPartialAUROC
from lightning_tpauc.metrics.reporting import IGNORED, Scored, better_mode, validated_areas
from lightning_tpauc.scoring.forward import ScoringModel, wants_raw_scores
from lightning_tpauc.scoring.labels import inputs_and_target, known_layout, labels_to_evaluate, rectangles_of

Stage = Literal["val", "test"]


class Collected:
    """The scores of one data loader, whose values' names end in ``suffix``."""

    def __init__(self, module: ScoringModel, loader: Any, suffix: str = "") -> None:
        count, self.suffix = len(rectangles_of(module)), suffix
        self._squashes = module.score_activation == "sigmoid" and not module.algorithm.takes_logits
        self._raw = TwoWayPartialAUROC(ignore_index=IGNORED, task="multilabel", num_labels=count).to(module.device)
        self._groups, self._ids = getattr(loader, "groups", None), list[Tensor]()

    def take(self, module: ScoringModel, batch: Any) -> None:
        """Score a batch."""
        inputs, target = inputs_and_target(batch, known_layout(module, batch), module._num_labels)
        self._raw.update(module.raw_scores(inputs).reshape(len(target), -1), target.reshape(len(target), -1))
        if self._groups is not None:
            self._ids.append(batch.example_id)

    @cached_property
    def scored(self) -> Scored:
        """What all processes have collected: a collective when it is first asked for."""
        raw, target = self._raw.gathered()
        groups: Tensor | None = None
        if self._groups is not None:
            ids = torch.cat([torch.empty(0, dtype=torch.int64), *(own.cpu() for own in self._ids)])
            groups = torch.as_tensor(self._groups)[torch.cat(gather_objects(ids))]
        return Scored(raw, target, raw.sigmoid() if self._squashes else raw, groups)


class Evaluation(Callback):
    """Scores the batches of validations and tests, and logs ``val/tpauc``, ``test/tpauc`` and the other metrics.

    A module adds this callback by itself. A ``validation_step`` or ``test_step`` of the module's class runs beside it.
    The values of the second of several data loaders are named ``val/tpauc/dataloader_idx_1``, and so on.
    """

    def __init__(self) -> None:
        #: Validates the weights that a new run starts from.
        self.start = StartValidation()

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Learn from the data which labels there are."""
        self._said = set[tuple[str, str]]()
        pl_module.trained_labels = labels_to_evaluate(pl_module, trainer, stage)
        pl_module.knows_labels = pl_module.knows_labels or stage == TrainerFn.FITTING

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        self.start.end(trainer)

    @override
    def on_predict_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        _checked_loaders(trainer.predict_dataloaders)

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        loaders = _checked_loaders(trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders)
        names = [f"/dataloader_idx_{number}" for number in range(len(loaders))] if len(loaders) > 1 else [""]
        pl_module._collected = [
            Collected(pl_module, loader if trainer.testing else None, name)
            for loader, name in zip(loaders, names, strict=True)
        ]

    # before the steps, which may take entries out of the batch
    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        with trainer.precision_plugin.forward_context():
            pl_module._collected[dataloader_idx].take(pl_module, batch)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        # every rank computes the same metrics, even if it had no batch, since gathering the scores is a collective
        stage: Stage = "test" if trainer.testing else "val"
        start = self.start.metrics if trainer.sanity_checking else None
        if trainer.sanity_checking and start is None:
            return
        rectangles, point, labels = rectangles_of(pl_module), pl_module.operating_point, pl_module.trained_labels
        thresholds = [None] * len(rectangles) if point is None else point.thresholds
        keys, surrogate = None if labels is None else labels.keys, getattr(pl_module.algorithm, "surrogate", None)
        arguments = rectangles, thresholds, keys, surrogate
        for collected in pl_module._collected:
            found = pl_module._reported.values(collected.scored, *arguments, intervals=trainer.testing)
            values = {f"{stage}/{name}{collected.suffix}": value for name, value in found.items()}
            if start is not None:
                start.update(values)
                continue
            log_replicated(pl_module, values, f"{stage}/tpauc{collected.suffix}")
            warn_of_areas(pl_module, stage, found, collected.suffix, self._said)
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self._look_at_range(pl_module, pl_module._collected[0].scored.raw)
            pl_module.training_state.held_out_ratios = _held_out_ratios(pl_module, pl_module._collected[0].scored)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        pl_module._collected = []

    def _look_at_range(self, module: ScoringModel, raw: Tensor) -> None:
        """Warn of scores that a sigmoid seems to have made, where the graph did not show one."""
        if not module._is_squashed and raw.numel() and wants_raw_scores(module.algorithm, module.score_activation):
            low, high = map(float, raw.aminmax())
            # a narrower range may be that of raw scores in a training's first steps
            if 0.0 <= low <= high - 0.5 <= 0.5 and ("range", "") not in self._said:
                self._said.add(("range", ""))
                warn_on_rank_zero(
                    f"All scores of the validation lie in [0, 1], from {low:.3g} to {high:.3g}. If the model ends in a "
                    f"sigmoid, leave it out: {type(module.algorithm).__name__} is made for raw scores.",
                    category=TPAUCAdvice,
                )

    on_test_epoch_start, on_test_batch_start = on_validation_epoch_start, on_validation_batch_start
    on_test_epoch_end, on_test_end = on_validation_epoch_end, on_validation_end


def _checked_loaders(given: Any) -> list[Any]:
    loaders = CombinedLoader(given).flattened
    for loader in loaders:
        check_loader(loader)
    return loaders


def evaluation_of(trainer: Trainer) -> Evaluation:
    """The Trainer's :class:`Evaluation`."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
    return next(callback for callback in callbacks if isinstance(callback, Evaluation))


def _held_out_ratios(module: ScoringModel, scored: Scored) -> list[list[float]]:
    """Of each label, the objective over that of a constant model at each tightness; nan where nobody reads it.

    The schedule looks at what the rectangle may still come to: it never widens.
    """
    algorithm = module.algorithm
    if module.training_state.rectangle_schedule is None:
        return []
    surrogate = getattr(algorithm, "surrogate", None) or get_surrogate("hinge")
    found = []
    each = zip(scored.columns(), rectangles_of(module), algorithm.tightness_of_tasks, strict=True)
    for (_, target, seen, _), asked, reached in each:
        first = bisect_right(TIGHTNESS_GRID, reached) - 1
        ahead = [shrunk_rectangle(*asked, tightness) for tightness in TIGHTNESS_GRID[first:]]
        found.append([math.nan] * first + objective_ratios(*split_classes(seen, target), ahead, surrogate).tolist())
    return found


# -------------------------------------------------------------------- the weights that a run starts from


class StartValidation:
    """Validates trained weights that a new run starts from, by Lightning's sanity check on all validation data.

    These weights are the first candidate for those that training leaves in the model, and every ``ModelCheckpoint``
    that follows a metric of ours saves them, too. The check does not change the run's random numbers, and other
    callbacks do not notice it: schedules and patience begin with the training as usual. Weights that were never trained
    are no candidate, and a resumed run has no such check.
    """

    def __init__(self) -> None:
        #: What the starting weights reach; ``None`` where the sanity check does not measure it.
        self.metrics: dict[str, Tensor] | None = None
        self._steps: Any = None
        self._savers: list[ModelCheckpoint] = []

    def prepare(self, trainer: Trainer, *, is_trained: bool) -> None:
        """Extend the coming sanity check to all validation data, if a callback uses the result."""
        self.metrics, savers = None, trainer.checkpoint_callbacks if is_trained else []
        self._savers = [s for s in savers if isinstance(s, ModelCheckpoint) and s.monitor and better_mode(s.monitor)]
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        if self._savers or (is_trained and any(getattr(callback, "keep_best", False) for callback in callbacks)):
            self.metrics = {}
            self._steps, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, math.inf

    def end(self, trainer: Trainer) -> None:
        """Restore the Trainer's number of sanity steps, also after an error."""
        if self._steps is not None:
            trainer.num_sanity_val_steps, self._steps = self._steps, None

    def offer(self, trainer: Trainer, keep: Callable[[float, float, int], None] | None) -> None:
        """Keep and save the starting weights, once everything that a checkpoint holds is ready.

        ``keep`` is called with ``val/tpauc``, ``val/auroc`` and the number of steps, 0; ``None`` for nobody.
        """
        self.end(trainer)
        measured, self.metrics = self.metrics or {}, None
        if keep is not None and measured:
            keep(*validated_areas(measured), 0)
        for saver in self._savers:
            if saver.monitor in measured:
                saver._save_topk_checkpoint(trainer, {**saver._monitor_candidates(trainer), **measured})


# -------------------------------------------------------------------- areas that are 0 or nan


def warn_of_areas(
    module: ScoringModel, stage: Stage, values: Mapping[str, Tensor], suffix: str, said: set[tuple[str, str]]
) -> None:
    """Warn, once in a run, of labels of one data loader that have no area, and of areas of 0 in a test.

    At the end of a training, and in a validation, the line on the threshold says that the area is 0.
    """
    labels, name = module.trained_labels, f"{stage}/tpauc{suffix}"
    areas = {"": values["tpauc"]} if labels is None else {key: values[f"tpauc/{key}"] for key in labels.keys}
    unknown = [key for key, area in areas.items() if key and area.isnan() and (name, key) not in said]
    if unknown:
        said |= {(name, key) for key in unknown}
        why = "no positive or no negative example was there to rank. Means leave it out"
        warn_on_rank_zero(f"{name} of {', '.join(unknown)} is nan: {why}.")
    zero = [key for key, area in areas.items() if area == 0]
    if not zero or stage == "val":
        return
    below, of = "the ROC curve passes below the rectangle", f" of {', '.join(zero)}"
    if labels is None:
        (min_tpr, max_fpr), of, tpr, auroc = rectangles_of(module)[0], "", values["tpr_at_max_fpr"], values["auroc"]
        below += f" (at {100 * max_fpr:g}% false alarms it finds {100 * float(tpr):.3g}% of the positives, "
        below += f"not {100 * min_tpr:g}%)"
        if auroc < 0.3:
            below += f"; AUROC {auroc:.3g} is far below chance: look which class is 1 here and in training"
    warn_on_rank_zero(f"{name}{of} is 0: {below}.")
