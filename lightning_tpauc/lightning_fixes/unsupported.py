"""What a Trainer may not do here: flags, strategies and callbacks that would give wrong results are refused.

Three helpers are for what it may do: start processes, log values that are the same on all ranks, and save in silence.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.strategies.xla import XLAStrategy
from lightning.pytorch.trainer.connectors.logger_connector.result import warning_cache
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, TPAUCWarning, UnsupportedError
from lightning_tpauc.lightning_fixes.mixing_in import refuse_twin
from lightning_tpauc.metrics.reporting import better_mode

_HIDDEN_PARAMETERS = (
    "{} is not supported: it hides or flattens the parameters that the proximal term and the average work on. Use "
    "'ddp', or ModelParallelStrategy (FSDP2) for sharded parameters."
)
_ACCUMULATION = (
    "{} can't work here: every batch is one step of the dual variables. Raise `num_pos` and `num_neg` of the data "
    "module instead."
)
_AVERAGING = (
    "{} does not work with manual optimization, and the iterates are averaged already. Remove it; StageCallback "
    "decides what is averaged."
)
_FINETUNING = (
    "{} would train weights that the average, the anchor and the weights of the step before do not hold: the result "
    "would be half an average and half the last iterate. Train twice: first with `requires_grad_(False)` on what is "
    "frozen, then everything, with the first run's checkpoint as `init_from`; or give what should move slowly a "
    "parameter group with a lower `lr`."
)
_PRUNING = (
    "{} zeroes weights of the iterate, but the result is an average of iterates, in which they are not zero. Prune the "
    "trained model with `torch.nn.utils.prune`."
)
_TUNER_LEFT = "If a Tuner put the callback there, it stays in that Trainer: make a new one."
_LR_FINDER = (
    "{} can't work here: it looks for the rate at which the loss falls fastest, but this loss is one of weights and "
    "dual variables, and the rate also scales the steps of the latter, which raise it. Compare `val/tpauc` of short "
    f"runs with `lr` of 1e-3, 1e-2, ... {_TUNER_LEFT}"
)
_BATCH_SIZE_FINDER = (
    "{} can't work here: it looks for `batch_size`, but a batch has `num_pos`, `num_neg` and `num_dual_neg` examples. "
    f"Raise those of the data module until the memory is full. {_TUNER_LEFT}"
)


def refuse_unsupported(trainer: Trainer, further: Iterable[Callback] = ()) -> None:
    """Check the Trainer, before Lightning's own checks do, whose advice does not fit here.

    Raises:
        UnsupportedError: with the reason and the remedy.
        ArgumentError: if a callback waits for a metric to get worse.
    """
    datamodule: Any = getattr(trainer, "datamodule", None)  # set at run time, declared nowhere
    validation = trainer.fit_loop.epoch_loop.val_loop
    loops = trainer.fit_loop, validation, trainer.validate_loop, trainer.test_loop, trainer.predict_loop
    own: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
    callbacks = [*own, *further]
    # Lightning takes a data module of the other package for a data loader if it is passed by position.
    for part in (datamodule, *(loop._data_source.instance for loop in loops), *callbacks):
        refuse_twin(type(part), type(part).__name__)
    if trainer.gradient_clip_val:
        msg = (
            f"Trainer(gradient_clip_val={trainer.gradient_clip_val}) can't work here: the optimization is manual. "
            "Pass `gradient_clip_val` to TPAUCModule instead."
        )
        raise UnsupportedError(msg)
    if trainer.accumulate_grad_batches != 1:
        flag = f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches})"
        raise UnsupportedError(_ACCUMULATION.format(flag))
    strategy = trainer.strategy
    if isinstance(strategy, (FSDPStrategy, DeepSpeedStrategy, XLAStrategy)):
        raise UnsupportedError(_HIDDEN_PARAMETERS.format(type(strategy).__name__))
    if isinstance(strategy, ModelParallelStrategy) and strategy._tensor_parallel_size != 1:
        msg = (
            f"ModelParallelStrategy(tensor_parallel_size={strategy._tensor_parallel_size!r}) is not supported: ranks "
            "of one tensor-parallel group would draw different examples. Pass `tensor_parallel_size=1` and the number "
            "of processes as `data_parallel_size`."
        )
        raise UnsupportedError(msg)
    for callback in callbacks:
        for reason in _reasons_against(trainer, callback):
            raise UnsupportedError(reason.format(type(callback).__name__))
        if isinstance(callback, ModelCheckpoint):
            _check_saving(trainer, callback)
        if isinstance(callback, (EarlyStopping, ModelCheckpoint)) and trainer.state.fn == TrainerFn.FITTING:
            _refuse_wrong_mode(callback)


def refuse_strategy_name(name: object) -> None:
    """Refuse a strategy by its name, before Lightning builds it and asks for a device or a package that it needs.

    Raises:
        UnsupportedError: with the reason and the remedy.
    """
    if isinstance(name, str) and re.match("fsdp|deepspeed|xla", name):
        raise UnsupportedError(_HIDDEN_PARAMETERS.format(f"strategy={name!r}"))


def _reasons_against(trainer: Trainer, callback: Callback) -> list[str]:
    algorithm: Any = trainer.lightning_module.algorithm
    fits, averages = trainer.state.fn == TrainerFn.FITTING, algorithm.averages_iterates or algorithm.has_stages
    accumulates = isinstance(callback, GradientAccumulationScheduler) and callback.going_to_accumulate_grad_batches()
    reasons = {
        _AVERAGING: isinstance(callback, (StochasticWeightAveraging, WeightAveraging)),
        _ACCUMULATION: accumulates,
        _FINETUNING: fits and isinstance(callback, BaseFinetuning) and bool(averages or algorithm.needs_previous),
        _PRUNING: fits and isinstance(callback, ModelPruning) and averages,
        _LR_FINDER: fits and isinstance(callback, LearningRateFinder),
        _BATCH_SIZE_FINDER: fits and isinstance(callback, BatchSizeFinder),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _refuse_wrong_mode(callback: EarlyStopping | ModelCheckpoint) -> None:
    name = callback.monitor
    better = better_mode(name) if name is not None else None
    if better is not None and callback.mode != better:
        given = "`mode='min'`, Lightning's default," if better == "max" else "`mode='max'`"
        worst = {"max": "smallest", "min": "largest"}[better] + (" area" if "au" in str(name) else " value")
        msg = (
            f"{type(callback).__name__}(monitor={name!r}) has {given} and would take the {worst} for the best; pass "
            f"`mode={better!r}`."
        )
        raise ArgumentError(msg)


def _check_saving(trainer: Trainer, callback: ModelCheckpoint) -> None:
    strategy, texts = trainer.strategy, []
    if callback._train_time_interval is not None:
        texts.append(
            "ModelCheckpoint(train_time_interval=...) never saves under manual optimization; "
            "use every_n_train_steps or every_n_epochs."
        )
    if callback.auto_insert_metric_name and re.search(r"\{[^}]*/", callback.filename or ""):
        texts.append(
            f"ModelCheckpoint(filename={callback.filename!r}) writes the metrics' names into the path, where each '/' "
            "opens a folder. Pass `auto_insert_metric_name=False` and write the names yourself, such as "
            "filename='epoch={epoch}-tpauc={val/tpauc:.3f}'."
        )
    if isinstance(strategy, ModelParallelStrategy) and strategy._save_distributed_checkpoint and callback.save_last:
        texts.append(
            "ModelCheckpoint(save_last=True) overwrites a folder with a file per process, and a kill meanwhile leaves "
            "a mixture of two checkpoints. Pass `save_distributed_checkpoint=False` to ModelParallelStrategy for one "
            "file that is replaced at once, or save under a new name each time (`save_top_k=-1`)."
        )
    for text in texts:
        rank_zero_warn(text, category=TPAUCWarning)


def log_replicated(module: LightningModule, name: str, value: Tensor, *, prog_bar: bool = False) -> None:
    """Log a value that is the same on all ranks.

    Lightning advises to average logged values over ranks, once for each name. Here that would cost a collective and
    gain nothing.
    """
    warning_cache.add(
        f"It is recommended to use `self.log({name!r}, ..., sync_dist=True)` when logging on epoch level in "
        "distributed setting to accumulate the metric across devices."
    )
    # if there are several data loaders, the name holds the loader's number already
    module.log(name, value, prog_bar=prog_bar, batch_size=1, add_dataloader_idx=False)


class SilentSaving:
    """Ignores, during a fit, what Lightning says on every save under manual optimization.

    It advises to store the weights from before the step in an attribute, to be saved instead of the current ones. Our
    checkpoints hold the state after the step.
    """

    def __init__(self) -> None:
        self._filter: Any = None

    def begin(self) -> None:
        """Ignore it from now on."""
        self.end()
        warnings.filterwarnings("ignore", message="Using ModelCheckpoint with manual optimization")
        self._filter = warnings.filters[0]

    def end(self) -> None:
        """Leave the filters of warnings as they were."""
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]  # a list, declared as a sequence
        self._filter = None
