"""Warns of areas that are 0, and of labels that have none: in every evaluation, and once in a training.

In the first epochs of a training an area of 0 is no fault. If it is 0 at the end, the line on the threshold says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torchmetrics import MetricCollection

from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.metrics.reporting import TaskMetrics, passes_below
from lightning_tpauc.scoring.scoring_module import ScoringModule

#: In a training, an area is said to be 0 after as many epochs in a row.
_EPOCHS = 3
_BELOW = "the ROC curve passes below the rectangle"


class AreaWarnings:
    """Warns of areas, and remembers which warnings a training has had.

    Attributes:
        told: whether the first data loader of this evaluation was said to have no threshold in the rectangle, which
            says as much as an area of 0.
    """

    def __init__(self) -> None:
        self.told = False
        self._said: set[str] = set()
        self._epochs: dict[str, set[int]] = {}

    def forget(self) -> None:
        """Begin a new training."""
        self._said.clear()
        self._epochs.clear()

    def look_at(
        self, module: ScoringModule, metrics: MetricCollection | TaskMetrics, values: Mapping[str, Tensor], suffix: str
    ) -> None:
        """Warn of one data loader's values."""
        told, self.told = self.told, False
        if isinstance(metrics, TaskMetrics):
            self._look_at_labels(module, metrics, values, suffix, told=told)
        elif not told:
            self._look_at_areas(module, metrics.prefix or "", values, suffix)

    def _look_at_areas(self, module: ScoringModule, prefix: str, values: Mapping[str, Tensor], suffix: str) -> None:
        """Warn if the trained rectangle's area is 0; in training also if another area that a callback monitors is."""
        fits = module.trainer.state.fn == TrainerFn.FITTING
        monitored = {getattr(callback, "monitor", None) for callback in module.trainer.callbacks}  # type: ignore[attr-defined]
        for name, value in values.items():
            trained = name == f"{prefix}tpauc"
            asked = trained or (fits and name.startswith(f"{prefix}tpauc") and f"{name}{suffix}" in monitored)
            if not asked or not (self._persists(name + suffix, value, module) if fits else float(value) == 0):
                continue
            where = _BELOW
            if trained:
                tpr = float(values[f"{prefix}tpr_at_max_fpr"])
                where = passes_below(tpr, module.algorithm.min_tpr, module.algorithm.max_fpr)
            if fits:
                where += _blind_monitor(prefix, suffix, trained=trained)
            rank_zero_warn(f"{name}{suffix} is 0{_since(fits)}: {where}.", category=TPAUCWarning)

    def _persists(self, name: str, value: Tensor | float, module: ScoringModule) -> bool:
        """Whether an area is 0 in the last epochs in a row, and nobody has said so."""
        if float(value) != 0:
            self._epochs.pop(name, None)
            return False
        epochs = self._epochs.setdefault(name, set())
        epochs.add(module.current_epoch)
        persists = len(epochs) >= _EPOCHS and name not in self._said
        if persists:
            self._said.add(name)
        return persists

    def _look_at_labels(
        self, module: ScoringModule, metrics: TaskMetrics, values: Mapping[str, Tensor], suffix: str, *, told: bool
    ) -> None:
        """Name the labels without an area, and those whose area is 0."""
        fits, name = module.trainer.state.fn == TrainerFn.FITTING, f"{metrics.prefix}tpauc"
        areas = {key: float(values[f"{name}/{key}"]) for key in metrics.keys}
        blind = _blind_monitor(metrics.prefix, suffix, trained=True) if fits and not any(areas.values()) else ""
        missing = [key for key, area in areas.items() if math.isnan(area)]
        if fits:
            missing = [key for key in missing if f"{name}{suffix} {key}" not in self._said]
            self._said.update(f"{name}{suffix} {key}" for key in missing)
        if missing:
            why = "no positive or no negative example was there to rank. Means leave it out"
            rank_zero_warn(f"{name}{suffix} of {', '.join(missing)} is nan: {why}.", category=TPAUCWarning)
        zero = [
            key
            for key, area in areas.items()
            if (self._persists(f"{name}{suffix}/{key}", area, module) if fits else area == 0 and not told)
        ]
        if zero:
            what = f"{name}{suffix} of {', '.join(zero)} is 0{_since(fits)}: {_BELOW}{blind}."
            rank_zero_warn(what, category=TPAUCWarning)


def _since(fits: bool) -> str:
    return f" for {_EPOCHS} epochs" if fits else ""


def _blind_monitor(prefix: str, suffix: str, *, trained: bool) -> str:
    also = f"{prefix}tpr_at_max_fpr{suffix} or " if trained else ""
    return (
        ". EarlyStopping and ModelCheckpoint can't tell such epochs apart: monitor "
        f"{also}{prefix}auroc{suffix}, with mode='max'"
    )
