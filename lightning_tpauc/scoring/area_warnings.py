"""Warns of areas that are 0, and of labels that have none: in every evaluation, and once in a training."""

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

_BELOW = "the ROC curve passes below the rectangle"


class AreaWarnings:
    """Warns of areas, and remembers which warnings a training has had."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def forget(self) -> None:
        """Begin a new training."""
        self._said.clear()

    def look_at(
        self, module: ScoringModule, metrics: MetricCollection | TaskMetrics, values: Mapping[str, Tensor], suffix: str
    ) -> None:
        """Warn of one data loader's values."""
        if isinstance(metrics, TaskMetrics):
            self._look_at_labels(module, metrics, values, suffix)
        else:
            self._look_at_areas(module, metrics.prefix or "", values, suffix)

    def _look_at_areas(self, module: ScoringModule, prefix: str, values: Mapping[str, Tensor], suffix: str) -> None:
        """Warn if the trained rectangle's area is 0; in training also if another area that a callback monitors is."""
        fits = module.trainer.state.fn == TrainerFn.FITTING
        monitored = {getattr(callback, "monitor", None) for callback in module.trainer.callbacks}  # type: ignore[attr-defined]
        for name, value in values.items():
            trained = name == f"{prefix}tpauc"
            asked = trained or (fits and name.startswith(f"{prefix}tpauc") and f"{name}{suffix}" in monitored)
            if not asked or float(value) != 0 or (fits and name in self._said):
                continue
            where = _BELOW
            if trained:
                tpr = float(values[f"{prefix}tpr_at_max_fpr"])
                where = passes_below(tpr, module.algorithm.min_tpr, module.algorithm.max_fpr)
            if fits:
                self._said.add(name)
                where += _blind_monitor(prefix, suffix, trained=trained)
            rank_zero_warn(f"{name}{suffix} is 0: {where}.", category=TPAUCWarning)

    def _look_at_labels(
        self, module: ScoringModule, metrics: TaskMetrics, values: Mapping[str, Tensor], suffix: str
    ) -> None:
        """Name the labels without an area, and those whose area is 0."""
        fits, name = module.trainer.state.fn == TrainerFn.FITTING, f"{metrics.prefix}tpauc"
        areas = {key: float(values[f"{name}/{key}"]) for key in metrics.keys}
        blind = _blind_monitor(metrics.prefix, suffix, trained=True) if fits and not any(areas.values()) else ""
        for kind, why in (
            ("nan", "no positive or no negative example was there to rank. Means leave it out"),
            ("0", _BELOW + blind),
        ):
            found = [key for key, area in areas.items() if (math.isnan(area) if kind == "nan" else area == 0)]
            new = [key for key in found if not fits or f"{name}{suffix} {key} {kind}" not in self._said]
            if fits:
                self._said.update(f"{name}{suffix} {key} {kind}" for key in new)
            if new:
                rank_zero_warn(f"{name}{suffix} of {', '.join(new)} is {kind}: {why}.", category=TPAUCWarning)


def _blind_monitor(prefix: str, suffix: str, *, trained: bool) -> str:
    also = f"{prefix}tpr_at_max_fpr{suffix} or " if trained else ""
    return (
        ". EarlyStopping and ModelCheckpoint can't tell such epochs apart: monitor "
        f"{also}{prefix}auroc{suffix}, with mode='max'"
    )
