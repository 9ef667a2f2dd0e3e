"""Advice for a run that can't work: one line each, with the value and the remedy."""

from __future__ import annotations

import atexit
import math
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.algorithms.base import count_in_loss
from lightning_tpauc.data.sampler import PosNegSampler
from lightning_tpauc.distributed import gather_objects, whole, world_size
from lightning_tpauc.errors import ArgumentError, NonFiniteError, TPAUCAdvice, TPAUCWarning
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.scoring.forward import ScoringModel
from lightning_tpauc.scoring.labels import listed
from lightning_tpauc.training.scores import score_next_batches

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


def look_at_validation(adviser: Adviser, module: ScoringModel) -> None:
    """:meth:`Adviser.look_at_ratios` of the last validation."""
    adviser.look_at_ratios(_ratios_of_trained(module), training_ratio(module.algorithm))


def _ratios_of_trained(module: ScoringModel) -> list[list[float]]:
    """The last validation's ratios, as :meth:`Adviser.look_at_ratios` takes them; nan for labels of weight 0."""
    counted = count_in_loss(module.algorithm.tasks)
    return [own if counted[k] else [math.nan] * len(own) for k, own in enumerate(module.training_state.held_out_ratios)]


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


def say_how_it_ended(adviser: Adviser, module: ScoringModel, trainer: Trainer) -> None:
    """Tell, at a training's end, which rectangle was reached and which weights the model and its checkpoint hold."""
    names, algorithm = None if module.trained_labels is None else module.trained_labels.names, module.algorithm
    adviser.look_at_the_end(_ratios_of_trained(module), algorithm.tightness_of_tasks, names, training_ratio(algorithm))
    state, validated = module.training_state, module.operating_point is not None
    schedule, best = state.rectangle_schedule, state.best
    if schedule is not None:
        schedule.say_if_held(names, lambda: score_next_batches(module))
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


#: Attributes of a Trainer that decide how many batches and passes there are.
_LIMITS = (
    "max_epochs",
    "max_steps",
    "min_epochs",
    "min_steps",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "num_sanity_val_steps",
    "precision",
)
#: Attributes of a module that all ranks must share.
_SETTINGS = ("score_activation", "gradient_clip_val", "lr_scheduler_interval", "warmup", "num_positives")


#: The address in the default ``repr`` of an object.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def require_agreement(describe: Callable[[], dict[str, Any]]) -> None:
    """Compare the descriptions of all ranks; a collective, in which a rank takes part even if ``describe`` fails.

    Args:
        describe: returns values by name, which are compared by their ``repr``.

    Raises:
        ArgumentError: on every rank, if ranks differ. The message says what differs and which rank has which value.
    """
    if world_size() == 1:
        return
    failure: Exception | None = None
    own: dict[str, str] = {}
    try:
        own = {name: _ADDRESS.sub("", repr(value)) for name, value in describe().items()}
    except Exception as error:  # raised again below, when the other ranks know of it
        failure = error
    said: list[tuple[str, dict[str, str]]] = gather_objects(("" if failure is None else str(failure), own))
    if failure is not None:
        raise failure
    failed = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(said) if text]
    if failed:
        msg = f"Other processes of this run failed: {'; '.join(failed)}"
        raise ArgumentError(msg)
    differing = [text for name in own if (text := _difference(name, [found.get(name) for _, found in said]))]
    if differing:
        msg = (
            f"The processes of this run differ in what they must share: {'; '.join(differing)}. Give all of them the "
            "same data and arguments: seed what is drawn at random (splits, generated data), and derive none from the "
            "rank. The data module divides the batches among them by itself."
        )
        raise ArgumentError(msg)


def data_and_limits(trainer: Trainer, stage: str) -> dict[str, Any]:
    """What must be the same on all ranks before batches are drawn: data, their arguments, and the Trainer's limits."""
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    data = datamodule.description(TrainerFn(stage).value) if hasattr(datamodule, "description") else {}
    return {
        "data module": type(datamodule).__name__,
        **data,
        **{f"Trainer({name})": getattr(trainer, name) for name in _LIMITS},
    }


def training_settings(trainer: Trainer, module: ScoringModel, stages: dict[str, Any]) -> dict[str, Any]:
    """What must be the same on all ranks before the first step: algorithm, optimizer, schedules and starting point."""
    optimizer = trainer.optimizers[0]
    groups = [{name: _plain(v) for name, v in group.items() if name != "params"} for group in optimizer.param_groups]
    return {
        "algorithm": module.algorithm,
        "labels": module.trained_labels,
        **{f"`{name}`": getattr(module, name, None) for name in _SETTINGS},
        "optimizer": (type(optimizer).__name__, groups),
        "lr_scheduler": [(type(c.scheduler).__name__, c.interval, c.frequency) for c in trainer.lr_scheduler_configs],
        "stages": stages,
        "init_from": getattr(module, "init_from", None) is not None,
        "steps of the checkpoint": module.training_state.batches_seen,
    }


