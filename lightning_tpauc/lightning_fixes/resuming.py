"""Resuming Lightning's loops exactly where a checkpoint was saved.

Lightning writes some checkpoints in the middle of its bookkeeping: after a batch's step but before its validation, or
after an epoch's batches but before the epoch's end. The functions here correct what is saved and what is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info


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
    if _amid_batch(trainer):  # the resumed run takes this batch again, but Lightning would count it twice
        state["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
    if amid_validation(trainer):
        _take_up_validation(state)
    if not _at_batch_end(trainer) or fetcher is None:
        return
    # A run that is asked to stop validates at once, but the resumed run may not be asked to stop.
    stops, trainer.should_stop = trainer.should_stop, stopped_early(trainer)
    validation_due = bool(trainer.enable_validation and loop._should_check_val_fx(fetcher))
    trainer.should_stop = stops
    if not validation_due and not loop._num_ready_batches_reached():
        return
    for counters in _counters(state["epoch_loop.batch_progress"]):
        counters["completed"] = counters["processed"]
    if validation_due:
        _take_up_validation(state)
    else:  # nothing is pending, so Lightning does not count the batch again when it resumes
        state["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def ends_amid_epoch(trainer: Trainer, checkpoint: dict[str, Any]) -> bool:
    """Whether a checkpoint was written after the last of ``max_steps``, but before the end of that epoch.

    Lightning would end the resumed run at once. The last validation, and what is logged at an epoch's end, would be
    lost.
    """
    state: dict[str, Any] = checkpoint["loops"]["fit_loop"]
    steps: int = state["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
    epoch: dict[str, int] = state["epoch_progress"]["current"]
    return 0 <= trainer.max_steps <= steps and epoch["processed"] < epoch["started"]


def stopped_early(trainer: Trainer) -> bool:
    """Whether ``EarlyStopping`` has ended the run, which a resumed run would notice only an epoch later.

    Other requests to stop, such as a ``Timer``'s, concern only the process that made them.
    """
    callbacks = [c for c in trainer.callbacks if isinstance(c, EarlyStopping)]  # type: ignore[attr-defined]
    return bool(trainer.should_stop and any(c.stopped_epoch > 0 or c.wait_count >= c.patience for c in callbacks))


class ResumedLoop:
    """What a resumed run changes in the Trainer's loops until its first epoch has ended.

    A run that was saved after its last step, or that ``EarlyStopping`` had ended, has only an epoch's end left to do.
    """

    def __init__(self) -> None:
        self._extra_steps = 0
        self._stops = False

    def prepare(self, trainer: Trainer, *, last_epoch: bool) -> None:
        """Add a step to ``max_steps`` if only an epoch's end is left, since Lightning would not enter the loop."""
        self._extra_steps = int(last_epoch)
        trainer.fit_loop.epoch_loop.max_steps += self._extra_steps

    def start(self, trainer: Trainer, entry: dict[str, Any]) -> bool:
        """End a run again that ``EarlyStopping`` had ended; whether only an epoch's end is left."""
        self._stops = entry.get("stopped_early", False) and _stop_again(trainer)
        return bool(self._extra_steps) or self._stops

    def end_epoch(self, trainer: Trainer) -> None:
        """Restore the Trainer, and end a run that ``EarlyStopping`` had ended."""
        self.restore(trainer)
        if self._stops:
            trainer.should_stop, self._stops = True, False

    @contextmanager
    def own_length(self, trainer: Trainer) -> Iterator[None]:
        """``max_steps`` has the user's value inside, so that schedules see the true length of the run."""
        loop = trainer.fit_loop.epoch_loop
        loop.max_steps -= self._extra_steps
        try:
            yield
        finally:
            loop.max_steps += self._extra_steps

    def restore(self, trainer: Trainer) -> None:
        """Take back what :meth:`prepare` added."""
        trainer.fit_loop.epoch_loop.max_steps -= self._extra_steps
        self._extra_steps = 0


