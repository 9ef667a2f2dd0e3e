"""Where a resumed run goes on: corrections of what Lightning does after a checkpoint at a batch's or epoch's end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = (
    "ResumedLoop",
    "continue_loops",
    "ends_amid_epoch",
    "known_metrics",
    "mark_validation_pending",
    "replay_unlogged_metrics",
    "restore_known_metrics",
    "stopped_early",
    "unlogged_metrics",
)


def mark_validation_pending(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Let a resumed run take up the validation, and the epoch's end, that a checkpoint of the last batch comes before.

    ``ModelCheckpoint(every_n_train_steps=...)`` saves before them, and Lightning goes on after them: a run that is
    killed during validation would never log it, nor would ``ReduceLROnPlateau`` and ``EarlyStopping`` see it. Lightning
    can take up a validation that was interrupted, so the saved counters say that this one was, at its first batch, and
    that the training batch is complete. The Trainer's own counters are left alone.

    A validation that a checkpoint is saved amid, as when an exception ends it, is taken up at its first batch as well:
    what the metrics have seen is not in the file.

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
    state: dict[str, Any] = checkpoint["loops"]["fit_loop"]
    if _amid_batch(trainer):
        # the batch is taken again, but Lightning would count it
        state["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
    if _amid_validation(trainer):
        _take_up_validation(state)
    if not _at_batch_end(trainer) or fetcher is None:
        return
    # a run that is asked to stop validates now, whatever the batch, but the resumed one may not stop
    stops, trainer.should_stop = trainer.should_stop, stopped_early(trainer)
    validation_due = bool(trainer.enable_validation and loop._should_check_val_fx(fetcher))
    trainer.should_stop = stops
    if not validation_due and not loop._num_ready_batches_reached():
        return
    for counters in _counters(state["epoch_loop.batch_progress"]):
        counters["completed"] = counters["processed"]
    if not validation_due:
        # there is nothing to take up, so the batch is not counted again
        state["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
        return
    _take_up_validation(state)


def ends_amid_epoch(trainer: Trainer, checkpoint: dict[str, Any]) -> bool:
    """Whether ``max_steps`` were taken when a checkpoint was written, but the epoch that they end in was not ended.

    Lightning would call the run over at once. Its last validation, and what is logged at an epoch's end, would be lost.
    """
    state: dict[str, Any] = checkpoint["loops"]["fit_loop"]
    steps: int = state["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
    epoch: dict[str, int] = state["epoch_progress"]["current"]
    return 0 <= trainer.max_steps <= steps and epoch["processed"] < epoch["started"]


def stopped_early(trainer: Trainer) -> bool:
    """Whether ``EarlyStopping`` has ended the run, which it would do again in a resumed one, but an epoch later.

    Other requests to stop, such as that of a ``Timer``, are for the process that they are made in.
    """
    callbacks = [c for c in trainer.callbacks if isinstance(c, EarlyStopping)]  # type: ignore[attr-defined]
    return bool(trainer.should_stop and any(c.stopped_epoch > 0 or c.wait_count >= c.patience for c in callbacks))


class ResumedLoop:
    """What a resumed run changes in the Trainer's loops until the epoch that it was saved in has ended.

    A run that was saved after its last step, or after ``EarlyStopping`` had ended it, has only that epoch's end left.
    """

    def __init__(self) -> None:
        self._extra_steps = 0
        self._stops = False

    def prepare(self, trainer: Trainer, *, last_epoch: bool) -> None:
        """Let the loop begin, before training starts, although no step is left, where only an epoch's end is."""
        self._extra_steps = int(last_epoch)
        trainer.fit_loop.epoch_loop.max_steps += self._extra_steps

    def start(self, trainer: Trainer, *, stopped: bool) -> bool:
        """End a run that ``EarlyStopping`` had ended, when training starts.

        Args:
            trainer: the Trainer that resumes.
            stopped: whether ``EarlyStopping`` had ended the run.

        Returns:
            Whether only an epoch's end is left.
        """
        self._stops = stopped and _stop_again(trainer)
        return bool(self._extra_steps) or self._stops

    def end_epoch(self, trainer: Trainer) -> None:
        """Give the loop its own number of steps back, and end the run where ``EarlyStopping`` had."""
        self.restore_max_steps(trainer)
        if self._stops:
            trainer.should_stop, self._stops = True, False

    @contextmanager
    def own_length(self, trainer: Trainer) -> Iterator[None]:
        """The loop has its own number of steps inside, which schedules go by."""
        loop = trainer.fit_loop.epoch_loop
        loop.max_steps -= self._extra_steps
        try:
            yield
        finally:
            loop.max_steps += self._extra_steps

    def restore_max_steps(self, trainer: Trainer) -> None:
        """Give the loop its own number of steps back."""
        trainer.fit_loop.epoch_loop.max_steps -= self._extra_steps
        self._extra_steps = 0


