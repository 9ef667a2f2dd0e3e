"""Whether a checkpoint fits the module that loads it: its format, rectangle, inputs, objective, optimizer and data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.errors import CheckpointError, TPAUCWarning
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.scoring.labels import Labels, by_position, listed
from lightning_tpauc.training.trained_module import TrainedModule
from lightning_tpauc.training.weights import IterateAverage

#: Key of the training's state; missing in a checkpoint of weights alone.
KEY = "lightning_tpauc"
#: Key of the rectangle that was trained; in every checkpoint.
RECTANGLE = "lightning_tpauc_rectangle"
#: Key of what the inputs consist of; in every checkpoint of a module that was trained.
INPUTS = "lightning_tpauc_inputs"
#: Key of the names, rectangles and weights of several labels; in every checkpoint of a model that has them.
LABELS = "lightning_tpauc_labels"
FORMAT_VERSION = 1
#: Score differences at which two surrogates are compared.
_POINTS = (-2.0, -0.7, -0.1, 0.0, 0.3, 1.0)


def record_rectangle(module: TrainedModule, checkpoint: dict[str, Any]) -> None:
    """Store the rectangle, ``[min_tpr, max_fpr]``, the labels and the inputs' layout in a checkpoint."""
    checkpoint[RECTANGLE] = [float(module.algorithm.min_tpr), float(module.algorithm.max_fpr)]
    if module.trained_labels is not None:
        checkpoint[LABELS] = module.trained_labels.state_dict()
    if module.input_layout is not None:
        checkpoint[INPUTS] = module.input_layout


