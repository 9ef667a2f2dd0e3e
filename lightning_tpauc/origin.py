"""Where a checkpoint comes from: which format, which kind of module, which rectangle, which inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.trainer.states import TrainerFn

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
            alone, or was trained for another rectangle.
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
