"""What a training watches over: advice, equal settings of all ranks, finite numbers, the sigmoid before the loss."""

from __future__ import annotations

import atexit
import math
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from typing_extensions import override

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.algorithms.base import count_in_loss
from lightning_tpauc.distributed import gather_objects, whole, world_size
from lightning_tpauc.errors import ArgumentError, NonFiniteError, TPAUCAdvice, TPAUCWarning
from lightning_tpauc.scoring.forward import ScoringModel
from lightning_tpauc.training.rectangle import column_name, columns_not_finite, is_feature_matrix, score_next_batches

# ---------------------------------------------------------------- advice on the rectangle

#: With fewer examples of a class in the rectangle, a batch is too small a sample of it.
_FEWEST = 4
#: With ``min_tpr`` at most this, and ``max_fpr`` at least one minus this, the bounds have probably been swapped.
_LITTLE = 0.2


def few_pairs(kind: str, bound: float, count: int, most: int | None = None, label: str | None = None) -> str | None:
    """Advice if the rectangle holds too few examples of a batch; ``None`` if it holds enough.

    Args:
        kind: ``"positives"`` or ``"negatives"``.
        bound: ``min_tpr`` or ``max_fpr``.
        count: how many a step has, over all ranks.
        most: how many a step could have, since the training set has no more; ``None`` if unknown.
        label: which of several labels it is.

    Example:
        >>> few_pairs("positives", 0.8, 32) is None
        True
        >>> few_pairs("positives", 0.8, 8)
        'Only 1.6 of the 8 positives a step lie in the rectangle with min_tpr=0.8: raise `num_pos` to 20 or more.'
    """
    name, argument = ("min_tpr", "num_pos") if kind == "positives" else ("max_fpr", "num_neg")
    share = 1.0 - bound if kind == "positives" else bound
    needed = math.ceil(_FEWEST / share - 1e-9)  # 1 - 0.8 is 0.199999...
    if count >= needed:
        return None
    of_label = "" if label is None else f" of {label!r}"
    if most is None or needed <= most:
        where, remedy = "a step", f"raise `{argument}`" + (f" to {needed} or more" if label is None else "")
    else:
        where, count, remedy = "to train on", most, f"train on more {kind}"
        enough = math.ceil(100.0 * _FEWEST / max(1, most)) / 100.0
        if enough < 1.0:
            limit = (
                f"lower `min_tpr` to {1 - enough:.2g} or less"
                if kind == "positives"
                else f"raise `max_fpr` to {enough:.2g} or more"
            )
            remedy = f"{limit}, or {remedy}"
    inside = f"{share * count:.2g} of the {count} {kind}{of_label} {where}"
    return f"Only {inside} lie in the rectangle with {name}={bound:g}: {remedy}."


def little_demanded(min_tpr: float, max_fpr: float) -> str | None:
    """Advice if the two bounds seem to be swapped; ``None`` if the rectangle may be meant."""
    if not (0.0 < min_tpr <= _LITTLE and 1.0 - _LITTLE <= max_fpr < 1.0):  # all of the square is the AUROC
        return None
    return (
        f"min_tpr={min_tpr:g} and max_fpr={max_fpr:g} demand little: to find {min_tpr:g} of the positives with false "
        f"alarms for {max_fpr:g} of the negatives. If {max_fpr:g} should be found, pass min_tpr={max_fpr:g} and "
        f"max_fpr={min_tpr:g}."
    )


def _few_pairs_of(algorithm: Algorithm, trainer: Trainer) -> str | None:
    """:func:`few_pairs` of a PosNegDataModule's batches; of several labels the one that has the fewest."""
    plans: Any = getattr(trainer.train_dataloader, "batch_plans", None)
    labels = getattr(trainer.lightning_module, "trained_labels", None)
    if not algorithm.can_shrink_rectangle:
        return None
    if labels is None and hasattr(plans, "most_negatives"):
        sizes = plans.global_sizes(trainer.world_size)
        few = few_pairs("positives", algorithm.min_tpr, sizes.num_pos, plans.most_positives)
        return few or few_pairs("negatives", algorithm.max_fpr, sizes.num_neg, plans.most_negatives)
    if labels is None or not hasattr(plans, "in_play"):
        return None
    counts, bounds = plans.in_play(trainer.world_size)[1].tolist(), [low for low, _ in algorithm.asked_rectangles]
    trained = [k for k, counted in enumerate(count_in_loss(algorithm.tasks)) if counted]
    worst = min(trained, key=lambda k: (1.0 - bounds[k]) * counts[k])
    most = (algorithm.task_sizes or counts)[worst]
    return few_pairs("positives", bounds[worst], counts[worst], most, labels.names[worst])


