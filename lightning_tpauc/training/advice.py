"""Advice for a run that can't work: one line each, with the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.errors import TPAUCAdvice
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.scoring.labels import listed
from lightning_tpauc.training.trained_module import TrainedModule

#: With fewer examples of a class in the rectangle, a batch says hardly anything about it.
_FEWEST = 4
#: A share of positives that hardly anybody is content with, and of negatives that anybody can leave in peace.
_LITTLE = 0.2
#: A model whose objective is below this share of l(0) has learnt something.
_GOOD = 0.8
#: If the hardest negatives' loss is below this share of l(0), there is little left to learn.
_LEARNT = 0.25
#: A running mean has fallen to this share after some 90 steps in which no pair moved the weights.
_INACTIVE = 1e-2
#: A model whose objective is above this share of l(0) is as good as constant.
_CONSTANT = 0.98


def few_pairs(min_tpr: float, max_fpr: float, num_pos: int, num_neg: int) -> str | None:
    """Advice if the rectangle holds too few examples of a batch; ``None`` if it holds enough.

    Example:
        >>> few_pairs(0.8, 0.2, num_pos=32, num_neg=32) is None
        True
        >>> few_pairs(0.8, 0.2, num_pos=8, num_neg=32)
        'Only 1.6 of the 8 positives a step lie in the rectangle with min_tpr=0.8: raise `num_pos` to 20 or more.'
    """
    # 1 - 0.8 is 0.199999..., so counts are compared with a tolerance
    parts = (
        ("positives", "min_tpr", min_tpr, 1.0 - min_tpr, "num_pos", num_pos),
        ("negatives", "max_fpr", max_fpr, max_fpr, "num_neg", num_neg),
    )
    for kind, bound, value, share, argument, count in parts:
        if share * count < _FEWEST - 1e-9:
            return (
                f"Only {share * count:.2g} of the {count} {kind} a step lie in the rectangle with {bound}={value:g}: "
                f"raise `{argument}` to {math.ceil(_FEWEST / share - 1e-9)} or more."
            )
    return None


def little_demanded(min_tpr: float, max_fpr: float) -> str | None:
    """Advice if the rectangle is that of the bounds taken for each other; ``None`` if it may be meant.

    Args:
        min_tpr: lower bound of the rectangle's true positive rate.
        max_fpr: upper bound of the rectangle's false positive rate.

    Example:
        >>> little_demanded(0.25, 0.75) is None, little_demanded(0.0, 1.0) is None
        (True, True)
        >>> little_demanded(0.2, 0.8)[:42]
        'min_tpr=0.2 and max_fpr=0.8 demand little:'
    """
    if not (0.0 < min_tpr <= _LITTLE and 1.0 - _LITTLE <= max_fpr < 1.0):  # all of the square is the AUROC
        return None
    return (
        f"min_tpr={min_tpr:g} and max_fpr={max_fpr:g} demand little: to find {min_tpr:g} of the positives with false "
        f"alarms for {max_fpr:g} of the negatives. If {max_fpr:g} should be found, pass min_tpr={max_fpr:g} and "
        f"max_fpr={min_tpr:g}."
    )


class Adviser:
    """Warns of each topic once per run."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._lowest = math.inf

    def say(self, topic: str, message: str | None) -> None:
        """Warn with ``message``, unless it is ``None`` or there was a warning of this ``topic`` before."""
        if message is not None and topic not in self._said:
            self._said.add(topic)
            rank_zero_warn(message, category=TPAUCAdvice)

    def look_at_duals(self, diagnostics: Mapping[str, Tensor], optimum: float, constant: float) -> None:
        """Warn if no pair moves the weights any more.

        Args:
            diagnostics: the algorithm's. ``active_share`` is the share of pairs that moved the weights over the last
                steps, and ``mean_y`` is the mean dual weight of all positives; both are needed. ``loss_unit``, unless
                it is 0, is the mean loss of the hardest negatives over the last steps.
            optimum: share of pairs that move the weights at the optimum.
            constant: loss of a constant model.
        """
        if not {"mean_y", "active_share"} <= set(diagnostics):
            return
        if 0.0 < float(diagnostics.get("loss_unit", 0.0)) < _LEARNT * constant:
            return  # the training set is ranked almost without a loss, so few pairs are left to move
        if float(diagnostics["active_share"]) < _INACTIVE * optimum:
            none = float(diagnostics["mean_y"]) == 0.0
            seen = "all dual weights are 0" if none else "no pair's loss exceeds its threshold"
            self.say(
                "duals",
                f"Nothing moves the weights: {seen}. Lower `beta` and `beta_prime`, or set `step_units='loss'` and "
                "`dual_init='exact'`.",
            )

    def look_at_ratios(self, ratios: Sequence[Sequence[float]]) -> None:
        """Warn if the model has become worse than a constant one.

        Args:
            ratios: of each label, the objective of the validation's scores divided by that of a constant model. The
                first entry belongs to the unit square, the last one to the rectangle that was asked for.
        """
        known = [own[0] for own in ratios if not math.isnan(own[0])]  # nan where a class is missing
        if not known:
            return
        mean = fmean(known)
        if self._lowest < _GOOD and mean >= 1.0:
            self.say(
                "rate",
                f"The objective over all pairs rose from {self._lowest:.2f} to {mean:.2f} of that of a constant "
                "model: the learning rate is too large. Lower the optimizer's `lr`.",
            )
        self._lowest = min(self._lowest, mean)

    def look_at_the_end(
        self, ratios: Sequence[Sequence[float]], tightness: Sequence[float], names: Sequence[str] | None = None
    ) -> None:
        """Warn if the model that was trained in the rectangle is as good as constant there.

        Args:
            ratios: as in :meth:`look_at_ratios`.
            tightness: the algorithm's present ``tightness_of_tasks``.
            names: of several labels.
        """
        constant = [  # not where the rectangle holds no example: nan
            k for k, own in enumerate(ratios) if tightness[k] == 1.0 and own[-1] >= _CONSTANT
        ]
        if not constant:
            return
        what = f"{max(ratios[k][-1] for k in constant):.2f} of that of a constant model"
        of_labels = "" if names is None else f" for {listed(names[k] for k in constant)}"
        self.say(
            "constant",
            f"In the rectangle the objective is {what}{of_labels}: none that is better was in reach, and training "
            "there makes a model constant. Leave `shrink_rectangle` on, or ask for a larger rectangle.",
        )


