"""The weights that a training keeps beside the model's own: start and mean, the last but one, the best.

The parameters come from the optimizer's groups and not from the module, because under FSDP2 only the former are always
the sharded tensors. Every operation is elementwise, so that the same code works on plain tensors and on DTensors.

The weights before the last update are for SONX, which corrects its running estimates by the change of the scores, and
PAUCI, whose gradient estimate is a recursion over the gradients at both weights. The additional forward pass draws the
same dropout masks as the step's own one and does not change running statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.random import fork_rng

from lightning_tpauc.algorithms.base import Algorithm
from lightning_tpauc.algorithms.pauci import RecursiveAlgorithm
from lightning_tpauc.distributed import assign, reshard, world_size
from lightning_tpauc.functional.pairwise import common_dtype
from lightning_tpauc.scoring.forward import call_model, device_batches, evaluation_mode
from lightning_tpauc.scoring.operating_point import OperatingPoint


class IterateAverage:
    r"""Anchor and running mean of the trained weights over one stage.

    With ``decay`` :math:`\eta`, :math:`\bar w \leftarrow \bar w + \frac{1 + \eta}{k + \eta} (w - \bar w)`. At 0 that is
    the plain mean; above, iterate k weighs about :math:`k^\eta`, however long the run is (polynomial-decay averaging,
    Shamir and Zhang, ICML 2013). If ``is_solution``, the mean is evaluated and saved as the model's weights.

    Attributes:
        count: how many iterates of this stage the mean holds.
        stage: number of finished stages.
    """

    saved = ("count", "stage", "anchor", "mean")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        buffers: Iterable[Tensor] = (),
        *,
        anchored: bool = True,
        averaged: bool = True,
        is_solution: bool = True,
        decay: float = 0.0,
    ) -> None:
        self.is_solution, self.decay = is_solution, decay
        self.parameters = list(parameters)
        self.averaged = [*self.parameters, *buffers] if averaged else []
        self.anchor = [_copy(p) for p in self.parameters] if anchored else []
        self.mean = [_copy(p) for p in self.averaged]
        self.count = self.stage = 0

    @torch.no_grad()
    def update(self) -> None:
        r"""Add the current weights to the mean, after a step."""
        self.count += 1
        if self.mean:
            means = _local(self.mean)
            iterate = [value.to(mean.dtype) for mean, value in zip(means, _local(self.averaged), strict=True)]
            torch._foreach_lerp_(means, iterate, (1.0 + self.decay) / (self.count + self.decay))

    @torch.no_grad()
    def add_proximal_gradient(self, coefficient: float) -> None:
        r"""Add :math:`c\,(w - w_0)` to the gradients, as (eqn:ww) has it."""
        trained = [(p, w0) for p, w0 in zip(self.parameters, self.anchor, strict=True) if p.grad is not None]
        if trained:
            gradients, anchors = _local([p.grad for p, _ in trained]), _local([w0 for _, w0 in trained])
            current = [p.to(w0.dtype) for p, w0 in zip(_local([p for p, _ in trained]), anchors, strict=True)]
            pulls = [d.to(g.dtype) for d, g in zip(torch._foreach_sub(current, anchors), gradients, strict=True)]
            torch._foreach_add_(gradients, pulls, alpha=coefficient)

    @torch.no_grad()
    def finish_stage(self, adopt: bool = True) -> None:
        """End a stage: the mean becomes the next anchor and, with ``adopt``, the current weights (STACO2; not AUCM)."""
        if self.count and self.mean:
            if adopt:
                assign(self.averaged, self.mean)
            assign(self.anchor, self.mean[: len(self.anchor)])
        else:
            assign(self.anchor, [p.detach() for p in self.parameters][: len(self.anchor)])
        self.count = 0
        self.stage += 1


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to(common_dtype(tensor), copy=True)


def _local(tensors: Iterable[Any]) -> list[Tensor]:
    """This rank's shards: torch's operations on lists refuse to mix sharded and ordinary tensors."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


