"""Resuming Lightning's loops exactly where a checkpoint was saved.

Lightning writes some checkpoints in the middle of its bookkeeping: after a batch's step but before its validation, or
after an epoch's batches but before the epoch's end. The functions here correct what is saved and what is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from lightning_tpauc.lightning_fixes.pending_hooks import mark_pending_hook, take_pending


def mark_pending(trainer: Trainer, checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """Mark in a checkpoint what Lightning would have done next, so that a resumed run does it.

    Returns:
        The rest of the hook that asks for the checkpoint; see :mod:`lightning_tpauc.lightning_fixes.pending_hooks`.
    """
    mark_validation_pending(trainer, checkpoint)
    return mark_pending_hook(trainer, checkpoint)


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
    loop = trainer.fit_loop.epoch_loop
    fetcher = trainer.fit_loop._data_fetcher
    if _at_epoch_start(trainer):
        # A signal may ask for a checkpoint here. Lightning would count the coming epoch as finished.
        for counters in _counters(checkpoint["loops"]["fit_loop"]["epoch_progress"]):
            counters["ready"] = counters["processed"]
            counters["completed"] = counters["processed"] - 1
    state: dict[str, Any] = checkpoint["loops"]["fit_loop"]
    if _amid_batch(trainer):
        # The resumed run takes this batch again, but Lightning would count it twice.
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
    if not validation_due:
        # Nothing is pending, so Lightning does not count the batch again when it resumes.
        state["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
        return
    _take_up_validation(state)


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
        self._callbacks: list[Callback] | None = None

    def prepare(self, trainer: Trainer, *, last_epoch: bool) -> None:
        """Add a step to ``max_steps`` if only an epoch's end is left, since Lightning would not enter the loop."""
        self._extra_steps = int(last_epoch)
        trainer.fit_loop.epoch_loop.max_steps += self._extra_steps

    def start(self, trainer: Trainer, entry: dict[str, Any], own: Callback) -> bool:
        """Prepare what is left of the saved epoch, when training starts.

        A run that ``EarlyStopping`` had ended ends again. If the checkpoint was saved in the hook of an epoch's end,
        Lightning will call only those callbacks that were not called before, and ``own``, to call :meth:`end_epoch`.

        Returns:
            Whether only an epoch's end is left.
        """
        self._stops = entry.get("stopped_early", False) and _stop_again(trainer)
        left = take_pending(trainer, entry.get("pending_hook"), "on_train_epoch_end")
        epochs: Any = trainer.fit_loop.epoch_progress.current
        if left is not None and epochs.processed < epochs.started:
            self._callbacks = trainer.callbacks  # type: ignore[attr-defined]
            trainer.callbacks = [c for c in self._callbacks if c is own or c in left]  # type: ignore[attr-defined]
        return bool(self._extra_steps) or self._stops

    def end_epoch(self, trainer: Trainer) -> bool:
        """Restore the Trainer, and end a run that ``EarlyStopping`` had ended.

        Returns:
            Whether the caller's part of this epoch's end was done before the checkpoint was saved.
        """
        done = self._callbacks is not None
        self.restore(trainer)
        if self._stops:
            trainer.should_stop, self._stops = True, False
        return done

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
        """Take back what :meth:`prepare` added, and what :meth:`start` took away."""
        if self._callbacks is not None:
            trainer.callbacks, self._callbacks = self._callbacks, None  # type: ignore[attr-defined]
        trainer.fit_loop.epoch_loop.max_steps -= self._extra_steps
        self._extra_steps = 0


def _stop_again(trainer: Trainer) -> bool:
    """Ask the Trainer to stop, if it has an ``EarlyStopping``; that one had ended the run before.

    Returns:
        Whether the run must first finish the epoch in which it was stopped.
    """
    if not any(isinstance(c, EarlyStopping) for c in trainer.callbacks):  # type: ignore[attr-defined]
        return False
    rank_zero_info(
        "EarlyStopping had ended the run that is resumed, so it ends again. Remove the callback to train on."
    )
    epoch: Any = trainer.fit_loop.epoch_progress.current
    amid_epoch = bool(epoch.processed < epoch.started and trainer.fit_loop._can_stop_early)
    trainer.should_stop = not amid_epoch
    return amid_epoch


