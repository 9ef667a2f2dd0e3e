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
from lightning_tpauc.algorithms.tasks import count_in_loss
from lightning_tpauc.data.core.sampler import PosNegSampler
from lightning_tpauc.errors import TPAUCAdvice
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.scoring.labels import listed
from lightning_tpauc.training.trained_module import TrainedModule

#: With fewer examples of a class in the rectangle, a batch is too small a sample of it.
_FEWEST = 4
#: With ``min_tpr`` at most this, and ``max_fpr`` at least one minus this, the bounds have probably been swapped.
_LITTLE = 0.2
#: A model whose objective is below this share of l(0) has learnt something.
_GOOD = 0.8
#: If the hardest negatives' loss is below this share of l(0), there is little left to learn.
_LEARNT = 0.25
#: The running mean of active pairs has fallen to this share after some 90 steps in which no pair moved the weights.
_INACTIVE = 1e-2
#: A model whose objective is above this share of l(0) is as good as constant.
_CONSTANT = 0.98
#: Training batches have so large a loss, in units of l(0), only where steps are too long for the inputs.
_EXPLODED = 3.0


def few_pairs(
    min_tpr: float,
    max_fpr: float,
    num_pos: int,
    num_neg: int,
    most_pos: int | None = None,
    most_neg: int | None = None,
) -> str | None:
    """Advice if the rectangle holds too few examples of a batch; ``None`` if it holds enough.

    Args:
        min_tpr: lower bound of the rectangle's true positive rate.
        max_fpr: upper bound of the rectangle's false positive rate.
        num_pos: positives per step, over all ranks.
        num_neg: negatives per step, over all ranks.
        most_pos: how many positives a step could have, since the training set has no more; ``None`` if unknown.
        most_neg: the same for negatives.

    Example:
        >>> few_pairs(0.8, 0.2, num_pos=32, num_neg=32) is None
        True
        >>> few_pairs(0.8, 0.2, num_pos=8, num_neg=32)
        'Only 1.6 of the 8 positives a step lie in the rectangle with min_tpr=0.8: raise `num_pos` to 20 or more.'
        >>> few_pairs(0.9, 0.2, num_pos=16, num_neg=32, most_pos=16).partition(": ")[2]
        'lower `min_tpr` to 0.75 or less, or train on more positives.'
    """
    # 1 - 0.8 is 0.199999..., so counts are compared with a tolerance
    parts = (
        ("positives", f"min_tpr={min_tpr:g}", 1.0 - min_tpr, "num_pos", num_pos, most_pos),
        ("negatives", f"max_fpr={max_fpr:g}", max_fpr, "num_neg", num_neg, most_neg),
    )
    for kind, bound, share, argument, count, most in parts:
        needed = math.ceil(_FEWEST / share - 1e-9)
        if share * count >= _FEWEST - 1e-9:
            continue
        if most is None or needed <= most:
            return (
                f"Only {share * count:.2g} of the {count} {kind} a step lie in the rectangle with {bound}: "
                f"raise `{argument}` to {needed} or more."
            )
        return (
            f"Only {share * most:.2g} of the {most} {kind} to train on lie in the rectangle with {bound}: "
            f"{_larger_rectangle(kind, most)}train on more {kind}."
        )
    return None


def _larger_rectangle(kind: str, most: int) -> str:
    """Which bound would have enough examples in the rectangle, as the first of two remedies; empty if none would."""
    needed = math.ceil(100.0 * _FEWEST / max(1, most)) / 100.0
    if needed >= 1.0:
        return ""
    bound = (
        f"lower `min_tpr` to {1.0 - needed:.2g} or less"
        if kind == "positives"
        else (f"raise `max_fpr` to {needed:.2g} or more")
    )
    return f"{bound}, or "