# ---------------------------------------------------------------- advice on the columns of a table

#: A linear layer's learning rates are made for columns that vary by about 1: this is too much more.
_WIDE = 100.0
#: A column so far from 0, in its standard deviations, is nearly a constant to the model.
_FAR = 20.0


def uneven_columns(inputs: Any, model: nn.Module) -> str | None:
    """Advice if columns of a batch should be standardised; ``None`` if not, or if the inputs are no table of floats.

    Args:
        inputs: of a batch; a floating tensor ``(N, D)`` is a table.
        model: reads the table itself if its first layer with parameters or buffers is linear; others may scale it. Its
            ``input_layout`` may hold the columns' names.

    Example:
        >>> age_and_income = torch.tensor([[20.0, 1e6], [30.0, 1e5], [40.0, 5e5]])
        >>> uneven_columns(age_and_income / age_and_income.std(0), nn.Linear(2, 1)) is None
        True
        >>> uneven_columns(age_and_income, nn.Linear(2, 1)).partition(",")[0]
        'Column 1 of the inputs has a standard deviation of 4.5e+05'
    """
    first = next((each for each in model.modules() if [*each.parameters(False), *each.buffers(False)]), None)
    if (
        not is_feature_matrix(inputs)
        or len(inputs) < 2
        or not isinstance(first, nn.Linear)
        or first.in_features != inputs.shape[1]
    ):
        return None
    values = inputs.detach().cpu().double()
    deviations = values.std(dim=0)
    varies = (deviations > 0) & deviations.isfinite()
    if not bool(varies.any()):
        return None
    middle = float(deviations[varies].median())
    widest = int(deviations.where(varies, 0.0).argmax())
    remedy = "Standardise the columns, as scikit-learn's StandardScaler does, fitted to the training rows."
    if float(deviations[widest]) >= _WIDE * min(1.0, middle):
        hidden = float(deviations[widest]) >= _WIDE * middle
        others = f"most others of {middle:.2g} or less" if hidden else "the learning rate is made for 1"
        return (
            f"{column_name(widest, model)} of the inputs has a standard deviation of {float(deviations[widest]):.2g}, "
            f"{others}. {remedy}"
        )
    counted = varies & ((values != values.amin(dim=0)) & (values != values.amax(dim=0))).any(dim=0)  # not two values
    distance = (values.mean(dim=0).abs() / deviations).where(counted, 0.0)
    farthest = int(distance.argmax())
    if float(distance[farthest]) < _FAR:
        return None
    return (
        f"{column_name(farthest, model)} of the inputs lies at {float(values[:, farthest].mean()):.3g} with a standard "
        f"deviation of {float(deviations[farthest]):.2g}: it is nearly a constant to the model. {remedy}"
    )


# ---------------------------------------------------------------- advice on how a training goes

#: A model whose loss over all pairs is below this share of l(0), that of a constant model, has learnt something.
_GOOD = 0.8
#: If the hardest negatives' loss is below this share of l(0), there is little left to learn.
_LEARNT = 0.25
#: The running mean of active pairs has fallen to this share after some 90 steps in which no pair moved the weights.
_INACTIVE = 1e-2
#: Training batches have so large a loss, in units of l(0), only where steps are too long for the inputs.
_EXPLODED = 3.0


