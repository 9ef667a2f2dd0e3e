"""What a training does between its steps: stages, averages, the shrinking rectangle, the best weights, checks."""

import atexit
import math
import subprocess
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, Checkpoint, EarlyStopping, ModelPruning
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from typing_extensions import override

from lightning_tpauc.data.batch import check_training_batch
from lightning_tpauc.data.examples import learnt_layout, names_in
from lightning_tpauc.distributed import destroy_group_at_exit, prebuild_ddp_buckets, reshard
from lightning_tpauc.errors import ArgumentError, NonFiniteError, UnsupportedError
from lightning_tpauc.functional.checks import check_choice, check_count, require_range
from lightning_tpauc.lightning_fixes.checkpoint_files import load_weights
from lightning_tpauc.lightning_fixes.unsupported import log_replicated
from lightning_tpauc.metrics.reporting import validated_areas
from lightning_tpauc.scoring.evaluation import Evaluation, evaluation_of
from lightning_tpauc.scoring.forward import ScoringModel, device_batches, evaluation_mode
from lightning_tpauc.scoring.thresholds import DecisionThreshold, DefaultThreshold
from lightning_tpauc.training import checkpoint as saved_training
from lightning_tpauc.training import guards, rectangle
from lightning_tpauc.training.optimizer import begin_warmup, prepare_schedulers, step_plateau_schedulers, steps_of_share
from lightning_tpauc.training.state import (
    BestWeights,
    IterateAverage,
    Phase,
    PreviousWeights,
    TrainingState,
    agree_on_statistics,
    batch_norm_statistics,
)

#: On an accelerator, the result of a check is read this many steps later, so that the host can run ahead. The number is
#: the same on all ranks, so that they stop at the same step and none waits for the others.
_LAG = 4
#: After this many halvings of the scale in a row, every float16 gradient would be zero.
_MOST_SKIPPED = 50
#: A run diverges if its loss is this many times that of the first step.
_GROWTH = 1e10
#: Of the polynomial average: its weights have a mean age of a tenth of the run.
_DECAY = 8.0
#: Callbacks that change which weights are trained: a copy from before would undo it, or hold a part of the model only.
_CHANGERS = (BaseFinetuning, ModelPruning)


