"""Saves a training in a checkpoint, with the random state of each rank, and resumes it.

Everything consists of primitives and tensors. ``state_dict`` holds the evaluation weights, which are the average, so
that ``load_from_checkpoint`` and any other reader get the solution. The last iterate, from which training resumes, is
stored under a key of ours. Beside it are the hyperparameters, and the way back from processes that a Trainer starts.
"""

import inspect
import io
import random
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.data import AttributeDict
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.mixins import hparams_mixin
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.data.datamodule import SAMPLING_ARGUMENTS
from lightning_tpauc.data.examples import listed
from lightning_tpauc.distributed import gather_objects, rank, reshard, starts_processes, whole, world_size
from lightning_tpauc.errors import CheckpointError, NonFiniteError, warn_on_rank_zero
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.lightning_fixes.checkpoint_files import make_plain
from lightning_tpauc.scoring.forward import ScoringModel
from lightning_tpauc.scoring.labels import Labels, by_position
from lightning_tpauc.scoring.thresholds import recorded_point
from lightning_tpauc.training.guards import diagnose
from lightning_tpauc.training.optimizer import restore_dtypes
from lightning_tpauc.training.state import Phase, agree_on_statistics, batch_norm_statistics

#: Key of the training's state; missing in a checkpoint of weights alone.
KEY = "lightning_tpauc"
#: Keys in every checkpoint: the rectangle that was trained, and the number of training batches that the weights saw;
RECTANGLE, STEP = "lightning_tpauc_rectangle", "lightning_tpauc_step"
#: where there are any: what the inputs consist of, the several labels, and the operating point of the weights.
INPUTS, LABELS = "lightning_tpauc_inputs", "lightning_tpauc_labels"
OPERATING_POINT = "lightning_tpauc_operating_point"
#: Score differences at which two surrogates are compared.
_POINTS = (-2.0, -0.7, -0.1, 0.0, 0.3, 1.0)
_ANEW = "Pass the checkpoint as `init_from` to start a new run from its weights."

# ---------------------------------------------------------------- saving


def save(module: ScoringModel, checkpoint: dict[str, Any], trainer: Trainer | None = None) -> None:
    """Fill ``checkpoint``, which ``trainer`` saves, on all ranks; the module may have another Trainer by now."""
    state, algorithm, trainer = module.training_state, module.algorithm, trainer or module.trainer
    leave_out_objects(checkpoint)
    _save_description(module, checkpoint)
    checkpoint["state_dict"].pop(BESIDE, None)  # a file holds it in plain words
    if state.average is not None:
        # a run that has failed is saved by each rank for itself: others may never come to a collective
        alone = world_size() > 1 and trainer.state.status is TrainerStatus.INTERRUPTED
        if state.phase is Phase.IN_STEP and world_size() > 1 and not alone:
            raise CheckpointError(
                "A checkpoint was asked for amid a training step, where the other ranks can't take part in saving it. "
                "Save between steps; under SLURM, pass `plugins=[SLURMEnvironment(auto_requeue=False)]`."
            )
        if state.phase is Phase.IN_STEP:
            warn_on_rank_zero("This checkpoint is saved amid a training step: a resumed run repeats half of it.")
        reshard(module)
        if world_size() > 1 and not alone:
            agree_on_statistics(module, state.average)  # the file holds rank 0's statistics for all ranks
            for name, statistic in batch_norm_statistics(module):
                if name in checkpoint["state_dict"]:  # some strategies copy the state_dict
                    checkpoint["state_dict"][name].copy_(statistic.detach())
        finite = all(bool(torch.isfinite(whole(p.detach())).all()) for p in module.parameters())
        if not finite or algorithm.non_finite_states():
            raise NonFiniteError(diagnose(module))
        if state.mean_to_publish is not None:
            _publish(module, state.average.averaged, state.mean_to_publish, checkpoint["state_dict"])
        if "callbacks" in checkpoint and trainer.optimizers:  # else weights alone, or a Trainer that only evaluates
            mark_validation_pending(trainer, checkpoint)
            # a validation that is resumed begins anew
            before = state.random_before_validation if amid_validation(trainer) else None
            checkpoint[KEY] = {
                "run": state.run,
                "algorithm": algorithm.state_dict(),
                **state.state_dict(),
                "base_lr": module.base_lr[1],
                "random_state": gather_objects(before or own_random_state(), alone=alone),
                "negatives": _negatives(trainer, state.batches_seen, alone=alone),
            }
    make_plain(checkpoint)