def training_entry(module: TrainedModule, checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """The training's state in a loaded checkpoint; ``None`` if it holds weights alone, which is enough for inference.

    A module that was made without an algorithm evaluates the checkpoint's rectangle from then on.

    Raises:
        CheckpointError: if the checkpoint has a newer format; or if training is to resume from it, and it holds weights
            alone, was trained for another rectangle, or with other options of the optimizer or the schedule.
    """
    ours: dict[str, Any] | None = checkpoint.get(KEY)
    resumes = is_resuming(module._trainer)
    if ours is None and resumes:
        msg = (
            "The checkpoint to resume from holds no state of lightning_tpauc: it was saved with save_weights_only=True "
            "or by another module. Pass its path as `init_from` of TPAUCModule to start a new run from its weights."
        )
        raise CheckpointError(msg)
    if ours is not None and ours.get("format_version", 0) > FORMAT_VERSION:
        msg = (
            f"The checkpoint has format {ours['format_version']} of lightning_tpauc, but this release reads up to "
            f"{FORMAT_VERSION}. Upgrade with `pip install -U lightning-tpauc`."
        )
        raise CheckpointError(msg)
    if resumes:
        _check_options(module.hparams, checkpoint.get("hyper_parameters") or {})
    module.input_layout = checkpoint.get(INPUTS, module.input_layout)
    rectangle = checkpoint.get(RECTANGLE)
    if rectangle is not None:
        _compare(module, *rectangle)
        _compare_labels(module, checkpoint.get(LABELS))
        module.knows_labels = True
    return ours


def is_resuming(trainer: Trainer | None) -> bool:
    """Whether training will resume from the checkpoint that is being loaded; else it is to be evaluated."""
    return trainer is not None and trainer.state.fn == TrainerFn.FITTING


def objective(algorithm: Algorithm, score_activation: str) -> dict[str, Any]:
    """The objective that the dual variables belong to: activation of scores, and the surrogate's values at points."""
    surrogate: Surrogate | None = getattr(algorithm, "surrogate", None)
    values = [] if surrogate is None else surrogate.value(torch.tensor(_POINTS, dtype=torch.float64)).tolist()
    return {"score_activation": score_activation, "surrogate": values}


def check_same_run(
    state: dict[str, Any], algorithm: Algorithm, score_activation: str, average: IterateAverage | None, trainer: Trainer
) -> None:
    """Check that a training can go on from a checkpoint's entry; warn if its batches will be others.

    Raises:
        CheckpointError: if it was written by another algorithm or optimizer, for another objective or on other data.
    """
    name = type(algorithm).__name__
    if state["algorithm"]["name"] != name:
        msg = (
            f"The checkpoint was written by {state['algorithm']['name']}, but the module trains with {name}. "
            "Pass the checkpoint as `init_from` to start a new run from its weights."
        )
        raise CheckpointError(msg)
    _check_objective(objective(algorithm, score_activation), state.get("objective") or {})
    before, now = state.get("optimizer"), optimizer_name(trainer)
    if before is not None and before != now:
        msg = (
            f"The checkpoint was written with the optimizer {before}, but the module trains with {now}, which "
            "can't go on from that state. Pass the checkpoint as `init_from` to start a new run from its weights."
        )
        raise CheckpointError(msg)
    if average is not None and not average.fits(state["iterates"]):
        msg = (
            "The checkpoint's run kept other anchors and averages than this one: `gamma` was changed between infinity "
            "(STACO1) and a number (STACO2), `batch_norm` of StageCallback was, or what the optimizer trains. Restore "
            "the setting, or pass the checkpoint as `init_from` to start a new run from its weights."
        )
        raise CheckpointError(msg)
    algorithm.check_num_positives(state["algorithm"]["state"])
    written, present = state["fingerprint"], fingerprint(trainer)
    if written is not None and present is not None and written != present:
        msg = (
            f"The checkpoint was written on other training data (fingerprint {written}, now {present}): its dual "
            "variables belong to other positives. Pass the checkpoint as `init_from` to start anew from its weights."
        )
        raise CheckpointError(msg)
    _warn_of_other_batches(state.get("batches"), batch_settings(trainer))


def batch_settings(trainer: Trainer) -> dict[str, Any] | None:
    """What the batches of a training depend on besides the data; ``None`` if they are not a PosNegDataModule's."""
    plans: Any = getattr(trainer.train_dataloader, "batch_plans", None)
    if plans is None:
        return None
    sizes = plans.global_sizes(trainer.world_size)._asdict()
    return {**sizes, "sampling": type(plans).__name__, "seed": plans.seed, "steps_per_epoch": plans.epoch_steps}


def _warn_of_other_batches(written: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> None:
    """Say if a resumed run draws other batches than its checkpoint's run would have drawn."""
    if written is None or now is None:  # an earlier release, or loaders of one's own
        return
    names = ["sampling"] if written["sampling"] != now["sampling"] else list(now)  # which has sizes of its own
    changes = [f"`{name}` from {written[name]} to {now[name]}" for name in names if written[name] != now[name]]
    if changes:
        rank_zero_warn(
            f"This run draws other batches than the one that wrote the checkpoint ({', '.join(changes)}; sizes are "
            "those of all processes together). It goes on from the checkpoint's state, but will not end as that run "
            "would have. Restore the arguments of the data module, if that was not meant.",
            category=TPAUCWarning,
        )


def optimizer_name(trainer: Trainer) -> str:
    """Class name of the optimizer."""
    return type(trainer.optimizers[0]).__name__


def fingerprint(trainer: Trainer) -> str | None:
    """The fingerprint of the training data; ``None`` if there is none."""
    found = getattr(getattr(trainer, "datamodule", None), "fingerprint", None)
    return str(found) if found is not None else None


def _check_objective(now: dict[str, Any], written: dict[str, Any]) -> None:
    """Raise :class:`CheckpointError` if a checkpoint's dual variables belong to another surrogate or activation."""
    for name, value in written.items():
        if not _same(now[name], value):
            change = f"from {value!r} to {now[name]!r}" if name == "score_activation" else "(its kind, margin or scale)"
            msg = (
                f"The `{name}` was changed {change} since the checkpoint was written: its dual variables belong to "
                "other losses. Restore it, or pass the checkpoint as `init_from` to start a new run from its weights."
            )
            raise CheckpointError(msg)


def _same(now: Any, before: Any) -> bool:
    if isinstance(now, str) or len(now) != len(before):
        return bool(now == before)
    values, others = (torch.tensor(numbers, dtype=torch.float64) for numbers in (now, before))
    return torch.allclose(values, others, rtol=1e-9, atol=1e-12, equal_nan=True)  # processors round exp differently


def _check_options(given: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    """Refuse changed options of optimizer and schedule: both resume with the options in their saved state.

    Only the command line stores these options.
    """
    if not {"_class_path"} <= given.keys() & written.keys():
        return
    changes = [line for name in ("optimizer", "lr_scheduler") for line in _changes(name, written, given)]
    if changes:
        msg = (
            f"A resumed run goes on with the optimizer and the schedule of its checkpoint, but {'; '.join(changes)}. "
            "Leave that option as it was, or pass the checkpoint as `init_from` to start a new run from its weights."
        )
        raise CheckpointError(msg)


def _changes(path: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describe what differs below a dotted path, leaving out options that only one of both releases knows."""
    name = path.rpartition(".")[2]
    old, new = before.get(name), now.get(name)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() & new.keys()):
            yield from _changes(f"{path}.{key}", old, new)
    elif old != new:
        yield f"`{path.replace('.init_args', '')}` was changed from {_brief(old)} to {_brief(new)}"


def _brief(value: Any) -> str:
    return str(value["class_path"]) if isinstance(value, Mapping) and "class_path" in value else repr(value)


def _compare(module: TrainedModule, min_tpr: float, max_fpr: float) -> None:
    algorithm = module.algorithm
    if (min_tpr, max_fpr) == (algorithm.min_tpr, algorithm.max_fpr):
        return
    if is_resuming(module._trainer):
        msg = (
            f"The checkpoint was trained for min_tpr={min_tpr:g} and max_fpr={max_fpr:g}, but the module's "
            f"{type(algorithm).__name__} for {algorithm.min_tpr:g} and {algorithm.max_fpr:g}: the dual variables "
            "belong to another objective. Pass an algorithm for the same rectangle, or the checkpoint as `init_from` "
            "to start a new run from its weights."
        )
        raise CheckpointError(msg)
    if module.algorithm_is_default:
        module.evaluate_for(min_tpr, max_fpr)
    else:
        rank_zero_info(
            f"The checkpoint was trained for TPR >= {min_tpr:g} and FPR <= {max_fpr:g}; the algorithm that is given "
            f"evaluates TPR >= {algorithm.min_tpr:g} and FPR <= {algorithm.max_fpr:g}."
        )


def _compare_labels(module: TrainedModule, written: dict[str, Any] | None) -> None:
    """Compare a checkpoint's labels with the data's where these are known, or evaluate the checkpoint's."""
    resumes = is_resuming(module._trainer)
    found = None if written is None else Labels.from_state_dict(written)
    known = module.trained_labels
    names = [("one label" if labels is None else f"the labels {listed(labels.names)}") for labels in (found, known)]
    if (resumes or (found is not None and known is not None)) and names[0] != names[1]:
        msg = f"The checkpoint was trained for {names[0]}, but the data have {names[1]}: pass the same columns."
        raise CheckpointError(msg)
    if resumes and found is not None and known is not None and found != known:
        msg = (
            f"The checkpoint was trained with `tasks={_named(found)}`, but the module has `tasks={_named(known)}`. "
            "Restore them, or pass the checkpoint as `init_from` to start a new run from its weights."
        )
        raise CheckpointError(msg)
    if found is not None and not resumes:
        given = by_position(module.label_settings, found.names) if module.label_settings else found.settings
        module.evaluate_labels(found._replace(settings=given))


def _named(labels: Labels) -> dict[str, dict[str, float]]:
    return {labels.names[k]: dict(own) for k, own in sorted(labels.settings.items())}
