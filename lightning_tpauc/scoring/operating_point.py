"""What a model decides by: a threshold and the map from scores to probabilities, and the callback that chooses both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.distributed import starts_processes
from lightning_tpauc.errors import ArgumentError, TPAUCWarning, UnsupportedError, silent
from lightning_tpauc.functional.calibration import (
    Calibration,
    CalibrationMethod,
    calibrated_probability,
    fit_calibration,
)
from lightning_tpauc.functional.checks import check_choice
from lightning_tpauc.functional.operating_points import (
    Criterion,
    Decisions,
    check_criterion,
    decision_threshold,
)
from lightning_tpauc.metrics.reporting import Scored
from lightning_tpauc.scoring.evaluation import Collected, evaluation_of
from lightning_tpauc.scoring.forward import device_batches, evaluation_mode
from lightning_tpauc.scoring.labels import listed, rectangles_of


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
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that there is one such callback."""
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        if sum(isinstance(callback, DecisionThreshold) for callback in callbacks) > 1:
            msg = "The Trainer has several DecisionThreshold: a module has one threshold. Keep one of them."
            raise UnsupportedError(msg)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose, before the metrics that judge decisions are computed; of several data loaders the first one's."""
        module: Any = pl_module
        if trainer.sanity_checking and evaluation_of(trainer).start.metrics is None:
            return
        module.operating_point = self.choose(module, module._collected[0].scored)
        if trainer.state.fn == TrainerFn.FITTING:
            return
        self.say_what_fell_short(module)
        if module.operating_point is not None and starts_processes(trainer):
            rank_zero_warn(
                f"The threshold {module.threshold} is known to the processes of this validation alone: Lightning "
                "brings back nothing but metrics. Validate with `Trainer(devices=1)` to keep it.",
                category=TPAUCWarning,
            )

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
        each = [pair for pair in zip(point.names or ("",), point.choices, strict=True) if pair[1] is not None]
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
    rank_zero_info(
        "The threshold in the checkpoint was chosen for another rectangle than the module's: it is left out. "
        "`Trainer.validate` chooses one."
    )
    return None
