"""Counts the positives that training visits, to check a number of positives that only the user knows."""

from __future__ import annotations

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_tpauc.distributed import world_size
from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional.checks import as_index

__all__ = ("VisitedPositives",)


class VisitedPositives:
    """Compares ``num_positives`` with the indices of positives in batches; no step waits for a GPU.

    Args:
        num_positives: the number that the user passed.

    Example:
        >>> visited = VisitedPositives(num_positives=3)
        >>> visited.visit(torch.tensor([0, 2]), batch_idx=0)
        >>> visited.count
        2
    """

    def __init__(self, num_positives: int) -> None:
        self.num_positives = num_positives
        self._seen = torch.zeros(num_positives, dtype=torch.bool)
        #: Whether this is the first epoch and it was seen from its first batch on; ``None`` before the first batch.
        self._counts: bool | None = None

    @property
    def count(self) -> int:
        """Number of positives seen."""
        return int(self._seen.sum())

    def visit(self, index: Tensor, batch_idx: int) -> None:
        """Note a batch's positives.

        Raises:
            ArgumentError: if an index is not below ``num_positives``. Batches on a GPU are not checked.
        """
        index = as_index(index)
        if self._counts is None:
            self._counts = batch_idx == 0 and index.device.type == "cpu"
        if index.device.type != "cpu" or index.numel() == 0:
            return
        if int(index.max()) >= self.num_positives or int(index.min()) < 0:
            msg = (
                f"Expected `index` in batches to number the training positives, 0 .. {self.num_positives - 1} for "
                f"`num_positives={self.num_positives}`, but got {int(index.min())} .. {int(index.max())}. Pass the "
                "number of positive training examples, whole, as `num_positives`."
            )
            raise ArgumentError(msg)
        self._seen[index] = True

    def end_epoch(self) -> None:
        """Warn if the first epoch has visited all positives up to some index, and none above it."""
        counts, self._counts = self._counts, False
        complete = bool(self._seen[: self.count].all())
        if counts and complete and world_size() == 1 and 0 < self.count < self.num_positives:
            rank_zero_warn(
                f"The first epoch visited the positives 0 .. {self.count - 1} and no other, but `num_positives="
                f"{self.num_positives}`: the dual variables of the others keep their start, and count. Pass the number "
                "of positive training examples.",
                category=TPAUCWarning,
            )