def little_demanded(min_tpr: float, max_fpr: float) -> str | None:
    """Advice if the two bounds seem to be swapped; ``None`` if the rectangle may be meant.

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
        self._lowest, self._highest = math.inf, 0.0

    def say(self, topic: str, message: str | None) -> None:
        """Warn with ``message``, unless it is ``None`` or there was a warning of this ``topic`` before."""
        if message is not None and topic not in self._said:
            self._said.add(topic)
            rank_zero_warn(message, category=TPAUCAdvice)

    def look_at_duals(
        self, diagnostics: Mapping[str, Tensor], optimum: float, training: float, *, usual: bool = False
    ) -> None:
        """Warn if no pair moves the weights any more.

        Args:
            diagnostics: the algorithm's. ``active_share`` is the share of pairs that moved the weights over the last
                steps, and ``mean_y`` is the mean dual weight of all positives; both are needed.
            optimum: share of pairs that move the weights at the optimum.
            training: mean loss of the hardest negatives over the last steps, divided by that of a constant model; nan
                if it is unknown.
            usual: whether the dual variables have the start and the step sizes that they have by default.
        """
        if not {"mean_y", "active_share"} <= set(diagnostics):
            return
        if training < _LEARNT:
            return  # the training set is ranked almost without a loss, so few pairs are left to move
        if float(diagnostics["active_share"]) < _INACTIVE * optimum:
            none = float(diagnostics["mean_y"]) == 0.0
            seen = "all dual weights are 0" if none else "no pair's loss exceeds its threshold"
            remedy = (
                "The model has become constant: leave `shrink_rectangle` on, ask for a larger rectangle, or lower the "
                "optimizer's `lr`."
                if usual
                else "Lower `beta` and `beta_prime`, or set `step_units='loss'` and `dual_init='exact'`."
            )
            self.say("duals", f"Nothing moves the weights: {seen}. {remedy}")

    def look_at_ratios(self, ratios: Sequence[Sequence[float]], training: float = math.nan) -> None:
        """Warn if the model has become worse than a constant one, on its training data as well.

        A model that is good on its training data has learnt them by heart. Its growing scores make a few validation
        pairs expensive, which is no fault of the learning rate.

        Args:
            ratios: of each label, the objective of the validation's scores divided by that of a constant model. The
                first entry belongs to the unit square, the last one to the rectangle that was asked for.
            training: as in :meth:`look_at_duals`.
        """
        if training > self._highest:
            self._highest = training
        mean = _over_all_pairs(ratios)
        if self._lowest < _GOOD and mean >= 1.0 and not training < 1.0:
            self.say(
                "rate",
                f"The objective over all pairs rose from {self._lowest:.2f} to {mean:.2f} of that of a constant "
                "model: the learning rate is too large. Lower the optimizer's `lr`.",
            )
        if mean < self._lowest:
            self._lowest = mean

    def look_at_the_end(
        self,
        ratios: Sequence[Sequence[float]],
        tightness: Sequence[float],
        names: Sequence[str] | None = None,
        training: float = math.nan,
    ) -> None:
        """Warn if the model is as good as constant, unless something that explains it was said before.

        Args:
            ratios: as in :meth:`look_at_ratios`.
            tightness: the algorithm's present ``tightness_of_tasks``.
            names: the names of several labels.
            training: as in :meth:`look_at_duals`.
        """
        if not ratios or self._said & {"rate", "duals", "constant"}:
            return
        mean = _over_all_pairs(ratios)
        lost = mean >= _CONSTANT and self._highest >= _EXPLODED and not training < _CONSTANT
        if lost or training >= _EXPLODED:
            if "columns" in self._said:  # that advice, and the reason
                return
            self.say(
                "rate",
                f"The loss of training batches was up to {self._highest:.2g} times that of a constant model, and the "
                f"objective over all validation pairs is {mean:.2g} of its at the end: the learning rate is too large "
                "for these inputs. Lower the optimizer's `lr`, and standardise the inputs.",
            )
        elif not training < _LEARNT:
            self._look_for_constant_labels(ratios, tightness, names)

    def _look_for_constant_labels(
        self, ratios: Sequence[Sequence[float]], tightness: Sequence[float], names: Sequence[str] | None
    ) -> None:
        constant = [  # nan compares false: the rectangle holds no example
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


def _over_all_pairs(ratios: Sequence[Sequence[float]]) -> float:
    """The labels' mean of the first entries; nan where a class is missing for all of them."""
    known = [own[0] for own in ratios if not math.isnan(own[0])]
    return fmean(known) if known else math.nan


def advise_on_rectangle(algorithm: Algorithm, trainer: Trainer) -> Adviser:
    """The adviser of a training that starts, which has said what is wrong with the rectangle."""
    adviser = Adviser()
    adviser.say("pairs", _few_pairs_of(algorithm, trainer))
    adviser.say("demand", little_demanded(algorithm.min_tpr, algorithm.max_fpr))
    return adviser