class PreviousWeights:
    r"""Keeps :math:`w_{t-1}` and, for recursive methods, the gradient estimate :math:`v_{t-1}`.

    A step scores its batch in :meth:`swapped_in` before its own forward pass. It calls :meth:`estimate` on the unscaled
    gradients, :meth:`remember` before the optimizer's step, and then :meth:`commit`, or :meth:`discard` if a gradient
    scaler skipped the step.
    """

    saved = ("weights", "estimates")

    def __init__(self, parameters: Iterable[Tensor] = (), recursive: bool = False) -> None:
        self.tensors = list(parameters)
        self.recursive = recursive
        self.weights: list[Tensor] = []
        self.estimates = [torch.zeros_like(p, dtype=common_dtype(p)) for p in self.tensors] if recursive else []
        self._next_weights: list[Tensor] = []
        self._next_estimates: list[Tensor] = []

    def estimate(self, algorithm: Algorithm) -> None:
        """Replace the accumulated gradients by the direction of a recursive method's step."""
        if not isinstance(algorithm, RecursiveAlgorithm):
            return
        trained = [k for k, p in enumerate(self.tensors) if p.grad is not None]
        gradients = [p.grad for p in self.tensors if p.grad is not None]
        new = algorithm.estimate_(gradients, [self.estimates[k] for k in trained])
        self._next_estimates = list(self.estimates)
        for k, estimate in zip(trained, new, strict=True):
            self._next_estimates[k] = estimate

    def remember(self) -> None:
        """Copy the current weights, before the optimizer changes them."""
        self._next_weights = [p.detach().clone() for p in self.tensors]

    def commit(self) -> None:
        """After a step that was taken, make the remembered weights the previous ones."""
        self.weights = self._next_weights
        if self.recursive:
            self.estimates = self._next_estimates
        self.discard()

    def discard(self) -> None:
        """After a step that was skipped, keep the previous weights."""
        self._next_weights, self._next_estimates = [], []

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """The model holds the previous weights inside; statistics and random numbers are put back afterwards."""
        device = self.tensors[0].device
        current = [p.detach().clone() for p in self.tensors]
        buffers = [b.clone() for b in model.buffers()]
        assign(self.tensors, self.weights)
        reshard(model)
        try:
            with torch.set_grad_enabled(self.recursive), fork_rng([device] if device.type == "cuda" else []):
                yield
        finally:
            assign(self.tensors, current)
            assign(model.buffers(), buffers)
            reshard(model)


class BestWeights:
    """A copy of the weights with the best validation so far.

    If two validations have the same ``val/tpauc``, such as 0.0 where the ROC curve passes below the rectangle, the
    larger ``val/auroc`` decides.

    Attributes:
        value: ``(tpauc, auroc)`` of the copy; ``-inf`` before the first validation.
        step: number of training batches that had been seen at that validation.
        operating_point: the threshold that this validation gave, if any.
    """

    saved = ("value", "step", "operating_point", "weights")

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = list(tensors)
        self.weights: list[Tensor] = []
        self.value = (-math.inf, -math.inf)
        self.step = 0
        self.operating_point: OperatingPoint | None = None

    @torch.no_grad()
    def offer(self, tpauc: float, auroc: float, step: int, operating_point: OperatingPoint | None = None) -> None:
        """Copy the model's weights if their validation is better than all before; nan is never better."""
        if math.isnan(tpauc) or not (tpauc, auroc) > self.value:
            return
        self.value, self.step, self.operating_point = (tpauc, auroc), step, operating_point
        if self.weights:
            assign(self.weights, [t.detach() for t in self.tensors])
        else:
            self.weights = [t.detach().clone() for t in self.tensors]


def batch_norm_statistics(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of the floating running statistics of all batch normalisations in ``module``."""
    for prefix, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._NormBase):
            for name in ("running_mean", "running_var"):
                statistic = getattr(child, name)
                if isinstance(statistic, Tensor):
                    yield f"{prefix}.{name}" if prefix else name, statistic


@torch.no_grad()
def agree_on_statistics(model: nn.Module, average: IterateAverage | None = None) -> None:
    """Average over ranks the statistics of the last iterate, and their averages over the stage; a collective.

    Under manual optimization DDP does not synchronise buffers after the first forward pass. The ranks' statistics drift
    apart, and without this the ranks would validate different models.
    """
    world = world_size()
    if world == 1:
        return
    averaged = average.mean[len(average.parameters) :] if average is not None else []
    for statistic in (*(statistic for _, statistic in batch_norm_statistics(model)), *averaged):
        dist.all_reduce(statistic)
        statistic.div_(world)


def recompute_statistics(module: LightningModule, trainer: Trainer) -> None:
    """Estimate the statistics of the current weights as cumulative averages over one epoch of training batches."""
    layers = [child for child in module.modules() if isinstance(child, nn.modules.batchnorm._NormBase)]
    layers = [layer for layer in layers if layer.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    loader: Any = trainer.train_dataloader
    # the fit loop's own iteration over the loader must not be disturbed
    batches = loader.whole_epoch() if hasattr(loader, "whole_epoch") else loader
    length = int(trainer.num_training_batches) if math.isfinite(trainer.num_training_batches) else None
    with evaluation_mode(module):  # which puts every layer's mode back
        module.train()
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # cumulative moving average
        for batch in device_batches(module, batches, "Recomputing batch-norm statistics", length):
            call_model(module, batch.inputs)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    agree_on_statistics(module)
