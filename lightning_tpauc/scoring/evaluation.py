"""What validation and test do: they measure scores, and validation chooses what the model decides by."""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.algorithms.base import TIGHTNESS_GRID, shrunk_rectangle
from lightning_tpauc.data.labels import check_loader
from lightning_tpauc.distributed import starts_processes
from lightning_tpauc.errors import ArgumentError, TPAUCWarning, UnsupportedError, silent
from lightning_tpauc.functional.calibration import (
    Calibration,
    CalibrationMethod,
    calibrated_probability,
    fit_calibration,
)
from lightning_tpauc.functional.checks import check_choice
from lightning_tpauc.functional.operating_points import Criterion, Decisions, check_criterion, decision_threshold
from lightning_tpauc.functional.roc import split_classes
from lightning_tpauc.functional.staco import objective_ratio
from lightning_tpauc.lightning_fixes.unsupported import log_replicated
from lightning_tpauc.metrics import TwoWayPartialAUROC
from lightning_tpauc.metrics.reporting import IGNORED, Scored, is_ours, validated_areas
from lightning_tpauc.scoring.forward import ScoringModel, device_batches, evaluation_mode
from lightning_tpauc.scoring.labels import inputs_and_target, known_layout, labels_to_evaluate, listed, rectangles_of

Stage = Literal["val", "test"]


class Collected:
    """The scores of one data loader, whose values' names end in ``suffix``."""

    def __init__(self, module: ScoringModel, suffix: str = "", *, keeps_seen: bool = False) -> None:
        count, self.suffix, self._activation = len(rectangles_of(module)), suffix, module._objective_activation
        store = TwoWayPartialAUROC(ignore_index=IGNORED, task="multilabel", num_labels=count).to(module.device)
        self._shape, self._raw = (-1, count), store
        self._seen = copy.deepcopy(store) if keeps_seen and self._activation is None else None

    def take(self, module: ScoringModel, batch: Any) -> None:
        """Score a batch."""
        inputs, target = inputs_and_target(batch, known_layout(module, batch), module._num_labels)
        target = target.reshape(self._shape)
        self._raw.update(module.raw_scores(inputs).reshape(self._shape), target)
        if self._seen is not None:
            self._seen.update(module.algorithm_scores(inputs).reshape(self._shape), target)

    @cached_property
    def scored(self) -> Scored:
        """What all processes have collected: a collective when it is first asked for."""
        raw, target = self._raw.gathered()
        seen = raw.sigmoid() if self._activation == "sigmoid" else raw
        if self._seen is not None:
            seen, _ = self._seen.gathered()
        return Scored(raw, target, seen)


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
        self._warnings = AreaWarnings()
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
        keeps_seen = pl_module._reported.objective or (pl_module.algorithm.can_shrink_rectangle and not trainer.testing)
        pl_module._collected = [Collected(pl_module, name, keeps_seen=keeps_seen) for name in names]

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
            for name, value in values.items():
                log_replicated(pl_module, name, value, prog_bar=name == f"{stage}/tpauc{collected.suffix}")
            self._warnings.look_at(pl_module, stage, found, collected.suffix)
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            pl_module.training_state.held_out_ratios = _held_out_ratios(pl_module, pl_module._collected[0].scored)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        pl_module._collected = []

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
    surrogate = getattr(algorithm, "surrogate", None) or "hinge"
    found = []
    each = zip(scored.columns(), rectangles_of(module), algorithm.tightness_of_tasks, strict=True)
    for (_, target, seen), asked, reached in each:
        pos, neg = (own.double() for own in split_classes(seen, target))
        ratios = torch.full((len(TIGHTNESS_GRID),), math.nan, dtype=torch.float64, device=pos.device)
        for k, tightness in enumerate(TIGHTNESS_GRID):
            if k >= bisect_right(TIGHTNESS_GRID, reached) - 1:
                ratios[k] = objective_ratio(pos, neg, *shrunk_rectangle(*asked, tightness), surrogate)
        found.append(ratios.tolist())
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
        self._savers = [s for s in savers if isinstance(s, ModelCheckpoint) and s.monitor and is_ours(s.monitor)]
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

