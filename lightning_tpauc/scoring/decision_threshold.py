"""Chooses the threshold on validation scores, and reports what it does."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.errors import ArgumentError, TPAUCWarning, UnsupportedError
from lightning_tpauc.functional.calibration import Calibration, CalibrationMethod, fit_calibration
from lightning_tpauc.functional.checks import check_choice
from lightning_tpauc.functional.decision_threshold import (
    Criterion,
    Decisions,
    check_criterion,
    count_decisions,
    decision_threshold,
    exact_interval,
)
from lightning_tpauc.lightning_fixes.unsupported import log_replicated, starts_processes
from lightning_tpauc.metrics import TwoWayPartialAUROC
from lightning_tpauc.metrics.reporting import IGNORED, gathered_scores
from lightning_tpauc.scoring.forward_passes import device_batches
from lightning_tpauc.scoring.labelled_batches import inputs_and_target
from lightning_tpauc.scoring.operating_point import OperatingPoint
from lightning_tpauc.scoring.scoring_module import ScoringModule

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ("DecisionThreshold", "DefaultThreshold")


class DecisionThreshold(Callback):
    r"""Chooses on validation scores the threshold that decides, for the weights that training leaves.

    It lies in the trained rectangle where any does; see :func:`~lightning_tpauc.functional.decision_threshold`. Every
    validation chooses one anew, and logs ``val/threshold``, ``val/sensitivity_at_threshold``,
    ``val/specificity_at_threshold`` and ``val/precision_at_threshold``: on the data that it was chosen on, so somewhat
    too good. Checkpoints hold it beside the weights, and after ``Trainer.fit`` it is that of the weights that are left.

    - ``module.threshold`` is the number, also after ``load_from_checkpoint``; ``module.operating_point`` says more.
    - ``Trainer.test`` logs the same of the test data, each with the exact (Clopper-Pearson) 95% interval,
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
        if not isinstance(pl_module, ScoringModule):
            msg = f"DecisionThreshold needs the scores of a TPAUCModule, but got {type(pl_module).__name__}."
            raise UnsupportedError(msg)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        if sum(isinstance(callback, DecisionThreshold) for callback in callbacks) > 1:
            msg = "The Trainer has several DecisionThreshold: a module has one threshold. Keep one of them."
            raise UnsupportedError(msg)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose, before the module forgets the scores; of several data loaders the first one's."""
        module: ScoringModule = pl_module  # type: ignore[assignment]
        if trainer.sanity_checking and not module.trained_start.is_measured:
            return
        loaders = [(suffix, gathered_scores(metrics)) for suffix, metrics in module.loader_metrics("val")]
        if trainer.state.fn == TrainerFn.FITTING or self.renews or module.operating_point is None:
            module.operating_point = self.choose(module, *loaders[0][1])
            if trainer.state.fn != TrainerFn.FITTING:
                self.say_what_fell_short(module)
                _say_lost(trainer, module)
        if module.operating_point is not None and not trainer.sanity_checking:
            for suffix, scored in loaders:
                decisions = count_decisions(*scored, module.operating_point.threshold)
                _log(module, f"val/threshold{suffix}", decisions.threshold)
                for name, count, total in _shares(decisions):
                    _log(module, f"val/{name}{suffix}", count / total)

    @override
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report what the threshold does to each data loader's examples."""
        module: ScoringModule = pl_module  # type: ignore[assignment]
        if module.operating_point is None:
            return
        for suffix, metrics in module.loader_metrics("test"):
            decisions = count_decisions(*gathered_scores(metrics), module.operating_point.threshold)
            _log(module, f"test/threshold{suffix}", decisions.threshold)
            for name, count, total in _shares(decisions):
                lower, upper = exact_interval(count, total)
                _log(module, f"test/{name}{suffix}", count / total)
                _log(module, f"test/{name}_lower{suffix}", lower)
                _log(module, f"test/{name}_upper{suffix}", upper)

    def choose(self, module: ScoringModule, scores: Tensor, labels: Tensor) -> OperatingPoint | None:
        """The operating point of scores, the same on every rank that has the same; ``None`` if a class is missing.

        Args:
            module: whose rectangle it is for.
            scores: raw scores, tensor ``(N,)``.
            labels: 1, 0, or anything else for rows to leave out, tensor ``(N,)``.
        """
        if not bool((labels == 1).any() and (labels == 0).any()):
            return None  # which the metrics have said
        rectangle = module.algorithm.min_tpr, module.algorithm.max_fpr
        chosen = decision_threshold(scores, labels, *rectangle, self.criterion, self.cost_ratio, validate_args=False)
        if chosen is None:
            return None
        nearest = None
        if not chosen.lies_in(*rectangle):
            point = decision_threshold(scores, labels, *rectangle, "youden", validate_args=False)
            nearest = None if point is None else (point.sensitivity, 1 - point.specificity)
        calibration = self._calibrated(scores, labels)
        return OperatingPoint(chosen, self.criterion, getattr(module, "batches_seen", 0), nearest, calibration)

    def _calibrated(self, scores: Tensor, labels: Tensor) -> Calibration | None:
        if self.calibration is None:
            return None
        try:
            return fit_calibration(scores, labels, self.calibration)
        except ArgumentError as error:  # a model that has just begun may rank the wrong way round
            self._why_uncalibrated = str(error)
            return None

    def say_what_fell_short(self, module: ScoringModule) -> None:
        """Say if no threshold lies in the rectangle, with how far away the nearest is, or if nothing is calibrated."""
        point, algorithm = module.operating_point, module.algorithm
        if point is None:
            return
        if self.calibration is not None and point.calibration is None:
            rank_zero_info(f"Predictions will hold no probabilities. {self._why_uncalibrated}")
        if point.nearest is None:
            return
        tpr, fpr = point.nearest
        away = math.hypot(max(0.0, algorithm.min_tpr - tpr), max(0.0, fpr - algorithm.max_fpr))
        used = point.decisions
        rank_zero_info(
            f"No threshold lies in the rectangle TPR >= {algorithm.min_tpr:g}, FPR <= {algorithm.max_fpr:g} on the "
            f"validation data: the nearest, TPR {tpr:.3f} at FPR {fpr:.3f}, is {away:.2g} away. By {point.criterion!r} "
            f"{used.threshold:.6g} decides, TPR {used.sensitivity:.3f} at FPR {1 - used.specificity:.3f}."
        )

    @torch.no_grad()
    def choose_again(self, trainer: Trainer, module: ScoringModule) -> None:
        """Score the validation data once more, by the weights that the module holds now, and choose."""
        loader = CombinedLoader(trainer.val_dataloaders).flattened[0]
        limit = trainer.num_val_batches[0]
        metric = TwoWayPartialAUROC(ignore_index=IGNORED).to(module.device)
        modes = [(child, child.training) for child in module.modules()]
        module.eval()
        for batch in device_batches(module, islice(loader, None if math.isinf(limit) else int(limit))):
            inputs, target = inputs_and_target(batch, module.input_layout)
            metric.update(module.raw_scores(inputs), target)
        for child, training in modes:
            child.training = training
        module.operating_point = self.choose(module, *metric.gathered())


class DefaultThreshold(DecisionThreshold):
    """What a module adds by itself: ``Trainer.validate`` keeps a threshold that is there."""

    renews = False


def _say_lost(trainer: Trainer, module: ScoringModule) -> None:
    if module.operating_point is not None and starts_processes(trainer):
        rank_zero_warn(
            f"The threshold {module.operating_point.threshold:.6g} is known to the processes of this validation alone: "
            "Lightning brings nothing back from them but metrics. Validate with `Trainer(devices=1)` to keep it.",
            category=TPAUCWarning,
        )


def _shares(decisions: Decisions) -> list[tuple[str, int, int]]:
    """What is reported, as counts out of how many; a share of nothing is left out."""
    tp, fp, num_pos, num_neg = decisions[1:]
    counts = {"sensitivity": (tp, num_pos), "specificity": (num_neg - fp, num_neg), "precision": (tp, tp + fp)}
    return [(f"{name}_at_threshold", count, total) for name, (count, total) in counts.items() if total]


def _log(module: ScoringModule, name: str, value: float) -> None:
    log_replicated(module, name, torch.tensor(value, device=module.device))
