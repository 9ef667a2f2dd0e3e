"""What a model decides by: a threshold and the map from scores to probabilities, and the callback that chooses both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.errors import ArgumentError, TPAUCWarning, UnsupportedError
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
    count_decisions,
    decision_threshold,
    exact_interval,
)
from lightning_tpauc.lightning_fixes.unsupported import log_replicated, starts_processes
from lightning_tpauc.metrics import TwoWayPartialAUROC
from lightning_tpauc.metrics.base import scores_of_each
from lightning_tpauc.metrics.reporting import IGNORED
from lightning_tpauc.scoring.evaluation import evaluation_of
from lightning_tpauc.scoring.forward import device_batches
from lightning_tpauc.scoring.labels import listed


@dataclass(frozen=True)
class OperatingPoint:
    """The threshold that validation scores gave, and what it did to them.

    Attributes:
        decisions: the threshold, and the counts at it on validation data.
        criterion: by which it was chosen.
        step: how many training batches the weights had seen that gave the scores.
        nearest: true and false positive rate of the threshold nearest to the rectangle; ``None`` if one lies in it.
        calibration: the map to probabilities, if it was asked for.

    Example:
        >>> import torch
        >>> point = OperatingPoint(Decisions(0.5, tp=3, fp=1, num_pos=4, num_neg=10), "youden", step=7)
        >>> point.decide(torch.tensor([0.4, 0.5]))
        {'decision': tensor([0, 1])}
        >>> OperatingPoint.from_state_dict(point.state_dict()) == point
        True
    """

    decisions: Decisions
    criterion: str
    step: int
    nearest: tuple[float, float] | None = None
    calibration: Calibration | None = None

    @property
    def threshold(self) -> float:
        """The threshold: an example is called positive if its raw score is at least this."""
        return self.decisions.threshold

    def decide(self, scores: Tensor) -> dict[str, Tensor]:
        """``decision``, int64: 1 for positive, 0 for negative; before it ``probability``, float64, if calibrated.

        Args:
            scores: raw scores, tensor ``(N,)``.
        """
        if scores.device.type == "mps":  # Apple's GPUs know no float64
            scores = scores.cpu()
        # in float64: the threshold lies between two scores, which float32 may not tell from it
        decision = (scores.detach().double() >= self.threshold).long()
        if self.calibration is None:
            return {"decision": decision}
        return {"probability": calibrated_probability(scores, self.calibration), "decision": decision}

    def state_dict(self) -> dict[str, Any]:
        """Numbers, text and tensors."""
        calibration = None if self.calibration is None else self.calibration._asdict()
        return {
            **self.decisions._asdict(),
            "criterion": self.criterion,
            "step": self.step,
            "nearest": None if self.nearest is None else list(self.nearest),
            "calibration": calibration,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> OperatingPoint:
        """What :meth:`state_dict` was made of."""
        nearest, calibration = state["nearest"], state["calibration"]
        return cls(
            Decisions(*(state[name] for name in Decisions._fields)),
            state["criterion"],
            state["step"],
            None if nearest is None else (nearest[0], nearest[1]),
            None if calibration is None else Calibration(**calibration),
        )


@dataclass(frozen=True)
class OperatingPoints:
    """What a model with several outputs decides by.

    Attributes:
        points: of each label by its name, in the order of the outputs; ``None`` where a class was missing.

    Example:
        >>> import torch
        >>> liver = OperatingPoint(Decisions(0.5, tp=3, fp=1, num_pos=4, num_neg=10), "youden", step=7)
        >>> points = OperatingPoints({"liver": liver, "lung": None})
        >>> points.threshold
        {'liver': 0.5, 'lung': None}
        >>> points.decide(torch.tensor([[0.4, 2.0], [0.5, 1.0]]))["decision"]
        tensor([[ 0, -1],
                [ 1, -1]])
    """

    points: Mapping[str, OperatingPoint | None]

    @property
    def threshold(self) -> dict[str, float | None]:
        """The threshold of each label."""
        return {name: None if point is None else point.threshold for name, point in self.points.items()}

    @property
    def step(self) -> int:
        """How many training batches the weights had seen that gave the scores."""
        return max((point.step for point in self.points.values() if point is not None), default=0)

    def decide(self, scores: Tensor) -> dict[str, Tensor]:
        """``decision``, int64, and ``probability``, if any label is calibrated; -1 and nan where a label has none.

        Args:
            scores: raw scores, tensor ``(N, K)``.
        """
        columns = zip(self.points.values(), scores.unbind(1), strict=True)
        each = [{} if point is None else point.decide(column) for point, column in columns]
        none = {"probability": torch.full((len(scores),), torch.nan, dtype=torch.float64)}
        none["decision"] = torch.full((len(scores),), -1)
        there = [name for name in none if any(name in own for own in each)]
        device = next((own["decision"].device for own in each if own), scores.device)
        return {name: torch.stack([own.get(name, none[name].to(device)) for own in each], 1) for name in there}

    def state_dict(self) -> dict[str, Any]:
        """Numbers, text and tensors."""
        return {"labels": {n: None if point is None else point.state_dict() for n, point in self.points.items()}}


def restored_point(state: dict[str, Any]) -> OperatingPoint | OperatingPoints:
    """What the ``state_dict`` of either was made of.

    Example:
        >>> restored_point(OperatingPoints({"lung": None}).state_dict())
        OperatingPoints(points={'lung': None})
    """
    if "labels" not in state:
        return OperatingPoint.from_state_dict(state)
    own = {n: None if point is None else OperatingPoint.from_state_dict(point) for n, point in state["labels"].items()}
    return OperatingPoints(own)


class DecisionThreshold(Callback):
    r"""Chooses on validation scores the threshold that decides, for the weights that training leaves.

    It lies in the trained rectangle where any does; see :func:`~lightning_tpauc.functional.decision_threshold`. Every
    validation chooses one anew, and logs ``val/threshold``, ``val/sensitivity_at_threshold``,
    ``val/specificity_at_threshold`` and ``val/precision_at_threshold``. These values are somewhat too good, since the
    threshold was chosen on the same data. Checkpoints hold the threshold beside the weights. After ``Trainer.fit`` it
    is that of the weights that the model holds.

    - ``module.threshold`` is the number, also after ``load_from_checkpoint``; ``module.operating_point`` says more.
    - ``Trainer.test`` logs the same for the test data, each with the exact (Clopper-Pearson) 95% interval,
      ``test/sensitivity_at_threshold_lower`` and ``_upper``.
    - ``Trainer.predict`` returns ``decision``, and ``probability`` if it is calibrated, beside ``score``;
      :class:`~lightning_tpauc.PredictionWriter` writes them.

    The module adds this callback with its defaults if the Trainer has none; ``Trainer.validate`` then keeps a threshold
    that the module has. Pass your own to choose by something else, also for a model that is trained already:
    ``Trainer(callbacks=[DecisionThreshold("youden")]).validate(module, data)``.

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

    #: Whether ``Trainer.validate`` chooses anew where the module has a threshold.
    renews = True

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
        """Check that the module is one of ours, and that there is one such callback."""
        if not hasattr(pl_module, "operating_point"):
            msg = f"DecisionThreshold needs the scores of a TPAUCModule, but got {type(pl_module).__name__}."
            raise UnsupportedError(msg)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        if sum(isinstance(callback, DecisionThreshold) for callback in callbacks) > 1:
            msg = "The Trainer has several DecisionThreshold: a module has one threshold. Keep one of them."
            raise UnsupportedError(msg)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose, before the module forgets the scores; of several data loaders the first one's."""
        module: Any = pl_module
        evaluation = evaluation_of(trainer)
        if trainer.sanity_checking and not evaluation.start.is_measured:
            return
        loaders = [(suffix, scores_of_each(metrics)) for suffix, metrics in evaluation.of_loaders(module, "val")]
        if trainer.state.fn == TrainerFn.FITTING or self.renews or module.operating_point is None:
            module.operating_point = self.choose_each(module, loaders[0][1])
            if trainer.state.fn != TrainerFn.FITTING:
                evaluation.warnings.told = self.say_what_fell_short(module)
                _say_lost(trainer, module)
        if module.operating_point is not None and not trainer.sanity_checking:
            for suffix, scored in loaders:
                for label, decisions in _decisions(module, scored):
                    _log(module, f"val/threshold{label}{suffix}", decisions.threshold)
                    for name, count, total in _shares(decisions):
                        _log(module, f"val/{name}{label}{suffix}", count / total)

    @override
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report what the threshold does to each data loader's examples."""
        module: Any = pl_module
        if module.operating_point is None:
            return
        for suffix, metrics in evaluation_of(trainer).of_loaders(module, "test"):
            for label, decisions in _decisions(module, scores_of_each(metrics)):
                _log(module, f"test/threshold{label}{suffix}", decisions.threshold)
                for name, count, total in _shares(decisions):
                    lower, upper = exact_interval(count, total)
                    _log(module, f"test/{name}{label}{suffix}", count / total)
                    _log(module, f"test/{name}_lower{label}{suffix}", lower)
                    _log(module, f"test/{name}_upper{label}{suffix}", upper)

    def choose_each(
        self, module: Any, scored: Sequence[tuple[Tensor, Tensor]]
    ) -> OperatingPoint | OperatingPoints | None:
        """The operating point of one label's scores, or the points of several; ``None`` where there is none."""
        labels = module.trained_labels
        if labels is None:
            return self.choose(module, *scored[0])
        rectangles = labels.rectangles(module.algorithm)
        each = [self.choose(module, *own, rectangle) for own, rectangle in zip(scored, rectangles, strict=True)]
        return OperatingPoints(dict(zip(labels.names, each, strict=True))) if any(each) else None

    def choose(
        self, module: Any, scores: Tensor, labels: Tensor, rectangle: tuple[float, float] | None = None
    ) -> OperatingPoint | None:
        """The operating point of scores, the same on every rank that has the same; ``None`` if a class is missing.

        Args:
            module: whose rectangle it is for.
            scores: raw scores, tensor ``(N,)``.
            labels: 1, 0, or anything else for rows to leave out, tensor ``(N,)``.
            rectangle: ``(min_tpr, max_fpr)`` where it is not that of the module's algorithm.
        """
        if not bool((labels == 1).any() and (labels == 0).any()):
            return None  # the metrics have warned of that
        rectangle = rectangle or (module.algorithm.min_tpr, module.algorithm.max_fpr)
        chosen = decision_threshold(scores, labels, *rectangle, self.criterion, self.cost_ratio, validate_args=False)
        if chosen is None:
            return None
        nearest = None
        if not chosen.lies_in(*rectangle):
            point = decision_threshold(scores, labels, *rectangle, "youden", validate_args=False)
            nearest = None if point is None else (point.sensitivity, 1 - point.specificity)
        calibration = self._calibrated(scores, labels)
        return OperatingPoint(chosen, self.criterion, module.training_state.weights_step, nearest, calibration)

    def _calibrated(self, scores: Tensor, labels: Tensor) -> Calibration | None:
        if self.calibration is None:
            return None
        try:
            return fit_calibration(scores, labels, self.calibration)
        except ArgumentError as error:  # a model that has just begun may rank the wrong way round
            self._why_uncalibrated = str(error)
            return None

    def say_what_fell_short(self, module: Any) -> bool:
        """Say if no threshold lies in the rectangle, with how far away the nearest is, or if nothing is calibrated.

        Returns:
            Whether a rectangle was said to hold no threshold.
        """
        found, labels, algorithm = module.operating_point, module.trained_labels, module.algorithm
        if isinstance(found, OperatingPoint):
            return self._say_of(found, (algorithm.min_tpr, algorithm.max_fpr))
        if found is not None and labels is not None:
            return self._say_of_labels(found, labels.rectangles(algorithm))
        return False

    def _say_of(self, point: OperatingPoint, rectangle: tuple[float, float]) -> bool:
        if self.calibration is not None and point.calibration is None:
            rank_zero_info(f"Predictions will hold no probabilities. {self._why_uncalibrated}")
        if point.nearest is None:
            return False
        (tpr, fpr), (min_tpr, max_fpr), used = point.nearest, rectangle, point.decisions
        rank_zero_info(
            f"No threshold lies in the rectangle TPR >= {min_tpr:g}, FPR <= {max_fpr:g} on the validation data: the "
            f"nearest, TPR {tpr:.3f} at FPR {fpr:.3f}, is {_distance(point.nearest, rectangle):.2g} away. By "
            f"{point.criterion!r} {used.threshold:.6g} decides, TPR {used.sensitivity:.3f} at FPR "
            f"{1 - used.specificity:.3f}."
        )
        return True

    def _say_of_labels(self, found: OperatingPoints, rectangles: Sequence[tuple[float, float]]) -> bool:
        """One line of all labels, not one of each."""
        each = [
            (name, point, own) for (name, point), own in zip(found.points.items(), rectangles, strict=True) if point
        ]
        plain = [name for name, point, _ in each if point.calibration is None]
        if self.calibration is not None and plain:
            rank_zero_info(f"Predictions will hold no probabilities of {listed(plain)}. {self._why_uncalibrated}")
        away = [f"{n} by {_distance(point.nearest, own):.2g}" for n, point, own in each if point.nearest is not None]
        if away:
            rank_zero_info(
                f"No threshold lies in the rectangle of {len(away)} of {len(found.points)} labels on the validation "
                f"data. The nearest thresholds miss it: {listed(away)}. `module.operating_point.points` says what "
                "each label's threshold does."
            )
        return bool(away)

    @torch.no_grad()
    def choose_again(self, trainer: Trainer, module: Any) -> None:
        """Score the validation data once more, by the weights that the module holds now, and choose."""
        loader = CombinedLoader(trainer.val_dataloaders).flattened[0]
        limit = None if math.isinf(trainer.num_val_batches[0]) else int(trainer.num_val_batches[0])
        from lightning_tpauc.scoring.labelled_data import inputs_and_target  # it imports the module that has this point

        several = module.trained_labels is not None
        metrics = [TwoWayPartialAUROC(ignore_index=IGNORED).to(module.device) for _ in range(module._num_labels or 1)]
        modes = [(child, child.training) for child in module.modules()]
        module.eval()
        for batch in device_batches(module, islice(loader, limit), "Choosing the threshold", limit):
            inputs, target = inputs_and_target(batch, module.input_layout, module._num_labels)
            scores = module.raw_scores(inputs)
            columns = zip(scores.unbind(1), target.unbind(1), strict=True) if several else [(scores, target)]
            for metric, column in zip(metrics, columns, strict=True):
                metric.update(*column)
        for child, training in modes:
            child.training = training
        module.operating_point = self.choose_each(module, [metric.gathered() for metric in metrics])


