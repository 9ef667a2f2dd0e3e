"""Resuming Lightning's loops exactly where a checkpoint was saved.

Lightning writes some checkpoints in the middle of its bookkeeping: after a batch's step but before its validation, or
after an epoch's batches but before the epoch's end. The functions here correct what is saved and what is resumed.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn


def mark_validation_pending(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Mark the validation that follows a checkpoint as pending, so that a resumed run does it.

    ``ModelCheckpoint(every_n_train_steps=...)`` saves a batch before the validation and the epoch's end that follow it.
    Lightning resumes after them: if a run was killed during validation, its resumed run would never log that
    validation, and ``ReduceLROnPlateau`` and ``EarlyStopping`` would never see it. Lightning does resume a validation
    that was interrupted. So this function writes into the saved counters that the training batch is complete and that
    the validation was interrupted at its first batch. The Trainer's own counters do not change.

    A checkpoint that is saved during a validation, as after an exception, restarts it at its first batch too, since the
    file does not hold what the metrics have seen.
    """
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    state: dict[str, Any] = checkpoint["loops"]["fit_loop"]
    epoch: Any = trainer.fit_loop.epoch_progress.current
    batch: Any = loop.batch_progress.current
    if trainer.training and epoch.started == epoch.processed == epoch.completed == epoch.ready - 1 >= 1:
        # between two epochs a signal may ask for a checkpoint: Lightning would count the next one as finished
        for counters in _counters(state["epoch_progress"]):
            counters["ready"] = counters["processed"]
            counters["completed"] = counters["processed"] - 1
    if trainer.training and batch.processed == batch.ready - 1:
        # amid a step: the resumed run takes this batch again, but Lightning would count it twice
        state["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
    if amid_validation(trainer):
        _take_up_validation(state)
    if not trainer.training or not batch.completed == batch.processed - 1 == batch.ready - 1 or fetcher is None:
        return
    # A run that is asked to stop validates at once, but the resumed run is not asked to stop.
    stops, trainer.should_stop = trainer.should_stop, False
    validation_due = bool(trainer.enable_validation and loop._should_check_val_fx(fetcher))
    trainer.should_stop = stops
    if validation_due or loop._num_ready_batches_reached():
        for counters in _counters(state["epoch_loop.batch_progress"]):
            counters["completed"] = counters["processed"]
        if validation_due:
            _take_up_validation(state)
        else:  # nothing is pending, so Lightning does not count the batch again when it resumes
            state["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def continue_loops(trainer: Trainer) -> None:
    """Correct Lightning's counters of a resumed run, when training starts and before the first epoch."""
    loop, fetcher = trainer.fit_loop, trainer.fit_loop._data_fetcher
    if fetcher is None:  # the run is over: there is nothing to resume
        return
    batches: Any = loop.epoch_loop.batch_progress
    if batches.total.ready == 0:
        loop.epoch_loop.restarting = False  # nothing was trained: Lightning would count a batch that it does not take
    if batches.total.ready == batches.total.processed + 1:  # the resumed run takes this batch again
        batches.total.ready = batches.total.started = batches.total.processed
    if loop.restarted_on_epoch_start:
        # Lightning forgets that this epoch began and does not count it again, so later checkpoints would be misread.
        epochs: Any = loop.epoch_progress.current
        epochs.ready = epochs.completed + 1
    if loop.restarted_on_epoch_end:
        # With `max_steps` Lightning believes that the epoch is unfinished. It would run the epoch's end again, count
        # the epoch twice, and so stop an epoch early if `max_epochs` is set as well.
        loop.epoch_progress.increment_completed()
        for inner in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
            inner._restarting = False
            inner.reset_restart_stage()
    complete = loop.epoch_loop.restarting and batches.current.ready == batches.current.completed > 0
    if complete and loop.epoch_loop._num_ready_batches_reached():
        # Lightning would ask for another batch, and there is one if `limit_train_batches` cuts the epoch short.
        fetcher.done = True
        fetcher.batches = []  # type: ignore[attr-defined]  # fetched ahead, where the length is unknown


def _take_up_validation(state: dict[str, Any]) -> None:
    """Write into saved counters that a validation was interrupted at its first batch."""
    validation = state["epoch_loop.val_loop.batch_progress"]
    validation["is_last_batch"] = False
    validation["current"] = dict.fromkeys(validation["current"], 0)
    for counters in _counters(validation):
        counters["processed"] = counters["completed"]
        counters["ready"] = counters["started"] = counters["completed"] + 1


def amid_validation(trainer: Trainer) -> bool:
    """Whether a validation of the training has begun and has not logged its results yet."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    progress: Any = loop.batch_progress.current
    over = loop.batch_progress.is_last_batch and progress.completed == progress.ready and not loop._logged_outputs
    return bool(trainer.validating and trainer.state.fn == TrainerFn.FITTING and not over)


def _counters(progress: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    return progress["total"], progress["current"]
