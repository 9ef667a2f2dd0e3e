"""Where a checkpoint comes from: which format, which kind of module, which rectangle, which inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from lightning_tpauc.errors import CheckpointError

if TYPE_CHECKING:
    from lightning_tpauc.functional.surrogates import Surrogate
    from lightning_tpauc.module import TPAUCModule

__all__ = ("FORMAT_VERSION", "KEY", "check_objective", "objective", "read", "resumes", "sign")

#: What training continues from; missing in a checkpoint of weights alone.
KEY = "lightning_tpauc"
#: What was trained for; in every checkpoint.
RECTANGLE = "lightning_tpauc_rectangle"
#: What its inputs consist of; in every checkpoint of a module that was trained.
INPUTS = "lightning_tpauc_inputs"
FORMAT_VERSION = 1
#: Score differences at which two surrogates are told apart.
_POINTS = (-2.0, -0.7, -0.1, 0.0, 0.3, 1.0)


def sign(module: TPAUCModule, checkpoint: dict[str, Any]) -> None:
    """Write down the rectangle, ``[min_tpr, max_fpr]``, and the inputs' layout."""
    checkpoint[RECTANGLE] = [float(module.algorithm.min_tpr), float(module.algorithm.max_fpr)]
    if module.input_layout is not None:
        checkpoint[INPUTS] = module.input_layout


def read(module: TPAUCModule, checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """Our part of a loaded checkpoint; ``None`` if it has none, which is enough for inference.

    A module that was made without an algorithm evaluates the checkpoint's rectangle.

    Raises:
        CheckpointError: if it was written by a newer format; if training is to go on from it and it holds weights
            alone, was trained for another rectangle, or by an optimizer or schedule with other options.
    """
    ours: dict[str, Any] | None = checkpoint.get(KEY)
    if ours is None and resumes(module):
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
    if resumes(module):
        _check_options(module.hparams, checkpoint.get("hyper_parameters") or {})
    module.input_layout = checkpoint.get(INPUTS, module.input_layout)
    rectangle = checkpoint.get(RECTANGLE)
    if rectangle is not None:
        _compare(module, *rectangle)
    return ours


def resumes(module: TPAUCModule) -> bool:
    """Whether a checkpoint that is being loaded is one that training goes on from, and not one to evaluate."""
    trainer = module._trainer
    return trainer is not None and trainer.state.fn == TrainerFn.FITTING


def objective(module: TPAUCModule) -> dict[str, Any]:
    """What the dual variables belong to: the scores' activation, and the surrogate by its values at a few points."""
    surrogate: Surrogate | None = getattr(module.algorithm, "surrogate", None)
    values = [] if surrogate is None else surrogate.value(torch.tensor(_POINTS, dtype=torch.float64)).tolist()
    return {"score_activation": module.score_activation, "surrogate": values}


def check_objective(module: TPAUCModule, written: dict[str, Any] | None) -> None:
    """Raise :class:`CheckpointError` if a checkpoint's dual variables belong to another surrogate or activation."""
    now = objective(module)
    for name, value in (written or {}).items():
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
    """Optimizer and schedule go on with the options in their state, so that others would be ignored.

    Only the command line writes down their options.
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
    """What differs below a dotted path; options that one of both releases did not know yet are left aside."""
    name = path.rpartition(".")[2]
    old, new = before.get(name), now.get(name)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() & new.keys()):
            yield from _changes(f"{path}.{key}", old, new)
    elif old != new:
        yield f"`{path.replace('.init_args', '')}` was changed from {_brief(old)} to {_brief(new)}"


def _brief(value: Any) -> str:
    return str(value["class_path"]) if isinstance(value, Mapping) and "class_path" in value else repr(value)


def _compare(module: TPAUCModule, min_tpr: float, max_fpr: float) -> None:
    algorithm = module.algorithm
    if (min_tpr, max_fpr) == (algorithm.min_tpr, algorithm.max_fpr):
        return
    if resumes(module):
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
