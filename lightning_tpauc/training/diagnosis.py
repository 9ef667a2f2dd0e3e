"""Explains why a run's numbers are not finite any more, or grow without bound, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.distributed.fsdp import whole

__all__ = ("diagnose", "diagnose_divergence")


def diagnose(
    algorithm: Algorithm,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    steps: int,
    score_activation: str,
    only_if_broken: bool = False,
) -> str:
    """Say what is not finite and what to change.

    Args:
        algorithm: the training method.
        model: what is trained.
        optimizers: the one that trains it; none in an evaluation.
        steps: how many were taken.
        score_activation: of the module.
        only_if_broken: return an empty text if the weights and the algorithm's state are finite.
    """
    broken = algorithm.non_finite_states()
    weights = [name for name, p in model.named_parameters() if not bool(torch.isfinite(whole(p.detach())).all())]
    if only_if_broken and not broken and not weights:
        return ""
    sizes = sorted({algorithm.step_sizes[name] for name in broken if name in algorithm.step_sizes})
    if weights or not sizes:
        where = f"the weights ({', '.join(weights[:3])})" if weights else "the loss"
        cause = _half_precision(model, optimizers) if weights else ""
        also = f" or {_quoted(sizes)} of the algorithm" if sizes else ""
        return f"Not finite after {steps} steps: {where}. {cause or _remedy(algorithm, score_activation, also)}"
    lower = f"Lower {_quoted(sizes)} of {type(algorithm).__name__}."
    return f"Not finite after {steps} steps: the state {_quoted(broken)}. {lower}"


def diagnose_divergence(algorithm: Algorithm, reached: float, *, steps: int, score_activation: str) -> str:
    """Say that numbers grow without bound, although they are still finite."""
    remedy = _remedy(algorithm, score_activation)
    return f"Diverged after {steps} steps: loss and state have grown to {reached:.2g}. {remedy}"


def _remedy(algorithm: Algorithm, score_activation: str, also: str = "") -> str:
    unbounded = score_activation == "identity" and not algorithm.takes_logits
    bound = ", or bound the scores with `score_activation='sigmoid'`" if unbounded else ""
    return f"Lower the optimizer's `lr`{also}, standardise the inputs{bound}."


def _half_precision(model: nn.Module, optimizers: Sequence[Optimizer]) -> str:
    """Say what float16 weights break by themselves, at any learning rate; empty for other weights."""
    if all(p.dtype != torch.float16 for p in model.parameters()):
        return ""
    optimizer: Any = optimizers[0]
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