#: In a training, an area is said to be 0 after as many epochs in a row; at its end, the line on the threshold says so.
_EPOCHS = 3


class AreaWarnings:
    """Warns, once in a run, of areas of 0 and of labels that have none."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()
        self._since: dict[tuple[str, str], int] = {}  # the epoch in which an area came to be 0

    def look_at(self, module: ScoringModel, stage: Stage, values: Mapping[str, Tensor], suffix: str) -> None:
        """Warn of one data loader's values."""
        labels, name, epoch = module.trained_labels, f"{stage}/tpauc{suffix}", module.current_epoch
        areas = {"": values["tpauc"]} if labels is None else {key: values[f"tpauc/{key}"] for key in labels.keys}
        if unknown := self._new(f"{name} nan", [key for key, area in areas.items() if key and area.isnan()]):
            why = "no positive or no negative example was there to rank. Means leave it out"
            rank_zero_warn(f"{name} of {', '.join(unknown)} is nan: {why}.", category=TPAUCWarning)
        if module.trainer.state.fn == TrainerFn.VALIDATING:  # the line on the threshold says so
            return
        since = {key: self._since.get((name, key), epoch) for key, area in areas.items() if area == 0}
        self._since = {of: start for of, start in self._since.items() if of[0] != name}
        self._since |= {(name, key): start for key, start in since.items()}
        wait, fits = (1, False) if stage == "test" else (_EPOCHS, True)
        zero = self._new(name, [key for key, start in since.items() if epoch - start + 1 >= wait])
        if not zero:
            return
        below, of = "the ROC curve passes below the rectangle", f" of {', '.join(zero)}"
        if labels is None:
            (min_tpr, max_fpr), of, tpr, auroc = rectangles_of(module)[0], "", values["tpr_at_max_fpr"], values["auroc"]
            below += f" (at {100 * max_fpr:g}% false alarms it finds {100 * float(tpr):.3g}% of the positives, "
            below += f"not {100 * min_tpr:g}%)"
            if not fits and auroc < 0.3:
                below += f"; AUROC {auroc:.3g} is far below chance: look which class is 1 here and in training"
        if fits and not any(areas.values()):
            others = f"val/tpr_at_max_fpr{suffix} or val/auroc{suffix}"
            below += (
                f". EarlyStopping and ModelCheckpoint can't tell such epochs apart: monitor {others}, with mode='max'"
            )
        rank_zero_warn(f"{name}{of} is 0{f' for {wait} epochs' * fits}: {below}.", category=TPAUCWarning)

    def _new(self, what: str, keys: Iterable[str]) -> list[str]:
        """Those that nobody has been told of."""
        new = [key for key in keys if (what, key) not in self._said]
        self._said |= {(what, key) for key in new}
        return new


# -------------------------------------------------------------------- what a model decides by


@dataclass(frozen=True)
class Choice:
    """What was chosen for one output of a model."""

    decisions: Decisions
    rectangle: tuple[float, float]
    calibration: Calibration | None = None
    #: How far the rates of the nearest threshold lie from the rectangle; 0 if those of one lie in it.
    missed_by: float = 0.0