def _stop_again(trainer: Trainer) -> bool:
    """Ask the Trainer to stop if it has an ``EarlyStopping``; whether it must finish the saved epoch first."""
    if not any(isinstance(c, EarlyStopping) for c in trainer.callbacks):  # type: ignore[attr-defined]
        return False
    rank_zero_info(
        "EarlyStopping had ended the run that is resumed, so it ends again. Remove the callback to train on."
    )
    epoch: Any = trainer.fit_loop.epoch_progress.current
    amid_epoch = bool(epoch.processed < epoch.started and trainer.fit_loop._can_stop_early)
    trainer.should_stop = not amid_epoch
    return amid_epoch


import os  # noqa: E402
OFF = os.environ.get("OFF", "")


def continue_loops(trainer: Trainer, *, last_epoch: bool = False) -> None:
    """Correct Lightning's counters of a resumed run, when training starts and before the first epoch."""
    if "z" in OFF:
        return
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    if fetcher is None:  # the run is over: there is nothing to resume
        epochs: Any = trainer.fit_loop.epoch_progress
        if epochs.current.completed == epochs.current.processed - 1 and "a" not in OFF:
            epochs.increment_completed()
        return
    total: Any = loop.batch_progress.total
    if total.ready == 0 and "b" not in OFF:
        loop.restarting = False  # nothing was trained: Lightning would count a batch that it does not take
    if total.ready == total.processed + 1 and "c" not in OFF:
        total.ready = total.started = total.processed  # the resumed run takes this batch again
    if trainer.fit_loop.restarted_on_epoch_start and "d" not in OFF:
        # Lightning forgets that this epoch began and does not count it again, so later checkpoints would be misread.
        epochs = trainer.fit_loop.epoch_progress.current
        epochs.ready = epochs.completed + 1
    if "e" not in OFF:
        _finish_saved_epoch(trainer)
    progress: Any = loop.batch_progress.current
    complete = loop.restarting and progress.ready == progress.completed > 0
    if (last_epoch and "f" not in OFF) or (complete and loop._num_ready_batches_reached() and "g" not in OFF):
        # Lightning would ask for another batch, and there is one if `limit_train_batches` cuts the epoch short.
        fetcher.done = True
        fetcher.batches = []  # type: ignore[attr-defined]  # fetched ahead, where the length is unknown


def _finish_saved_epoch(trainer: Trainer) -> None:
    """Count the epoch as finished if the checkpoint was written at its end.

    With ``max_steps`` Lightning believes that the epoch is unfinished. It would run the epoch's end again, count the
    epoch twice, and so stop an epoch early if ``max_epochs`` is set as well.
    """
    loop = trainer.fit_loop
    if loop.restarted_on_epoch_end:
        loop.epoch_progress.increment_completed()
        for inner in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
            inner._restarting = False
            inner.reset_restart_stage()


def _take_up_validation(state: dict[str, Any]) -> None:
    """Write into saved counters that a validation was interrupted at its first batch."""
    validation = state["epoch_loop.val_loop.batch_progress"]
    validation["is_last_batch"] = False
    validation["current"] = dict.fromkeys(validation["current"], 0)
    for counters in _counters(validation):
        counters["processed"] = counters["completed"]
        counters["ready"] = counters["started"] = counters["completed"] + 1


def _amid_batch(trainer: Trainer) -> bool:
    """Whether a training batch was fetched and its step is not over."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(trainer.training and progress.processed == progress.ready - 1)


def amid_validation(trainer: Trainer) -> bool:
    """Whether a validation of the training has begun and has not logged its results yet."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    progress: Any = loop.batch_progress.current
    over = loop.batch_progress.is_last_batch and progress.completed == progress.ready and not loop._logged_outputs
    return bool(trainer.validating and trainer.state.fn == TrainerFn.FITTING and not over)


def _at_batch_end(trainer: Trainer) -> bool:
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(trainer.training and progress.completed == progress.processed - 1 == progress.ready - 1)


def _counters(progress: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    return progress["total"], progress["current"]