def few_pairs_of(algorithm: Algorithm, trainer: Trainer) -> str | None:
    """:func:`few_pairs` of a PosNegDataModule's batches and the rectangle that was asked for."""
    if algorithm.tasks is not None:
        return _few_pairs_of_labels(algorithm, trainer)
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # set at run time, declared nowhere
    sizes = [getattr(datamodule, name, None) for name in ("num_pos", "num_neg")]
    if algorithm.sampling != "pos_neg" or not algorithm.can_shrink_rectangle or None in sizes:
        return None
    num_pos, num_neg = (int(size) * trainer.world_size for size in sizes if size is not None)
    return few_pairs(algorithm.min_tpr, algorithm.max_fpr, min(num_pos, algorithm.num_positives or num_pos), num_neg)


def _few_pairs_of_labels(algorithm: Algorithm, trainer: Trainer) -> str | None:
    """Advice for the label with the fewest positives of a step in its rectangle."""
    plans: Any = getattr(trainer.train_dataloader, "batch_plans", None)
    labels = getattr(trainer.lightning_module, "trained_labels", None)
    if labels is None or not hasattr(plans, "in_play") or not algorithm.can_shrink_rectangle:
        return None
    counts = plans.in_play(trainer.world_size)[1].tolist()
    shares = [1.0 - low for low, _ in algorithm.asked_rectangles]
    inside = [share * count for share, count in zip(shares, counts, strict=True)]
    worst = min(range(len(inside)), key=inside.__getitem__)
    if inside[worst] >= _FEWEST - 1e-9:
        return None
    needed = len(counts) * max(math.ceil(_FEWEST / share - 1e-9) for share in shares)
    return (
        f"Only {inside[worst]:.2g} of the {counts[worst]} positives that {labels.names[worst]!r} has in a step lie in "
        f"its rectangle with min_tpr={1.0 - shares[worst]:g}: raise `num_pos` towards {needed}."
    )


def look_at_duals(adviser: Adviser, algorithm: Algorithm, diagnostics: Mapping[str, Tensor]) -> None:
    """:meth:`Adviser.look_at_duals` of an algorithm."""
    surrogate: Surrogate | None = getattr(algorithm, "surrogate", None)
    constant = float(surrogate.value(torch.zeros(()))) if surrogate is not None else 0.0
    optima = [(1.0 - low) * high for low, high in algorithm.rectangles]  # what is logged is the mean of the tasks
    adviser.look_at_duals(diagnostics, sum(optima) / len(optima), constant)


def say_how_it_ended(adviser: Adviser, module: TrainedModule, trainer: Trainer) -> None:
    """Tell, at a training's end, which rectangle was reached and which weights the model and its checkpoint hold."""
    names = None if module.trained_labels is None else module.trained_labels.names
    adviser.look_at_the_end(module.held_out_ratios, module.algorithm.tightness_of_tasks, names)
    state, validated = module.training_state, module.operating_point is not None
    schedule, best = state.rectangle_schedule, state.best
    if schedule is not None:
        schedule.say_if_held(names)
    if not validated:
        rank_zero_info(
            "No validation gave a value: the model has the weights of the training's end, and no threshold. Pass "
            "`val_dataset` or `val_fraction`, with examples of both classes, to choose both."
        )
    elif best is not None and best.weights and best.step < state.batches_seen:
        rank_zero_info(
            f"The model holds the weights that validated best: val/tpauc {best.value[0]:.4f} after {best.step} of "
            f"{state.batches_seen} steps. StageCallback(keep_best=False) leaves the last ones."
        )
        _say_what_was_saved(trainer)


def _say_what_was_saved(trainer: Trainer) -> None:
    """Tell which weights Lightning's own ModelCheckpoint has saved: it has no ``monitor``."""
    saved = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint) and c.best_model_path]
    if saved and not any(callback.monitor for callback in saved):
        rank_zero_info(
            f"{Path(saved[0].best_model_path).name} has the weights of its own step: ModelCheckpoint("
            "monitor='val/tpauc', mode='max') saves those that validate best; so does `trainer.save_checkpoint` after "
            "`fit`."
        )