def _save_description(module: ScoringModel, checkpoint: dict[str, Any]) -> None:
    """Store rectangle, labels and the inputs' layout; the operating point if it is of the published weights."""
    state, point = module.training_state, module.operating_point
    checkpoint[RECTANGLE] = [float(module.algorithm.min_tpr), float(module.algorithm.max_fpr)]
    checkpoint[STEP] = state.weights_step
    if module.trained_labels is not None:
        checkpoint[LABELS] = module.trained_labels._asdict()
    if module.input_layout is not None:
        checkpoint[INPUTS] = module.input_layout
    if point is not None and point.step == state.weights_step:
        checkpoint[OPERATING_POINT] = asdict(point)


def _publish(model: nn.Module, averaged: list[Tensor], means: list[Tensor], state: dict[str, Any]) -> None:
    """Put the means of the averaged tensors into a ``state_dict`` of ``model``."""
    # either every rank holds its own shards, or rank 0 holds everything and the others hold nothing
    sharded = any(isinstance(value, DTensor) for value in state.values())
    mean_of = {id(tensor): mean for tensor, mean in zip(averaged, means, strict=True)}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        mean = mean_of.get(id(tensor))
        if mean is not None:
            published = mean if sharded else whole(mean)  # a collective
            if name in state:
                state[name] = published.to(dtype=state[name].dtype, device=state[name].device)


def _negatives(trainer: Trainer, batches_seen: int, *, alone: bool) -> list[Any] | None:
    """The position of each rank in its part of a stream of negatives; ``None`` if there is no stream."""
    datamodule: Any = getattr(trainer, "datamodule", None)
    if getattr(datamodule, "negatives", None) is None or not hasattr(datamodule, "negatives_state"):
        return None
    return gather_objects(datamodule.negatives_state(batches_seen), alone=alone)


# ---------------------------------------------------------------- loading


def prepare_loading(module: ScoringModel, checkpoint: dict[str, Any]) -> None:
    """Keep what a loaded checkpoint holds beside the weights; reading it twice is as good as once."""
    entry: dict[str, Any] | None = checkpoint.get(KEY)
    trainer = module._trainer
    resumes = trainer is not None and trainer.state.fn == TrainerFn.FITTING
    if entry is None and resumes:
        raise CheckpointError(f"The checkpoint to resume from holds no state of lightning_tpauc. {_ANEW}")
    if resumes:
        _check_options(module.hparams, checkpoint.get("hyper_parameters") or {})
    if RECTANGLE in checkpoint:
        _take_rectangle(module, checkpoint, resumes=resumes)
    _take_layout(module, checkpoint)
    if entry is not None and resumes:
        module.training_state.load_checkpoint({**entry, "optimizer_states": checkpoint.get("optimizer_states")})
    else:
        module.training_state.forget()
        module.training_state.note_weights_from_file(checkpoint.get(STEP, 0))


