"""What a checkpoint holds beside Lightning's own parts, under one key and of primitives and tensors only.

``state_dict`` holds the evaluation weights (the average), so that ``load_from_checkpoint`` and any other reader get the
solution. The last iterate, which training continues from, lies under our key together with the algorithm's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.core.mixins import hparams_mixin
from lightning.pytorch.plugins.precision import DoublePrecision
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from lightning_tpauc import origin, random_state
from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.batch_norm import agree_on_statistics, batch_norm_statistics
from lightning_tpauc.diagnosis import diagnose
from lightning_tpauc.distributed import gather_objects, handling_exception, world_size
from lightning_tpauc.errors import CheckpointError, NonFiniteError, TPAUCWarning
from lightning_tpauc.iterates import whole
from lightning_tpauc.loop_state import (
    ends_amid_epoch,
    go_on,
    keep_what_is_due,
    know_again,
    known_metrics,
    log_again,
    stopped_early,
    unlogged_metrics,
)
from lightning_tpauc.origin import FORMAT_VERSION, KEY, check_objective, objective, sign
from lightning_tpauc.plain import make_plain
from lightning_tpauc.sharding import reshard

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_tpauc.module import TPAUCModule

__all__ = (
    "check_savable",
    "prepare_loading",
    "restore",
    "save",
    "save_cli_hyperparameters",
)


def save(module: TPAUCModule, checkpoint: dict[str, Any]) -> None:
    """Fill ``checkpoint``; runs on all ranks.

    Raises:
        NonFiniteError: if the weights or the state are not finite, before the previous checkpoint is overwritten.
        CheckpointError: if a signal asks for it amid a step of several ranks, or if an entry could not be read back.
    """
    _leave_out_objects(checkpoint)
    make_plain(checkpoint)
    sign(module, checkpoint)
    iterates = module.iterates
    if iterates is None:
        return
    _look_at_the_moment(module)
    reshard(module)
    if not handling_exception():
        agree_on_statistics(module)  # the file holds rank 0's, which the resumed ranks all start from
        _refresh_statistics(module, checkpoint["state_dict"])
    problem = diagnose(module, only_if_broken=True)
    if problem:
        raise NonFiniteError(problem)
    _publish_evaluation_weights(module, checkpoint)
    if "callbacks" not in checkpoint or _is_of_evaluation(module, checkpoint):  # save_weights_only
        return
    keep_what_is_due(module.trainer, checkpoint)
    together = world_size() == 1 or not handling_exception()
    checkpoint[KEY] = {
        "format_version": FORMAT_VERSION,
        "algorithm": {"name": type(module.algorithm).__name__, "state": module.algorithm.state_dict()},
        "iterates": iterates.state_dict(),
        "memory": module.memory.state_dict() if module.memory is not None else None,
        "previous": module.previous.state_dict(),
        "best": module.best.state_dict() if module.best is not None else None,
        "rectangle_schedule": module.rectangle_schedule.state_dict() if module.rectangle_schedule is not None else None,
        "objective": objective(module),
        "base_lr": module.base_lr[1],
        "batches_seen": module.batches_seen,
        "fingerprint": _fingerprint(module),
        "optimizer": _optimizer_name(module),
        "random_state": random_state.gather(),
        "negatives": _negatives(module),
        "stopped_early": stopped_early(module.trainer),
        # a metric may ask other ranks for their share
        "unlogged": unlogged_metrics(module.trainer) if together else None,
        "known": known_metrics(module.trainer) if together else {},
    }


def prepare_loading(module: TPAUCModule, checkpoint: dict[str, Any]) -> None:
    """Take note of a loaded checkpoint, before Lightning puts its weights into the module.

    A Trainer in double precision converts the module only after that, and the weights would be rounded to float32.

    Raises:
        CheckpointError: if training is to go on from it and it is not ours or does not fit.
    """
    restored = origin.read(module, checkpoint)
    trainer = module._trainer
    if trainer is not None and isinstance(trainer.precision_plugin, DoublePrecision):
        trainer.precision_plugin.convert_module(module)
    if restored is not None and origin.resumes(module):
        further = {
            "optimizer_states": checkpoint.get("optimizer_states"),
            "last_epoch": ends_amid_epoch(module.trainer, checkpoint),
        }
        module._restored = {**restored, **further}
        module.batches_seen = restored["batches_seen"]  # the sampler asks before training starts
    else:  # other weights than those that an earlier run of this module left, and its averages with them
        module._forget_training()


def restore(module: TPAUCModule, *, last_epoch: bool = False) -> bool:
    """Put back what :func:`save` wrote, when training starts and everything is allocated.

    Args:
        module: the module that was loaded.
        last_epoch: whether no step is left, only an epoch's end.

    Returns:
        Whether training goes on from a checkpoint.

    Raises:
        CheckpointError: if the checkpoint belongs to another algorithm or other data.
    """
    state = module._restored
    if state is None:
        return False
    module._restored = None
    _check_belongs(module, state)
    module.algorithm.load_state_dict(state["algorithm"]["state"])
    # the optimizer goes on with the checkpoint's learning rate, whatever a factory says now
    module.base_lr = (module.base_lr[0], state.get("base_lr", module.base_lr[1]))
    if module.best is not None and state.get("best") is not None:
        module.best.load_state_dict(state["best"])
    if module.iterates is not None:  # after the best weights, which know what the model held without an average
        module.iterates.load_state_dict(state["iterates"])
    if module.rectangle_schedule is not None and state.get("rectangle_schedule") is not None:
        module.rectangle_schedule.load_state_dict(state["rectangle_schedule"])
    if module.rectangle_schedule is None:  # whatever it was when the checkpoint was written
        module.algorithm.tightness = 1.0
    if module.memory is not None and state["memory"] is not None:
        module.memory.load_state_dict(state["memory"])
    module.previous.load_state_dict(state["previous"])
    _repair_optimizer(module.trainer.optimizers[0], state["optimizer_states"])
    random_state.scatter(state["random_state"])
    datamodule: Any = module.trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    if state.get("negatives") is not None and hasattr(datamodule, "load_negatives_state"):
        datamodule.load_negatives_state(state["batches_seen"], state["negatives"])
    go_on(module.trainer, last_epoch=last_epoch)
    known = state.get("known", {})
    know_again(module.trainer, known)
    module._loss_was_logged = "train/loss" in known
    log_again(module.trainer, state["unlogged"])
    return True


def save_cli_hyperparameters(module: TPAUCModule) -> None:
    """Keep the configuration that LightningCLI built the module from, so that ``load_from_checkpoint`` can rebuild it.

    Outside the command line nothing is saved: modules and optimizer factories are no hyperparameters, and a subclass
    saves its own with ``self.save_hyperparameters()``.
    """
    given = getattr(hparams_mixin, "_given_hyperparameters", None)
    if given is not None and given.get() is not None:
        module.save_hyperparameters()


def check_savable(trainer: Trainer) -> None:
    """Look at the beginning at what checkpoints will hold from the beginning, if any will be saved.

    Raises:
        CheckpointError: if hyperparameters, or settings of the optimizer or the schedulers, can't be read back.
    """
    if not trainer.checkpoint_callbacks:
        return
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    held = {
        "hyper_parameters": dict(trainer.lightning_module.hparams),
        "datamodule_hyper_parameters": dict(getattr(datamodule, "hparams", None) or {}),
        "optimizer_states": [
            {"param_groups": [{name: v for name, v in group.items() if name != "params"} for group in o.param_groups]}
            for o in trainer.optimizers
        ],
        "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
    }
    _leave_out_objects(held)
    make_plain(held)


def _leave_out_objects(checkpoint: dict[str, Any]) -> None:
    """Hyperparameters that are objects would make the file unreadable with ``weights_only=True``.

    ``save_hyperparameters()`` of a subclass, or of a class mixed in, collects our arguments with its own. A backbone's
    weights are in ``state_dict``; such arguments are passed again to ``load_from_checkpoint``.
    """
    for key in ("hyper_parameters", "datamodule_hyper_parameters"):
        hyperparameters = checkpoint.get(key)
        if isinstance(hyperparameters, dict):
            _warn_of_defaults(hyperparameters if key == "hyper_parameters" else {})
            checkpoint[key] = {
                name: value
                for name, value in hyperparameters.items()
                if not isinstance(value, (Algorithm, nn.Module, Dataset, DataLoader)) and not callable(value)
            }


def _warn_of_defaults(hyperparameters: dict[str, Any]) -> None:
    """Functions and classes may have a default that fits the weights and still computes something else.

    Those that make optimizer and scheduler change nothing of what a trained model computes.
    """
    trains = {"optimizer", "lr_scheduler"}
    lost = [
        f"`{name}` ({getattr(value, '__name__', type(value).__name__)})"
        for name, value in hyperparameters.items()
        if callable(value) and not isinstance(value, (Algorithm, nn.Module)) and name not in trains
    ]
    if lost:
        rank_zero_warn(
            f"Checkpoints hold no functions and classes, and not the hyperparameter {', '.join(lost)}: "
            "`load_from_checkpoint` would take its default. Pass it there again, or make it a name, such as 'relu'.",
            category=TPAUCWarning,
        )


def _look_at_the_moment(module: TPAUCModule) -> None:
    """Half of a step is in the state already when a signal handler or an exception saves amid the other half."""
    if not module.in_step:
        return
    if world_size() > 1 and not handling_exception():
        msg = (
            "A checkpoint was asked for amid a training step, where other ranks are elsewhere and can't take part. "
            "Save between steps (ModelCheckpoint) and resume from the last one; under SLURM, requeue by yourself: "
            "`Trainer(plugins=[SLURMEnvironment(auto_requeue=False)])`."
        )
        raise CheckpointError(msg)
    rank_zero_warn(
        "This checkpoint is saved amid a training step: a run resumed from it takes half a step twice, so it will not "
        "equal the unbroken run to the last bit.",
        category=TPAUCWarning,
    )


def _refresh_statistics(module: TPAUCModule, state: dict[str, Any]) -> None:
    for name, statistic in batch_norm_statistics(module):
        if name in state:  # a copy, where the strategy makes the state_dict
            state[name] = statistic.detach().to(state[name].device)


def _publish_evaluation_weights(module: TPAUCModule, checkpoint: dict[str, Any]) -> None:
    iterates = module.iterates
    weights = iterates.evaluation_weights() if iterates is not None else None
    if iterates is None or weights is None or iterates.swapped:  # swapped in, the model holds what is published
        return
    state = checkpoint["state_dict"]
    # either every rank holds its shards, or rank 0 holds everything and the others an empty dictionary
    sharded = any(isinstance(value, DTensor) for value in state.values())
    mean_of = {id(tensor): mean for tensor, mean in zip(iterates.averaged, weights, strict=True)}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        mean = mean_of.get(id(tensor))
        if mean is not None:
            published = mean if sharded else whole(mean)  # a collective
            if name in state:
                state[name] = published.to(dtype=state[name].dtype, device=state[name].device)


def _check_belongs(module: TPAUCModule, state: dict[str, Any]) -> None:
    name = type(module.algorithm).__name__
    if state["algorithm"]["name"] != name:
        msg = (
            f"The checkpoint was written by {state['algorithm']['name']}, but the module trains with {name}. "
            "Pass the checkpoint as `init_from` to start a new run from its weights."
        )
        raise CheckpointError(msg)
    check_objective(module, state.get("objective"))
    before, now = state.get("optimizer"), _optimizer_name(module)
    if before is not None and before != now:
        msg = (
            f"The checkpoint was written with the optimizer {before}, but the module trains with {now}, which "
            "can't go on from that state. Pass the checkpoint as `init_from` to start a new run from its weights."
        )
        raise CheckpointError(msg)
    if module.iterates is not None and not module.iterates.fits(state["iterates"]):
        msg = (
            "The checkpoint's run kept other anchors and averages than this one: `gamma` was changed between infinity "
            "(STACO1) and a number (STACO2), `batch_norm` of StageCallback was, or what the optimizer trains. Restore "
            "the setting, or pass the checkpoint as `init_from` to start a new run from its weights."
        )
        raise CheckpointError(msg)
    module.algorithm.check_num_positives(state["algorithm"]["state"])
    written, present = state["fingerprint"], _fingerprint(module)
    if written is not None and present is not None and written != present:
        msg = (
            f"The checkpoint was written on other training data (fingerprint {written}, now {present}): its dual "
            "variables belong to other positives. Pass the checkpoint as `init_from` to start anew from its weights."
        )
        raise CheckpointError(msg)


def _repair_optimizer(optimizer: Optimizer, states: list[dict[str, Any]] | None) -> None:
    """Undo the casts of ``Optimizer.load_state_dict``, which gives all but ``step`` the dtype of its parameter.

    What is no moment of the gradient is kept in float32 whatever the parameter is: NAdam's ``mu_product``, ASGD's
    ``eta`` and ``mu``.
    """
    saved = (states or [{}])[0].get("state", {})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for k, parameter in enumerate(parameters):  # sharded ones are saved by name, and loaded by torch's own function
        for name, value in saved.get(k, {}).items():
            own = optimizer.state[parameter].get(name)
            if isinstance(own, Tensor) and isinstance(value, Tensor) and own.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(own.device, copy=True)


def _is_of_evaluation(module: TPAUCModule, checkpoint: dict[str, Any]) -> bool:
    """Whether a Trainer saves that did not train, so that there is nothing to go on from.

    Raises:
        CheckpointError: if one saves that did, after another one has taken the module over to evaluate it.
    """
    if module.trainer.optimizers:
        return False
    if checkpoint.get("optimizer_states"):
        msg = (
            f"{type(module).__name__} was evaluated by another Trainer since it was trained, so what a run goes on "
            "from can't be saved any more. Save before, evaluate with the Trainer that trained, or pass "
            "`weights_only=True` to `save_checkpoint`."
        )
        raise CheckpointError(msg)
    return True


def _optimizer_name(module: TPAUCModule) -> str:
    return type(module.trainer.optimizers[0]).__name__


def _fingerprint(module: TPAUCModule) -> str | None:
    trainer: Any = module._trainer
    fingerprint = getattr(getattr(trainer, "datamodule", None), "fingerprint", None)
    return str(fingerprint) if fingerprint is not None else None


def _negatives(module: TPAUCModule) -> list[Any] | None:
    """Where each rank's part of a stream of negatives stands; ``None`` if there is no stream."""
    datamodule: Any = getattr(module._trainer, "datamodule", None)
    own = datamodule.negatives_state(module.batches_seen) if hasattr(datamodule, "negatives_state") else None
    return None if own is None else gather_objects(own)