def _stop_again(trainer: Trainer) -> bool:
    """Let a run that ``EarlyStopping`` had ended end, when training starts.

    Returns:
        Whether the epoch that was stopped in is to be ended first, and the run only then.
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
    """Correct where a resumed run takes up its loops; called when training starts, before the first epoch.

    Args:
        trainer: the Trainer that resumes.
        last_epoch: whether no step is left, only an epoch's end.
    """
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    if fetcher is None:  # the run is over, and nothing goes on
        epochs: Any = trainer.fit_loop.epoch_progress
        if epochs.current.completed == epochs.current.processed - 1:
            epochs.increment_completed()
        return
    total: Any = loop.batch_progress.total
    if total.ready == 0:
        loop.restarting = False  # nothing was trained; Lightning would count a batch that it does not take
    if total.ready == total.processed + 1:
        total.ready = total.started = total.processed  # this batch is taken again
    if trainer.fit_loop.restarted_on_epoch_start:
        # Lightning takes back that this epoch began, and does not count it again: later checkpoints would be misread
        epochs = trainer.fit_loop.epoch_progress.current
        epochs.ready = epochs.completed + 1
    _finish_saved_epoch(trainer)
    progress: Any = loop.batch_progress.current
    complete = loop.restarting and progress.ready == progress.completed > 0
    if last_epoch or (complete and loop._num_ready_batches_reached()):
        # Lightning would ask for a further batch, and `limit_train_batches` leaves one to take
        fetcher.done = True
        fetcher.batches = []  # type: ignore[attr-defined]  # fetched ahead, where the length is unknown


def _finish_saved_epoch(trainer: Trainer) -> None:
    """Count the epoch at whose end the checkpoint was written as finished.

    With ``max_steps`` Lightning takes it for unfinished: it would go through that epoch's end once more, count it twice
    and stop an epoch early where ``max_epochs`` is set as well.
    """
    loop = trainer.fit_loop
    if loop.restarted_on_epoch_end:
        loop.epoch_progress.increment_completed()
        for inner in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
            inner._restarting = False
            inner.reset_restart_stage()


def known_metrics(trainer: Trainer) -> dict[str, Any]:
    """What callbacks find in ``trainer.callback_metrics``: values may be as old as the last validation."""
    connector = trainer._logger_connector
    # reading the property computes what is logged so far, of which a validation has a part only
    metrics = trainer.callback_metrics if trainer.training else connector._callback_metrics
    return {name: value.detach().cpu() for name, value in metrics.items()}


def restore_known_metrics(trainer: Trainer, metrics: dict[str, Any]) -> None:
    """Give callbacks the :func:`known_metrics` of the run that is resumed; some fail without what they monitor."""
    trainer._logger_connector._callback_metrics.update(metrics)


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


def replay_unlogged_metrics(trainer: Trainer, unlogged: dict[str, Any] | None) -> None:
    """Log what a run that was killed at its checkpoint may not have logged; else the same point is there twice."""
    if unlogged is not None:
        for logger in trainer.loggers:
            logger.log_metrics(unlogged["metrics"], step=unlogged["step"])
            logger.save()


def _take_up_validation(state: dict[str, Any]) -> None:
    """Say in saved counters that a validation was interrupted at its first batch."""
    validation = state["epoch_loop.val_loop.batch_progress"]
    validation["is_last_batch"] = False
    validation["current"] = dict.fromkeys(validation["current"], 0)
    for counters in _counters(validation):
        counters["processed"] = counters["completed"]
        counters["ready"] = counters["started"] = counters["completed"] + 1


def _amid_batch(trainer: Trainer) -> bool:
    """Whether a training batch has been fetched whose step is not over."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(trainer.training and progress.processed == progress.ready - 1)


def _amid_validation(trainer: Trainer) -> bool:
    """Whether a validation of the training has begun, but not yet logged what it found."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    progress: Any = loop.batch_progress.current
    over = loop.batch_progress.is_last_batch and progress.completed == progress.ready and not loop._logged_outputs
    return bool(trainer.validating and trainer.state.fn == TrainerFn.FITTING and not over)


def _at_batch_end(trainer: Trainer) -> bool:
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(trainer.training and progress.completed == progress.processed - 1 == progress.ready - 1)


def _at_epoch_start(trainer: Trainer) -> bool:
    """Whether an epoch is over, at whose end :func:`_finish_saved_epoch` goes on, and the next has not begun."""
    progress: Any = trainer.fit_loop.epoch_progress.current
    over = progress.started == progress.processed == progress.completed == progress.ready - 1
    return bool(trainer.training and over and progress.completed > 0)


def _at_epoch_end(trainer: Trainer) -> bool:
    progress: Any = trainer.fit_loop.epoch_progress.current
    return bool(trainer.training and progress.completed == progress.processed - 1)


def _counters(progress: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    return progress["total"], progress["current"]