def _check_options(given: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    """Refuse other options of optimizer and schedule, which resume with their own. Only the command line has them."""
    for name in ("optimizer", "lr_scheduler") if "_class_path" in given and "_class_path" in written else ():
        before, now = written.get(name), given.get(name)
        if before != now:
            raise CheckpointError(
                f"A resumed run goes on with the `{name}` of its checkpoint, {before}, but now it is {now}. {_ANEW}"
            )


def _take_rectangle(module: ScoringModel, checkpoint: dict[str, Any], *, resumes: bool) -> None:
    """Evaluate the rectangle and the labels of the checkpoint, unless the module was given its own."""
    known, labels = module.trained_labels, Labels(**checkpoint[LABELS]) if LABELS in checkpoint else None
    names = ["one label" if each is None else f"the labels {listed(each.names)}" for each in (labels, known)]
    if names[0] != names[1] and (resumes or known is not None):
        raise CheckpointError(
            f"The checkpoint was trained for {names[0]}, but the data have {names[1]}: pass the same columns."
        )
    if resumes:
        return
    if module.algorithm_is_default:
        module.algorithm.min_tpr, module.algorithm.max_fpr = checkpoint[RECTANGLE]
    if labels is not None and module.label_settings:
        labels = labels._replace(settings=by_position(module.label_settings, labels.names))
    module.trained_labels, module.knows_labels = labels, True


def _take_layout(module: ScoringModel, checkpoint: dict[str, Any]) -> None:
    module.input_layout = checkpoint.get(INPUTS, module.input_layout)
    module.operating_point = recorded_point(module, checkpoint.get(OPERATING_POINT))


def restore(module: ScoringModel) -> None:
    """Put back what :func:`save` wrote, when training starts and everything is allocated."""
    state, algorithm, trainer = module.training_state, module.algorithm, module.trainer
    entry, state.restored, state.phase = state.restored, None, Phase.BETWEEN_STEPS
    _check_same_run(entry["run"], state.run or {})
    state.load_state_dict(entry)
    algorithm.load_state_dict(entry["algorithm"])
    if state.rectangle_schedule is None:  # the checkpoint's run may have shrunk its rectangle
        algorithm.tightness = 1.0
    restore_random_states(entry["random_state"])
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    if entry["negatives"] is not None and hasattr(datamodule, "load_negatives_state"):
        datamodule.load_negatives_state(entry["batches_seen"], entry["negatives"])
    restore_dtypes(trainer.optimizers[0], entry["optimizer_states"])
    # the optimizer resumes with the checkpoint's learning rate, even if its factory has another one now
    module.base_lr = (module.base_lr[0], entry["base_lr"])
    continue_loops(trainer)


def describe_run(module: ScoringModel, trainer: Trainer) -> dict[str, Any]:
    """What the state of a training belongs to, and what its batches depend on besides the data."""
    algorithm, labels = module.algorithm, module.trained_labels
    surrogate: Surrogate | None = getattr(algorithm, "surrogate", None)
    values = [] if surrogate is None else surrogate.value(torch.tensor(_POINTS, dtype=torch.float64)).tolist()
    plans: Any = getattr(trainer.train_dataloader, "batch_plans", None)
    batches = None
    if plans is not None:  # else they are not a PosNegDataModule's
        sizes = plans.global_sizes(trainer.world_size)._asdict()
        own = {"sampling": type(plans).__name__, "seed": plans.seed, "steps_per_epoch": plans.epoch_steps}
        batches = {**sizes, **own}
    return {
        "algorithm": type(algorithm).__name__,
        "min_tpr and max_fpr": [float(algorithm.min_tpr), float(algorithm.max_fpr)],
        "tasks": None if labels is None else labels.settings,
        "score_activation": module.score_activation,
        "surrogate (its values)": [f"{value:.6g}" for value in values],  # processors round exp differently
        "optimizer": type(trainer.optimizers[0]).__name__,
        "number of positives": algorithm.num_positives,
        "training data (their fingerprint)": str(getattr(getattr(trainer, "datamodule", None), "fingerprint", None)),
        "batches": batches,
    }


def _check_same_run(written: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on from a checkpoint of another run; warn if the batches will be others."""
    for name, present in now.items():
        before = written.get(name)
        if name != "batches" and before != present and "None" not in (before, present):  # loaders have no fingerprint
            raise CheckpointError(
                f"The checkpoint was written with another {name}: {before}, but now {present}. {_ANEW}"
            )
    before, present = written["batches"] or {}, now["batches"] or {}
    names = ["sampling"] if before.get("sampling") != present.get("sampling") else present  # which has its own sizes
    changes = [f"`{name}` from {before[name]} to {present[name]}" for name in names if before[name] != present[name]]
    if changes:
        warn_on_rank_zero(
            f"This run draws other batches than the one that wrote the checkpoint ({', '.join(changes)}; sizes are "
            "those of all processes together), and will not end as that run would have."
        )


# ---------------------------------------------------------------- Lightning's loops, exactly where they were

# Lightning writes some checkpoints in the middle of its bookkeeping: after a batch's step but before its validation, or
# after an epoch's batches but before the epoch's end. What follows corrects what is saved and what is resumed.


def mark_validation_pending(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Mark in a checkpoint that a validation follows, or was interrupted, so that a resumed run does it.

    ``ModelCheckpoint(every_n_train_steps=...)`` saves a batch before the validation and the epoch's end that follow it,
    and Lightning resumes after them: the validation of a run that was killed then would be lost. The Trainer's own
    counters do not change.
    """
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    state: dict[str, Any] = checkpoint["loops"]["fit_loop"]
    epoch: Any = trainer.fit_loop.epoch_progress.current
    batch: Any = loop.batch_progress.current
    if trainer.training and epoch.started == epoch.processed == epoch.completed == epoch.ready - 1 >= 1:
        # between two epochs a signal may ask for a checkpoint: Lightning would count the next one as finished
        for counters in _counters(state["epoch_progress"]):
            counters["ready"] = counters["processed"]
            counters["completed"] = counters["processed"] - 1
    if trainer.training and batch.processed == batch.ready - 1:
        # amid a step: the resumed run takes this batch again, but Lightning would count it twice
        state["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
    if amid_validation(trainer):
        _take_up_validation(state)
    if not trainer.training or not batch.completed == batch.processed - 1 == batch.ready - 1 or fetcher is None:
        return
    # A run that is asked to stop validates at once, but the resumed run is not asked to stop.
    stops, trainer.should_stop = trainer.should_stop, False
    validation_due = bool(trainer.enable_validation and loop._should_check_val_fx(fetcher))
    trainer.should_stop = stops
    if validation_due or loop._num_ready_batches_reached():
        for counters in _counters(state["epoch_loop.batch_progress"]):
            counters["completed"] = counters["processed"]
        if validation_due:
            _take_up_validation(state)
        else:  # nothing is pending, so Lightning does not count the batch again when it resumes
            state["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def continue_loops(trainer: Trainer) -> None:
    """Correct Lightning's counters of a resumed run, when training starts and before the first epoch."""
    loop, fetcher = trainer.fit_loop, trainer.fit_loop._data_fetcher
    if fetcher is None:  # the run is over: there is nothing to resume
        return
    batches: Any = loop.epoch_loop.batch_progress
    if batches.total.ready == 0:
        loop.epoch_loop.restarting = False  # nothing was trained: Lightning would count a batch that it does not take
    if batches.total.ready == batches.total.processed + 1:  # the resumed run takes this batch again
        batches.total.ready = batches.total.started = batches.total.processed
    if loop.restarted_on_epoch_start:
        # Lightning forgets that this epoch began and does not count it again, so later checkpoints would be misread.
        epochs: Any = loop.epoch_progress.current
        epochs.ready = epochs.completed + 1
    if loop.restarted_on_epoch_end:
        # With `max_steps` Lightning believes that the epoch is unfinished. It would run the epoch's end again, count
        # the epoch twice, and so stop an epoch early if `max_epochs` is set as well.
        loop.epoch_progress.increment_completed()
        for inner in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
            inner._restarting = False
            inner.reset_restart_stage()
    complete = loop.epoch_loop.restarting and batches.current.ready == batches.current.completed > 0
    if complete and loop.epoch_loop._num_ready_batches_reached():
        # Lightning would ask for another batch, and there is one if `limit_train_batches` cuts the epoch short.
        fetcher.done = True
        fetcher.batches = []  # type: ignore[attr-defined]  # fetched ahead, where the length is unknown


def _take_up_validation(state: dict[str, Any]) -> None:
    """Write into saved counters that a validation was interrupted at its first batch."""
    validation = state["epoch_loop.val_loop.batch_progress"]
    validation["is_last_batch"] = False
    validation["current"] = dict.fromkeys(validation["current"], 0)
    for counters in _counters(validation):
        counters["processed"] = counters["completed"]
        counters["ready"] = counters["started"] = counters["completed"] + 1


def amid_validation(trainer: Trainer) -> bool:
    """Whether a validation of the training has begun and has not logged its results yet."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    progress: Any = loop.batch_progress.current
    over = loop.batch_progress.is_last_batch and progress.completed == progress.ready and not loop._logged_outputs
    return bool(trainer.validating and trainer.state.fn == TrainerFn.FITTING and not over)


def _counters(progress: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    return progress["total"], progress["current"]


# ---------------------------------------------------------------- the random state of a process


def restore_random_states(states: list[dict[str, Any]]) -> None:
    """Restore this rank's state; ranks that did not exist when the state was written keep theirs."""
    if rank() < len(states):
        state = states[rank()]
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        if state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


def own_random_state() -> dict[str, Any]:
    """The state of this rank's generators: torch's, Python's, NumPy's and that of its CUDA device."""
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


# ---------------------------------------------------------------- results of processes that a Trainer starts


#: Where a ``state_dict`` keeps what belongs to the weights beside them: torch's name for the last part of such keys.
BESIDE = "_extra_state"


def give_back(module: ScoringModel, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Add to a ``state_dict`` what belongs to these weights, as bytes in a tensor, which every kind of file can hold.

    It is the threshold, the labels' names and what the inputs consist of. Lightning's ``ddp_spawn``, ``ddp_fork`` and
    ``ddp_notebook`` train copies of the module and bring back the first one's ``state_dict`` alone: there, the result
    of the training as well.
    """
    entry: dict[str, Any] = {}
    _save_description(module, entry)
    trainer = None if prefix else module._trainer
    done = TrainerFn.FITTING, TrainerStatus.FINISHED  # in which the launcher alone asks: after all hooks of the run
    if trainer is not None and starts_processes(trainer) and (trainer.state.fn, trainer.state.status) == done:
        entry["training"] = module.training_state.result()
    if entry.keys() - {RECTANGLE, STEP}:
        make_plain(entry)
        file = io.BytesIO()
        torch.save(entry, file)
        state[prefix + BESIDE] = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def take_back(module: ScoringModel, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Take what :func:`give_back` added out of a ``state_dict``, and describe the module by it."""
    packed = state.pop(prefix + BESIDE, None)
    if packed is None:
        return
    entry = torch.load(io.BytesIO(packed.numpy(force=True).tobytes()), weights_only=True)
    if "training" in entry:
        dtypes = {state[name].dtype for name, _ in module.named_parameters() if name in state}
        if len(dtypes) == 1:  # a Trainer in double or half precision converted the whole module that it trained
            module.to(dtypes.pop())
        module.trained_labels = Labels(**entry[LABELS]) if LABELS in entry else None
        module.knows_labels = True
        module.training_state.load_result(entry["training"])
    else:
        _take_rectangle(module, entry, resumes=False)
        module.training_state.note_weights_from_file(entry[STEP])
    _take_layout(module, entry)


# ---------------------------------------------------------------- hyperparameters


def save_cli_hyperparameters(module: LightningModule) -> None:
    """Keep what LightningCLI built the module from, so that ``load_from_checkpoint`` can rebuild it."""
    given = getattr(hparams_mixin, "_given_hyperparameters", None)
    if given is not None and given.get() is not None:
        module.save_hyperparameters()


def offer_hyperparameters(trainer: Trainer, module: Any) -> None:
    """Add algorithm, optimizer and sampling to the hyperparameters that Lightning is about to log; a user's own win."""
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    algorithm, optimizer = module.algorithm, trainer.optimizers[0]

    def shown(name: str, values: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, **{key: value for key, value in values.items() if isinstance(value, (int, float, str))}}

    arguments = {name: getattr(algorithm, name, None) for name in inspect.signature(type(algorithm)).parameters}
    surrogate = {"surrogate": algorithm.surrogate.name} if hasattr(algorithm, "surrogate") else {}
    described: dict[str, Any] = {
        "algorithm": shown(type(algorithm).__name__, {**arguments, **surrogate}),
        "optimizer": shown(type(optimizer).__name__, optimizer.param_groups[0]),
        "sampler": shown(type(datamodule).__name__, {n: getattr(datamodule, n, None) for n in SAMPLING_ARGUMENTS}),
        "score_activation": module.score_activation,
        "tasks": {str(label): dict(settings) for label, settings in module.label_settings.items()},
    }
    if trainer.lr_scheduler_configs:
        described["lr_scheduler"] = type(trainer.lr_scheduler_configs[0].scheduler).__name__
    elsewhere = getattr(datamodule, "hparams_initial", None) or {}  # Lightning refuses a name that both have
    new = {name: value for name, value in described.items() if value and name not in elsewhere}
    module._hparams_initial = AttributeDict({**new, **(module.hparams if module._log_hyperparams else {})})
    module._log_hyperparams = True


def check_savable(trainer: Trainer) -> None:
    """Refuse hyperparameters that can't be read back before training, if any checkpoint will be saved."""
    owners = {"hyper_parameters": trainer.lightning_module, "datamodule_hyper_parameters": trainer.datamodule}  # type: ignore[attr-defined]
    if trainer.checkpoint_callbacks:
        held = {name: dict(getattr(owner, "hparams", None) or {}) for name, owner in owners.items()}
        leave_out_objects(held)
        make_plain(held)


def leave_out_objects(checkpoint: dict[str, Any]) -> None:
    """Leave out hyperparameters that are objects or functions, which ``weights_only=True`` could not read.

    The user passes them again to ``load_from_checkpoint``. A function is warned of, since the default in its place may
    compute something else; not one that makes the optimizer.
    """
    for key in ("hyper_parameters", "datamodule_hyper_parameters"):
        given = checkpoint.get(key) or {}
        objects = [n for n, v in given.items() if isinstance(v, (Algorithm, nn.Module, Dataset, DataLoader))]
        functions = [n for n, v in given.items() if callable(v) and n not in objects]
        lost = [
            f"`{n}` ({getattr(given[n], '__name__', '')})" for n in functions if n not in ("optimizer", "lr_scheduler")
        ]
        if lost and key == "hyper_parameters":
            warn_on_rank_zero(
                f"Checkpoints can't hold functions or classes, so they leave out the hyperparameter {', '.join(lost)}: "
                "`load_from_checkpoint` would take its default. Pass it there again, or make it a name, as in 'relu'."
            )
        if key in checkpoint:
            checkpoint[key] = {n: v for n, v in given.items() if n not in objects and n not in functions}
