"""Trainer flags, strategies and callbacks that would give wrong results are refused before training starts."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.strategies.xla import XLAStrategy
from lightning.pytorch.utilities import rank_zero_warn

from lightning_tpauc.errors import TPAUCWarning, UnsupportedError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor

__all__ = ("log_replicated", "refuse_strategy_name", "refuse_unsupported")

_HIDDEN_PARAMETERS = (
    "{} is not supported: it hides or flattens the parameters that the proximal term and the average work on. Use "
    "'ddp', or ModelParallelStrategy (FSDP2) for sharded parameters."
)
_ACCUMULATION = (
    "{} can't work here: every batch is one step of the dual variables. Raise `num_pos` and `num_neg` of the data "
    "module instead."
)


def log_replicated(module: LightningModule, name: str, value: Tensor, *, prog_bar: bool = False) -> None:
    """Log a value that all ranks hold alike.

    Lightning advises to average whatever is logged over ranks; here that would cost a collective and could only round.
    """
    warnings.filterwarnings("ignore", message=re.escape(f"It is recommended to use `self.log({name!r}"))
    module.log(name, value, prog_bar=prog_bar, batch_size=1)


def refuse_unsupported(trainer: Trainer) -> None:
    """Check the Trainer; called before Lightning's own checks, whose remedies do not fit here.

    Raises:
        UnsupportedError: with the reason and the remedy.
    """
    # On every save Lightning advises users of manual optimization to keep weights from before the step in attributes
    # that it would write instead of the current ones. Our checkpoints hold the state after the step.
    warnings.filterwarnings("ignore", message="Using ModelCheckpoint with manual optimization")
    _refuse_flags(trainer)
    _refuse_strategies(trainer)
    _refuse_callbacks(trainer)


def refuse_strategy_name(name: object) -> None:
    """The same for a strategy's name, before Lightning builds it and asks for a device or a package that it needs.

    Args:
        name: what ``Trainer(strategy=...)`` is given; anything but a string passes.

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


def _refuse_callbacks(trainer: Trainer) -> None:
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
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


def _check_saving(trainer: Trainer, callback: ModelCheckpoint) -> None:
    if callback._train_time_interval is not None:
        rank_zero_warn(
            "ModelCheckpoint(train_time_interval=...) never saves under manual optimization; "
            "use every_n_train_steps or every_n_epochs.",
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