def _few_pairs_of(algorithm: Algorithm, trainer: Trainer) -> str | None:
    """:func:`few_pairs` of a PosNegDataModule's batches and the rectangle that was asked for."""
    if algorithm.tasks is not None:
        return _few_pairs_of_labels(algorithm, trainer)
    plans: Any = getattr(trainer.train_dataloader, "batch_plans", None)
    if not isinstance(plans, PosNegSampler) or not algorithm.can_shrink_rectangle:
        return None
    sizes = plans.global_sizes(trainer.world_size)
    most = plans.most_positives, plans.most_negatives
    return few_pairs(algorithm.min_tpr, algorithm.max_fpr, sizes.num_pos, sizes.num_neg, *most)


def _few_pairs_of_labels(algorithm: Algorithm, trainer: Trainer) -> str | None:
    """Advice for the label with the fewest positives of a step in its rectangle."""
    plans: Any = getattr(trainer.train_dataloader, "batch_plans", None)
    labels = getattr(trainer.lightning_module, "trained_labels", None)
    if labels is None or not hasattr(plans, "in_play") or not algorithm.can_shrink_rectangle:
        return None
    counts = plans.in_play(trainer.world_size)[1].tolist()
    shares = [1.0 - low for low, _ in algorithm.asked_rectangles]
    inside = [share * count for share, count in zip(shares, counts, strict=True)]
    worst = min((k for k, counted in enumerate(count_in_loss(algorithm.tasks)) if counted), key=inside.__getitem__)
    if inside[worst] >= _FEWEST - 1e-9:
        return None
    needed = [math.ceil(_FEWEST / share - 1e-9) for share in shares]
    most = (algorithm.task_sizes or counts)[worst]
    remedy = f"raise `num_pos` towards {len(counts) * max(needed)}"
    if most < needed[worst]:  # no batch could hold enough
        remedy = f"{_larger_rectangle('positives', most)}train on more positives"
    return (
        f"Only {inside[worst]:.2g} of the {counts[worst]} positives that {labels.names[worst]!r} has in a step lie in "
        f"its rectangle with min_tpr={1.0 - shares[worst]:g}: {remedy}."
    )


def look_at_validation(adviser: Adviser, module: TrainedModule) -> None:
    """:meth:`Adviser.look_at_ratios` of the last validation."""
    adviser.look_at_ratios(_ratios_of_trained(module), training_ratio(module.algorithm))


def _ratios_of_trained(module: TrainedModule) -> list[list[float]]:
    """The last validation's ratios, as :meth:`Adviser.look_at_ratios` takes them; nan for labels of weight 0."""
    counted = count_in_loss(module.algorithm.tasks)
    return [own if counted[k] else [math.nan] * len(own) for k, own in enumerate(module.held_out_ratios)]


def look_at_duals(adviser: Adviser, algorithm: Algorithm, diagnostics: Mapping[str, Tensor]) -> None:
    """:meth:`Adviser.look_at_duals` of an algorithm."""
    optima = [(1.0 - low) * high for low, high in algorithm.rectangles]  # what is logged is the mean of the tasks
    optimum, own = sum(optima) / len(optima), vars(algorithm)
    usual = own.get("step_units") == "loss" and own.get("dual_init") == "exact"
    usual = usual and max(own.get("beta", 0.0), own.get("beta_prime", 0.0)) <= 1.0
    adviser.look_at_duals(diagnostics, optimum, training_ratio(algorithm), usual=usual)


def training_ratio(algorithm: Algorithm) -> float:
    """Mean loss of the hardest negatives over the last steps, divided by that of a constant model; nan if unknown."""
    surrogate: Surrogate | None = getattr(algorithm, "surrogate", None)
    unit: Tensor | None = getattr(algorithm, "loss_unit", None)
    if surrogate is None or unit is None:
        return math.nan
    loss, constant = float(unit.mean()), float(surrogate.value(torch.zeros(())))
    return (
        loss / constant if loss > 0.0 and constant > 0.0 else math.nan
    )  # the unit is 0 if the algorithm measures nothing in it


def say_how_it_ended(adviser: Adviser, module: TrainedModule, trainer: Trainer) -> None:
    """Tell, at a training's end, which rectangle was reached and which weights the model and its checkpoint hold."""
    names, algorithm = None if module.trained_labels is None else module.trained_labels.names, module.algorithm
    adviser.look_at_the_end(_ratios_of_trained(module), algorithm.tightness_of_tasks, names, training_ratio(algorithm))
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
        area, auroc = best.value
        by = f"val/tpauc {area:.4f}" if area > 0.0 else f"val/auroc {auroc:.4f}, as val/tpauc was always 0,"
        rank_zero_info(
            f"The model holds the weights that validated best: {by} after {best.step} of {state.batches_seen} steps. "
            "StageCallback(keep_best=False) leaves the last ones."
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
