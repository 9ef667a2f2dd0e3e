"""Saves a training in a checkpoint, with the random state of each rank, and resumes it; settles the threshold.

Everything is stored under one key and consists of primitives and tensors. ``state_dict`` holds the evaluation weights,
which are the average, so that ``load_from_checkpoint`` and any other reader get the solution. The last iterate, from
which training resumes, is stored under our key.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.precision import DoublePrecision
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn
from torch.distributed.tensor import DTensor

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.distributed import gather_objects, reshard, whole, world_size
from lightning_tpauc.errors import CheckpointError, NonFiniteError, TPAUCWarning
from lightning_tpauc.lightning_fixes.plain_values import make_plain
from lightning_tpauc.lightning_fixes.resuming import (
    amid_validation,
    continue_loops,
    ends_amid_epoch,
    known_metrics,
    mark_pending,
    replay_unlogged_metrics,
    restore_known_metrics,
    stopped_early,
    unlogged_metrics,
)
from lightning_tpauc.scoring.operating_point import DecisionThreshold, OperatingPoint, OperatingPoints, restored_point
from lightning_tpauc.training import compatibility
from lightning_tpauc.training.compatibility import FORMAT_VERSION, KEY
from lightning_tpauc.training.guards import diagnose
from lightning_tpauc.training.hyperparameters import leave_out_objects
from lightning_tpauc.training.random_state import own_random_state, restore_random_states
from lightning_tpauc.training.schedules import restore_dtypes
from lightning_tpauc.training.state import Phase, TrainingState
from lightning_tpauc.training.trained_module import TrainedModule
from lightning_tpauc.training.weights import IterateAverage, agree_on_statistics, batch_norm_statistics

#: Key of the operating point; in every checkpoint of a module that has one.
OPERATING_POINT = "lightning_tpauc_operating_point"
#: Key of the number of training batches that the weights have seen; in every checkpoint.
STEP = "lightning_tpauc_step"


def save(module: TrainedModule, checkpoint: dict[str, Any]) -> None:
    """Fill ``checkpoint``; runs on all ranks.

    Raises:
        NonFiniteError: if the weights or the state are not finite, so that no good checkpoint is overwritten.
        CheckpointError: if a signal asks for it during a step of several ranks, or if an entry could not be read back.
    """
    state = module.training_state
    leave_out_objects(checkpoint)
    make_plain(checkpoint)
    compatibility.record_rectangle(module, checkpoint)
    record_operating_point(module.operating_point, state.weights_step, checkpoint)
    average, algorithm, trainer = state.average, module.algorithm, module.trainer
    if average is None:
        return
    # a run that has failed is saved by each rank for itself: others may never come to a collective
    alone = world_size() > 1 and trainer.state.status is TrainerStatus.INTERRUPTED
    if state.phase is Phase.IN_STEP:
        _check_not_mid_step(alone=alone)
    reshard(module)
    if not alone:
        agree_on_statistics(module, average)  # the file holds rank 0's statistics for all ranks
        _refresh_statistics(module, checkpoint["state_dict"])
    said: dict[str, Any] = {"steps": state.batches_seen, "score_activation": module.score_activation}
    problem = diagnose(algorithm, module, trainer.optimizers, only_if_broken=True, **said)
    if problem:
        raise NonFiniteError(problem)
    _publish_evaluation_weights(module, average, checkpoint["state_dict"])
    if "callbacks" not in checkpoint or _is_of_evaluation(trainer, checkpoint):  # save_weights_only
        return
    checkpoint[KEY] = {
        "format_version": FORMAT_VERSION,
        "algorithm": {"name": type(algorithm).__name__, "state": algorithm.state_dict()},
        **state.state_dict(),
        "objective": compatibility.objective(algorithm, module.score_activation),
        "base_lr": module.base_lr[1],
        "fingerprint": compatibility.fingerprint(trainer),
        "batches": compatibility.batch_settings(trainer),
        "optimizer": compatibility.optimizer_name(trainer),
        "random_state": gather_objects(_random_state_to_resume(trainer, state), alone=alone),
        "negatives": _negatives(trainer, state.batches_seen, alone=alone),
        "stopped_early": stopped_early(trainer),
        "pending_hook": mark_pending(trainer, checkpoint),
        # computing a metric may be a collective, and after an exception other ranks may not take part
        "unlogged": unlogged_metrics(trainer) if not alone else None,
        "known": known_metrics(trainer) if not alone else {},
    }


def prepare_loading(module: TrainedModule, checkpoint: dict[str, Any]) -> None:
    """Keep what a loaded checkpoint holds of a training, before Lightning loads its weights into the module.

    A Trainer in double precision converts the module only after that, which would round the weights to float32. So the
    module is converted here already.

    Raises:
        CheckpointError: if training is to resume from the checkpoint, and it is not ours or does not fit.
    """
    entry = compatibility.training_entry(module, checkpoint)
    module.operating_point, step = recorded_operating_point(checkpoint)
    trainer = module._trainer
    if trainer is not None and isinstance(trainer.precision_plugin, DoublePrecision):
        trainer.precision_plugin.convert_module(module)
    if entry is not None and trainer is not None and compatibility.is_resuming(trainer):
        further = {
            "optimizer_states": checkpoint.get("optimizer_states"),
            "last_epoch": ends_amid_epoch(trainer, checkpoint),
        }
        module.training_state.load_checkpoint({**entry, **further})
    else:
        module.training_state.forget()
        module.training_state.note_weights_from_file(step)


def restore(
    entry: dict[str, Any],
    state: TrainingState,
    algorithm: Algorithm,
    trainer: Trainer,
    *,
    score_activation: str,
    last_epoch: bool,
) -> None:
    """Put back what :func:`save` wrote, when training starts and everything is allocated.

    Raises:
        CheckpointError: if the checkpoint belongs to another algorithm or other data.
    """
    compatibility.check_same_run(entry, algorithm, score_activation, state.average, trainer)
    algorithm.load_state_dict(entry["algorithm"]["state"])
    state.load_state_dict(entry)
    if state.rectangle_schedule is None:  # the checkpoint's run may have shrunk its rectangle
        algorithm.tightness = 1.0
    restore_dtypes(trainer.optimizers[0], entry["optimizer_states"])
    restore_random_states(entry["random_state"])
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    if entry.get("negatives") is not None and hasattr(datamodule, "load_negatives_state"):
        datamodule.load_negatives_state(entry["batches_seen"], entry["negatives"])
    continue_loops(trainer, last_epoch=last_epoch)
    known = entry.get("known", {})
    restore_known_metrics(trainer, known)
    if "train/loss" in known:
        state.note_logged_loss()
    replay_unlogged_metrics(trainer, entry["unlogged"])


def _check_not_mid_step(*, alone: bool) -> None:
    """Refuse, or warn of, a checkpoint that a signal handler or an exception asks for in the middle of a step."""
    if world_size() > 1 and not alone:
        msg = (
            "A checkpoint was asked for amid a training step, where the other ranks can't take part in saving it. "
            "Save between steps (ModelCheckpoint) and resume from the last one; under SLURM, requeue by yourself: "
            "`Trainer(plugins=[SLURMEnvironment(auto_requeue=False)])`."
        )
        raise CheckpointError(msg)
    rank_zero_warn(
        "This checkpoint is saved amid a training step: a run resumed from it takes half a step twice, so it will not "
        "equal the unbroken run to the last bit.",
        category=TPAUCWarning,
    )


def _refresh_statistics(model: nn.Module, state: dict[str, Any]) -> None:
    for name, statistic in batch_norm_statistics(model):
        if name in state:  # some strategies copy the state_dict
            state[name] = statistic.detach().to(state[name].device)


def _publish_evaluation_weights(model: nn.Module, average: IterateAverage, state: dict[str, Any]) -> None:
    weights = average.evaluation_weights()
    if weights is None or average.swapped:  # once swapped in, the state_dict holds the average
        return
    # either every rank holds its own shards, or rank 0 holds everything and the others hold nothing
    sharded = any(isinstance(value, DTensor) for value in state.values())
    mean_of = {id(tensor): mean for tensor, mean in zip(average.averaged, weights, strict=True)}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        mean = mean_of.get(id(tensor))
        if mean is not None:
            published = mean if sharded else whole(mean)  # a collective
            if name in state:
                state[name] = published.to(dtype=state[name].dtype, device=state[name].device)


def _is_of_evaluation(trainer: Trainer, checkpoint: dict[str, Any]) -> bool:
    """Whether the saving Trainer only evaluates, so that there is no training to resume.

    Raises:
        CheckpointError: if the saving Trainer has trained the module, but another one has evaluated it since.
    """
    if trainer.optimizers:
        return False
    if checkpoint.get("optimizer_states"):
        name = type(trainer.lightning_module).__name__
        msg = (
            f"{name} was evaluated by another Trainer since it was trained, so what a run goes on "
            "from can't be saved any more. Save before, evaluate with the Trainer that trained, or pass "
            "`weights_only=True` to `save_checkpoint`."
        )
        raise CheckpointError(msg)
    return True


def _negatives(trainer: Trainer, batches_seen: int, *, alone: bool) -> list[Any] | None:
    """The position of each rank in its part of a stream of negatives; ``None`` if there is no stream."""
    datamodule: Any = getattr(trainer, "datamodule", None)
    own = datamodule.negatives_state(batches_seen) if hasattr(datamodule, "negatives_state") else None
    return None if own is None else gather_objects(own, alone=alone)


def _random_state_to_resume(trainer: Trainer, state: TrainingState) -> dict[str, Any]:
    """This rank's random state; that of a validation's start during a validation, which a resumed run begins anew."""
    before = state.random_before_validation
    return before if before is not None and amid_validation(trainer) else own_random_state()


def settle_threshold(module: TrainedModule, trainer: Trainer, *, rescore: bool) -> None:
    """Make the operating point that of the weights that training left."""
    state, best = module.training_state, module.best
    step = state.batches_seen
    if best is not None and best.weights:
        module.operating_point, step = best.operating_point, best.step
    choosers = [c for c in trainer.callbacks if isinstance(c, DecisionThreshold)]  # type: ignore[attr-defined]
    point = module.operating_point
    if choosers and trainer.enable_validation and trainer.val_dataloaders is not None:
        if rescore or point is None or point.step != step:  # the last steps were not validated
            choosers[0].choose_again(trainer, module)
        choosers[0].say_what_fell_short(module)
    if choosers and choosers[0].renews and module.operating_point is None:
        rank_zero_info(
            "DecisionThreshold chose no threshold: there are no validation data with both classes. Pass `val_dataset` "
            "or `val_fraction` to PosNegDataModule, or run `Trainer.validate` on such data."
        )


def record_operating_point(
    point: OperatingPoint | OperatingPoints | None, step: int, checkpoint: dict[str, Any]
) -> None:
    """Store the operating point of the published weights, if they have one, and how many batches they have seen."""
    checkpoint[STEP] = step
    if point is not None:
        checkpoint[OPERATING_POINT] = point.state_dict()


def recorded_operating_point(checkpoint: dict[str, Any]) -> tuple[OperatingPoint | OperatingPoints | None, int]:
    """The point and the step that :func:`record_operating_point` stored; the point is ``None`` if there was none."""
    state = checkpoint.get(OPERATING_POINT)
    point = None if state is None else restored_point(state)
    return point, checkpoint.get(STEP, 0 if point is None else point.step)  # earlier releases wrote no step
