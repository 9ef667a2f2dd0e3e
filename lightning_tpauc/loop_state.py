"""Where a resumed run goes on: corrections of what Lightning does after a checkpoint at a batch's or epoch's end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ("finish_saved_epoch", "keep_what_is_due", "log_again", "unlogged_metrics")


def keep_what_is_due(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Let a resumed run take up the validation, and the epoch's end, that a checkpoint of the last batch comes before.

    ``ModelCheckpoint(every_n_train_steps=...)`` saves before them, and Lightning goes on after them: a run that is
    killed during validation would never log it, nor would ``ReduceLROnPlateau`` and ``EarlyStopping`` see it. Lightning
    can take up a validation that was interrupted, so the saved counters say that this one was, at its first batch, and
    that the training batch is complete. The Trainer's own counters are left alone.

    Args:
        trainer: the Trainer that saves.
        checkpoint: what it is about to save.
    """
    loop = trainer.fit_loop.epoch_loop
    fetcher = trainer.fit_loop._data_fetcher
    if _at_epoch_start(trainer):
        # a signal may ask for a checkpoint here; Lightning would take the epoch to come for finished
        for counters in _counters(checkpoint["loops"]["fit_loop"]["epoch_progress"]):
            counters["ready"] = counters["processed"]
            counters["completed"] = counters["processed"] - 1
    if not _at_batch_end(trainer) or fetcher is None:
        return
    # a run that is asked to stop validates now, whatever the batch, but the resumed one does not stop
    stops, trainer.should_stop = trainer.should_stop, False
    validation_due = bool(trainer.enable_validation and loop._should_check_val_fx(fetcher))
    trainer.should_stop = stops
    if not validation_due and not loop._num_ready_batches_reached():
        return
    state: dict[str, Any] = checkpoint["loops"]["fit_loop"]
    for counters in _counters(state["epoch_loop.batch_progress"]):
        counters["completed"] = counters["processed"]
    if not validation_due:
        # there is nothing to take up, so the batch is not counted again
        state["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
        return
    validation = state["epoch_loop.val_loop.batch_progress"]
    validation["is_last_batch"] = False
    validation["current"] = dict.fromkeys(validation["current"], 0)
    for counters in _counters(validation):
        counters["processed"] = counters["completed"]
        counters["ready"] = counters["started"] = counters["completed"] + 1


def finish_saved_epoch(trainer: Trainer) -> None:
    """Count the epoch at whose end the checkpoint was written as finished.

    With ``max_steps`` Lightning takes it for unfinished: it would go through that epoch's end once more, count it twice
    and stop an epoch early where ``max_epochs`` is set as well. Called when training starts, before the first epoch.
    """
    loop = trainer.fit_loop
    if loop.restarted_on_epoch_end:
        loop.epoch_progress.increment_completed()
        for inner in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
            inner._restarting = False
            inner.reset_restart_stage()


def unlogged_metrics(trainer: Trainer) -> dict[str, Any] | None:
    """What Lightning logs for this batch or epoch only after its checkpoint is written.

    Returns:
        ``step``, the position on the loggers' axis, and ``metrics``, numbers by name; ``None`` if nothing is due.
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


def log_again(trainer: Trainer, unlogged: dict[str, Any] | None) -> None:
    """Log what a run that was killed at its checkpoint may not have logged; else the same point is there twice."""
    if unlogged is not None:
        for logger in trainer.loggers:
            logger.log_metrics(unlogged["metrics"], step=unlogged["step"])
            logger.save()


def _at_batch_end(trainer: Trainer) -> bool:
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(trainer.training and progress.completed == progress.processed - 1 == progress.ready - 1)


def _at_epoch_start(trainer: Trainer) -> bool:
    """Whether an epoch is over, at whose end :func:`finish_saved_epoch` goes on, and the next has not begun."""
    progress: Any = trainer.fit_loop.epoch_progress.current
    over = progress.started == progress.processed == progress.completed == progress.ready - 1
    return bool(trainer.training and over and progress.completed > 0)


def _at_epoch_end(trainer: Trainer) -> bool:
    progress: Any = trainer.fit_loop.epoch_progress.current
    return bool(trainer.training and progress.completed == progress.processed - 1)


def _counters(progress: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    return progress["total"], progress["current"]