class Adviser:
    """Warns of each topic once per run."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._lowest, self._highest = math.inf, 0.0

    def look_at_rectangle(self, algorithm: Algorithm, trainer: Trainer) -> None:
        """Warn if it holds too few examples of a batch, or if its bounds seem to be swapped."""
        self.say("pairs", _few_pairs_of(algorithm, trainer))
        self.say("demand", little_demanded(algorithm.min_tpr, algorithm.max_fpr))

    def say(self, topic: str, message: str | None) -> None:
        """Warn with ``message``, unless it is ``None`` or there was a warning of this ``topic`` before."""
        if message is not None and topic not in self._said:
            self._said.add(topic)
            rank_zero_warn(message, category=TPAUCAdvice)

    def look_at_validation(self, module: ScoringModel) -> None:
        """Warn if the model has become worse than a constant one, on its training data as well.

        A model that is good on its training data has learnt them by heart. Its growing scores make a few validation
        pairs expensive, which is no fault of the learning rate.
        """
        validated, training = losses_of(module)
        if self._lowest < _GOOD and validated >= 1.0 and not training < 1.0:
            self.say(
                "rate",
                f"The loss over all pairs rose from {self._lowest:.2f} to {validated:.2f} of that of a model that "
                "gives all the same score: the learning rate is too large. Lower the optimizer's `lr`.",
            )
        self._lowest = min(self._lowest, math.inf if math.isnan(validated) else validated)
        self._highest = max(self._highest, 0.0 if math.isnan(training) else training)

    def look_at_the_end(self, module: ScoringModel) -> None:
        """Warn if the steps were too long from the start on."""
        validated, training = losses_of(module)
        if (validated >= 1.0 and self._highest >= _EXPLODED and not training < 1.0) or training >= _EXPLODED:
            self.say(
                "rate",
                f"The loss of training batches was up to {self._highest:.2g} times that of a model that gives all the "
                f"same score, and is {training:.2g} times that at the end: the learning rate is too large for these "
                "inputs. Lower the optimizer's `lr`, and standardise the inputs.",
            )

    def look_at_duals(self, module: ScoringModel, diagnostics: Mapping[str, Tensor]) -> None:
        """Warn if hardly a pair moves the weights, although something is left to learn."""
        optimum = fmean((1.0 - low) * high for low, high in module.algorithm.rectangles)
        active = float(diagnostics.get("active_share", math.inf))
        if active < _INACTIVE * optimum and not losses_of(module)[1] < _LEARNT:
            self.say(
                "duals",
                "Nothing moves the weights: no pair's loss exceeds its threshold, or all dual weights are 0. Leave "
                "`step_units='loss'`, `dual_init='exact'` and `shrink_rectangle` on, ask for a larger rectangle, or "
                "lower `lr` (and `beta` and `beta_prime` of your own).",
            )


def losses_of(module: ScoringModel) -> tuple[float, float]:
    """Loss of all pairs of the last validation, and of the last steps' hardest negatives, divided by l(0), or nan."""
    algorithm = module.algorithm
    labels = zip(module.training_state.held_out_ratios, count_in_loss(algorithm.tasks), strict=False)
    known = [ratios[0] for ratios, counted in labels if counted and not math.isnan(ratios[0])]
    validated = fmean(known) if known else math.nan
    surrogate, unit = getattr(algorithm, "surrogate", None), getattr(algorithm, "loss_unit", None)
    if surrogate is None or unit is None:
        return validated, math.nan
    loss, constant = float(unit.mean()), float(surrogate.value(torch.zeros(())))
    return validated, loss / constant if loss > 0.0 and constant > 0.0 else math.nan  # 0 where nothing is measured


def say_how_it_ended(adviser: Adviser, module: ScoringModel, trainer: Trainer) -> None:
    """Tell, at a training's end, which rectangle was reached and which weights the model and its checkpoint hold."""
    adviser.look_at_the_end(module)
    names = None if module.trained_labels is None else module.trained_labels.names
    state, validated = module.training_state, module.operating_point is not None
    schedule, best = state.rectangle_schedule, state.best
    if schedule is not None:
        schedule.say_if_held(names, lambda: score_next_batches(module, 16))
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
        saved = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint) and c.best_model_path]
        if saved and not any(callback.monitor for callback in saved):
            rank_zero_info(
                f"{Path(saved[0].best_model_path).name} has the weights of its own step: ModelCheckpoint("
                "monitor='val/tpauc', mode='max') saves those that validate best; so does `trainer.save_checkpoint` "
                "after `fit`."
            )


# ---------------------------------------------------------------- equal settings of all ranks