class DefaultThreshold(DecisionThreshold):
    """The callback that a module adds by itself; with it ``Trainer.validate`` keeps a threshold that the module has."""

    renews = False


def _distance(rates: tuple[float, float], rectangle: tuple[float, float]) -> float:
    """How far true and false positive rate lie outside the rectangle."""
    (tpr, fpr), (min_tpr, max_fpr) = rates, rectangle
    return math.hypot(max(0.0, min_tpr - tpr), max(0.0, fpr - max_fpr))


def _say_lost(trainer: Trainer, module: Any) -> None:
    found = module.operating_point
    if found is not None and starts_processes(trainer):
        what = f"threshold {found.threshold:.6g}" if isinstance(found, OperatingPoint) else "threshold of each label"
        rank_zero_warn(
            f"The {what} is known to the processes of this validation alone: "
            "Lightning brings nothing back from them but metrics. Validate with `Trainer(devices=1)` to keep it.",
            category=TPAUCWarning,
        )


def _decisions(module: Any, scored: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[str, Decisions]]:
    """For each label that has a threshold: the end of its metrics' names, and what the threshold does to its scores."""
    found, labels = module.operating_point, module.trained_labels
    if isinstance(found, OperatingPoint):
        return [("", count_decisions(*scored[0], found.threshold))]
    if found is None or labels is None:
        return []
    each = zip(labels.keys, found.points.values(), scored, strict=True)
    return [(f"/{key}", count_decisions(*own, point.threshold)) for key, point, own in each if point is not None]


def _shares(decisions: Decisions) -> list[tuple[str, int, int]]:
    """Name, count and total of each share to report; a share of nothing is left out."""
    tp, fp, num_pos, num_neg = decisions[1:]
    counts = {"sensitivity": (tp, num_pos), "specificity": (num_neg - fp, num_neg), "precision": (tp, tp + fp)}
    return [(f"{name}_at_threshold", count, total) for name, (count, total) in counts.items() if total]


def _log(module: Any, name: str, value: float) -> None:
    log_replicated(module, name, torch.tensor(value, device=module.device))
