"""The stages of the algorithm: when they begin and end, and which weights are evaluated."""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, ModelPruning
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from lightning_tpauc.algorithms import Algorithm, TrainingScores
from lightning_tpauc.data.batch import PosNegBatch
from lightning_tpauc.data.examples import layout
from lightning_tpauc.distributed import destroy_group_at_exit, prebuild_ddp_buckets, reshard
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import check_choice, check_count, is_real
from lightning_tpauc.lightning_fixes.subclassing import KeepsDuties, duty
from lightning_tpauc.lightning_fixes.unsupported import log_replicated
from lightning_tpauc.metrics.reporting import validated_areas
from lightning_tpauc.training.checkpoint import check_savable, offer_hyperparameters, settle_threshold
from lightning_tpauc.training.guards import (
    Adviser,
    advise_on_rectangle,
    data_and_limits,
    look_at_duals,
    look_at_validation,
    require_agreement,
    say_how_it_ended,
    training_settings,
    uneven_columns,
)
from lightning_tpauc.training.rectangle import shrinking_steps
from lightning_tpauc.training.schedules import (
    accept_closure,
    note_rates,
    prepare_plateau_schedulers,
    step_plateau_schedulers,
)
from lightning_tpauc.training.scores import VisitedPositives, score_training_tasks
from lightning_tpauc.training.start import allocate, resume, start
from lightning_tpauc.training.state import Phase, ToRemember, TrainingState
from lightning_tpauc.training.trained_module import TrainedModule
from lightning_tpauc.training.weights import agree_on_statistics, recompute_statistics

#: Of the polynomial average: its weights have a mean age of a tenth of the run.
_DECAY = 8.0
#: Callbacks that change which weights are trained: a copy from before would undo it, or hold a part of the model only.
_CHANGERS = (BaseFinetuning, ModelPruning)