#: Attributes of a Trainer that decide how many batches and passes there are.
_LIMITS = (
    *("max_epochs", "max_steps", "min_epochs", "min_steps", "overfit_batches", "val_check_interval", "precision"),
    *(f"limit_{part}_batches" for part in ("train", "val", "test", "predict")),
    *("check_val_every_n_epoch", "num_sanity_val_steps"),
)
#: Attributes of a module that all ranks must share.
_SETTINGS = ("score_activation", "gradient_clip_val", "lr_scheduler_interval", "warmup", "num_positives")
#: The address in the default ``repr`` of an object.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def require_agreement(describe: Callable[[], dict[str, Any]]) -> None:
    """Compare the descriptions of all ranks; a collective, in which a rank takes part even if ``describe`` fails.

    A difference would mix validation rows into training, or leave a rank waiting for batches that another one lacks.
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


def _difference(name: str, values: list[str | None]) -> str:
    """Which ranks have which value; empty if all have the same."""
    ranks: dict[str | None, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    shown = ", ".join(f"{value} on rank {' and '.join(who)}" for value, who in ranks.items())
    return f"{name}: {shown}" if len(ranks) > 1 else ""


def data_and_limits(trainer: Trainer, stage: str) -> dict[str, Any]:
    """What must be the same on all ranks before batches are drawn: data, their arguments, and the Trainer's limits."""
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    data = datamodule.description(TrainerFn(stage).value) if hasattr(datamodule, "description") else {}
    limits = {f"Trainer({name})": getattr(trainer, name) for name in _LIMITS}
    return {"data module": type(datamodule).__name__, **data, **limits}


def training_settings(trainer: Trainer, module: ScoringModel, stages: dict[str, Any]) -> dict[str, Any]:
    """What must be the same on all ranks before the first step: algorithm, optimizer, schedules and starting point."""
    return {
        "algorithm": module.algorithm,
        "labels": module.trained_labels,
        **{f"`{name}`": getattr(module, name, None) for name in _SETTINGS},
        "optimizer": " ".join(repr(trainer.optimizers[0]).split()),
        "lr_scheduler": [(type(c.scheduler).__name__, c.interval, c.frequency) for c in trainer.lr_scheduler_configs],
        "stages": stages,
        "init_from": getattr(module, "init_from", None) is not None,
        "steps of the checkpoint": module.training_state.batches_seen,
    }


# ---------------------------------------------------------------- finite numbers

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
        self._pending: list[tuple[Tensor, Tensor, Any, Any]] = []
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
        state = module.training_state
        self._skipped = self._skipped + 1 if state.step_skipped else 0
        if self._skipped >= _MOST_SKIPPED:
            scale = module.trainer.precision_plugin.scaler.get_scale()  # type: ignore[attr-defined]  # of 16-mixed
            msg = (
                f"Not finite after {state.batches_seen} steps: the gradient scaler skipped {_MOST_SKIPPED} steps in a "
                f"row and is down to a scale of {scale:.1g}, so the gradients are infinite or nan at any scale. Look "
                "for such numbers in the inputs, or train with precision='bf16-mixed', which has the range of float32."
            )
            raise NonFiniteError(msg)
        if state.step_skipped:
            return
        total: Tensor = state.step_loss + module.algorithm.scalar_sum()  # finite only if both are
        if self._limit is None:
            self._limit = total.abs().clamp_min(1.0) * _GROWTH
        within = total.abs() < self._limit  # false for nan, too
        inputs = getattr(batch, "inputs", None)
        table = inputs if is_feature_matrix(inputs) else None
        if total.device.type != "cuda":
            _stop_unless(bool(within), module, total, table)
            return
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_(within, non_blocking=True)
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record()
        self._pending.append((flag, total, event, table))
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
            flag, total, event, table = self._pending.pop(0)
            event.synchronize()  # the step is _LAG steps old, so this hardly ever waits
            _stop_unless(bool(flag), module, total, table)


def _stop_unless(within: bool, module: ScoringModel, total: Tensor, table: Tensor | None) -> None:
    if within:
        return
    steps = module.training_state.batches_seen
    if math.isfinite(total):
        msg = f"Diverged after {steps} steps: loss and state have grown to {float(total):.2g}. {_remedy(module)}"
        raise NonFiniteError(msg)
    if table is not None and (columns := columns_not_finite(table, module)):
        msg = f"Not finite after {steps} steps: {columns}"
        raise NonFiniteError(msg)
    raise NonFiniteError(diagnose(module))


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _GRACE_SECONDS
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        if child.poll() is None:
            child.kill()  # a process that waits in a collective ignores SIGTERM