class StageCallback(Callback):
    r"""Averages the weights, shrinks the rectangle, keeps the best weights, and runs the stages of STACO2.

    Validation uses the average of the weights over the current stage, and so does the model after training; running
    statistics of batch normalisation are averaged, too. STACO1 has one stage, the whole run. At the end of a stage of
    STACO2 the weights and the thresholds become their averages, to which the next stage is pulled, and the dual
    weights restart.

    The module adds it with its defaults if the Trainer has none.

    Args:
        every_n_epochs: length of the first stage in epochs. Ignored where ``every_n_steps`` is given.
        every_n_steps: length of the first stage in optimizer steps.
        growth: factor of the length from one stage to the next, at least 1.
        averaging: how a method without stages (STACO1) averages: ``"polynomial"`` gives the weights of step k a share
            of about :math:`k^8`, which forgets the start without knowing the run's length; ``"uniform"`` is the
            paper's mean. The average over a stage is uniform.
        shrink_rectangle: begin with the whole square, where every pair counts, and shrink it to your rectangle over the
            first half of the run (at most 20 epochs). It stops if the loss, on training or on validation scores, comes
            near that of a model that gives all the same score. ``False`` trains your rectangle from the first step on,
            as the paper does.
        keep_best: leave the weights that validated best (by ``val/tpauc``, then ``val/auroc``) in the model after
            training instead of the last ones. Training itself is the same. A run that ends before its first validation
            validates at its end. If a callback prunes or unfreezes weights, the last ones stay.
        scores: the training scores from which the dual variables are solved. ``"remembered"`` takes those of the
            stage's steps, which cost nothing and are at most a stage old; ``"forward"`` makes a pass over the training
            set.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> StageCallback(every_n_steps=100, growth=2.0).stage_length(stage=3, steps_per_epoch=7)
        800
    """

    def __init__(
        self,
        every_n_epochs: int = 1,
        every_n_steps: int | None = None,
        growth: float = 1.0,
        averaging: Literal["polynomial", "uniform"] = "polynomial",
        shrink_rectangle: bool = True,
        keep_best: bool = True,
        scores: Literal["remembered", "forward"] = "remembered",
    ) -> None:
        check_count(every_n_epochs, "every_n_epochs", 1)
        if every_n_steps is not None:
            check_count(every_n_steps, "every_n_steps", 1)
        require_range("growth", growth, 1.0)
        check_choice(scores, "scores", ("remembered", "forward"))
        check_choice(averaging, "averaging", ("polynomial", "uniform"))
        self.every_n_epochs, self.every_n_steps, self.growth = every_n_epochs, every_n_steps, growth
        self.averaging, self.shrink_rectangle = averaging, shrink_rectangle
        self.keep_best, self.scores = keep_best, scores
        self._batches_before = 0

    def stage_length(self, stage: int, steps_per_epoch: float) -> int:
        """Number of steps of a stage; override for another policy.

        Args:
            stage: number of stages that are finished, 0 for the first stage.
            steps_per_epoch: training batches per epoch; infinite for streams without a length.
        """
        first = self.every_n_steps if self.every_n_steps is not None else self.every_n_epochs * steps_per_epoch
        if math.isinf(first):
            raise ArgumentError("An epoch of this training data has no length: set `every_n_steps` of StageCallback.")
        return max(1, round(first * self.growth**stage))

    # ---------------------------------------------------------------- hooks

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        trainer.callbacks = in_order(trainer.callbacks)  # type: ignore[attr-defined]  # set in Trainer.__init__
        destroy_group_at_exit()
        if stage != TrainerFn.FITTING:
            guards.require_agreement(lambda: guards.shared_settings(trainer, pl_module))

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Check the run, and load the weights of ``init_from``."""
        state, evaluation = pl_module.training_state, evaluation_of(trainer)
        _require_one_optimizer(trainer)
        guards.require_agreement(lambda: guards.shared_settings(trainer, pl_module))
        saved_training.check_savable(trainer)
        saved_training.offer_hyperparameters(trainer, pl_module)
        first, state.has_started, state.loss_was_logged = not state.has_started, True, False
        if state.phase is Phase.LOADED:
            return
        if pl_module.init_from is not None and first:
            written = load_weights(pl_module, pl_module.init_from)
            if names_in(written.get(saved_training.INPUTS), "columns"):  # the weights belong to these
                pl_module.input_layout = written[saved_training.INPUTS]
            state.note_weights_from_file()
        pl_module.operating_point = None
        evaluation.start.prepare(trainer, is_trained=state.is_trained or state.average is not None)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Allocate what training remembers; start it, or restore it from a checkpoint."""
        _give_shapes(trainer, pl_module)
        reshard(pl_module)
        prebuild_ddp_buckets(trainer)
        prepare_schedulers(trainer)
        self._allocate(trainer, pl_module)
        guards.look_at_rectangle(pl_module.algorithm, trainer)
        if pl_module.training_state.phase is Phase.LOADED:
            saved_training.restore(pl_module)
        else:
            self._start(trainer, pl_module)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Put the last weights back after a validation, and learn what the inputs consist of."""
        state: TrainingState = pl_module.training_state
        state.restore_last_iterate()  # where a validation has shown the average
        self._batches_before = state.batches_seen
        if batch_idx == 0:
            columns = getattr(trainer.train_dataloader, "columns", None)
            pl_module.input_layout = learnt_layout(pl_module.input_layout, getattr(batch, "inputs", None), columns)

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Optimizer) -> None:
        """Clip the gradient, and add the pull to the weights at the stage's start."""
        state, coefficient = pl_module.training_state, pl_module.algorithm.proximal_coefficient
        clips_itself = type(pl_module).configure_gradient_clipping is not LightningModule.configure_gradient_clipping
        clips = clips_itself or pl_module.gradient_clip_val is not None
        if not clips and coefficient == 0 and not state.previous.recursive:
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            # Lightning leaves this to fused optimizers, so that hooks would see scaled gradients
            scaler.unscale_(optimizer)
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for parameter in trained:  # what follows concerns every entry
            parameter.grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        state.previous.estimate(pl_module.algorithm)
        if clips_itself:
            pl_module.configure_gradient_clipping(optimizer, pl_module.gradient_clip_val, "norm")
        elif pl_module.gradient_clip_val is not None:
            nn.utils.clip_grad_norm_(trained, pl_module.gradient_clip_val)
        if coefficient != 0 and state.average is not None:
            state.average.add_proximal_gradient(coefficient)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Check that one step was taken, end a stage that is over, and shrink the rectangle."""
        state = pl_module.training_state
        taken = state.batches_seen - self._batches_before
        if taken != 1:
            name = type(pl_module).training_step.__qualname__
            raise UnsupportedError(f"{name} took {taken} steps for a batch: it must call `super().training_step` once.")
        if state.batches_seen == 1:
            guards.advise(guards.uneven_columns(batch.inputs, pl_module))
        if pl_module.algorithm.has_stages:
            average: IterateAverage = state.average
            if average.count >= self.stage_length(average.stage, trainer.num_training_batches):
                self._end_stage(pl_module)
        schedule = state.rectangle_schedule
        if schedule is not None and state.batches_seen % schedule.every == 0:
            schedule.move_if_due(pl_module, state.batches_seen, state.memory)
        step_plateau_schedulers(trainer, state.batches_seen, "batch", state.step_loss)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Log how training goes; validate at the end of a run that has not validated yet."""
        state = pl_module.training_state
        steps, epochs = trainer.max_steps, trainer.max_epochs
        over = 0 <= steps <= trainer.global_step or (epochs is not None and 0 <= epochs <= trainer.current_epoch + 1)
        if (over or trainer.should_stop) and trainer.enable_validation and state.last_validated == 0:
            trainer.validating = True
            with isolate_rng():  # as Lightning does within an epoch
                trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True
        state.restore_last_iterate()
        schedule = state.rectangle_schedule
        shown = schedule.diagnostics() if schedule is not None else {}
        shown = {**pl_module.algorithm.diagnostics(), **shown}
        log_replicated(pl_module, {f"train/{name}": value for name, value in shown.items()})
        step_plateau_schedulers(trainer, state.batches_seen, "epoch")

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Agree on batch-norm statistics over ranks, then put the average into the model, until the next step."""
        state: TrainingState = pl_module.training_state
        agree_on_statistics(pl_module, state.average)
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            state.show_average()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Keep the weights if they are the best so far."""
        state = pl_module.training_state
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            step_plateau_schedulers(trainer, state.batches_seen, "validation")
            if state.rectangle_schedule is not None:
                state.rectangle_schedule.held_out = state.held_out_ratios
            state.note_validation(*validated_areas(trainer.callback_metrics), pl_module.operating_point)

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the training; the module's hook does so where callbacks are not asked, with weights alone."""
        saved_training.save(pl_module, checkpoint, trainer)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Read the training, even where the module's own hook does not call ours."""
        saved_training.prepare_loading(pl_module, checkpoint)

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Put the last weights back if the model has the average."""
        pl_module.training_state.restore_last_iterate()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Leave the best weights, or the average, in the model, and say which."""
        state = pl_module.training_state
        self._leave_result(trainer, pl_module)
        if state.rectangle_schedule is not None:
            names = None if pl_module.trained_labels is None else pl_module.trained_labels.names
            state.rectangle_schedule.say_if_held(names, lambda: rectangle.score_next_batches(pl_module, 16))
        guards.say_which_weights(pl_module)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore a run that was over when it was saved, so that nothing was left to train."""
        if pl_module.training_state.phase is Phase.LOADED:
            self._allocate(trainer, pl_module)
            saved_training.restore(pl_module)
            self._leave_result(trainer, pl_module)

    def _leave_result(self, trainer: Trainer, module: ScoringModel) -> None:
        state = module.training_state
        agree_on_statistics(module, state.average)
        state.finish()
        _settle_threshold(module, trainer)

    # ---------------------------------------------------------------- a run's beginning

    def _allocate(self, trainer: Trainer, module: ScoringModel) -> None:
        algorithm, labels, device, dtype = module.algorithm, module.trained_labels, module.device, module._score_dtype
        num_positives = rectangle.count_positives(trainer, module.num_positives, type(module).__name__)
        described = num_positives if isinstance(num_positives, int) or labels is None else labels.tasks(num_positives)
        algorithm.setup(described, device=device, dtype=dtype)
        weights = getattr(getattr(trainer, "datamodule", None), "positive_weights", None)
        if weights is not None:
            algorithm.positive_weights = torch.from_numpy(weights).to(device, dtype)
        algorithm.tightness = 1.0  # an earlier training may have left another one
        parameters = [p for group in trainer.optimizers[0].param_groups for p in group["params"]]
        statistics = [statistic for _, statistic in batch_norm_statistics(module)]
        averages, staged, needed = algorithm.averages_iterates, algorithm.has_stages, algorithm.needs_previous
        state: TrainingState = module.training_state
        state.begin(module, [*parameters, *statistics], saved_training.describe_run(module, trainer))
        state.average = IterateAverage(
            parameters,
            statistics if averages else [],
            anchored=algorithm.proximal_coefficient != 0,
            averaged=averages or staged,
            is_solution=averages,
            decay=_DECAY if self.averaging == "polynomial" and not staged else 0.0,
        )
        state.previous = PreviousWeights(parameters if needed else (), recursive=needed == "gradients")
        changes = any(isinstance(callback, _CHANGERS) for callback in trainer.callbacks)  # type: ignore[attr-defined]
        if self.keep_best and trainer.enable_validation and not changes:
            state.best = BestWeights([*parameters, *statistics])
        shrinks = self.shrink_rectangle and algorithm.can_shrink_rectangle
        if shrinks:
            state.rectangle_schedule = rectangle.RectangleSchedule(algorithm, steps_of_share(trainer, rectangle.SHARE))
        remembers = self.scores == "remembered" and algorithm.needs_scores("restart")
        if shrinks or remembers:
            sizes = (num_positives,) if isinstance(num_positives, int) else algorithm.task_sizes or ()
            state.memory = rectangle.ScoreMemory(sizes, whole_stages=remembers, device=device, dtype=dtype)

    def _start(self, trainer: Trainer, module: ScoringModel) -> None:
        state, algorithm = module.training_state, module.algorithm
        # not earlier: counting the batches is a collective, and only now all ranks are known to take part
        begin_warmup(trainer, module.warmup, algorithm.default_warmup)
        if state.rectangle_schedule is not None:
            algorithm.tightness = 0.0  # the unit square
        scores = rectangle.score_training_set(module) if algorithm.needs_scores("start") else None
        if scores is not None and state.memory is not None:
            state.memory.fill(scores)
        algorithm.start(scores)
        keep = partial(state.best.offer, operating_point=module.operating_point) if state.best is not None else None
        evaluation_of(trainer).start.offer(trainer, keep)

    # ---------------------------------------------------------------- stages

    def _end_stage(self, module: ScoringModel) -> None:
        state, algorithm = module.training_state, module.algorithm
        agree_on_statistics(module, state.average)
        state.finish_stage(adopt=algorithm.stage_iterate == "average")
        algorithm.finish_stage()
        scores = None
        if algorithm.needs_scores("restart"):
            remembered = state.memory.of_stage() if self.scores == "remembered" and state.memory is not None else None
            scores = remembered or rectangle.score_training_set(module)
        algorithm.restart(scores)
        if state.memory is not None:
            state.memory.begin_stage()


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

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Forget an earlier run, which may have ended in an error."""
        self._pending: deque[tuple[Tensor, Any, Tensor, Any]] = deque()
        self._limit: Tensor | None = None
        self._skipped = 0

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Check the last step; a step that a gradient scaler skipped is only counted."""
        state: TrainingState = pl_module.training_state
        if state.step_skipped:
            self._skipped += 1
            if self._skipped >= _MOST_SKIPPED:
                raise NonFiniteError(
                    f"Not finite after {state.batches_seen} steps: the gradient scaler skipped {_MOST_SKIPPED} steps "
                    "in a row. Look for infinite numbers in the inputs, or train with precision='bf16-mixed'."
                )
            return
        self._skipped = 0
        total: Tensor = state.step_loss + pl_module.algorithm.scalar_sum()  # finite only if both are
        if self._limit is None:
            self._limit = total.abs().clamp_min(1.0) * _GROWTH
        within = (total.abs() < self._limit).to("cpu", non_blocking=True)  # false for nan, too
        event: Any = None
        if total.is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            event.record()
        inputs = getattr(batch, "inputs", None)
        table = inputs if isinstance(inputs, Tensor) and inputs.ndim == 2 else None  # nothing larger is kept so long
        self._pending.append((within, event, total, table))
        if len(self._pending) > (_LAG if total.is_cuda else 0):
            self._read(pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Read the checks that were not read yet."""
        while self._pending:
            self._read(pl_module)

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """End the other processes when rank 0 fails.

        Lightning ends all processes when one of them fails, but not when rank 0 does, which started them. They would
        wait for rank 0 in a collective, under NCCL for minutes, and keep their GPUs. There they ignore SIGTERM.
        """
        for process in getattr(trainer.strategy.launcher, "procs", ()):
            if isinstance(process, subprocess.Popen):
                atexit.register(process.kill)

    def _read(self, module: ScoringModel) -> None:
        within, event, total, table = self._pending.popleft()
        if event is not None:
            event.synchronize()  # the step is _LAG steps old, so this hardly ever waits
        if bool(within):
            return
        steps = module.training_state.batches_seen
        if math.isfinite(total):
            msg = f"Diverged after {steps} steps: loss and state have grown to {float(total):.2g}. "
            raise NonFiniteError(msg + guards.lower_the_rate(module))
        columns = guards.columns_not_finite(table, module)
        raise NonFiniteError(f"Not finite after {steps} steps: {columns}" if columns else guards.diagnose(module))


