"""The rest of a hook in which a callback saves a checkpoint, for the run that is resumed from it.

Lightning calls a hook of one callback after the other, then the module's. If one of them saves a checkpoint, the file
holds what those before it have done. Lightning never calls the others for that epoch or validation again. So the
checkpoint names them, and the resumed run calls them.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.trainer import call

#: Hooks at which callbacks stop, save or schedule by what was measured; they take no arguments.
_EPOCH_END, _VALIDATION_END = "on_train_epoch_end", "on_validation_end"


def pending_hook(trainer: Trainer) -> dict[str, Any] | None:
    """The hook whose caller asks for a checkpoint, if others are called after it.

    Returns:
        ``hook``, its name, and ``callbacks``, the ``state_key`` of those that are still to be called; ``None`` where
        Lightning's own ``Checkpoint`` saves, which comes last.
    """
    frame = inspect.currentframe()
    while frame is not None:
        hook = frame.f_locals.get("hook_name") if frame.f_code in _CALLERS else None
        if hook in (_EPOCH_END, _VALIDATION_END):
            later = _called_later(trainer, hook, frame)
            return None if later is None else {"hook": hook, "callbacks": [callback.state_key for callback in later]}
        frame = frame.f_back
    return None


_CALLERS = (call._call_callback_hooks.__code__, call._call_lightning_module_hook.__code__)


def _called_later(trainer: Trainer, hook: str, frame: FrameType) -> list[Callback] | None:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
    # Lightning calls these after the module at an epoch's end
    last: list[Callback] = [callback for callback in callbacks if isinstance(callback, (EarlyStopping, Checkpoint))]
    if frame.f_code is _CALLERS[1]:
        return last if hook == _EPOCH_END else None
    called, saver, monitors = (frame.f_locals.get(name) for name in ("callbacks", "callback", "monitoring_callbacks"))
    if isinstance(saver, Checkpoint) or monitors or not called or saver not in called:
        return None
    later: list[Callback] = called[called.index(saver) + 1 :]
    return later + last if hook == _EPOCH_END else later


def take_pending(trainer: Trainer, pending: dict[str, Any] | None, hook: str) -> list[Callback] | None:
    """The callbacks to call in ``hook`` when a run is resumed; ``None`` if the checkpoint was not saved in it."""
    if pending is None or pending["hook"] != hook:
        return None
    left, found = Counter(pending["callbacks"]), []
    for callback in reversed(trainer.callbacks):  # type: ignore[attr-defined]  # of equal ones the last are left
        if left[callback.state_key] > 0:
            left[callback.state_key] -= 1
            found.append(callback)
    return found[::-1]


def mark_pending_hook(trainer: Trainer, checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """The :func:`pending_hook`; writes into saved counters that an epoch's end is still to come.

    Lightning then calls that hook when it resumes. After an epoch that was cut short it goes on with the next one.
    """
    pending = pending_hook(trainer)
    if pending is not None and pending["hook"] == _EPOCH_END and not trainer.should_stop:
        _reopen_epoch(trainer, checkpoint)
    return pending


def _reopen_epoch(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    state, loop = checkpoint["loops"]["fit_loop"], trainer.fit_loop.epoch_loop
    for counters in (state["epoch_progress"]["total"], state["epoch_progress"]["current"]):
        counters["processed"] -= 1
    epochs: Any = trainer.fit_loop.epoch_progress.current
    fetcher = trainer.fit_loop._data_fetcher
    epochs.processed -= 1  # as it was when the Trainer asked whether to validate
    if fetcher is not None and trainer.enable_validation and loop._should_check_val_fx(fetcher):
        state["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1  # Lightning counts the last batch when it resumes
    epochs.processed += 1


def end_validation(trainer: Trainer, callbacks: Sequence[Callback]) -> None:
    """Call ``on_validation_end`` of these callbacks and of the module, outside of a validation."""
    module = trainer.lightning_module
    trainer.validating = True
    for callback in callbacks:
        callback.on_validation_end(trainer, module)
    call._call_lightning_module_hook(trainer, _VALIDATION_END)
    trainer.training = True
