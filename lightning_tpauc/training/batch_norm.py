"""Running statistics of batch normalisation: equal on all ranks, and right for averaged weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from lightning_tpauc.distributed import world_size
from lightning_tpauc.scoring.forward_passes import call_model, device_batches
from lightning_tpauc.training.weights import IterateAverage


def batch_norm_statistics(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of the floating running statistics of all batch normalisations in ``module``."""
    for prefix, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._NormBase):
            for name in ("running_mean", "running_var"):
                statistic = getattr(child, name)
                if isinstance(statistic, Tensor):
                    yield f"{prefix}.{name}" if prefix else name, statistic


@torch.no_grad()
def average_over_ranks(statistics: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over ranks, in place; a collective.

    Under manual optimization DDP does not synchronise buffers after the first forward pass. The ranks' statistics drift
    apart, and without this the ranks would validate different models.
    """
    world = world_size()
    if world == 1:
        return
    for statistic in statistics:
        dist.all_reduce(statistic)
        statistic.div_(world)


def agree_on_statistics(model: nn.Module, average: IterateAverage | None = None) -> None:
    """Average over ranks the statistics of the last iterate, and their averages over the stage; a collective."""
    average_over_ranks(statistic for _, statistic in batch_norm_statistics(model))
    if average is not None:
        average_over_ranks(average.mean[len(average.parameters) :])


@torch.no_grad()
def recompute_statistics(module: LightningModule, trainer: Trainer) -> None:
    """Estimate the statistics of the current weights as cumulative averages over one epoch of training batches."""
    layers = [child for child in module.modules() if isinstance(child, nn.modules.batchnorm._NormBase)]
    layers = [layer for layer in layers if layer.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    modes = [(child, child.training) for child in module.modules()]
    module.train()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # cumulative moving average
    loader: Any = trainer.train_dataloader
    # the fit loop's own iteration over the loader must not be disturbed
    batches = loader.whole_epoch() if hasattr(loader, "whole_epoch") else loader
    length = int(trainer.num_training_batches) if math.isfinite(trainer.num_training_batches) else None
    for batch in device_batches(module, batches, "Recomputing batch-norm statistics", length):
        call_model(module, batch.inputs)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    for child, training in modes:
        child.training = training
    average_over_ranks(statistic for _, statistic in batch_norm_statistics(module))
