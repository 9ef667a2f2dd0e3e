"""Explains why a run's numbers are not finite any more, or grow without bound, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightning_tpauc.distributed.fsdp import whole

if TYPE_CHECKING:
    from lightning_tpauc.training.trained_module import TrainedModule

__all__ = ("diagnose", "diagnose_divergence")


def diagnose(module: TrainedModule, only_if_broken: bool = False) -> str:
    """Say what is not finite and what to change.

    Args:
        module: the module that is trained.
        only_if_broken: return an empty text if the weights and the algorithm's state are finite.
    """
    broken = module.algorithm.non_finite_states()
    weights = [name for name, p in module.named_parameters() if not bool(torch.isfinite(whole(p.detach())).all())]
    if only_if_broken and not broken and not weights:
        return ""
    step = f"after {module.batches_seen} steps"
    sizes = sorted({module.algorithm.step_sizes[name] for name in broken if name in module.algorithm.step_sizes})
    if weights or not sizes:
        where = f"the weights ({', '.join(weights[:3])})" if weights else "the loss"
        cause = _half_precision(module) if weights else ""
        also = f" or {_quoted(sizes)} of the algorithm" if sizes else ""
        return f"Not finite {step}: {where}. {cause or _remedy(module, also)}"
    return (
        f"Not finite {step}: the state {_quoted(broken)}. Lower {_quoted(sizes)} of {type(module.algorithm).__name__}."
    )


def diagnose_divergence(module: TrainedModule, reached: float) -> str:
    """Say that numbers grow without bound, although they are still finite."""
    return f"Diverged after {module.batches_seen} steps: loss and state have grown to {reached:.2g}. {_remedy(module)}"


def _remedy(module: TrainedModule, also: str = "") -> str:
    unbounded = module.score_activation == "identity" and not module.algorithm.takes_logits
    bound = ", or bound the scores with `score_activation='sigmoid'`" if unbounded else ""
    return f"Lower the optimizer's `lr`{also}, standardise the inputs{bound}."


def _half_precision(module: TrainedModule) -> str:
    """Say what float16 weights break by themselves, at any learning rate; empty for other weights."""
    if all(p.dtype != torch.float16 for p in module.parameters()):
        return ""
    optimizer: Any = module.trainer.optimizers[0]
    name, precision = type(optimizer).__name__, "precision='16-mixed', '32-true' or 'bf16-true'"
    epsilons = [group["eps"] for group in optimizer.param_groups if "eps" in group]
    lost = [eps for eps in epsilons if eps and not bool(torch.tensor(float(eps), dtype=torch.float16))]
    if lost:
        return (
            f"In float16 (precision='16-true') `eps={lost[0]:g}` of {name} is 0, so it divides by zero wherever a "
            f"squared gradient is too small for float16. Pass `eps=1e-4`, or train with {precision}."
        )
    return f"Weights in float16 (precision='16-true') end at 65504. Lower `lr`, or train with {precision}."


def _quoted(names: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
