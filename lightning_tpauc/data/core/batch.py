"""Batches for training and for evaluation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from lightning_tpauc.errors import ArgumentError

__all__ = ("EvalBatch", "PosNegBatch", "check_training_batch")


class PosNegBatch(NamedTuple):
    """One joint training batch, ordered [positives | negatives | dual negatives].

    The model sees ``inputs`` in a single forward pass. Its scores are then split by the three sizes.

    Attributes:
        inputs: the collated items. The first axis, or the graphs of a PyG batch, are ``num_pos + num_neg +
            num_dual_neg`` examples.
        index: int64 tensor ``(num_pos,)``: position of each positive among the training positives, ``0 .. n_pos - 1``,
            without repetition.
        num_pos: number of positives on this rank, S.
        num_neg: number of negatives on this rank, B~: they move the weights and thresholds.
        num_dual_neg: number of independent negatives on this rank, B: they move the dual weights; 0 if none are used.
        shares: ``(num_pos, num_neg, num_dual_neg)`` of every rank, known to all without communication; ``None`` in one
            process and in hand-made batches.
    """

    inputs: Any
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a batch
    num_pos: int
    num_neg: int
    num_dual_neg: int
    shares: tuple[tuple[int, int, int], ...] | None = None

    def to(self, device: torch.device | str) -> PosNegBatch:
        """The batch on ``device``. Lightning calls this method, so it does not search the sizes for tensors."""
        inputs, index = move_data_to_device(self.inputs, device), move_data_to_device(self.index, device)
        return self._replace(inputs=inputs, index=index)


class EvalBatch(NamedTuple):
    """One batch for validation, test, prediction and scoring.

    Attributes:
        inputs: the collated items.
        target: int64 tensor ``(N,)``: 0 or 1. Metrics ignore rows with -1. These are unlabelled examples, and rows of
            batches that are repeated to make the number of forward passes equal on all ranks.
        example_id: int64 tensor ``(N,)``: position in the evaluated data set; -1 for rows of repeated batches.
    """

    inputs: Any
    target: Tensor
    example_id: Tensor

    def to(self, device: torch.device | str) -> EvalBatch:
        """The batch on ``device``."""
        return EvalBatch(*move_data_to_device(tuple(self), device))


def check_training_batch(batch: Any) -> None:
    """Raise :class:`ArgumentError` unless ``batch`` is a :class:`PosNegBatch`."""
    if isinstance(batch, PosNegBatch):
        return
    msg = (
        f"Expected training batches of type PosNegBatch, which name their positives, but got a {type(batch).__name__}. "
        "Pass the data set instead of a DataLoader of it: "
        "`trainer.fit(module, datamodule=PosNegDataModule(train_set, val_set, num_pos=32, num_neg=32))`."
    )
    raise ArgumentError(msg)