class StageCallback(KeepsDuties, Callback):
    r"""Runs the stages of STACO2 and the average of STACO1.

    When training starts, it sets the dual variables. At a stage's end the weights and the thresholds become their
    averages over the stage, which are also the next anchors, and the dual weights restart. Validation uses the average
    of the current stage's iterates, and so does the model after training. STACO1 has one stage, the whole run.

    The module adds this callback with its defaults if the Trainer has none.

    Args:
        every_n_epochs: length of the first stage in epochs. Ignored where ``every_n_steps`` is given.
        every_n_steps: length of the first stage in optimizer steps.
        growth: factor of the length from one stage to the next, at least 1.
        averaging: how a method without stages (STACO1) averages its iterates: ``"polynomial"`` weighs iterate k by
            about :math:`k^8`, which forgets the start without knowing the run's length; ``"uniform"`` is the paper's
            mean. The average over a stage is uniform.
        shrink_rectangle: begin with the rectangle (0, 1), where every pair counts, and shrink it to the one that was
            asked for over the first half of the run (at most 20 epochs), as long as that is in reach: it is held where
            the objective, on training and on validation scores, would come near that of a constant model. ``False``
            trains the rectangle that was asked for from the first step on, as the paper does.
        keep_best: leave the weights that validated best (by ``val/tpauc``, then ``val/auroc``) in the model after
            training instead of the last ones. Training itself is the same. Where a callback prunes or unfreezes weights
            amid the training, the last ones stay.
        scores: the training scores that the exact dual variables are solved from: those that are ``"remembered"`` from
            the stage's steps, which cost nothing and are at most a stage old, or those of a ``"forward"`` pass over the
            training set without gradients.
        max_negatives: bound on the negatives that are remembered or scored; ``None`` is no bound for the forward pass
            (``num_scored`` of a stream) and 2**20 for the memory.
        batch_norm: what to do with running statistics of batch normalisation when weights are averaged: ``"average"``
            them like weights, ``"keep"`` the last iterate's, or ``"recompute"`` them by a pass over an epoch, at a
            stage's end and after training. The default did best in ``benchmarks/batch_norm.py``.

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
        max_negatives: int | None = None,
        batch_norm: Literal["average", "keep", "recompute"] = "average",
    ) -> None:
        check_count(every_n_epochs, "every_n_epochs", 1)
        for name, value in (("every_n_steps", every_n_steps), ("max_negatives", max_negatives)):
            if value is not None:
                check_count(value, name, 1)
        if not is_real(growth) or not growth >= 1:
            msg = f"Expected `growth` to be a number of at least 1, but got {growth!r}."
            raise ArgumentError(msg)
        check_choice(scores, "scores", ("remembered", "forward"))
        check_choice(averaging, "averaging", ("polynomial", "uniform"))
        check_choice(batch_norm, "batch_norm", ("average", "keep", "recompute"))
        self.every_n_epochs, self.every_n_steps, self.growth = every_n_epochs, every_n_steps, growth
        self.averaging, self.shrink_rectangle, self.keep_best = averaging, shrink_rectangle, keep_best
        self._visited: VisitedPositives | None = None
        self.scores, self.max_negatives, self.batch_norm = scores, max_negatives, batch_norm
        self._adviser = Adviser()
        self._batches_before = 0

    def stage_length(self, stage: int, steps_per_epoch: float) -> int:
        """Number of steps of a stage; override for another policy.

        Args:
            stage: number of stages that are finished, 0 for the first stage.
            steps_per_epoch: training batches per epoch; infinite for streams without a length.
        """
        first = self.every_n_steps if self.every_n_steps is not None else self.every_n_epochs * steps_per_epoch
        if math.isinf(first):
            msg = "An epoch of this training data has no length: set `every_n_steps` of StageCallback."
            raise ArgumentError(msg)
        return max(1, round(first * self.growth**stage))

    # ---------------------------------------------------------------- hooks

    @override
    @duty("before")
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that the module is one of ours, that no other callback runs the stages, and that all ranks agree."""
        if not hasattr(pl_module, "algorithm"):
            msg = f"StageCallback trains a TPAUCModule, but got {type(pl_module).__name__}."
            raise UnsupportedError(msg)
        stages = [type(c).__name__ for c in trainer.callbacks if isinstance(c, StageCallback)]  # type: ignore[attr-defined]
        if len(stages) > 1:
            msg = f"The Trainer has {' and '.join(stages)}: each would start and end all stages. Keep one of them."
            raise UnsupportedError(msg)
        destroy_group_at_exit()
        require_agreement(lambda: data_and_limits(trainer, stage))

    @override
    @duty("before")
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that all ranks agree on the optimizer, too."""
        module: TrainedModule = pl_module  # type: ignore[assignment]
        settings = {name: getattr(self, name) for name in inspect.signature(StageCallback).parameters}
        require_agreement(lambda: training_settings(trainer, module, settings))
        check_savable(trainer)
        offer_hyperparameters(trainer, module)

    @override
    @duty("before")
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Allocate the state, then restore it from a checkpoint or start it."""
        module: TrainedModule = pl_module  # type: ignore[assignment]
        reshard(module)
        prebuild_ddp_buckets(trainer)
        accept_closure(trainer.optimizers[0])
        if module.base_lr[1] is None:  # another class made the optimizer, and may schedule it by its hooks
            note_rates(trainer.optimizers[0])
        prepare_plateau_schedulers(trainer)
        self._visited = allocate(trainer, module, self._to_remember(trainer, module.algorithm))
        self._adviser = advise_on_rectangle(module.algorithm, trainer)
        if not resume(module):
            start(trainer, module, self.max_negatives)

    def _to_remember(self, trainer: Trainer, algorithm: Algorithm) -> ToRemember:
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        changes = any(isinstance(callback, _CHANGERS) for callback in callbacks)
        shrinks = self.shrink_rectangle and algorithm.can_shrink_rectangle
        steps = shrinking_steps(trainer) if shrinks else None
        return ToRemember(
            decay=_DECAY if self.averaging == "polynomial" else 0.0,
            averages_statistics=self.batch_norm == "average",
            best_weights=self.keep_best and trainer.enable_validation and not changes,
            shrinking_steps=steps,
            scores=self.scores == "remembered" and algorithm.needs_scores("restart"),
            max_negatives=self.max_negatives,
        )

    @override
    @duty("before")
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the stage when it is long enough. The module has already averaged this step's weights."""
        module: TrainedModule = pl_module  # type: ignore[assignment]
        state = module.training_state
        if state.batches_seen != self._batches_before + 1:
            msg = (
                f"{type(module).__name__}.training_step called `super().training_step(...)` "
                f"{state.batches_seen - self._batches_before} times for a batch: the sampler's position, stages and "
                "schedules count on once. For more steps raise `max_epochs`."
            )
            raise UnsupportedError(msg)
        if state.batches_seen == 1:
            self._adviser.say("columns", uneven_columns(batch.inputs, module))
        self._end_stage_if_due(trainer, module)
        self._move_rectangle_if_due(trainer, module)
        step_plateau_schedulers(trainer, state.batches_seen, "batch", state.step_loss)

    @override
    @duty("before")
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the algorithm's diagnostics."""
        module: TrainedModule = pl_module  # type: ignore[assignment]
        state = module.training_state
        state.restore_last_iterate()
        values, schedule = module.algorithm.diagnostics(), state.rectangle_schedule
        look_at_duals(self._adviser, module.algorithm, values)
        shown = schedule.diagnostics() if schedule is not None else {}
        for name, value in {**values, **shown}.items():
            log_replicated(module, f"train/{name}", value)
        step_plateau_schedulers(trainer, state.batches_seen, "epoch")
        if self._visited is not None and trainer.limit_train_batches == 1.0:
            self._visited.end_epoch()

    @override
    @duty("before")
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Agree on batch-norm statistics over ranks, then put the average into the model."""
        state: TrainingState = pl_module.training_state  # type: ignore[assignment]  # a TrainedModule has one
        agree_on_statistics(pl_module, state.average)
        if _is_fitting(trainer):
            state.show_average()

    @override
    @duty("before")
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Step the schedulers that follow a metric; the module puts the last iterate back after all callbacks."""
        module: TrainedModule = pl_module  # type: ignore[assignment]
        state = module.training_state
        if _is_fitting(trainer):
            step_plateau_schedulers(trainer, state.batches_seen, "validation")
            if state.rectangle_schedule is not None:
                state.rectangle_schedule.held_out = module.held_out_ratios
            look_at_validation(self._adviser, module)
            if state.best is not None:
                state.best.offer(*validated_areas(trainer.callback_metrics), state.batches_seen, module.operating_point)

    @override
    @duty("before")
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Put the last iterate back, if a subclass's own hook has not: no step may start from the average.

        An epoch's first batch shows what inputs consist of, which tells inputs from labels in batches to evaluate.
        """
        state: TrainingState = pl_module.training_state  # type: ignore[assignment]  # a TrainedModule has one
        state.restore_last_iterate()
        self._batches_before = state.batches_seen
        if batch_idx == 0:
            pl_module.input_layout = layout(getattr(batch, "inputs", None))
        if self._visited is not None and isinstance(batch, PosNegBatch):
            self._visited.visit(batch.index, batch_idx)

    @override
    @duty("before")
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put the last iterate back if a validation fails."""
        module: TrainedModule = pl_module  # type: ignore[assignment]
        module.trained_start.end(trainer)
        if trainer.validating:
            module.training_state.restore_last_iterate()

    @override
    @duty("before")
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the result in the model: the best weights, or the average."""
        module: TrainedModule = pl_module  # type: ignore[assignment]
        state = module.training_state
        agree_on_statistics(module, state.average)
        if recomputed := state.finish() and self.batch_norm == "recompute":
            recompute_statistics(module, trainer)
        settle_threshold(module, trainer, rescore=recomputed)
        say_how_it_ended(self._adviser, module, trainer)

    @override
    @duty("before")
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore a run that was over when it was saved, so that nothing was left to train."""
        module: TrainedModule = pl_module  # type: ignore[assignment]
        if module.training_state.phase is Phase.LOADED:
            self._visited = allocate(trainer, module, self._to_remember(trainer, module.algorithm))
            resume(module)
            self.on_train_end(trainer, module)

    # ---------------------------------------------------------------- stages

    def _end_stage_if_due(self, trainer: Trainer, module: TrainedModule) -> None:
        average = module.training_state.average
        if average is None or not module.algorithm.has_stages:
            return
        if average.count >= self.stage_length(average.stage, trainer.num_training_batches):
            self._end_stage(trainer, module)

    def _move_rectangle_if_due(self, trainer: Trainer, module: TrainedModule) -> None:
        state = module.training_state
        if state.rectangle_schedule is not None:
            state.rectangle_schedule.move_if_due(trainer, state.batches_seen, state.memory)

    def _end_stage(self, trainer: Trainer, module: TrainedModule) -> None:
        state, algorithm = module.training_state, module.algorithm
        agree_on_statistics(module, state.average)
        state.finish_stage(adopt=algorithm.stage_iterate == "average")
        if self.batch_norm == "recompute":
            recompute_statistics(module, trainer)
        algorithm.finish_stage()
        algorithm.restart(self._restart_scores(module))
        if state.memory is not None:
            state.memory.forget_negatives()

    def _restart_scores(self, module: TrainedModule) -> TrainingScores | list[TrainingScores] | None:
        if not module.algorithm.needs_scores("restart"):
            return None
        memory = module.training_state.memory if self.scores == "remembered" else None
        remembered = memory.training_scores() if memory is not None else None
        return remembered if remembered is not None else score_training_tasks(module, self.max_negatives)


def _is_fitting(trainer: Trainer) -> bool:
    """Whether this validation belongs to training; the sanity check does not."""
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
