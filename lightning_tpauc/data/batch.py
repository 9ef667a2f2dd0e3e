"""Batches for training and for evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from lightning_tpauc.distributed import split_scores
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.extras import is_graph
from lightning_tpauc.functional.pairwise import TaskMasks


class PosNegBatch(NamedTuple):
    """One joint training batch, ordered [positives | negatives | dual negatives].

    The model sees ``inputs`` in a single forward pass. Its scores are then split by the three sizes.

    With several labels, masks say which of the K scores of an example count. The first part then has positives that
    were drawn for the labels of this step. The others have examples that are negative for at least one label.

    Attributes:
        inputs: the collated items of ``num_pos + num_neg + num_dual_neg`` examples.
        index: int64 tensor ``(num_pos,)``: position of each positive among the training positives, ``0 .. n_pos - 1``,
            without repetition. With several labels ``(K, num_pos)``: position among the positives of that label, and 0
            where ``masks.pos`` is False.
        num_pos: number of positives on this rank, S.
        num_neg: number of negatives on this rank, B~: they move the weights and thresholds.
        num_dual_neg: number of independent negatives on this rank, B: they move the dual weights; 0 if none are used.
        shares: ``(num_pos, num_neg, num_dual_neg)`` of every rank, known to all without communication; ``None`` in one
            process and in hand-made batches.
        masks: with several labels, which examples count for each, of shapes ``(K, num_pos)``, ``(K, num_neg)`` and
            ``(K, num_dual_neg)``: positives that were drawn for it, and measured negatives; ``None`` with one label.
        is_uniform: whether this is a uniform batch of several labels, which cross-entropy takes. Every example is then
            in the first and in the second part: ``num_pos`` and ``num_neg`` are both the number of examples.

    Example:
        >>> index, masks = torch.tensor([[4], [0]]), TaskMasks(torch.tensor([[True], [False]]), torch.ones(2, 2) > 0)
        >>> batch = PosNegBatch(torch.zeros(3, 5), index, 1, 2, 0, masks=masks)
        >>> pos, neg, dual = batch.split(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        >>> neg
        tensor([[3., 5.],
                [4., 6.]])
    """

    inputs: Any
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a batch
    num_pos: int
    num_neg: int
    num_dual_neg: int
    shares: tuple[tuple[int, int, int], ...] | None = None
    masks: TaskMasks | None = None
    is_uniform: bool = False

    @property
    def target(self) -> Tensor:
        """Labels of the N examples: int64 tensor ``(N,)``, 1 for positives and 0 for negatives.

        With several labels ``(N, K)``, and -1 where an example does not count for a label in this batch.
        """
        if self.masks is None:
            is_pos = torch.arange(self.num_pos + self.num_neg + self.num_dual_neg, device=self.index.device)
            return (is_pos < self.num_pos).long()
        masks = [mask for mask in self.masks if mask is not None]
        known = [torch.where(mask, value, -1) for mask, value in zip(masks, (1, 0, 0), strict=False)]
        return (torch.maximum(*known) if self.is_uniform else torch.cat(known, dim=1)).T

    def to(self, device: torch.device | str) -> PosNegBatch:
        """The batch on ``device``. Lightning calls this method, so it does not search the sizes for tensors."""
        inputs, index = move_data_to_device((self.inputs, self.index), device)
        masks = None if self.masks is None else move_data_to_device(self.masks, device)
        return self._replace(inputs=inputs, index=index, masks=masks)

    @property
    def num_examples(self) -> int:
        """Number of examples on this rank."""
        return self.num_pos + (0 if self.is_uniform else self.num_neg + self.num_dual_neg)

    def chunks(self, size: int | None) -> list[Any]:
        """The inputs in n parts of at most ``size`` examples; part k holds every n-th from the k-th on.

        So all parts have positives and negatives in about the batch's proportion. Every rank has as many parts.

        Raises:
            ArgumentError: if the inputs can't be cut.

        Example:
            >>> batch = PosNegBatch({"x": torch.arange(5)}, torch.tensor([0]), num_pos=1, num_neg=4, num_dual_neg=0)
            >>> batch.chunks(2)
            [{'x': tensor([0, 3])}, {'x': tensor([1, 4])}, {'x': tensor([2])}]
        """
        count = self.num_examples
        most = max([count, *(share[0] if self.is_uniform else sum(share) for share in self.shares or ())])
        number = 1 if size is None else -(-most // size)
        parts = [slice(k, None, number) for k in range(number)]
        return [self.inputs] if number == 1 else [_cut(self.inputs, part, count) for part in parts]

    def split(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cut the scores of the joint batch into those of positives, negatives and dual negatives.

        Args:
            scores: tensor ``(N,)``, or ``(N, K)`` with several labels, of this batch's N examples.

        Returns:
            Tensors ``(num_pos,)``, ``(num_neg,)`` and ``(num_dual_neg,)``, or with a leading dimension of K labels;
            ``None`` as the last one if the batch has no dual negatives.

        Raises:
            ArgumentError: if the scores have another shape.
        """
        sizes = self.num_pos, self.num_neg, self.num_dual_neg
        if self.masks is None:
            pos, neg, dual = split_scores(scores, sizes)
            return pos, neg, dual if self.num_dual_neg else None
        expected = (self.num_pos if self.is_uniform else sum(sizes), len(self.masks.pos))
        if scores.shape != expected:
            raise ArgumentError(
                f"Expected a score of each of {expected[1]} labels for every example, shape {expected}, but `forward` "
                f"returned shape {tuple(scores.shape)}. Let the model have {expected[1]} outputs."
            )
        if self.is_uniform:  # the masks alone tell the parts apart
            return scores.T, scores.T, None
        pos, neg, dual = scores.T.split_with_sizes(sizes, 1)
        return pos, neg, dual if self.num_dual_neg else None


def _cut(inputs: Any, rows: slice, count: int) -> Any:
    """Those rows of a batch of ``count`` examples."""
    if isinstance(inputs, Tensor) and inputs.layout == torch.strided and inputs.shape[:1] == (count,):
        return inputs[rows]
    if isinstance(inputs, Mapping):
        return {key: _cut(value, rows, count) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        parts = [_cut(value, rows, count) for value in inputs]
        return type(inputs)(*parts) if hasattr(inputs, "_fields") else type(inputs)(parts)
    if is_graph(inputs):
        batched: Any = inputs
        return type(batched).from_data_list(batched[rows])
    raise ArgumentError(
        f"`chunk_size` cuts tensors of {count} rows, mappings and lists of them, and graphs, but a batch holds "
        f"{f'a {inputs.layout} tensor {tuple(inputs.shape)}' if isinstance(inputs, Tensor) else repr(inputs)[:80]}."
    )


class EvalBatch(NamedTuple):
    """One batch for validation, test, prediction and scoring.

    Attributes:
        inputs: the collated items.
        target: int64 tensor ``(N,)``, or ``(N, K)`` with several labels: 0, 1, or -1, which metrics ignore. It marks
            labels that are not known, and all labels of a batch that is repeated so that every rank makes as many
            forward passes.
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
    if not isinstance(batch, PosNegBatch):
        raise ArgumentError(
            f"Expected training batches of type PosNegBatch, not {type(batch).__name__}. Pass the data set instead of "
            "a DataLoader: `trainer.fit(module, datamodule=PosNegDataModule(train_set, val_set))`."
        )
