"""What can't work here is refused by name: flags, strategies and callbacks of a Trainer, and wrongly mixed classes."""

import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch import callbacks as shipped
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.strategies.xla import XLAStrategy
from lightning.pytorch.trainer.connectors.logger_connector.result import warning_cache
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, TPAUCAdvice, TPAUCWarning, UnsupportedError, warn_on_rank_zero
from lightning_tpauc.metrics.reporting import better_mode

# It advises to save the weights from before the step. Our checkpoints hold the state after it.
warnings.filterwarnings("ignore", message="Using ModelCheckpoint with manual optimization")

_ACCUMULATION = (
    "every batch is one step of the algorithm. Raise `num_pos` and `num_neg` of the data module; if memory does not "
    "suffice, pass `chunk_size` to TPAUCModule."
)


def refuse_unsupported(trainer: Trainer, further: Iterable[Callback] = ()) -> None:
    """Check the Trainer, before Lightning's own checks do, whose advice does not fit here."""
    callbacks: list[Any] = [*trainer.callbacks, *further]  # type: ignore[attr-defined]  # set in Trainer.__init__
    for part in (getattr(trainer, "datamodule", None), *callbacks):
        refuse_twin(type(part), type(part).__name__)
    strategy, clip, accumulate = trainer.strategy, trainer.gradient_clip_val, trainer.accumulate_grad_batches
    if clip:
        reason = "the optimization is manual. Pass `gradient_clip_val` to TPAUCModule instead."
        _refuse(f"Trainer(gradient_clip_val={clip})", reason)
    if accumulate != 1:
        _refuse(f"Trainer(accumulate_grad_batches={accumulate})", _ACCUMULATION)
    if isinstance(strategy, (FSDPStrategy, DeepSpeedStrategy, XLAStrategy)):
        reason = "it hides or flattens the parameters. Use 'ddp', or ModelParallelStrategy (FSDP2) to shard them."
        _refuse(type(strategy).__name__, reason)
    if isinstance(strategy, ModelParallelStrategy) and strategy._tensor_parallel_size != 1:
        reason = "ranks of one group would draw different examples. Pass `tensor_parallel_size=1`."
        _refuse("ModelParallelStrategy with tensor parallelism", reason)
    for callback in callbacks:
        _refuse_callback(trainer, callback)


def _refuse_callback(trainer: Trainer, callback: Any) -> None:
    algorithm: Any = getattr(trainer.lightning_module, "algorithm", None)
    fits = trainer.state.fn == TrainerFn.FITTING
    averages = fits and (algorithm.averages_iterates or algorithm.has_stages or algorithm.needs_previous)
    reason = None
    if isinstance(callback, (shipped.StochasticWeightAveraging, shipped.WeightAveraging)):
        reason = "the weights are averaged already, by StageCallback. Remove it."
    elif averages and isinstance(callback, shipped.BaseFinetuning):
        reason = (
            "it would train weights that the average does not have. Train twice: with `requires_grad_(False)` on what "
            "is frozen, then everything, with the first run's checkpoint as `init_from`."
        )
    elif averages and isinstance(callback, shipped.ModelPruning):
        reason = "the average of the weights would not be pruned. Prune the trained model with `torch.nn.utils.prune`."
    elif fits and isinstance(callback, (shipped.LearningRateFinder, shipped.BatchSizeFinder)):
        reason = (
            "neither `batch_size` nor how fast the loss falls decides here. Compare `val/tpauc` of short runs, raise "
            "`num_pos` and `num_neg`, and make a new Trainer if a Tuner put the callback there."
        )
    elif isinstance(callback, shipped.GradientAccumulationScheduler) and callback.going_to_accumulate_grad_batches():
        reason = _ACCUMULATION
    elif isinstance(callback, shipped.ModelCheckpoint) and callback._train_time_interval is not None:
        reason = "`train_time_interval` never saves under manual optimization. Pass `every_n_train_steps`."
    if reason is not None:
        _refuse(type(callback).__name__, reason)
    if fits and isinstance(callback, (shipped.EarlyStopping, shipped.ModelCheckpoint)):
        refuse_wrong_mode(callback)


def _refuse(what: str, reason: str) -> None:
    raise UnsupportedError(f"{what} can't work here: {reason}")


def refuse_wrong_mode(follower: Any) -> None:
    """Raise :class:`ArgumentError` if a callback or a scheduler would take the worst value for the best."""
    better = better_mode(follower.monitor or "")
    if better is not None and follower.mode != better:
        worst = {"max": "smallest", "min": "largest"}[better]
        raise ArgumentError(
            f"{type(follower).__name__}(monitor={follower.monitor!r}) has `mode={follower.mode!r}` and would take the "
            f"{worst} value for the best; pass `mode={better!r}`."
        )