def diagnose(module: ScoringModel) -> str:
    """Say what is not finite and what to change."""
    algorithm = module.algorithm
    broken = algorithm.non_finite_states()
    weights = [name for name, p in module.named_parameters() if not bool(torch.isfinite(whole(p.detach())).all())]
    begin = f"Not finite after {module.training_state.batches_seen} steps:"
    sizes = sorted({algorithm.step_sizes[name] for name in broken if name in algorithm.step_sizes})
    lower = " and ".join(f"`{name}`" for name in sizes)
    if sizes and not weights:
        states = " and ".join(f"`{name}`" for name in broken)
        return f"{begin} the state {states}. Lower {lower} of {type(algorithm).__name__}."
    where = f"the weights ({', '.join(weights[:3])})" if weights else "the loss"
    cause = _half_precision(module) if weights else ""
    return f"{begin} {where}. {cause or _remedy(module, f' or {lower} of the algorithm' if sizes else '')}"


def _remedy(module: ScoringModel, also: str = "") -> str:
    unbounded = module.score_activation == "identity" and not module.algorithm.takes_logits
    bound = ", or bound the scores with `score_activation='sigmoid'`" if unbounded else ""
    return f"Lower the optimizer's `lr`{also}, standardise the inputs{bound}."


def _half_precision(module: ScoringModel) -> str:
    """What float16 weights break by themselves, at any learning rate; empty for other weights."""
    if all(p.dtype != torch.float16 for p in module.parameters()):
        return ""
    return (
        "Weights in float16 (precision='16-true') end at 65504, and an optimizer's `eps` below 6e-8 is 0 in it. Train "
        "with precision='16-mixed', '32-true' or 'bf16-true', or pass `eps=1e-4`."
    )


# ---------------------------------------------------------------- the sigmoid before the loss

#: Nodes of autograd's graph that only rearrange or convert their input.
_REARRANGING = (
    *("Alias", "AsStrided", "Clone", "Reshape", "Select", "Slice", "Split", "Squeeze", "ToCopy", "Unbind", "Unsqueeze"),
    *("UnsafeView", "View"),
)
_SQUASHING = ("Sigmoid", "Hardsigmoid", "Softmax")


def is_squashed(scores: Tensor, model: Any = None) -> bool:
    """Whether scores with a gradient are the output of a sigmoid or softmax, according to autograd's graph.

    Example:
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


def warn_of_activation(
    algorithm: Algorithm, score_activation: Literal["identity", "sigmoid"], *, squashed: bool
) -> None:
    """Warn of a sigmoid too many or too few, which would change the training without an error."""
    name, ends = type(algorithm).__name__, "The model ends in a sigmoid or softmax"
    category: type[Warning] = TPAUCWarning
    if squashed and algorithm.takes_logits:
        text = (
            f"{name} takes raw scores, but the model ends in a sigmoid or softmax. Leave it out of the model, and set "
            "`score_activation='sigmoid'` for the methods that want one."
        )
    elif squashed and score_activation == "sigmoid":
        text = (
            f"{ends}, and `score_activation='sigmoid'` applies another: all scores lie between 0.27 and 0.74, with "
            "small gradients. Leave out one of the two."
        )
    elif not squashed and algorithm.takes_probabilities and score_activation == "identity":
        text = (
            f"{name} is made for scores in [0, 1], but `score_activation` is 'identity'. Set "
            "`score_activation='sigmoid'` (`--model.score_activation sigmoid`), unless the model's scores are "
            "probabilities already."
        )
    elif squashed and getattr(algorithm, "margin", 0.0) is None:
        category = TPAUCAdvice
        text = (
            f"{ends}, and {name}'s margin is made for raw scores: pairs of probabilities hardly ever reach it. Leave "
            "the sigmoid out of the model, or pass `margin=0.25`."
        )
    else:
        return
    rank_zero_warn(text, category=category)