def continue_loops(trainer: Trainer, *, last_epoch: bool = False) -> None:
    """Correct Lightning's counters of a resumed run, when training starts and before the first epoch."""
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    if fetcher is None:  # the run is over: there is nothing to resume
        epochs: Any = trainer.fit_loop.epoch_progress
        if epochs.current.completed == epochs.current.processed - 1:
            epochs.increment_completed()
        return
    total: Any = loop.batch_progress.total
    if total.ready == 0:
        loop.restarting = False  # nothing was trained: Lightning would count a batch that it does not take
    if total.ready == total.processed + 1:
        total.ready = total.started = total.processed  # the resumed run takes this batch again
    if trainer.fit_loop.restarted_on_epoch_start:
        # Lightning forgets that this epoch began and does not count it again, so later checkpoints would be misread.
        epochs = trainer.fit_loop.epoch_progress.current
        epochs.ready = epochs.completed + 1
    _finish_saved_epoch(trainer)
    progress: Any = loop.batch_progress.current
    complete = loop.restarting and progress.ready == progress.completed > 0
    if last_epoch or (complete and loop._num_ready_batches_reached()):
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


def known_metrics(trainer: Trainer) -> dict[str, Any]:
    """What callbacks find in ``trainer.callback_metrics``, where values may be as old as the last validation."""
    connector = trainer._logger_connector
    # Reading the property computes what is logged so far, which is incomplete during a validation.
    metrics = trainer.callback_metrics if trainer.training else connector._callback_metrics
    return {name: value.detach().cpu() for name, value in metrics.items()}


def restore_known_metrics(trainer: Trainer, metrics: dict[str, Any]) -> None:
    """Show callbacks the :func:`known_metrics` of the resumed run; some fail if their monitored metric is missing."""
    trainer._logger_connector._callback_metrics.update(metrics)


def unlogged_metrics(trainer: Trainer) -> dict[str, Any] | None:
    """What Lightning will log for this batch or epoch after it has written the checkpoint.

    Returns:
        ``step``, the position on the loggers' axis, and ``metrics``, numbers by name; ``None`` if there is nothing.
    """
    connector = trainer._logger_connector
    at_batch_end = _at_batch_end(trainer)
    if not trainer.loggers or not (at_batch_end or _at_epoch_end(trainer)):
        return None
    if at_batch_end and not connector.should_update_logs:
        return None
    metrics = {name: float(value) for name, value in connector.metrics["log"].items()}
    if not metrics:
        return None
    # at an epoch's end the last batch is counted already
    step = trainer.fit_loop.epoch_loop._batches_that_stepped - (not at_batch_end)
    return {"step": int(metrics.pop("step", step)), "metrics": {"epoch": trainer.current_epoch, **metrics}}


def replay_unlogged_metrics(trainer: Trainer, unlogged: dict[str, Any] | None) -> None:
    """Log what the run may not have logged if it was killed right after its checkpoint.

    If it had logged that, loggers hold the same point twice.
    """
    if unlogged is not None:
        for logger in trainer.loggers:
            logger.log_metrics(unlogged["metrics"], step=unlogged["step"])
            logger.save()


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


def _at_epoch_start(trainer: Trainer) -> bool:
    """Whether an epoch is over, including its end, and the next one has not begun."""
    progress: Any = trainer.fit_loop.epoch_progress.current
    over = progress.started == progress.processed == progress.completed == progress.ready - 1
    return bool(trainer.training and over and progress.completed > 0)


def _at_epoch_end(trainer: Trainer) -> bool:
    progress: Any = trainer.fit_loop.epoch_progress.current
    return bool(trainer.training and progress.completed == progress.processed - 1)


def _counters(progress: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    return progress["total"], progress["current"]