def log_replicated(module: LightningModule, values: Mapping[str, Tensor], prog_bar: str = "") -> None:
    """Log values that are the same on all ranks, without Lightning's advice to average them over ranks."""
    results: Any = module.trainer._results
    for k, (name, value) in enumerate(values.items()):
        key = f"{module._current_fx_name}.{name}"
        known = results.get(key) if k else None  # the first `log` drops what the hook has logged before
        if known is not None and known.value.device == value.device:
            results.update_metrics(key, value.squeeze(), 1)  # `log` would search all that it holds for tensors
            continue
        warning_cache.add(
            f"It is recommended to use `self.log({name!r}, ..., sync_dist=True)` when logging on epoch level in "
            "distributed setting to accumulate the metric across devices."
        )
        # if there are several data loaders, the name holds the loader's number already
        module.log(name, value, prog_bar=name == prog_bar, batch_size=1, add_dataloader_idx=False)


# ---------------------------------------------------------------- classes that are mixed with TPAUCModule

#: Lightning is published as two packages, whose classes do not know each other.
_TWINS = {"lightning": "pytorch_lightning", "pytorch_lightning": "lightning"}
_PACKAGE, _OURS = LightningModule.__module__.split(".")[0], __name__.split(".")[0]
#: Hooks that ours replace. What is said of ``training_step`` alone is no warning: replacing it is the purpose.
_REPLACED = [f"{kind}_step" for kind in ("training", "validation", "test", "predict")]
_REPLACED += ["on_validation_epoch_end", "on_test_epoch_end"]


def refuse_twin(cls: type, what: str) -> None:
    """Raise :class:`UnsupportedError` if a class was made with the other one of Lightning's two packages."""
    twin = _TWINS[_PACKAGE]
    if any(_root(base) == twin for base in cls.__mro__):
        raise UnsupportedError(
            f"{what} comes from the package `{twin}`, but TPAUCModule from `{_PACKAGE}`: neither knows the other's "
            f"classes. Import it from `{_PACKAGE}.pytorch`, and nothing from `{twin}`."
        )


def check_order(cls: type, ours: type) -> None:
    """Raise :class:`UnsupportedError` if a class has another LightningModule in front of ours, or one of the twin."""
    refuse_twin(cls, f"A base of {cls.__name__}")
    for base in cls.__mro__[: cls.__mro__.index(ours)]:
        if issubclass(base, LightningModule) and not issubclass(base, ours):
            raise UnsupportedError(
                f"In class {cls.__name__} {base.__name__} comes before {ours.__name__}, so its hooks would stand in "
                f"place of ours. Put ours in front: class {cls.__name__}({ours.__name__}, {base.__name__})."
            )


def refuse_taken(module: LightningModule, names: Iterable[str]) -> None:
    """Raise :class:`ArgumentError` if a class that is mixed in uses one of our attributes' names for its own."""
    held = {*vars(module), *module._modules, *module._parameters, *module._buffers}
    held |= {name for base in type(module).__mro__ if _root(base) != _OURS for name in vars(base)}
    for name in names:
        if name in held:
            raise ArgumentError(
                f"{type(module).__name__} mixes TPAUCModule into a class that has `{name}` already, which would be "
                "overwritten. Give it another name there."
            )


@cache
def say_replaced(cls: type, ours: type) -> None:
    """Say once which hooks of a class mixed in never run, because ours stand in their place."""
    later = cls.__mro__[cls.__mro__.index(ours) + 1 :]
    theirs = [base for base in later if _root(base) not in (_OURS, *_TWINS, "torch")]
    kept = [name for name in _REPLACED if getattr(cls, name) is getattr(ours, name)]
    replaced = [f"{base.__name__}.{name}" for name in kept for base in theirs if name in vars(base)]
    if replaced:
        warn_on_rank_zero(
            f"{cls.__name__} does not call {', '.join(replaced)}, nor logs what they log: TPAUCModule trains and "
            f"evaluates in their place. To have one as well, override it in {cls.__name__} and call it there, "
            f"`{replaced[-1]}(self, ...)`, with `(batch.inputs, batch.target)`, less the rows with "
            "target -1 in validation. A loss goes into `auxiliary_loss`.",
            TPAUCAdvice if replaced[-1].endswith(".training_step") else TPAUCWarning,
        )


def _root(cls: type) -> str:
    return cls.__module__.split(".")[0]