@dataclass(frozen=True)
class OperatingPoint:
    """What a model decides by: the threshold of each output that validation scores gave, and what it did to them.

    Attributes:
        choices: of each output; ``None`` where a class was missing.
        criterion: by which they were chosen.
        step: how many training batches the weights had seen that gave the scores.
        cost_ratio: for ``"min_cost"``, what a missed positive costs, in false alarms.
        names: of the labels, in the order of the outputs; ``None`` for a model with one output.
        threshold: an example is called positive if its raw score is at least this. It follows from the choices; of
            several labels it is a dictionary by name, as ``decisions`` and ``calibration`` are.

    Example:
        >>> from dataclasses import asdict
        >>> choice = Choice(Decisions(0.5, tp=3, fp=1, num_pos=4, num_neg=10), rectangle=(0.5, 0.5))
        >>> point = OperatingPoint((choice,), "youden", step=7)
        >>> point.threshold, point.decide(torch.tensor([0.4, 0.5, torch.nan]))
        (0.5, {'decision': tensor([ 0,  1, -1])})
        >>> points = OperatingPoint((choice, None), "youden", step=7, names=("liver", "lung"))
        >>> points.threshold
        {'liver': 0.5, 'lung': None}
        >>> OperatingPoint.from_dict(asdict(points)) == points
        True
    """

    choices: tuple[Choice | None, ...]
    criterion: Criterion
    step: int
    cost_ratio: float = 1.0
    names: tuple[str, ...] | None = None
    threshold: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", self._by_name(self.thresholds))

    @property
    def thresholds(self) -> list[float | None]:
        """The threshold of each output."""
        return [None if choice is None else choice.decisions.threshold for choice in self.choices]

    @property
    def decisions(self) -> Any:
        """The threshold and the counts at it on validation data."""
        return self._by_name([None if choice is None else choice.decisions for choice in self.choices])

    @property
    def calibration(self) -> Any:
        """The map to probabilities, or ``None``."""
        return self._by_name([None if choice is None else choice.calibration for choice in self.choices])

    @property
    def calibration_method(self) -> CalibrationMethod | None:
        """How the scores of any output become probabilities."""
        return next((c.calibration.method for c in self.choices if c is not None and c.calibration is not None), None)

    def _by_name(self, values: list[Any]) -> Any:
        return values[0] if self.names is None else dict(zip(self.names, values, strict=True))

    def is_for(self, rectangles: Sequence[tuple[float, float]]) -> bool:
        """Whether every threshold was chosen for the rectangle of its output."""
        if len(self.choices) != len(rectangles):
            return False
        pairs = zip(self.choices, rectangles, strict=True)
        return all(choice is None or choice.rectangle == tuple(rectangle) for choice, rectangle in pairs)

    def decide(self, scores: Tensor) -> dict[str, Tensor]:
        """``decision``, int64: 1 for positive, 0 for negative, -1 where there is no score or no threshold.

        Before it ``probability``, float64, if any output is calibrated; nan where there is none.

        Args:
            scores: raw scores, tensor ``(N,)``, or ``(N, K)`` of several labels.
        """
        if scores.device.type == "mps":  # Apple's GPUs know no float64
            scores = scores.cpu()
        # in float64: the threshold lies between two scores, which float32 may not tell from it
        columns = scores.detach().double().reshape(-1, len(self.choices))
        decision, probability = torch.full_like(columns, -1.0), torch.full_like(columns, math.nan)
        for k, choice in enumerate(self.choices):
            if choice is not None:
                reached = (columns[:, k] >= choice.decisions.threshold).double()
                decision[:, k] = reached.masked_fill(columns[:, k].isnan(), -1.0)
                if choice.calibration is not None:
                    probability[:, k] = calibrated_probability(columns[:, k], choice.calibration)
        known = {} if self.calibration_method is None else {"probability": probability.reshape(scores.shape)}
        return {**known, "decision": decision.long().reshape(scores.shape)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> OperatingPoint:
        """What :func:`dataclasses.asdict` was applied to, also after a checkpoint has made tuples of its parts."""

        def choice(of: Mapping[str, Any]) -> Choice:
            calibration = None if of["calibration"] is None else Calibration(*of["calibration"])
            return Choice(Decisions(*of["decisions"]), of["rectangle"], calibration, of["missed_by"])

        choices = tuple(None if each is None else choice(each) for each in state["choices"])
        return cls(choices, **{name: state[name] for name in ("criterion", "step", "cost_ratio", "names")})


class DecisionThreshold(Callback):
    r"""Chooses on validation scores the threshold that decides, for the weights that training leaves.

    It lies in the trained rectangle where any does; see :func:`~lightning_tpauc.functional.decision_threshold`. Every
    validation chooses one anew for the weights and the rectangle that the module has, and logs ``val/threshold``,
    ``val/sensitivity_at_threshold``, ``val/specificity_at_threshold`` and ``val/precision_at_threshold``. These values
    are somewhat too good, since the threshold was chosen on the same data. Checkpoints hold the threshold beside the
    weights that it was chosen for. After ``Trainer.fit`` it is that of the weights that the module holds.

    - ``module.threshold`` is the number, also after ``load_from_checkpoint``; ``module.operating_point`` says more.
    - ``Trainer.test`` logs the same for the test data, each with the exact (Clopper-Pearson) 95% interval,
      ``test/sensitivity_at_threshold_lower`` and ``_upper``.
    - ``Trainer.predict`` returns ``decision``, and ``probability`` if it is calibrated, beside ``score``;
      :class:`~lightning_tpauc.PredictionWriter` writes them. An example whose score is nan has the decision -1.

    The module adds this callback with its defaults if the Trainer has none; ``Trainer.validate`` then chooses as the
    module's threshold was chosen before. Pass your own to choose by something else, also for a model that is trained
    already: ``Trainer(callbacks=[DecisionThreshold("youden")]).validate(module, data)``. A validation whose data lack a
    class leaves a threshold alone that was chosen for these weights and this rectangle.

    Args:
        criterion: ``"max_sensitivity"`` at a false positive rate of at most ``max_fpr``, ``"max_specificity"`` at a
            true positive rate of at least ``min_tpr``, ``"youden"`` (the largest sum of both) or ``"min_cost"``.
        cost_ratio: for ``"min_cost"``, what a missed positive costs, in false alarms, at the share of positives that
            the validation data have.
        calibration: how scores become probabilities, which hold at that share, too: ``"isotonic"``, ``"sigmoid"``
            (Platt) or ``None``. Neither changes a decision.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_tpauc import DigitsDataModule, TPAUCModule
        >>> quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
        >>> quiet["enable_model_summary"] = False
        >>> choose = DecisionThreshold("max_specificity", calibration="sigmoid")
        >>> trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, callbacks=[choose], **quiet)
        >>> module = TPAUCModule(torch.nn.Linear(64, 1))
        >>> trainer.fit(module, DigitsDataModule(val_fraction=0.2))
        >>> module.operating_point.decisions.sensitivity >= module.algorithm.min_tpr
        True
        >>> sorted(trainer.predict(module, DigitsDataModule(val_fraction=0.2))[0])
        ['decision', 'example_id', 'probability', 'score']
    """

    def __init__(
        self,
        criterion: Criterion = "max_sensitivity",
        cost_ratio: float = 1.0,
        calibration: CalibrationMethod | None = None,
    ) -> None:
        check_criterion(criterion, cost_ratio)
        if calibration is not None:
            check_choice(calibration, "calibration", ("isotonic", "sigmoid"))
        self.criterion, self.cost_ratio, self.calibration = criterion, float(cost_ratio), calibration
        self._why_uncalibrated = ""

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Check that there is one such callback."""
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        if sum(isinstance(callback, DecisionThreshold) for callback in callbacks) > 1:
            msg = "The Trainer has several DecisionThreshold: a module has one threshold. Keep one of them."
            raise UnsupportedError(msg)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Choose, before the metrics that judge decisions are computed; of several data loaders the first one's."""
        if trainer.sanity_checking and evaluation_of(trainer).start.metrics is None:
            return
        pl_module.operating_point = self.choose(pl_module, pl_module._collected[0].scored)
        if trainer.state.fn == TrainerFn.FITTING:
            return
        self.say_what_fell_short(pl_module)
        if pl_module.operating_point is not None and starts_processes(trainer):
            text = f"The threshold {pl_module.threshold} is known to the processes of this validation alone"
            rank_zero_warn(f"{text}. Validate with `Trainer(devices=1)` to keep it.", category=TPAUCWarning)

    def choose(self, module: Any, scored: Scored) -> OperatingPoint | None:
        """The operating point of scores, the same on every rank that has the same; ``None`` if no label has one."""
        labels, rectangles, step = module.trained_labels, rectangles_of(module), module.training_state.weights_step
        columns = zip(scored.columns(), rectangles, strict=True)
        choices = tuple(self._choice(own.raw, own.target, rectangle) for own, rectangle in columns)
        if any(choices):
            names = None if labels is None else labels.names
            return OperatingPoint(choices, self.criterion, step, self.cost_ratio, names)
        before: OperatingPoint | None = module.operating_point
        return before if before is not None and before.step == step and before.is_for(rectangles) else None

    def _choice(self, scores: Tensor, labels: Tensor, rectangle: tuple[float, float]) -> Choice | None:
        choose = partial(decision_threshold, scores, labels, *rectangle, validate_args=False)
        with silent():  # the metrics warn of a missing class
            chosen = choose(self.criterion, self.cost_ratio)
        if chosen is None:
            return None
        (min_tpr, max_fpr), calibration, missed_by = rectangle, None, 0.0
        if not chosen.lies_in(min_tpr, max_fpr) and (nearest := choose("youden")) is not None:
            missed_by = math.hypot(max(0, min_tpr - nearest.sensitivity), max(0, 1 - nearest.specificity - max_fpr))
        if self.calibration is not None:
            try:
                calibration = fit_calibration(scores, labels, self.calibration)
            except ArgumentError as error:  # a model that has just begun may rank the wrong way round
                self._why_uncalibrated = str(error)
        return Choice(chosen, rectangle, calibration, missed_by)

    def say_what_fell_short(self, module: Any) -> None:
        """Say if no threshold lies in the rectangle, with how far away the nearest is, or if nothing is calibrated."""
        point: OperatingPoint | None = module.operating_point
        if point is None:
            return
        each = [(name, one) for name, one in zip(point.names or ("",), point.choices, strict=True) if one is not None]
        plain, away = [name for name, choice in each if choice.calibration is None], []
        if self.calibration is not None and plain:
            of_labels = f" of {listed(plain)}" if point.names else ""
            rank_zero_info(f"Predictions will hold no probabilities{of_labels}. {self._why_uncalibrated}")
        for name, choice in each:
            (min_tpr, max_fpr), used = choice.rectangle, choice.decisions
            if choice.missed_by:
                away.append(
                    f"{name}{': ' if name else ''}TPR >= {min_tpr:g}, FPR <= {max_fpr:g} is missed by "
                    f"{choice.missed_by:.2g}, and {used.threshold:.6g} decides, TPR {used.sensitivity:.3f} at FPR "
                    f"{1 - used.specificity:.3f}"
                )
        if away:
            of_labels = f" of {len(away)} of {len(point.choices)} labels" if point.names else ""
            rank_zero_info(f"No threshold lies in the rectangle{of_labels} on the validation data: {listed(away)}.")

    def choose_again(self, trainer: Trainer, module: Any) -> None:
        """Score the validation data once more, by the weights that the module holds now, and choose."""
        loader = CombinedLoader(trainer.val_dataloaders).flattened[0]
        limit = None if math.isinf(trainer.num_val_batches[0]) else int(trainer.num_val_batches[0])
        collected = Collected(module)
        with evaluation_mode(module):
            for batch in device_batches(module, islice(loader, limit), "Choosing the threshold", limit):
                collected.take(module, batch)
        module.operating_point = self.choose(module, collected.scored)


class DefaultThreshold(DecisionThreshold):
    """What a module adds by itself: outside of training it chooses as the module's threshold was chosen before."""

    @override
    def choose(self, module: Any, scored: Scored) -> OperatingPoint | None:
        before: OperatingPoint | None = module.operating_point
        if before is not None and module.trainer.state.fn != TrainerFn.FITTING:
            self.criterion, self.cost_ratio = before.criterion, before.cost_ratio
            self.calibration = before.calibration_method
        return super().choose(module, scored)


def recorded_point(module: Any, state: Mapping[str, Any] | None) -> OperatingPoint | None:
    """The point that a checkpoint holds, if it was chosen for the module's rectangles; else a line says what to do."""
    point = None if state is None else OperatingPoint.from_dict(state)
    if point is None or point.is_for(rectangles_of(module)):
        return point
    rank_zero_info("The checkpoint's threshold is of another rectangle: left out. `Trainer.validate` chooses one.")
    return None