def _require_one_optimizer(trainer: Trainer) -> None:
    given = [o for o in trainer.optimizers if o.param_groups]  # Lightning puts one without parameters in place of None
    if len(given) != 1:
        raise UnsupportedError(
            f"Expected `configure_optimizers` to return exactly one optimizer: got {len(given)}. Give it all "
            "parameters, in groups."
        )


def _give_shapes(trainer: Trainer, module: ScoringModel) -> None:
    """Show lazy layers one batch, where no sanity check has told them how many inputs there are."""
    if not any(is_lazy(parameter) for parameter in module.parameters()):
        return
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    loader: Any = trainer.train_dataloader if datamodule is None else datamodule.train_dataloader()
    with isolate_rng(), evaluation_mode(module):
        for batch in device_batches(module, islice(loader, 1), "Looking at a batch", 1):
            check_training_batch(batch)
            module.raw_scores(batch.inputs)


def _settle_threshold(module: ScoringModel, trainer: Trainer) -> None:
    """Make the operating point that of the weights that training left."""
    best, step = module.training_state.best, module.training_state.batches_seen
    if best is not None and best.weights:
        module.operating_point, step = best.operating_point, best.step
    choosers = [c for c in trainer.callbacks if isinstance(c, DecisionThreshold)]  # type: ignore[attr-defined]
    point = module.operating_point
    if choosers and trainer.enable_validation and trainer.val_dataloaders is not None:
        if point is None or point.step != step:  # the last steps were not validated
            choosers[-1].choose_again(trainer, module)
        choosers[-1].say(module)


# -------------------------------------------------------------------- callbacks that every module needs

#: In the order in which they are called.
_NEEDED = FiniteGuard, StageCallback, DecisionThreshold, Evaluation


def needed_callbacks(present: Sequence[Callback]) -> list[Callback]:
    """The callbacks that training and evaluation need and that ``present`` lacks, with their defaults."""
    lacking = [kind for kind in _NEEDED if not any(isinstance(callback, kind) for callback in present)]
    return [DefaultThreshold() if kind is DecisionThreshold else kind() for kind in lacking]


def in_order(callbacks: Sequence[Callback]) -> list[Callback]:
    """The Trainer's callbacks in the order in which they are called: the needed ones, ``EarlyStopping``, all others.

    A checkpoint that another callback saves in a hook of its own then holds what that hook does for the training.
    Lightning's checkpoints stay at the end.
    """
    first = (*_NEEDED, EarlyStopping)

    def place(callback: Callback) -> int:
        number = next((k for k, kind in enumerate(first) if isinstance(callback, kind)), len(first))
        return number + isinstance(callback, Checkpoint)

    return sorted(callbacks, key=place)