def _difference(name: str, values: list[str | None]) -> str:
    """Which ranks have which value; empty if all have the same."""
    ranks: dict[str | None, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    if len(ranks) == 1:
        return ""
    return f"{name}: " + ", ".join(f"{value} on rank {' and '.join(map(str, who))}" for value, who in ranks.items())


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


#: A column that varies by so much more than the one in the middle hides the others.
_UNEVEN = 100.0
#: A column so far from 0, in its standard deviations, is nearly a constant to the model.
_FAR = 20.0


def uneven_columns(inputs: Any, model: nn.Module) -> str | None:
    """Advice if columns of a batch should be standardised; ``None`` if not, or if the inputs are no table of floats.

    Args:
        inputs: of a batch; a floating tensor ``(N, D)`` is a table.
        model: reads the table itself if its first layer with parameters or buffers is linear; others may scale it.

    Example:
        >>> age_and_income = torch.tensor([[20.0, 1e6], [30.0, 1e5], [40.0, 5e5]])
        >>> uneven_columns(age_and_income / age_and_income.std(0), nn.Linear(2, 1)) is None
        True
        >>> uneven_columns(age_and_income, nn.Linear(2, 1)).partition(",")[0]
        'Column 1 of the inputs has a standard deviation of 4.5e+05'
    """
    table = isinstance(inputs, Tensor) and inputs.layout == torch.strided and inputs.is_floating_point()
    if not table or inputs.ndim != 2 or len(inputs) < 2 or not _read_as_it_is(model, inputs.shape[1]):
        return None
    values = inputs.detach().cpu().double()
    deviations = values.std(dim=0)
    varies = (deviations > 0) & deviations.isfinite()
    if not bool(varies.any()):
        return None
    middle = float(deviations[varies].median())
    widest = int(deviations.where(varies, 0.0).argmax())
    remedy = "Standardise the columns, as scikit-learn's StandardScaler does, fitted to the training rows."
    if float(deviations[widest]) >= _UNEVEN * middle:
        return (
            f"Column {widest} of the inputs has a standard deviation of {float(deviations[widest]):.2g}, most others "
            f"of {middle:.2g} or less: the model hardly sees those. {remedy}"
        )
    counted = varies & ((values != values.amin(dim=0)) & (values != values.amax(dim=0))).any(dim=0)  # not two values
    distance = (values.mean(dim=0).abs() / deviations).where(counted, 0.0)
    farthest = int(distance.argmax())
    if float(distance[farthest]) < _FAR:
        return None
    return (
        f"Column {farthest} of the inputs lies at {float(values[:, farthest].mean()):.3g} with a standard deviation of "
        f"{float(deviations[farthest]):.2g}: it is nearly a constant to the model. {remedy}"
    )


def _read_as_it_is(model: nn.Module, num_columns: int) -> bool:
    """Whether a linear layer reads so many columns, and no layer before it has parameters, means or scales."""
    first = next((each for each in model.modules() if [*each.parameters(False), *each.buffers(False)]), None)
    return isinstance(first, nn.Linear) and first.in_features == num_columns


#: On an accelerator, the result of a check is read this many steps later, so that the host can run ahead. The number is
#: the same on all ranks, so that they stop at the same step and none waits for the others.
_LAG = 4
#: After this many halvings of the scale in a row, every float16 gradient would be zero.
_MOST_SKIPPED = 50
#: A run diverges if its loss is this many times that of the first step.
_GROWTH = 1e10
#: How long the other processes have to print why they stop.
_GRACE_SECONDS = 2.0


class FiniteGuard(Callback):
    """Stops the run at the first step whose loss or state is not finite or far too large, and says what to change.

    Far too large is 1e10 times the value at the first step of this run, new or resumed, and at least 1e10. The weights
    diverge then, although single precision may take many more steps to overflow.

    On a CPU the check is immediate. On an accelerator the result is copied to the host without blocking and read a few
    steps later. No bad checkpoint is written meanwhile, since saving checks everything itself. A run is also stopped if
    a gradient scaler skips every step. When rank 0 fails, the processes that it started end with it.

    Raises:
        NonFiniteError: on every rank at the same step.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(accelerator="cpu", logger=False, callbacks=[FiniteGuard()])  # added if left out
        >>> any(isinstance(callback, FiniteGuard) for callback in trainer.callbacks)
        True
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Tensor, Any]] = []
        self._limit: Tensor | None = None
        self._skipped = 0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget an earlier run, which may have ended in an error."""
        self._pending.clear()
        self._limit = None
        self._skipped = 0

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the last step; a step that a gradient scaler skipped is only counted."""
        module: ScoringModel = pl_module  # type: ignore[assignment]
        self._skipped = self._skipped + 1 if module.training_state.step_skipped else 0
        if self._skipped >= _MOST_SKIPPED:
            raise NonFiniteError(_always_skipped(module))
        if module.training_state.step_skipped:
            return
        total: Tensor = module.training_state.step_loss + module.algorithm.scalar_sum()  # finite only if both are
        if self._limit is None:
            self._limit = total.abs().clamp_min(1.0) * _GROWTH
        within = total.abs() < self._limit  # false for nan, too
        if total.device.type != "cuda":
            self._stop_unless(bool(within), module, total)
            return
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_(within, non_blocking=True)
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record()
        self._pending.append((flag, total, event))
        if len(self._pending) > _LAG:
            self._read(1, module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the checks that were not read yet."""
        self._read(len(self._pending), pl_module)  # type: ignore[arg-type]

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the other processes when rank 0 fails.

        Lightning ends all processes when one of them fails, but not when rank 0 does, which started them. They would
        wait for rank 0 in a collective, under NCCL for minutes, and keep their GPUs.
        """
        started = getattr(trainer.strategy.launcher, "procs", ())
        children = [process for process in started if isinstance(process, subprocess.Popen)]
        if children:
            atexit.register(_end, children)

    def _read(self, count: int, module: ScoringModel) -> None:
        for _ in range(count):
            flag, total, event = self._pending.pop(0)
            event.synchronize()  # the step is _LAG steps old, so this hardly ever waits
            self._stop_unless(bool(flag), module, total)

    def _stop_unless(self, within: bool, module: ScoringModel, total: Tensor) -> None:
        if within:
            return
        algorithm = module.algorithm
        said: dict[str, Any] = {
            "steps": module.training_state.batches_seen,
            "score_activation": module.score_activation,
        }
        if math.isfinite(total):
            raise NonFiniteError(diagnose_divergence(algorithm, float(total), **said))
        raise NonFiniteError(diagnose(algorithm, module, module.trainer.optimizers, **said))


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _GRACE_SECONDS
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        if child.poll() is None:
            child.kill()  # a process that waits in a collective ignores SIGTERM


def _always_skipped(module: ScoringModel) -> str:
    scaler: Any = getattr(module.trainer.precision_plugin, "scaler", None)
    steps = module.training_state.batches_seen
    return (
        f"Not finite after {steps} steps: the gradient scaler skipped {_MOST_SKIPPED} steps in a row and "
        f"is down to a scale of {scaler.get_scale():.1g}, so the gradients are infinite or nan at any scale. Look for "
        "such numbers in the inputs, or train with precision='bf16-mixed', which has the range of float32."
    )


def diagnose(
    algorithm: Algorithm,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    steps: int,
    score_activation: str,
    only_if_broken: bool = False,
) -> str:
    """Say what is not finite and what to change."""
    broken = algorithm.non_finite_states()
    weights = [name for name, p in model.named_parameters() if not bool(torch.isfinite(whole(p.detach())).all())]
    if only_if_broken and not broken and not weights:
        return ""
    sizes = sorted({algorithm.step_sizes[name] for name in broken if name in algorithm.step_sizes})
    if weights or not sizes:
        where = f"the weights ({', '.join(weights[:3])})" if weights else "the loss"
        cause = _half_precision(model, optimizers) if weights else ""
        also = f" or {_quoted(sizes)} of the algorithm" if sizes else ""
        return f"Not finite after {steps} steps: {where}. {cause or _remedy(algorithm, score_activation, also)}"
    lower = f"Lower {_quoted(sizes)} of {type(algorithm).__name__}."
    return f"Not finite after {steps} steps: the state {_quoted(broken)}. {lower}"


def diagnose_divergence(algorithm: Algorithm, reached: float, *, steps: int, score_activation: str) -> str:
    """Say that numbers grow without bound, although they are still finite."""
    remedy = _remedy(algorithm, score_activation)
    return f"Diverged after {steps} steps: loss and state have grown to {reached:.2g}. {remedy}"


def _remedy(algorithm: Algorithm, score_activation: str, also: str = "") -> str:
    unbounded = score_activation == "identity" and not algorithm.takes_logits
    bound = ", or bound the scores with `score_activation='sigmoid'`" if unbounded else ""
    return f"Lower the optimizer's `lr`{also}, standardise the inputs{bound}."


def _half_precision(model: nn.Module, optimizers: Sequence[Optimizer]) -> str:
    """Say what float16 weights break by themselves, at any learning rate; empty for other weights."""
    if all(p.dtype != torch.float16 for p in model.parameters()):
        return ""
    optimizer: Any = optimizers[0]
    name, precision = type(optimizer).__name__, "precision='16-mixed', '32-true' or 'bf16-true'"
    epsilons = [group["eps"] for group in optimizer.param_groups if "eps" in group]
    lost = [eps for eps in epsilons if eps and not bool(torch.tensor(float(eps), dtype=torch.float16))]
    if lost:
        return (
            f"In float16 (precision='16-true') `eps={lost[0]:g}` of {name} is 0, so it divides by zero wherever a "
            f"squared gradient is too small for float16. Pass `eps=1e-4`, or train with {precision}."
        )
    return f"Weights in float16 (precision='16-true') end at 65504. Lower `lr`, or train with {precision}."


def _quoted(names: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


#: Nodes of autograd's graph that only rearrange or convert their input.
_REARRANGING = (
    "Alias",
    "AsStrided",
    "Clone",
    "Reshape",
    "Select",
    "Slice",
    "Split",
    "Squeeze",
    "ToCopy",
    "Unbind",
    "Unsqueeze",
    "UnsafeView",
    "View",
)
_SQUASHING = ("Sigmoid", "Hardsigmoid", "Softmax")


def is_squashed(scores: Tensor, model: Any = None) -> bool:
    """Whether scores with a gradient are the output of a sigmoid or softmax, according to autograd's graph.

    Example:
        >>> import torch
        >>> weight = torch.ones(3, requires_grad=True)
        >>> is_squashed(weight.sigmoid()[:, None].double()), is_squashed(weight * 2)
        (True, False)
    """
    node: Any = scores.grad_fn
    while node is not None and node.name().startswith(_REARRANGING):
        node = node.next_functions[0][0]
    if node is None:
        return False
    if node.name().startswith("Compiled") and isinstance(model, nn.Module):
        return isinstance(list(model.modules())[-1], (nn.Sigmoid, nn.Softmax))
    return bool(node.name().startswith(_SQUASHING))


def slope_of(score_activation: Literal["identity", "sigmoid"], algorithm: Algorithm) -> float:
    """By how much the algorithm's scores grow when the model's output grows by one from 0.

    Example:
        >>> from lightning_tpauc.algorithms import STACO
        >>> slope_of("identity", STACO()), slope_of("sigmoid", STACO())
        (1.0, 0.25)
    """
    return 0.25 if score_activation == "sigmoid" and not algorithm.takes_logits else 1.0


def warn_of_activation(
    algorithm: Algorithm, score_activation: Literal["identity", "sigmoid"], *, squashed: bool
) -> None:
    """Warn of a sigmoid too many or too few, which would change the training without an error."""
    name = type(algorithm).__name__
    if squashed and algorithm.takes_logits:
        rank_zero_warn(
            f"{name} takes raw scores, but the model ends in a sigmoid or softmax. Leave it out of the model, and "
            "set `score_activation='sigmoid'` for the methods that want one.",
            category=TPAUCWarning,
        )
    elif squashed and score_activation == "sigmoid":
        rank_zero_warn(
            "The model ends in a sigmoid or softmax, and `score_activation='sigmoid'` applies another: all scores "
            "lie between 0.27 and 0.74, with small gradients. Leave out one of the two.",
            category=TPAUCWarning,
        )
    elif not squashed and algorithm.takes_probabilities and score_activation == "identity":
        rank_zero_warn(
            f"{name} is made for scores in [0, 1], but `score_activation` is 'identity'. Set "
            "`score_activation='sigmoid'` (`--model.score_activation sigmoid`), unless the model's scores are "
            "probabilities already.",
            category=TPAUCWarning,
        )
    elif squashed and getattr(algorithm, "margin", 0.0) is None:
        rank_zero_warn(
            f"The model ends in a sigmoid or softmax, and {name}'s margin is made for raw scores: pairs of "
            "probabilities hardly ever reach it. Leave the sigmoid out of the model, or pass `margin=0.25`.",
            category=TPAUCAdvice,
        )
