"""What a Trainer may not do here: flags, strategies and callbacks that would give wrong results are refused.

Two helpers are for what it may do: start processes, and log values that are the same on all ranks.
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
_LR_FINDER = (
    "{} can't work here: it looks for the rate at which the loss falls fastest, but this loss is one of weights and "
    "dual variables, and the rate also scales the steps of the latter, which raise it. Compare `val/tpauc` of short "
    "runs with `lr` of 1e-3, 1e-2, ... "
)
_BATCH_SIZE_FINDER = (
    "{} can't work here: it looks for `batch_size`, but a batch has `num_pos`, `num_neg` and `num_dual_neg` examples. "
    "Raise those of the data module until the memory is full. "
)
_TUNER_LEFT = "If a Tuner put the callback there, it stays in that Trainer: make a new one."


def refuse_unsupported(trainer: Trainer, further: Iterable[Callback] = ()) -> None:
    """Check the Trainer, before Lightning's own checks do, whose advice does not fit here.

    Raises:
        UnsupportedError: with the reason and the remedy.
        ArgumentError: if a callback waits for a metric to get worse.
    """
    datamodule: Any = getattr(trainer, "datamodule", None)  # set at run time, declared nowhere
    validation = trainer.fit_loop.epoch_loop.val_loop
    loops = trainer.fit_loop, validation, trainer.validate_loop, trainer.test_loop, trainer.predict_loop
    # Lightning takes a data module of the other package for a data loader if it is passed by position.
    for source in (datamodule, *(loop._data_source.instance for loop in loops)):
        refuse_twin(type(source), type(source).__name__)
    _refuse_flags(trainer)
    _refuse_strategies(trainer)
    _refuse_callbacks(trainer, further)


def refuse_strategy_name(name: object) -> None:
    """Refuse a strategy by its name, before Lightning builds it and asks for a device or a package that it needs.

    Raises:
        UnsupportedError: with the reason and the remedy.

    Example:
        >>> refuse_strategy_name("ddp")
    """
    if isinstance(name, str) and re.match("fsdp|deepspeed|xla", name):
        raise UnsupportedError(_HIDDEN_PARAMETERS.format(f"strategy={name!r}"))


def _refuse_flags(trainer: Trainer) -> None:
    if trainer.gradient_clip_val:
        msg = (
            f"Trainer(gradient_clip_val={trainer.gradient_clip_val}) can't work here: the optimization is manual. "
            "Pass `gradient_clip_val` to TPAUCModule instead."
        )
        raise UnsupportedError(msg)
    if trainer.accumulate_grad_batches != 1:
        flag = f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches})"
        raise UnsupportedError(_ACCUMULATION.format(flag))


def _refuse_strategies(trainer: Trainer) -> None:
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


def _refuse_callbacks(trainer: Trainer, further: Iterable[Callback]) -> None:
    own: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
    for callback in (*own, *further):
        refuse_twin(type(callback), type(callback).__name__)
        if isinstance(callback, (StochasticWeightAveraging, WeightAveraging)):
            msg = (
                f"{type(callback).__name__} does not work with manual optimization, and the iterates are averaged "
                "already. Remove it; StageCallback decides what is averaged."
            )
            raise UnsupportedError(msg)
        if isinstance(callback, GradientAccumulationScheduler) and callback.going_to_accumulate_grad_batches():
            raise UnsupportedError(_ACCUMULATION.format(type(callback).__name__))
        if isinstance(callback, ModelCheckpoint):
            _check_saving(trainer, callback)
        if trainer.state.fn == TrainerFn.FITTING:
            if isinstance(callback, (EarlyStopping, ModelCheckpoint)):
                _refuse_wrong_mode(callback)
            _refuse_changing(trainer, callback)
            _refuse_tuning(callback)


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


def _refuse_changing(trainer: Trainer, callback: Callback) -> None:
    algorithm: Any = trainer.lightning_module.algorithm
    averages = algorithm.averages_iterates or algorithm.has_stages
    name = type(callback).__name__
    if isinstance(callback, BaseFinetuning) and (averages or algorithm.needs_previous):
        raise UnsupportedError(_FINETUNING.format(name))
    if isinstance(callback, ModelPruning) and averages:
        raise UnsupportedError(_PRUNING.format(name))


def _refuse_tuning(callback: Callback) -> None:
    name = type(callback).__name__
    if isinstance(callback, LearningRateFinder):
        raise UnsupportedError(_LR_FINDER.format(name) + _TUNER_LEFT)
    if isinstance(callback, BatchSizeFinder):
        raise UnsupportedError(_BATCH_SIZE_FINDER.format(name) + _TUNER_LEFT)


def _check_saving(trainer: Trainer, callback: ModelCheckpoint) -> None:
    if callback._train_time_interval is not None:
        rank_zero_warn(
            "ModelCheckpoint(train_time_interval=...) never saves under manual optimization; "
            "use every_n_train_steps or every_n_epochs.",
            category=TPAUCWarning,
        )
    if callback.auto_insert_metric_name and re.search(r"\{[^}]*/", callback.filename or ""):
        rank_zero_warn(
            f"ModelCheckpoint(filename={callback.filename!r}) writes the metrics' names into the path, where each '/' "
            "opens a folder. Pass `auto_insert_metric_name=False` and write the names yourself, such as "
            "filename='epoch={epoch}-tpauc={val/tpauc:.3f}'.",
            category=TPAUCWarning,
        )
    strategy = trainer.strategy
    if isinstance(strategy, ModelParallelStrategy) and strategy._save_distributed_checkpoint and callback.save_last:
        rank_zero_warn(
            "ModelCheckpoint(save_last=True) overwrites a folder with a file per process, and a kill meanwhile leaves "
            "a mixture of two checkpoints. Pass `save_distributed_checkpoint=False` to ModelParallelStrategy for one "
            "file that is replaced at once, or save under a new name each time (`save_top_k=-1`).",
            category=TPAUCWarning,
        )


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
